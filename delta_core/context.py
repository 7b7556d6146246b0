"""The session key of the running request, carried beside calls that have no parameter for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_current: ContextVar[tuple[str | None, str | None]] = ContextVar("delta_session", default=(None, None))


@contextmanager
def session_key(session: str | None, namespace: str | None = None) -> Iterator[None]:
    """Encode within this block for one session, and inside a namespace.

    >>> with session_key("conversation-7", namespace="tenant-a"):
    ...     ids = tok.encode(prompt)

    A context variable: it follows asyncio tasks, and does not cross into other threads by itself.
    """
    token = _current.set((session, namespace))
    try:
        yield
    finally:
        _current.reset(token)


def current() -> tuple[str | None, str | None]:
    """The session and the namespace of the running context; (None, None) outside any."""
    return _current.get()
