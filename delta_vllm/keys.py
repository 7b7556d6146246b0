"""Whose request this is: carried from vLLM's HTTP layer to the thread that tokenizes.

A session only says where to look. It is, in vLLM's own order, the body's `session_id`, the header X-Session-ID, or
`vllm_xargs["session_id"]`; then, if DELTA_RID_SEPARATOR is set, what stands before it in the client's `request_id`.
The namespace, `cache_salt`, keeps tenants apart: nothing is shared between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from delta_core.context import Key, salt_name

from .middleware import header


@dataclass(frozen=True, slots=True)
class _Body:
    """What the request's body says of its session."""

    session_id: str | None = None
    xargs_session_id: str | None = None
    request_id_prefix: str | None = None


_body: ContextVar[_Body | None] = ContextVar("delta_vllm_body", default=None)
_key: ContextVar[Key | None] = ContextVar("delta_vllm_key", default=None)


@contextmanager
def of_body(request: object, separator: str | None = None) -> Iterator[None]:
    """Within this block the session is read from this request's body.

    request: any object; what it lacks counts as absent. separator: DELTA_RID_SEPARATOR; without it request IDs, which
    vLLM draws at random where the client gives none, are no keys.
    """
    xargs = getattr(request, "vllm_xargs", None)
    named = xargs.get("session_id") if isinstance(xargs, dict) else None
    request_id = _text(getattr(request, "request_id", None)) or ""
    prefix = request_id.partition(separator)[0] if separator and separator in request_id else None
    body = _Body(_text(getattr(request, "session_id", None)), _text(named), prefix or None)
    token = _body.set(body)
    try:
        yield
    finally:
        _body.reset(token)


@contextmanager
def of_render(prompt_extras: object) -> Iterator[None]:
    """Within this block prompts are tokenized for the session found so far and the salt among these extras.

    Extras that are no mapping may hold any salt: they are one themselves.
    """
    if prompt_extras is not None and not isinstance(prompt_extras, Mapping):
        prompt_extras = {"cache_salt": prompt_extras}
    salt = namespace_of(prompt_extras)
    body = _body.get() or _Body()
    session = body.session_id or header.get() or body.xargs_session_id or body.request_id_prefix
    token = _key.set(Key(session, salt))
    try:
        yield
    finally:
        _key.reset(token)


def namespace_of(holder: Mapping[str, Any] | None) -> str | None:
    """The namespace of the salt among a request's extras or in an offline prompt; None without one."""
    return salt_name(None if holder is None else holder.get("cache_salt")) or None


def current() -> Key | None:
    """The key of the running request; None outside `of_render`: then no salt is known, and nothing may be shared."""
    return _key.get()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
