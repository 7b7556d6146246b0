"""One tokenizer manager's DeltaTokenizer, and how SGLang's calls reach it."""

from __future__ import annotations

import logging
import secrets
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from delta_core import DeltaTokenizer, Reason, session_key
from delta_core.context import NO_KEY, Key, current
from delta_core.errors import where
from delta_core.options import Options

from .keys import key_of
from .live import Bytes, Prompt, carry, claim, keep_tidy, making, override

log = logging.getLogger("delta_sglang")


class Adapter:
    """What a tokenizer manager tokenizes with, or, where the tokenizer is refused, counts with.

    live: the tokenizer that SGLang loaded. Once it is admitted, its class is replaced by one with other methods, see
        `live.override`. multimodal: whether a processor of SGLang's tokenizes, too, and prompts are decoded again.
    """

    def __init__(self, live: Any, delta: DeltaTokenizer, options: Options, *, multimodal: bool = False) -> None:
        self.live, self.delta, self._options, self._multimodal = live, delta, options, multimodal
        self.stock: Any = type(live)
        self.one_type = False  # whether all tokens of a text have type 0
        self._bytes: Bytes | None = None
        if multimodal and delta.admission.reason is Reason.UNKNOWN_PRE_TOKENIZER:
            keep_tidy(self)
        delta.when_admitted(self._take_over)

    def _take_over(self) -> None:
        """The tokenizer is admitted. Raises what stands against serving with it."""
        if getattr(self.live, "split_special_tokens", False):
            raise ValueError("split_special_tokens is set: special tokens are read as text")
        if self._multimodal:
            self.one_type = not any(self.live._tokenizer.encode("a b").type_ids)
            try:
                self._bytes = Bytes(self.live, lambda ids: self.stock.decode(self.live, ids))
            except Exception as error:  # noqa: BLE001 - only time is lost
                log.warning("prompts are decoded by the tokenizer: %s: %s", type(error).__name__, error)
        override(self)

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
        with session_key(*key), self.making():
            yield

    @contextmanager
    def making(self) -> Iterator[Prompt]:
        """Around whatever makes the IDs of one prompt by the tokenizer's own methods."""
        claim(self.live)
        prompt = Prompt()
        token = making.set(prompt)
        try:
            yield prompt
        finally:
            making.reset(token)

    def attend(self, processor: Any) -> None:
        """Serve what a processor has done in threads of its own. What can't be is stock, and counted."""
        executor = getattr(processor, "mm_processor_executor", None)
        if executor is not None:
            try:
                carry(self, executor)
            except Exception as error:  # noqa: BLE001 - as it says
                log.warning("the processor's threads ask their own tokenizers: %s: %s", type(error).__name__, error)

    def serves(self, text: str) -> bool:
        """Always: DeltaTokenizer itself leaves to the live tokenizer what it must."""
        return True

    def admits(self, text: str) -> bool:
        """Whether the live tokenizer is the admitted one, for who does not ask DeltaTokenizer otherwise."""
        return self.delta.refusal(text) is None

    def rendered(self, text: str, add_special_tokens: bool) -> list[int]:
        """What `tokenizer.encode` returns for a chat prompt: a list, as SGLang asks for one, adds to it, repeats it."""
        return self.delta.encode(text, add_special_tokens=add_special_tokens)

    def rendered_array(self, text: str, add_special_tokens: bool) -> array[int]:
        """The same as an array, for tensors."""
        return self.delta.encode_array(text, add_special_tokens=add_special_tokens)

    def decoded(self, ids: list[int]) -> str | None:
        """What `tokenizer.decode` returns for the IDs of a prompt, or None: it is to decode them."""
        return None if self._bytes is None else self._bytes.text(ids)

    def failed(self, error: Exception) -> None:
        """Count a request that SGLang's own tokenizer served because of a fault of ours; logged the first time."""
        if self.delta.fallback(Reason.ADAPTER_FAILED):
            log.error("stock path: %s (%s)", Reason.ADAPTER_FAILED, where(error))

    def left(self, reason: Reason, prompts: int = 1) -> None:
        """Count prompts that are left to SGLang's own tokenizer; logged the first time, unless the startup line did."""
        first = [self.delta.fallback(reason) for _ in range(prompts)]
        if any(first) and reason is not self.delta.admission.reason:
            log.warning("stock path: %s", reason)
