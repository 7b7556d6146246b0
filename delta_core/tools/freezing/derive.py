"""Derives the table of safe transitions by running the reference's own pre-tokenizer.

A transition (p, q) is safe when in every string the position between a p and a q is a piece boundary, and the left
part alone gives the left pieces, and the right part alone gives the right pieces. "Every string" is shown in layers:

1. every string up to `full_length` over one character of every class there is (the classes come from the pattern's
   atoms over all code points, so no character behaves otherwise), and again over a second character of each class;
2. every string up to `reduced_length` over one class of each group of interchangeable ones. Classes are
   interchangeable when swapping them changes no boundary in any string of length 4 (s, t, m and d after an
   apostrophe, for instance);
3. every sequence of up to `runs` runs with run lengths 1 to `run_length`, over the classes that differ beyond the
   letters of contractions: digit groups of three and runs of white space need the length, and the patterns look at
   no more than that many runs;
4. where a pattern counts further than that, runs of every such length, one less and one more, once and twice, of
   every class that is counted, among short ones of all classes.

A pattern whose match looks at more characters in a row than the strings of layer 2 have is refused: nothing would
show what it does with the last of them.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from ...admission.sections import Json, patterns_of
from ...admission.transitions import Derivation, Transitions
from ...characters import PatternProbe
from .pattern import Atoms, atoms_of

Masks = np.ndarray[Any, np.dtype[np.uint8]]
Table = np.ndarray[Any, np.dtype[np.bool_]]


_RUNS_IN_STRINGS = 2  # runs of a match beside other characters
_SWAPPED = 4  # the length of the strings in which interchangeable classes are found
_LONGEST_COUNT = 1024  # a pattern that counts further, or to more lengths, would take hours
_MOST_LENGTHS = 64


class TransitionError(ValueError):
    """The pre-tokenizer does something the derivation does not cover; says what."""


def pre_tokenizer_from(section: Json) -> Callable[[str], list[tuple[str, tuple[int, int]]]]:
    """`pre_tokenize_str` of a pre-tokenizer section (canonical or not), built by the library itself."""
    if isinstance(section, list):
        section = {"type": "Sequence", "pretokenizers": [_with_defaults(leaf) for leaf in section]}
    model = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer = Tokenizer.from_str(
        json.dumps({"version": "1.0", "pre_tokenizer": section, "model": model, "added_tokens": []})
    )
    return tokenizer.pre_tokenizer.pre_tokenize_str  # type: ignore[no-any-return]


def _with_defaults(leaf: Json) -> Json:
    return {**leaf, "trim_offsets": True} if leaf["type"] == "ByteLevel" else leaf


def classes_of(section: Json) -> tuple[tuple[str, ...], dict[int, str]]:
    """The atoms of a canonical pre-tokenizer section, and a few sample characters per signature over all code points.

    About 5 s. Raises UnsupportedPattern, TransitionError.
    """
    atoms = atoms_of(patterns_of(section))
    probe = PatternProbe(atoms.tests)
    samples: dict[int, str] = {}
    for first, count in ((0, 0xD800), (0xE000, 0x110000 - 0xE000)):
        for start in range(first, first + count, 4096):
            n = min(4096, first + count - start)
            signatures = probe.signatures(start, n)
            values, where = np.unique(signatures, return_index=True)
            for value, index in zip(values.tolist(), where.tolist(), strict=True):
                last = int(np.flatnonzero(signatures == value)[-1])
                samples[value] = samples.get(value, "") + chr(start + index) + chr(start + last)
    _check_folding(atoms.folded)
    return atoms.tests, samples


def _check_folding(literals: Sequence[str]) -> None:
    """No single character may match two literals at once by case folding, as U+FB06 matches 'st'."""
    for literal in literals:
        probe = PatternProbe([f"(?i:{literal})"])
        for first, count in ((0, 0xD800), (0xE000, 0x110000 - 0xE000)):
            # The literals themselves are not hit: no two of their letters follow each other in code point order.
            if probe.signatures(first, count).any():
                raise TransitionError(f"one character folds to {literal!r}")


def _choose(samples: dict[int, str]) -> list[tuple[int, str]]:
    """Per class its first character and one as far from it as can be: signature, two characters."""
    chosen = []
    for signature, characters in samples.items():
        low, high = min(characters), max(characters)
        chosen.append((signature, low + high if high != low else low))
    return sorted(chosen, key=lambda item: item[1])


def _boundaries(pieces: Sequence[tuple[str, tuple[int, int]]], length: int) -> int:
    """The inner piece boundaries as bits; raises when pieces don't tile the text."""
    mask = at = 0
    for _, (start, end) in pieces:
        if start != at:
            raise TransitionError("the pre-tokenizer drops text: its pieces do not cover it")
        mask |= 1 << end
        at = end
    if at != length:
        raise TransitionError("the pre-tokenizer drops text: its pieces do not cover it")
    return mask & ~(1 << length)


