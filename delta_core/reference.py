"""Reference: a read-only view of the live tokenizer. It never mutates it, and notices when someone else does."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import tokenizers
from tokenizers import AddedToken, Tokenizer, models

from .errors import Reason

# Re-reading the table of added tokens costs 10 to 25 us for thirty of them, 0.2 ms for 256, 1 to 1.6 ms for 800. It is
# read again after this many times its own cost, which bounds what it takes of a busy server's time.
_WATCH = 256

# What the library lets anyone set on a live BPE model, and what changes its IDs.
_BPE_FLAGS = attrgetter(
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
)
_SETTINGS = attrgetter(
    "truncation", "padding", "encode_special_tokens", "model", "normalizer", "pre_tokenizer", "post_processor"
)


class UnsupportedTokenizer(TypeError):
    """There is no Hugging Face `tokenizers.Tokenizer` behind the object."""


@dataclass(frozen=True, slots=True)
class Affixes:
    """What the post-processor puts around the IDs of every text when special tokens are asked for."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]


def backend_of(live: object) -> Tokenizer:
    """The `tokenizers.Tokenizer` of a live object: itself, or that of a transformers fast tokenizer.

    Raises UnsupportedTokenizer.
    """
    if isinstance(live, Tokenizer):
        return live
    backend = getattr(live, "_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        backend = getattr(live, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise UnsupportedTokenizer(f"{type(live).__name__} has no tokenizers.Tokenizer behind it")
    return backend


class Reference:
    """The live tokenizer, asked and watched.

    live: a `tokenizers.Tokenizer` or a transformers fast tokenizer. Raises UnsupportedTokenizer.
    """

    version: str = tokenizers.__version__

    def __init__(self, live: object) -> None:
        self.live = live
        self.backend = backend_of(live)
        # IDs are given out in order: a token that is new to the vocabulary takes this one.
        self._next_id = self._first_free_id()
        self._state = self._cheap_state()
        self._added = self._added_tokens()
        self._watch_due = 0.0

    # -- encoding --

    def encode_segments(self, segments: Sequence[str]) -> list[list[int]]:
        """IDs of each text on its own, without special tokens. Releases the GIL; linear in the text."""
        return [e.ids for e in self.backend.encode_batch_fast(list(segments), add_special_tokens=False)]

    def encode(self, text: Any, add_special_tokens: bool) -> list[int]:
        """What the live tokenizer itself returns for this input, or raises for it."""
        if isinstance(text, str):
            try:
                # The batch call gives the same IDs and lets other threads run meanwhile.
                return list(self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)
            except Exception:  # noqa: BLE001 - the single call decides which error the caller sees
                pass
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    # -- asking --

    def parsed(self) -> dict[str, Any]:
        """The live state as a tokenizer.json, parsed. About 0.5 s for 150K tokens; done once."""
        return json.loads(self.backend.to_str())  # type: ignore[no-any-return]

    def copy(self) -> Tokenizer:
        """A tokenizer of our own in the admitted state. Raises RuntimeError when the live one is in another by now."""
        for _ in range(3):  # a request of the engine's may have set truncation for the moment
            self._watch_due = 0.0
            if self.changed() is None:
                copy = Tokenizer.from_str(self.backend.to_str())
                self._watch_due = 0.0
                if self.changed() is None and copy.truncation is None and copy.padding is None:
                    return copy
        raise RuntimeError("the live tokenizer changed after admission")

    def affixes(self) -> Affixes | None:
        """The fixed prefix and suffix of the post-processor, found by probing; None when there are none that fit."""
        empty = self.encode("", True)
        probes = ["a", "Hello world", " 1\n", "é" * 3, "".join(self._sample_added())]
        pairs = [(self.encode(probe, True), self.encode(probe, False)) for probe in probes]
        fits = [
            k
            for k in range(len(empty) + 1)
            if all(with_ == empty[:k] + bare + empty[k:] for with_, bare in pairs)
        ]
        return Affixes(tuple(empty[: fits[0]]), tuple(empty[fits[0] :])) if fits else None

    def _sample_added(self) -> list[str]:
        return [token.content for _, token in sorted(self.backend.get_added_tokens_decoder().items())[:8]]

    # -- watching --

    def changed(self) -> Reason | None:
        """Why the live tokenizer is not the one that was admitted any more, or None.

        Truncation, padding, normalizer, pre-tokenizer, post-processor, dropout, a replaced backend and tokens that
        are new to the vocabulary are noticed at once (about 5 us). An added token that takes over an existing word of
        the vocabulary shows only in the whole table, which is read again after 256 times its own cost: within 5 ms
        for thirty added tokens, 0.4 s for 800. After a longer pause every request reads it.
        """
        try:
            if self._cheap_state() != self._state or backend_of(self.live) is not self.backend:
                return Reason.LIVE_CHANGED
            now = time.monotonic()
            if now >= self._watch_due:
                if self._added_tokens() != self._added:
                    return Reason.LIVE_CHANGED
                done = time.monotonic()
                self._watch_due = done + _WATCH * (done - now)
        except Exception:  # noqa: BLE001 - a tokenizer that can't be asked is not the admitted one
            return Reason.LIVE_CHANGED
        return None

    def _cheap_state(self) -> tuple[object, ...]:
        truncation, padding, special, model, *parts = _SETTINGS(self.backend)
        return (
            truncation,
            padding,
            special,
            type(model),
            _BPE_FLAGS(model) if type(model) is models.BPE else None,
            self.backend.id_to_token(self._next_id),
            *[None if part is None else part.__getstate__() for part in parts],
        )

    def _added_tokens(self) -> dict[int, AddedToken]:
        """By ID, with their flags: adding a token again with other flags changes it in place, under its old ID."""
        return self.backend.get_added_tokens_decoder()

    def _first_free_id(self) -> int:
        vocab = self.backend.get_vocab(with_added_tokens=True)
        return max(vocab.values(), default=-1) + 1
