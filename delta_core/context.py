"""The session key of the running request, carried beside calls that have no parameter for it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Key(NamedTuple):
    """Whose text this is. session: where to look first, a hint; None: by content. namespace: the cache salt's."""

    session: str | None = None
    namespace: str | None = None


NO_KEY = Key()
_current: ContextVar[Key] = ContextVar("delta_session", default=NO_KEY)

# Begins the names of salts that are no strings. Drawn at random: no client can send a string that equals such a name.
_APART = secrets.token_hex(16)
_PLAIN = (bool, int, float, bytes, str, type(None))  # two different values of one of these types differ in their repr


@contextmanager
def session_key(session: str | None, namespace: str | None = None) -> Iterator[None]:
    """Encode within this block for one session, and inside a namespace.

    >>> with session_key("conversation-7", namespace="tenant-a"):
    ...     ids = tok.encode(prompt)

    A context variable: it follows asyncio tasks, and does not cross into other threads by itself.
    """
    token = _current.set(Key(session, namespace))
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Key:
    """The key of the running context; NO_KEY outside any."""
    return _current.get()


def salt_name(salt: object) -> str:
    """The namespace of an engine's cache salt: the same for the same salt, another for any other. Empty for none.

    None and "" are no salt. Engines refuse most salts that are no strings, but not before every tokenization, and some
    they serve; such a one must not share with those who have none. Its name is made of type and value. A value that may
    look like another one gets a name that it alone has, once. Never raises.
    """
    if salt is None:
        return ""
    if isinstance(salt, str):
        return str.__str__(salt)  # of a subclass, the characters that it is compared by
    parts = salt if type(salt) is list or type(salt) is tuple else (salt,)
    if all(type(part) in _PLAIN for part in parts):
        try:
            return f"{_APART}{type(salt).__name__}{salt!r}"
        except ValueError:  # an int of more digits than Python writes
            pass
    return secrets.token_hex(16)
