"""Whose conversation a request continues: session key and namespace out of the fields that SGLang's requests have."""

from __future__ import annotations

from typing import Any

from delta_core.context import NO_KEY, Key, salt_name


def key_of(request: Any, rid_separator: str | None = None) -> Key:
    """The key of a request: its session_id, cache_salt, extra_key, or what its rid has before the separator.

    The first that is there is the session. cache_salt and extra_key together are the namespace, as they are for
    SGLang's prefix cache. A request with session_params continues a text on the server's side: it has no session.
    All of it is the client's word; a wrong one costs time, never a wrong ID.
    """
    salt, extra = _salt(request, "cache_salt"), _salt(request, "extra_key")
    # The length keeps apart what would otherwise be the same characters, split differently.
    namespace = f"{len(salt)}:{salt}{extra}" if salt or extra else None
    if getattr(request, "session_params", None):
        return Key(None, namespace)
    if session := _text(request, "session_id"):
        return Key(f"session_id:{session}", namespace)
    if salt:
        return Key(f"cache_salt:{salt}", namespace)
    if extra:
        return Key(f"extra_key:{extra}", namespace)
    if rid_separator:
        head, separator, _ = _text(request, "rid").partition(rid_separator)
        if head and separator:
            return Key(f"rid:{head}", namespace)
    return NO_KEY


def _salt(request: Any, field: str) -> str:
    """A salt by the name that nothing but the same salt has, whatever the client sent.

    SGLang splits a batch's lists before it tokenizes, and refuses other types there; but a chat is tokenized before
    anyone has looked at its salt. A list of one is the salt of its one prompt then (n > 1); what else comes is refused
    afterwards.
    """
    value = getattr(request, field, None)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return salt_name(value[0])
    return salt_name(value)


def _text(request: Any, field: str) -> str:
    """A hint, which other types don't give: where to look decides nothing."""
    value = getattr(request, field, None)
    return value if isinstance(value, str) else ""