def _masks(section: Json, alphabet: str, length: int, first: str) -> bytes:
    """The boundaries of all strings of one length that begin with `first`, in order of the alphabet."""
    split = pre_tokenizer_from(section)
    return bytes(
        _boundaries(split(text), length)
        for text in map("".join, itertools.product(first, *([alphabet] * (length - 1))))
    )


class _Layers:
    """Boundaries of all strings over an alphabet, length by length, and what they refute."""

    def __init__(self, section: Json, alphabet: str, pool: ProcessPoolExecutor | None) -> None:
        self.section, self.alphabet, self.pool = section, alphabet, pool
        self.masks: list[Masks] = [np.zeros(1, np.uint8)]

    def grow(self) -> Masks:
        n = len(self.masks)
        arguments = [(self.section, self.alphabet, n, c) for c in self.alphabet]
        parts: Iterator[bytes]
        if self.pool is None or n < 4:
            parts = itertools.starmap(_masks, arguments)
        else:
            parts = self.pool.map(_masks, *zip(*arguments, strict=True))
        self.masks.append(np.frombuffer(b"".join(parts), np.uint8))
        return self.masks[n]

    def refuted(self, n: int) -> Table:
        """The transitions that some string of length n shows to be unsafe."""
        k = len(self.alphabet)
        result = np.zeros((k, k), bool)
        for cut in range(1, n):
            whole = self.masks[n].reshape(k**cut, k ** (n - cut))
            left, right = self.masks[cut][:, None], self.masks[n - cut][None, :]
            expected = left | np.uint8(1 << cut) | (right << np.uint8(cut)).astype(np.uint8)
            bad = (whole != expected).reshape(k ** (cut - 1), k, k, k ** (n - cut - 1))
            result |= bad.any(axis=(0, 3))
        return result


def _interchangeable(masks: Masks, k: int) -> list[int]:
    """Per class the first class it can be swapped with in all strings of one length without moving a boundary."""
    cube = masks.reshape((k,) * _SWAPPED)
    group = list(range(k))
    for a, b in itertools.combinations(range(k), 2):
        if group[a] != a or group[b] != b:
            continue
        order = list(range(k))
        order[a], order[b] = b, a
        if np.array_equal(cube, cube[np.ix_(*[order] * _SWAPPED)]):
            group[b] = a
    return group


def _runs_refute(
    section: Json, alphabet: Sequence[str], safe: set[tuple[str, str]], runs: int, run_length: int
) -> tuple[set[tuple[str, str]], int]:
    """The transitions of `safe` that some sequence of runs shows to be unsafe, and how many strings were tried."""
    split = pre_tokenizer_from(section)

    @lru_cache(maxsize=1 << 18)
    def boundaries(text: str) -> int:
        return _boundaries(split(text), len(text))

    refuted: set[tuple[str, str]] = set()
    tried = 0
    lengths = range(1, run_length + 1)
    for count in range(2, runs + 1):
        for kinds in itertools.product(alphabet, repeat=count):
            pairs = list(itertools.pairwise(kinds))
            if any(a == b for a, b in pairs) or not any(pair in safe for pair in pairs):
                continue
            for repeats in itertools.product(lengths, repeat=count):
                parts = [c * n for c, n in zip(kinds, repeats, strict=True)]
                text = "".join(parts)
                whole = _boundaries(split(text), len(text))
                tried += 1
                cut = 0
                for part, pair in zip(parts, pairs, strict=False):
                    cut += len(part)
                    if pair in safe and whole != (boundaries(text[:cut]) | 1 << cut | boundaries(text[cut:]) << cut):
                        refuted.add(pair)
    return refuted, tried


