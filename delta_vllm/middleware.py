"""Reads the header X-Session-ID. On its own, so that a process without the adapter loads nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

_HEADER = b"x-session-id"

header: ContextVar[str | None] = ContextVar("delta_vllm_header", default=None)  # of the running request


class SessionHeader:
    """ASGI middleware: `vllm serve MODEL --middleware delta_vllm.SessionHeader`."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Serve one request, with its session in the context."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        value = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        token = header.set(value.decode("latin-1") or None)
        try:
            await self._app(scope, receive, send)
        finally:
            header.reset(token)
