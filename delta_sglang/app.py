"""The HTTP application of `--tokenizer-worker-num` > 1: SGLang's own, after its plugins.

SGLang's worker processes import their application by name and do not load plugins; so they are told this name.
"""

from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.entrypoints.http_server import app  # noqa: E402

__all__ = ["app"]
