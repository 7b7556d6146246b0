"""Contexts for every code point, derived from the pattern: what a certification puts beside a character, and why.

A pattern sees a character only through one-character tests, so what the reference makes of "left, c, right" depends on
the class of c alone, as far as pieces go. Two runs of characters with c between them are a *context*. The complete set
holds, on both sides, nothing, runs of every class up to one more than the longest counted repetition of the pattern,
two runs beside each other, the words that the pattern spells out behind an apostrophe, and, under a normalizer, marks
of both kinds of canonical order.

All contexts for all code points are some ten billion texts. None is left out; code points are grouped instead:

1. In each context the pieces of every class are known from one character of it. Where no token of the vocabulary spans
   the borders of c, the IDs are those of the left part, of c alone and of the right part: no merge can join what no
   token spans. So the reference's answer for a code point is *predicted* from its class and its own IDs, at the price
   of a comparison of numbers. (Where a token spans a border, or the normalizer may touch c, the reference is asked.)
2. Two classes are *told apart* by a context when its prediction differs. For every pair of run lengths a few contexts
   tell apart all classes that any context with these lengths can (`separating`). Every code point goes through those:
   an encoder that answers as predicted takes it for a member of its class, at every run length on both sides. What is
   or may become a character (all planes but those that are private or unassigned for good) also goes through every run
   on either side, and through some contexts drawn at random.
3. Code points of one class, UTF-8 length and answer are alike to both engines. Members of each such group, drawn anew
   every time, go through the complete set, and are compared with the reference itself.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

from ...admission.frozen import Frozen
from ...admission.sections import patterns_of
from ...characters import UNKNOWN, NfcStability, PatternProbe
from ...identity import bytes_of
from ...reference import Reference
from ..freezing.derive import letter_bits, pre_tokenizer_from

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

CODE_POINTS = 0x110000
_BLOCK = 2048  # code points classified in one go; surrogates are one block
_HIGH_MARK, _LOW_MARK = "\u0301", "\u0335"  # combining classes 230 and 1: every other mark is reordered around one
_REPETITION = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_WORD = re.compile(r"'([A-Za-z]+)")
_SHORTEST_LONG = 3  # patterns without counted repetitions, too, are tried with runs beyond this


class Context(NamedTuple):
    """What stands before and after a code point. kind: with which others it is compared to tell classes apart."""

    left: str
    right: str
    kind: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """IDs before and after those of a code point, for the members of one class in one context."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@lru_cache(maxsize=8)
def _classes(tests: tuple[str, ...], signatures: tuple[int, ...], blocks: tuple[int, ...]) -> NDArray[np.uint8]:
    """The class of every code point in these blocks by the reference's own regex engine, UNKNOWN elsewhere."""
    probe = PatternProbe(tests)
    result = np.full(CODE_POINTS, UNKNOWN, np.uint8)
    order = np.argsort(np.array(signatures, np.int64))
    known = np.array(signatures, np.int64)[order]
    for block in blocks:
        found = probe.signatures(block * _BLOCK, _BLOCK)
        at = np.searchsorted(known, found).clip(max=len(known) - 1)
        result[block * _BLOCK : (block + 1) * _BLOCK] = np.where(known[at] == found, order[at], UNKNOWN)
    return result


@lru_cache(maxsize=1)
def _stability() -> NfcStability:
    return NfcStability()


@lru_cache(maxsize=1 << 21)
def _untouched(c: str) -> bool:
    """Whether the reference's NFC keeps a character, and joins or reorders it with nothing before or after it."""
    return _stability().right(c) and len(_stability().outcomes(c)) == 1


@lru_cache(maxsize=1 << 21)
def _edges(section: str, left: str, middle: str, right: str) -> tuple[int, ...]:
    """Where the pre-tokenizer cuts left + middle + right: the ends of all pieces but the last."""
    return tuple(end for _, (_, end) in _splitter(section)(left + middle + right))[:-1]


