"""The table of safe transitions between classes of characters, and how it was derived (`tools.freezing.derive`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a table was derived, for the record."""

    reference_version: str
    full_length: int
    reduced_length: int
    reduced_classes: int
    runs: int
    run_length: int
    run_classes: int
    strings: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Transitions:
    """The classes a pre-tokenizer can tell apart and the transitions at which every text may be cut.

    tests: the one-character tests of its patterns.
    signatures: per class, one bit per test.
    samples: per class, up to two characters of it.
    safe: pairs of class numbers (left, right), sorted.
    """

    tests: tuple[str, ...]
    signatures: tuple[int, ...]
    samples: tuple[str, ...]
    safe: tuple[tuple[int, int], ...]
    derivation: Derivation
