"""The SGLang adapter: `--tokenizer-backend delta`. Hooks and session keys; no tokenization logic.

SGLang loads `register` as a plugin in each of its processes. Two light hooks are all that a server sees which does not
select the backend; `install` adds the others in the processes that tokenize, and only when it is selected.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

from .backend import BACKEND

log = logging.getLogger("delta_sglang")

_called = False


def register() -> None:
    """Offer the backend on the command line, and wait for a configuration that selects it. SGLang calls this.

    Never raises; a second call does nothing.
    """
    global _called
    if _called:
        return
    _called = True
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register("sglang.srt.server_args.ServerArgs.add_cli_args", _add_choice, HookType.AFTER)
        HookRegistry.register("sglang.srt.runtime_context.publish", _published, HookType.AFTER)
    except Exception as error:  # noqa: BLE001 - SGLang must start without us, too
        log.error("not registered, there is no backend %s: %s: %s", BACKEND, type(error).__name__, error)


def _add_choice(_result: None, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
    for action in parser._actions:
        if action.dest == "tokenizer_backend" and action.choices is not None and BACKEND not in action.choices:
            action.choices = [*action.choices, BACKEND]


def _published(_context: Any, server_args: Any, *_: Any, role: str = "", **__: Any) -> None:
    """A process has taken up its configuration: the last moment before its tokenizer is made.

    The schedulers and the detokenizer publish other roles. They only decode, and to SGLang's own loader an unknown
    backend is its default one, so they run as they are.
    """
    if role == "tokenizer" and getattr(server_args, "tokenizer_backend", None) == BACKEND:
        try:
            from .install import install

            install(server_args)
        except Exception as error:  # noqa: BLE001 - as above
            log.error("not installed, SGLang's own tokenizer serves: %s: %s", type(error).__name__, error)