@lru_cache(maxsize=4)
def _splitter(section: str) -> Any:
    return pre_tokenizer_from(json.loads(section))


class Contexts:
    """The contexts of one tokenizer, and what the reference gives in each of them for every code point.

    codes: the code points that will be asked for, none of them a surrogate.
    Making it takes 5 to 30 s: each is asked for its class and its own IDs, every token for what it spans.
    """

    def __init__(self, reference: Reference, frozen: Frozen, codes: Numbers) -> None:
        self._section = json.dumps(frozen.sections.pre_tokenizer)
        self._reference = reference
        self._table = table = frozen.transitions
        self._normalizer = reference.backend.normalizer if frozen.sections.normalizer else None
        self._pieces = Tokenizer(reference.backend.model)  # encodes a whole text as one piece
        self._pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._of_piece: dict[str, tuple[int, ...]] = {}
        # One character of every class, and one with the longest tokens of its own for the runs: splits of a run show in
        # the IDs only where tokens would span them.
        self._members = [min(sample) for sample in table.samples]
        self._see(codes)
        self._runs = self._run_characters()
        patterns = patterns_of(frozen.sections.pre_tokenizer)
        counted = [int(most or least) for p in patterns for least, most in _REPETITION.findall(p)]
        self.longest = max([*counted, _SHORTEST_LONG]) + 1
        self._words = sorted({"'" + word for p in patterns for word in _WORD.findall(p)})
        self._spans = _Spans(reference, {c for side in self._sides() for c in (side[:1], side[-1:]) if c})
        self.separating = self._separating()

    def _see(self, codes: Numbers) -> None:
        self.codes = codes
        blocks = {0, *np.unique(codes // _BLOCK).tolist()}
        self.classes = _classes(self._table.tests, self._table.signatures, tuple(sorted(blocks)))
        self.predictable = np.zeros(CODE_POINTS, bool)
        self.predictable[codes] = self.classes[codes] != UNKNOWN
        if self._normalizer is not None:
            self.predictable[codes] &= np.fromiter((_untouched(chr(c)) for c in codes.tolist()), bool, len(codes))
        self.own, self.own_lengths = self._own_ids()

    def over(self, codes: Numbers) -> Contexts:
        """The same contexts for other code points."""
        other = copy(self)
        other._see(codes)
        return other

    # -- the complete set --

    def _run_characters(self) -> list[str]:
        table = self._table
        letters = letter_bits(table.tests)
        groups: dict[int, list[str]] = {}
        for signature, sample in zip(table.signatures, table.samples, strict=True):
            groups.setdefault(signature & ~letters, []).extend(sample)
        for code in range(0x20, 0x7F):
            if self.classes[code] != UNKNOWN:
                groups[table.signatures[self.classes[code]] & ~letters].append(chr(code))

        def spanned(c: str) -> int:
            return -sum(len(self._piece(c * n)) for n in (2, 3, 4))

        return [max(characters, key=spanned) for characters in groups.values()]

    def _single(self) -> list[tuple[str, int]]:
        return [("", 0), *((c * n, n) for c in self._runs for n in range(1, self.longest + 1))]

    def _double(self) -> list[str]:
        return [a * n + b * m for a in self._runs for b in self._runs if a != b for n in (1, 2) for m in (1, 2)]

    def _marks(self) -> list[str]:
        if self._normalizer is None:
            return []
        return [_HIGH_MARK, _LOW_MARK, "a" + _HIGH_MARK, _LOW_MARK + "b", _HIGH_MARK + _LOW_MARK + _HIGH_MARK]

    def _sides(self) -> list[str]:
        return [*(text for text, _ in self._single()), *self._double(), *self._words, *self._marks()]

    def complete(self) -> Iterator[Context]:
        """Every context. Tens of thousands."""
        single = self._single()
        for (left, n), (right, m) in product(single, single):
            yield Context(left, right, ("runs", n, m))
        for kind, sides in (("two runs", self._double()), ("words", self._words), ("marks", self._marks())):
            for side, (run, _) in product(sides, single):
                yield Context(side, run, (kind, "left"))
                yield Context(run, side, (kind, "right"))

    def one_sided(self) -> list[Context]:
        """Every run on one side, nothing on the other."""
        return [c for c in self.complete() if c.kind[0] == "runs" and bool(c.left) != bool(c.right)]

    # -- predictions --

    def _piece(self, text: str) -> tuple[int, ...]:
        ids = self._of_piece.get(text)
        if ids is None:
            ids = self._of_piece[text] = tuple(self._pieces.encode(text, add_special_tokens=False).ids) if text else ()
        return ids

    def _ids(self, text: str, cuts: Iterable[int]) -> tuple[int, ...]:
        edges = [0, *cuts, len(text)]
        return tuple(chain.from_iterable(self._piece(text[a:b]) for a, b in pairwise(edges)))

    def predicted(self, context: Context, kind: int) -> Prediction:
        """What stands around the IDs of the members of a class."""
        left, right = context.left, context.right
        if self._normalizer is not None:
            left, right = self._normalizer.normalize_str(left), self._normalizer.normalize_str(right)
        edges = _edges(self._section, left, self._members[kind], right)
        return Prediction(
            self._ids(left, [e for e in edges if 0 < e < len(left)]),
            self._ids(right, [e - len(left) - 1 for e in edges if e > len(left) + 1]),
        )

    def asked(self, context: Context) -> Mask:
        """The code points for which the reference itself must be asked in this context."""
        return ~self.predictable | self._spans.after(context.left[-1:]) | self._spans.before(context.right[:1])

    def _own_ids(self) -> tuple[Numbers, Numbers]:
        """The IDs of every code point alone: a row of numbers each, and how many of them count."""
        codes = np.flatnonzero(self.predictable)
        ids = np.full((CODE_POINTS, 4), -1, np.int64)
        lengths = np.zeros(CODE_POINTS, np.int64)
        for start in range(0, len(codes), 65536):
            part = codes[start : start + 65536]
            for code, own in zip(part.tolist(), self._reference.encode_each(list(map(chr, part))), strict=True):
                if len(own) <= 4:
                    ids[code, : len(own)] = own
                    lengths[code] = len(own)
        self.predictable &= lengths > 0
        return ids, lengths

    # -- which contexts tell classes apart --

    def _separating(self) -> list[Context]:
        """For every kind of contexts, a few that tell apart all classes that any of the kind tells apart."""
        kinds: dict[tuple[object, ...], list[Context]] = {}
        for context in self.complete():
            kinds.setdefault(context.kind, []).append(context)
        result: dict[tuple[str, str], Context] = {}
        for contexts in kinds.values():
            for context in self._enough(contexts):
                result.setdefault((context.left, context.right), context)
        return list(result.values())

    def _enough(self, contexts: Sequence[Context]) -> list[Context]:
        count = len(self._members)
        seen: dict[tuple[int, ...], Context] = {}
        for context in contexts:
            answers: dict[Prediction, int] = {}
            labels = tuple(answers.setdefault(self.predicted(context, k), len(answers)) for k in range(count))
            if len(answers) > 1:
                seen.setdefault(labels, context)
        if not seen:
            return list(contexts[:1])
        goal = len(set(zip(*seen, strict=True)))
        chosen: list[tuple[int, ...]] = []
        blocks: list[tuple[int, ...]] = [()] * count
        while len(set(blocks)) < goal:
            best = max(seen, key=lambda labels: len(set(zip(blocks, labels, strict=True))))
            chosen.append(best)
            blocks = [(*block, label) for block, label in zip(blocks, best, strict=True)]
        return [seen[labels] for labels in chosen]

    # -- groups --

    def members(self, rng: random.Random) -> list[list[str]]:
        """Of every class: the first, the last and two members drawn at random of each UTF-8 length."""
        kinds = self.classes[self.codes].astype(np.int64)
        groups = kinds * 8 + np.digitize(self.codes, (0x80, 0x800, 0x10000, 0x40000))
        result: dict[int, dict[str, None]] = {}
        for group in np.unique(groups[kinds != UNKNOWN]).tolist():
            of = self.codes[groups == group].tolist()
            drawn = (of[0], of[-1], rng.choice(of), rng.choice(of))
            result.setdefault(group // 8, {}).update(dict.fromkeys(map(chr, drawn)))
        return [list(members) for members in result.values()]


class _Spans:
    """Which code points may have a token of the vocabulary across their border with one of a few characters.

    By bytes: a token spans "c, r" when it ends a head that c ends with, or holds c, before bytes that r begins with.
    """

    def __init__(self, reference: Reference, beside: Iterable[str]) -> None:
        beside = sorted(set(beside))
        self._before = {c: np.zeros(CODE_POINTS, bool) for c in beside}  # c stands behind the code point
        self._after = {c: np.zeros(CODE_POINTS, bool) for c in beside}
        starts: dict[int, list[tuple[str, bytes]]] = {}
        ends: dict[int, list[tuple[str, bytes]]] = {}
        for c in beside:
            raw = c.encode()
            starts.setdefault(raw[0], []).append((c, raw))
            ends.setdefault(raw[-1], []).append((c, raw))
        heads: dict[str, set[bytes]] = {c: set() for c in beside}
        tails: dict[str, set[bytes]] = {c: set() for c in beside}
        for token in reference.backend.get_vocab(with_added_tokens=False):
            raw = bytes_of(token) or b""  # what is spelled in another way is nothing that merges make of bytes
            for i in range(1, len(raw)):
                for c, own in starts.get(raw[i], ()):
                    if own.startswith(raw[i : i + len(own)]):
                        heads[c].add(raw[max(0, i - 4) : i])
                for c, own in ends.get(raw[i - 1], ()):
                    if own.endswith(raw[max(0, i - len(own)) : i]):
                        tails[c].add(raw[i : i + 4])
        for c in beside:
            _mark(self._before[c], heads[c], _ending_with)
            _mark(self._after[c], tails[c], _beginning_with)
        self._none = np.zeros(CODE_POINTS, bool)

    def before(self, c: str) -> Mask:
        """Code points that some token joins with a `c` behind them."""
        return self._before[c] if c else self._none

    def after(self, c: str) -> Mask:
        """Code points that some token joins with a `c` before them."""
        return self._after[c] if c else self._none


def _mark(mask: Mask, parts: Iterable[bytes], codes: Any) -> None:
    for part in parts:
        mask[codes(part)] = True


def _ending_with(head: bytes) -> Any:
    """The code points whose UTF-8 ends with these bytes, or that these bytes end with."""
    start = len(head) - 1
    while start >= 0 and head[start] & 0xC0 == 0x80:
        start -= 1
    if start >= 0:
        try:
            return ord(head[start:].decode())
        except (UnicodeDecodeError, TypeError):
            return slice(0, 0)  # no character ends so
    # Continuation bytes alone: the low bits are known.
    bits = 6 * len(head)
    low = 0
    for byte in head:
        low = low << 6 | byte & 0x3F
    return slice(low, None, 1 << bits)


def _beginning_with(tail: bytes) -> Any:
    """The code points whose UTF-8 begins with these bytes, or that these bytes begin with."""
    lead = tail[0]
    size = 1 if lead < 0x80 else 2 if 0xC2 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if lead < 0xF5 else 0
    given = tail[:size]
    if size == 0 or any(byte & 0xC0 != 0x80 for byte in given[1:]):
        return slice(0, 0)
    code = lead if size == 1 else lead & (0x7F >> size)
    for byte in given[1:]:
        code = code << 6 | byte & 0x3F
    open_bits = 6 * (size - len(given))
    return slice(code << open_bits, min((code + 1) << open_bits, CODE_POINTS))