def _counted_lengths(atoms: Atoms) -> list[int]:
    """The run lengths around which a pattern that counts may change its mind. Raises TransitionError."""
    counts = {count for _, count in atoms.counts}
    if max(counts, default=0) > _LONGEST_COUNT:
        raise TransitionError(f"the pattern counts to {max(counts)}, further than {_LONGEST_COUNT}")
    lengths = {near for count in counts for n in (count, 2 * count) for near in (n - 1, n, n + 1)}
    if len(lengths) > _MOST_LENGTHS:
        raise TransitionError(f"the pattern counts to {len(counts)} different lengths")
    return sorted(lengths)


def _counted_runs_refute(
    section: Json, alphabet: str, counted: str, safe: set[tuple[str, str]], lengths: Sequence[int]
) -> tuple[set[tuple[str, str]], int]:
    """The transitions of `safe` that some sequence of up to three runs, one of them long, shows to be unsafe.

    counted: the characters of the alphabet that the pattern counts. Also says how many strings were tried.
    """
    split = pre_tokenizer_from(section)

    @lru_cache(maxsize=1 << 16)
    def boundaries(text: str) -> int:
        return _boundaries(split(text), len(text))

    refuted: set[tuple[str, str]] = set()
    tried = 0
    for runs, long in ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)):
        for kinds in itertools.product(*(counted if i == long else alphabet for i in range(runs))):
            if any(a == b for a, b in itertools.pairwise(kinds)):
                continue
            for repeats in itertools.product(*(lengths if i == long else (1, 2) for i in range(runs))):
                text = "".join(c * n for c, n in zip(kinds, repeats, strict=True))
                whole = _boundaries(split(text), len(text))
                tried += 1
                for cut in range(1, len(text)):
                    pair = text[cut - 1], text[cut]
                    if pair not in safe or pair in refuted:
                        continue
                    if whole != (boundaries(text[:cut]) | 1 << cut | boundaries(text[cut:]) << cut):
                        refuted.add(pair)
    return refuted, tried


