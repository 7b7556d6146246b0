"""Reference: a read-only view of the live tokenizer. It never mutates it, and notices when someone else does."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType
from typing import Any

import tokenizers
from tokenizers import AddedToken, Tokenizer, models

from . import identity
from .errors import Reason
from .forks import renewed_after_fork

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


# How often a Python tokenizer's own method that changes its added tokens has been called in this process, whichever
# tokenizer it was: what is compared is only whether it was, and one more look at a table costs little.
_CHANGING = ("_add_tokens", "add_tokens", "add_special_tokens")
_changes = [0]


def _announce_changes(kind: type) -> None:
    """Have the methods of a class of Python tokenizers that change added tokens say so.

    The class is wrapped, not the object: engines copy and pickle their tokenizers. A method does what it did.
    """
    for base in kind.__mro__:
        for name in _CHANGING:
            method = base.__dict__.get(name)
            if isinstance(method, FunctionType) and not hasattr(method, "_delta_announces"):
                with suppress(Exception):  # a class that takes no attributes: its table is read at intervals
                    setattr(base, name, _announcing(method))


def _announcing(method: FunctionType) -> Callable[..., Any]:
    @functools.wraps(method)
    def announcing(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        finally:
            _changes[0] += 1

    announcing._delta_announces = True  # type: ignore[attr-defined]
    return announcing


class UnsupportedTokenizer(TypeError):
    """There is no Hugging Face `tokenizers.Tokenizer` behind the object."""


class CopyDiffers(RuntimeError):
    """What serialising the live tokenizer gives is another tokenizer; the message says where."""


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


def _keep_ids(state: str) -> str:
    """The same tokenizer, its added tokens in the vocabulary as well, which has no holes any more.

    The library numbers added tokens anew when it reads them, behind as many IDs as the vocabulary has entries: where
    the vocabulary has holes, those are other IDs. A token that it finds in the vocabulary keeps its ID. The model must
    not find it there, see `_out_of_reach`; where it might, the token stays out, and keeps its ID only among the last.
    Every other hole gets a token whose name no byte-level text spells. Whether all this is the same tokenizer is shown
    by `identity`, as for any copy.
    """
    parsed = json.loads(state)
    vocabulary = parsed["model"]["vocab"]
    for token in parsed["added_tokens"]:
        if _out_of_reach(token["content"]):
            vocabulary.setdefault(token["content"], token["id"])
    used = {*vocabulary.values(), *(token["id"] for token in parsed["added_tokens"])}
    vocabulary.update({f"{identity.HOLE}{i}": i for i in range(max(used)) if i not in used})
    return json.dumps(parsed, ensure_ascii=False)


def _out_of_reach(content: str) -> bool:
    """Whether a byte-level BPE model never gives a vocabulary entry of this name, although it is an added token.

    A model without `ignore_merges` gives single characters and what merges make, and all of these are in the
    vocabulary already. One with it also takes a whole piece for the entry that it spells in bytes. ASCII spells
    itself: a piece of these characters would have been found as the added token. A name with a character that stands
    for no byte is spelled by no piece. But a piece " x" is spelled like the added token "\u0120x".
    """
    return identity.bytes_of(content) is None or (len(content) > 1 and content.isascii())


class Reference:
    """The live tokenizer, asked and watched.

    live: a `tokenizers.Tokenizer` or a transformers fast tokenizer. Raises UnsupportedTokenizer.
    """

    version: str = tokenizers.__version__

    def __init__(self, live: object) -> None:
        self.live = live
        self.backend = backend_of(live)
        self._known: identity.Known | None = None
        # IDs are given out in order: a token that is new to the vocabulary takes this one.
        self._next_id = max(self.known.vocabulary.values(), default=-1) + 1
        self._state = self._cheap_state()
        if live is not self.backend:
            _announce_changes(type(live))
        self._changes = _changes[0]
        self._added = self._added_tokens()
        self._watch_due = 0.0
        self._copying = threading.Lock()
        self._copy: Tokenizer | None = None
        self._renumbered = False  # the library would give added tokens other IDs when it reads the state as it is
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._copying = threading.Lock()

    # -- encoding --

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """IDs of each text on its own, without special tokens. Releases the GIL; linear in the text."""
        return [e.ids for e in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

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

    @property
    def known(self) -> identity.Known:
        """What the live tokenizer was asked already, for as long as it is being admitted: see `settle`."""
        if self._known is None:
            self._known = identity.Known(self.backend)
        return self._known

    def settle(self) -> None:
        """Forget what was asked: 50 MB for 150K tokens, which nobody needs once copies and encoders are made."""
        self._known = None

    def parsed(self) -> dict[str, Any]:
        """The live state as a tokenizer.json, parsed. About 0.5 s for 150K tokens; done once."""
        return json.loads(self.known.state)  # type: ignore[no-any-return]

    def serialized(self, *, dense: bool = False) -> str:
        """The live state as a tokenizer.json of which the same tokenizer can be made.

        dense: for a reader that takes no vocabulary with holes. 0.1 s, 0.5 s where the state has to be rewritten.
        """
        # An empty prefix or suffix is none; fastokens takes only the latter.
        state = self.known.state
        for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
            state = state.replace(f'"{affix}":"",', f'"{affix}":null,')
        return _keep_ids(state) if self._renumbered or (dense and self.known.has_holes()) else state

    def copy(self) -> Tokenizer:
        """A tokenizer of our own in the admitted state, shown to be the same one: one for all who need it.

        Made at the first call: 0.5 to 1.5 s and 100 MB for 150K tokens. Raises CopyDiffers, and RuntimeError when the
        live tokenizer is in another state than the admitted one by now.
        """
        with self._copying:
            if self._copy is None:
                self._copy = self._make_copy()
            return self._copy

    def _make_copy(self) -> Tokenizer:
        for _ in range(3):  # a request of the engine's may have set truncation for the moment
            self._watch_due = 0.0
            if self.changed() is None:
                copy = Tokenizer.from_str(self.serialized())
                difference = identity.difference(self.known, copy)
                if difference is not None and not self._renumbered:
                    self._renumbered = True
                    copy = Tokenizer.from_str(self.serialized())
                    difference = identity.difference(self.known, copy)
                self._watch_due = 0.0
                if self.changed() is None and copy.truncation is None and copy.padding is None:
                    if difference is not None:
                        raise CopyDiffers(difference)
                    return copy
            self.settle()
        raise RuntimeError("the live tokenizer changed after admission")

    def affixes(self) -> Affixes | None:
        """The fixed prefix and suffix of the post-processor, found by probing; None when there are none that fit."""
        empty = self.encode("", True)
        probes = ["a", "Hello world", " 1\n", "é" * 3, "".join(self._sample_added())]
        pairs = [(self.encode(probe, True), self.encode(probe, False)) for probe in probes]
        fits = [k for k in range(len(empty) + 1) if all(with_ == empty[:k] + bare + empty[k:] for with_, bare in pairs)]
        return Affixes(tuple(empty[: fits[0]]), tuple(empty[fits[0] :])) if fits else None

    def _sample_added(self) -> list[str]:
        return [token.content for _, token in sorted(self.backend.get_added_tokens_decoder().items())[:8]]

    # -- watching --

    def changed(self) -> Reason | None:
        """Why the live tokenizer is not the one that was admitted any more, or None.

        Truncation, padding, normalizer, pre-tokenizer, post-processor, dropout, a replaced backend and tokens that
        are new to the vocabulary are noticed at once (about 5 us), and so is whatever is added or flagged anew by the
        methods of a Python tokenizer (transformers, as in both engines).

        On a bare `tokenizers.Tokenizer`, or one reached behind its Python object, a token that is in the vocabulary
        already, or gets other flags, shows only in the whole table. That is read again after 256 times its own cost:
        within 5 ms for thirty added tokens, 0.4 s for 800; after a longer pause every request reads it. In this
        window requests get the IDs of the tokenizer as it was. Reading the table for every request would close it, at
        10 to 40 us a request for thirty tokens, 1 to 1.6 ms for 800.
        """
        try:
            if self._cheap_state() != self._state or backend_of(self.live) is not self.backend:
                return Reason.LIVE_CHANGED
            now, changes = time.monotonic(), _changes[0]
            if now >= self._watch_due or changes != self._changes:
                if self._added_tokens() != self._added:
                    return Reason.LIVE_CHANGED
                self._changes = changes
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
