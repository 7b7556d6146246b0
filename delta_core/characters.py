"""What the reference's own engines say about single characters: classes for the pattern, stability for NFC.

Unicode tables differ between libraries and their versions, so neither `unicodedata` nor `re` is asked here: classes
come from the regex engine inside `tokenizers`, normal forms from the normalizers inside `tokenizers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from tokenizers import Regex, normalizers, pre_tokenizers

UNKNOWN = 255  # a class the table was not derived over: never part of a safe transition

_BLOCK = 256
_SURROGATES = range(0xD800 // _BLOCK, 0xE000 // _BLOCK)
# Blocks of what most text is made of: alphabets, punctuation and symbols, Chinese, Korean, emoji.
_USUAL = (*range(0x34), *range(0x4E, 0xA0), *range(0xAC, 0xD8), *range(0xFE, 0x100), *range(0x1F0, 0x1FB))

# Marks of canonical combining class 230 and 1: between them they are reordered around every character whose own
# combining class is not zero.
_PROBE_HIGH, _PROBE_LOW = "\u0301", "\u0335"

# Canonical decompositions exist in these planes only; `freeze` looks at all of them and says so if that ever changes.
_DECOMPOSABLE = (range(0x0000, 0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))


class PatternProbe:
    """Asks the reference's regex engine which of the given one-character tests a character passes.

    tests: regular expressions that match exactly one character each, at most 63 of them.
    """

    def __init__(self, tests: Sequence[str]) -> None:
        if len(tests) > 63:
            raise ValueError(f"{len(tests)} one-character tests; at most 63 fit a signature")
        self.tests = tuple(tests)
        self._splits = [pre_tokenizers.Split(Regex(test), "removed") for test in tests]

    def signatures(self, first: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """One bit per test for `count` code points from `first` on; surrogates must not be among them.

        Cost: one call of the engine per test for the whole range, not per character.
        """
        text = "".join(map(chr, range(first, first + count)))
        result = np.zeros(count, np.int64)
        for bit, split in enumerate(self._splits):
            passed = np.ones(count, bool)
            for _, (start, end) in split.pre_tokenize_str(text):
                passed[start:end] = False  # what a "removed" split leaves is what did not match
            result |= passed.astype(np.int64) << bit
        return result


class CharacterClasses:
    """The class of any character, by the signature it has in the running reference.

    Memory is bounded by one byte per code point, whatever texts arrive. Lookup is O(1); the first character of a block
    of 256 costs about a millisecond.
    """

    def __init__(self, tests: Sequence[str], signatures: Sequence[int]) -> None:
        if len(signatures) >= UNKNOWN:
            raise ValueError(f"{len(signatures)} classes; at most {UNKNOWN - 1} fit a byte")
        self._probe = PatternProbe(tests)
        self._class_of = {signature: index for index, signature in enumerate(signatures)}
        self._blocks: dict[int, bytes] = {}

    def of(self, character: str) -> int:
        """The class of one character, or UNKNOWN."""
        code = ord(character)
        block = self._blocks.get(code >> 8)
        if block is None:
            block = self._classify(code >> 8)
        return block[code & 255]

    def prepare(self) -> None:
        """Classify the usual characters now. 0.2 to 0.6 s."""
        for index in _USUAL:
            if index not in self._blocks:
                self._classify(index)

    def _classify(self, index: int) -> bytes:
        if index in _SURROGATES:
            block = bytes([UNKNOWN]) * _BLOCK
        else:
            known = self._class_of
            block = bytes(known.get(s, UNKNOWN) for s in self._probe.signatures(index * _BLOCK, _BLOCK).tolist())
        self._blocks[index] = block
        return block


class Stability(Protocol):
    """Which characters the normalizer leaves alone at a cut, and what the first one to the right may become."""

    def left(self, character: str) -> bool:
        """True when a stretch that ends in `character` still ends in it after normalisation."""

    def right(self, character: str) -> bool:
        """True when normalisation never joins `character` with, or moves it across, what stands before it."""

    def outcomes(self, character: str) -> tuple[str, ...]:
        """All first characters that a stretch which begins with `character` may have after normalisation."""


class NoNormalizer:
    """Without a normalizer every character is stable and stays itself."""

    def left(self, character: str) -> bool:
        """See Stability."""
        return True

    def right(self, character: str) -> bool:
        """See Stability."""
        return True

    def outcomes(self, character: str) -> tuple[str, ...]:
        """See Stability."""
        return (character,)


class NfcStability:
    """Stability under the reference's NFC.

    A character begins a new stretch for NFC when its combining class is zero and it never is the second part of a
    canonical composition (Unicode Annex 15: quick check "yes" and combining class zero). Between two such characters
    the normalizer splits: nothing is reordered or composed across. The first of them stays as it is; the second may
    still compose with marks that follow, which `outcomes` lists.

    Everything is asked of the reference: combining classes by probing with two marks, compositions through its own
    NFD, which shares the tables of its NFC. About 0.2 s and 3 MB once.
    """

    def __init__(self) -> None:
        self._nfc = normalizers.NFC()
        self._nfd = normalizers.NFD()
        self._seconds: set[str] = set()
        self._composites: dict[str, list[str]] = {}
        for codes in _DECOMPOSABLE:
            characters = list(map(chr, codes))
            # NUL has combining class zero and no compositions: it keeps the decompositions apart.
            for character, parts in zip(
                characters[1:], self._nfd.normalize_str("\0".join(characters[1:])).split("\0"), strict=True
            ):
                if parts != character:
                    self._seconds.update(parts[1:])
                    if self._nfc.normalize_str(character) == character:
                        self._composites.setdefault(parts[0], []).append(character)
        self._verdict: dict[str, bool] = {}

    def left(self, character: str) -> bool:
        """See Stability."""
        return self.right(character)

    def right(self, character: str) -> bool:
        """See Stability."""
        verdict = self._verdict.get(character)
        if verdict is None:
            if len(self._verdict) >= 1 << 16:  # attacker-chosen characters must not grow it without bound
                self._verdict.clear()
            verdict = self._verdict[character] = self._ask(character)
        return verdict

    def _ask(self, character: str) -> bool:
        if "\ud800" <= character <= "\udfff" or self._nfc.normalize_str(character) != character:
            return False  # a lone surrogate is no text: the reference will refuse it
        decompose = self._nfd.normalize_str
        first = decompose(character)[0]  # NFC decomposes before it composes: this is what meets the text before
        return (
            first not in self._seconds
            and decompose(_PROBE_HIGH + first) == _PROBE_HIGH + first
            and decompose(first + _PROBE_LOW) == first + _PROBE_LOW
        )

    def base(self, character: str) -> str:
        """The first character of the canonical decomposition."""
        return self._nfd.normalize_str(character)[0]

    def outcomes(self, character: str) -> tuple[str, ...]:
        """See Stability."""
        return (character, *self._composites.get(self.base(character), ()))
