"""The vLLM adapter: set DELTA_TOKENIZER=1 and start vLLM as always.

    DELTA_TOKENIZER=1 vllm serve MODEL
    DELTA_TOKENIZER=1 vllm serve MODEL --middleware delta_vllm.SessionHeader   # also reads X-Session-ID

vLLM calls `register` by the entry point `vllm.general_plugins`, in each of its processes, before it makes a tokenizer.
"""

from __future__ import annotations

import logging
import os

from .middleware import SessionHeader

__all__ = ["SessionHeader", "register"]

log = logging.getLogger("delta_vllm")

_TRUE = ("1", "true", "yes", "on")
_called = False


def register() -> None:
    """Put the adapter into this process, once, if DELTA_TOKENIZER says so. Never raises; about 0.1 s when it does."""
    global _called
    if _called or os.environ.get("DELTA_TOKENIZER", "").strip().lower() not in _TRUE:
        return
    _called = True
    try:
        from .install import install

        install()
    except Exception as error:  # noqa: BLE001 - vLLM must start without us, too
        log.error("not installed, vLLM's own tokenizer serves: %s: %s", type(error).__name__, error)
