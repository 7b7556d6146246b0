"""One tokenizer manager's DeltaTokenizer, and how SGLang's calls reach it."""

from __future__ import annotations

import copyreg
import logging
import secrets
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from delta_core import DeltaTokenizer, Reason, session_key
from delta_core.context import NO_KEY, Key, current
from delta_core.errors import where
from delta_core.options import Options

from .keys import key_of

log = logging.getLogger("delta_sglang")

# Inside a chat prompt's rendering: only there `tokenizer.encode` is given the prompt.
_rendering: ContextVar[bool] = ContextVar("delta_rendering", default=False)


class Adapter:
    """What a tokenizer manager tokenizes with, or, where the tokenizer is refused, counts with.

    live: the tokenizer that SGLang loaded. If it is admitted, its class is replaced by one with another `encode`, see
        `override_encode`.
    """

    def __init__(self, live: Any, delta: DeltaTokenizer, options: Options) -> None:
        self.live, self.delta, self._options = live, delta, options

    def refusal(self, manager: Any) -> Reason | None:
        """Why SGLang's own tokenizer is to serve all prompts of its manager, or None."""
        if manager.tokenizer is not self.live:
            return Reason.LIVE_CHANGED
        return self.delta.admission.reason

    def key(self, request: Any) -> Key:
        """The request's key. When it can't be had, a namespace of its own: nothing may be shared across salts."""
        try:
            return key_of(request, self._options.rid_separator)
        except Exception as error:  # noqa: BLE001 - a hint that fails must not fail the request
            if self.delta.fallback(Reason.KEY_FAILED, stock=False):
                log.error("no key, nothing is shared: %s (%s)", Reason.KEY_FAILED, where(error))
            return Key(None, secrets.token_hex(16))

    async def ids(self, texts: str | Sequence[str], keys: Sequence[Key]) -> array[int] | list[array[int]]:
        """What `_tokenize_texts` returns for a text or a batch: IDs with special tokens.

        As arrays: SGLang takes `len` of them, may `del ids[n:]`, and makes arrays of them, a copy of 0.04 ms for 100K
        IDs where making it of a list takes 2 ms.
        Keys are the batch's; a single text's key is in the context. Long new text is encoded off the loop.
        """
        if isinstance(texts, str):
            return await self.delta.encode_array_async(texts, add_special_tokens=True)
        return [
            await self.delta.encode_array_async(
                text, session=key.session, namespace=key.namespace, add_special_tokens=True
            )
            for text, key in zip(texts, keys, strict=True)
        ]

    @contextmanager
    def rendering(self, request: Any) -> Iterator[None]:
        """Around the rendering and encoding of a chat prompt, on whatever thread that happens."""
        key = self.key(request)
        if key == NO_KEY:
            # A request made of another one, as /v1/responses does, has lost its fields; whoever made it set the key.
            key = current()
        token = _rendering.set(True)
        try:
            with session_key(*key):
                yield
        finally:
            _rendering.reset(token)

    def rendered(self, text: str, add_special_tokens: bool) -> list[int]:
        """What `tokenizer.encode` returns for a chat prompt: a list, as SGLang asks for one, adds to it, repeats it."""
        return self.delta.encode(text, add_special_tokens=add_special_tokens)

    def failed(self, error: Exception) -> None:
        """Count a request that SGLang's own tokenizer served because of a fault of ours; logged the first time."""
        if self.delta.fallback(Reason.ADAPTER_FAILED):
            log.error("stock path: %s (%s)", Reason.ADAPTER_FAILED, where(error))

    def left(self, reason: Reason, prompts: int = 1) -> None:
        """Count prompts that are left to SGLang's own tokenizer; logged the first time, unless the startup line did."""
        first = [self.delta.fallback(reason) for _ in range(prompts)]
        if any(first) and reason is not self.delta.admission.reason:
            log.warning("stock path: %s", reason)


def override_encode(adapter: Adapter) -> None:
    """Give the live tokenizer a subclass of its own class, whose `encode` serves chat prompts.

    SGLang's own accelerations ask whether `encode` is the stock one, and call it when it is not. Anywhere but in the
    rendering of a prompt, with other arguments, or on a copy of the tokenizer, it is the stock one. Copies and pickles
    are of the stock class.
    """
    base: Any = type(adapter.live)

    def encode(self: Any, text: Any, *args: Any, **kwargs: Any) -> Any:
        ours = _rendering.get() and self is adapter.live and isinstance(text, str)
        if not ours or args or kwargs.keys() - {"add_special_tokens"}:
            return base.encode(self, text, *args, **kwargs)
        try:
            return adapter.rendered(text, kwargs.get("add_special_tokens", True))
        except Exception as error:  # noqa: BLE001 - the stock tokenizer decides whether it is the text's fault or ours
            ids = base.encode(self, text, **kwargs)
            adapter.failed(error)
            return ids

    def reduce(self: Any, protocol: Any) -> Any:
        make, arguments, *rest = base.__reduce_ex__(self, protocol)
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            make = object.__new__  # what it calls; it would insist on the object's own class
        return make, tuple(base if argument is subclass else argument for argument in arguments), *rest

    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    subclass = type(base.__name__, (base,), {**names, "encode": encode, "__reduce_ex__": reduce})
    adapter.live.__class__ = subclass