def derive(
    section: Json,
    *,
    strings: int = 16_000_000,
    reduced_length: int = 6,
    runs: int = 4,
    run_length: int = 4,
    workers: int = 1,
    log: Callable[[str], None] = lambda line: None,
) -> Transitions:
    """Derive the table for a canonical pre-tokenizer section.

    strings: the full layer goes to the greatest length with at most this many strings.
    reduced_length: the length of the second layer, at most 8.
    Cost: minutes; about 5 us per string and worker. Raises TransitionError, UnsupportedPattern.
    """
    began = time.perf_counter()
    atoms = atoms_of(patterns_of(section))
    if atoms.reach > reduced_length:
        raise TransitionError(f"the pattern looks at {atoms.reach} characters in a row, strings have {reduced_length}")
    # A run may have to be two characters long before it shows what follows it: short strings hold two such runs; the
    # layer of runs holds every match that looks at no more than so many.
    if atoms.runs > _RUNS_IN_STRINGS and atoms.reach > runs:
        raise TransitionError(f"{atoms.runs} runs follow each other in a match of {atoms.reach} characters and runs")
    lengths = _counted_lengths(atoms)
    tests, samples = classes_of(section)
    chosen = _choose(samples)
    k = len(chosen)
    first = "".join(characters[0] for _, characters in chosen)
    second = "".join(characters[-1] for _, characters in chosen)
    full_length = min(reduced_length, max(4, int(np.log(strings) / np.log(k))))
    if full_length < atoms.reach and atoms.need > _SWAPPED:
        raise TransitionError(
            f"the pattern asks a test only of a match of {atoms.need} characters: over {k} classes nothing shows "
            f"which classes are interchangeable"
        )
    unsafe = np.zeros((k, k), bool)
    total = 0
    pool = ProcessPoolExecutor(workers) if workers > 1 else None
    try:
        layers = _Layers(section, first, pool)
        for n in range(1, full_length + 1):
            layers.grow()
            unsafe |= layers.refuted(n)
            total += k**n
            log(f"all strings of length {n} over {k} classes: {int((~unsafe).sum())} transitions left")
        twins = _Layers(section, second, pool)
        for n in range(1, _SWAPPED + 1):
            if not np.array_equal(twins.grow(), layers.masks[n]):
                raise TransitionError("two characters of one class behave differently")
            total += k**n
        group = _interchangeable(layers.masks[_SWAPPED], k)
        representatives = [i for i in range(k) if group[i] == i]
        if full_length < reduced_length and len(representatives) < k:
            reduced = _Layers(section, "".join(first[i] for i in representatives), pool)
            for n in range(1, reduced_length + 1):
                reduced.grow()
                refuted = reduced.refuted(n)
                total += len(representatives) ** n
                for a in range(k):
                    for b in range(k):
                        at = representatives.index(group[a]), representatives.index(group[b])
                        unsafe[a, b] |= refuted[at]
                log(f"all strings of length {n} over {len(representatives)} classes: {int((~unsafe).sum())} left")
            reached = reduced_length
        else:
            reached = full_length
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    if reached < reduced_length:
        raise TransitionError(f"only strings up to length {reached} are affordable over {k} classes")

    # Two classes that only a contraction letter's own test tells apart behave alike in runs.
    clear = letter_bits(tests)
    coarse: dict[int, int] = {}
    for i, (signature, _) in enumerate(chosen):
        coarse.setdefault(signature & ~clear, i)
    kept = sorted(coarse.values())
    safe = {(first[a], first[b]) for a in range(k) for b in range(k) if not unsafe[a, b]}
    refuted_pairs, tried = _runs_refute(section, [first[i] for i in kept], safe, runs, run_length)
    total += tried
    log(f"{tried} sequences of runs over {len(kept)} classes: {len(refuted_pairs)} transitions refuted")
    of_kept = {first[i]: i for i in kept}
    refuted_coarse = {(of_kept[p], of_kept[q]) for p, q in refuted_pairs}
    coarse_of = [coarse[signature & ~clear] for signature, _ in chosen]
    pairs = tuple(
        (a, b)
        for a in range(k)
        for b in range(k)
        if not unsafe[a, b] and (coarse_of[a], coarse_of[b]) not in refuted_coarse
    )
    if lengths:
        counting = sum(1 << tests.index(test) for test in {test for test, _ in atoms.counts})
        counted = "".join(first[i] for i, (signature, _) in enumerate(chosen) if signature & counting)
        left = {(first[a], first[b]) for a, b in pairs}
        refuted_pairs, tried = _counted_runs_refute(section, first, counted, left, lengths)
        total += tried
        log(f"{tried} sequences with a run of up to {lengths[-1]}: {len(refuted_pairs)} transitions refuted")
        pairs = tuple((a, b) for a, b in pairs if (first[a], first[b]) not in refuted_pairs)
    return Transitions(
        tests=tests,
        signatures=tuple(signature for signature, _ in chosen),
        samples=tuple(characters for _, characters in chosen),
        safe=pairs,
        derivation=Derivation(
            reference_version=tokenizers.__version__,
            full_length=full_length,
            reduced_length=reached,
            reduced_classes=len(representatives),
            runs=runs,
            run_length=run_length,
            run_classes=len(kept),
            strings=total,
            seconds=round(time.perf_counter() - began, 1),
        ),
    )


def letter_bits(tests: Sequence[str]) -> int:
    """The bits of a signature that tell a contraction's letters apart: without them classes behave alike in runs."""
    return sum(1 << bit for bit, test in enumerate(tests) if _is_letter_test(test))


def _is_letter_test(test: str) -> bool:
    literal = test[4:-1] if test.startswith("(?i:") else test
    return len(literal) == 1 and literal.isalpha()


def refute(section: Json, table: Transitions, length: int, *, samples: int = 0) -> set[tuple[int, int]]:
    """The transitions of a table that strings up to `length` refute; empty for a right table.

    samples: which of the sample characters of each class to use. Cost: 5 us times classes ** length.
    """
    alphabet = "".join(characters[min(samples, len(characters) - 1)] for characters in table.samples)
    layers = _Layers(section, alphabet, None)
    unsafe: set[tuple[int, int]] = set()
    for n in range(1, length + 1):
        layers.grow()
        unsafe |= {(int(a), int(b)) for a, b in np.argwhere(layers.refuted(n))}
    return unsafe & set(table.safe)
