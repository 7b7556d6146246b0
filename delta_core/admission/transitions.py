"""The table of safe transitions between classes of characters, and how it was derived (`tools.freezing.derive`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


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

    def to_json(self) -> str:
        """As one JSON object: stable, one class a line."""
        classes = [[signature, samples] for signature, samples in zip(self.signatures, self.samples, strict=True)]
        safe = [[p, *(q for a, q in self.safe if a == p)] for p in sorted({a for a, _ in self.safe})]
        return (
            f'{{\n  "tests": {rows(list(self.tests))},\n  "classes": {rows(classes)},\n'
            f'  "safe": {rows(safe)},\n  "derivation": {json.dumps(asdict(self.derivation))}\n }}'
        )

    @staticmethod
    def from_json(raw: Any) -> Transitions:
        """Of such an object, parsed. Raises KeyError, TypeError, ValueError or IndexError for anything else."""
        expect(str, *raw["tests"])
        expect(int, *(i for row in raw["safe"] for i in row), *(signature for signature, _ in raw["classes"]))
        return Transitions(
            tests=tuple(raw["tests"]),
            signatures=tuple(signature for signature, _ in raw["classes"]),
            samples=tuple(samples for _, samples in raw["classes"]),
            safe=tuple((row[0], q) for row in raw["safe"] for q in row[1:]),
            derivation=Derivation(**raw["derivation"]),
        )


def expect(kind: type, *values: object) -> None:
    """Raise TypeError for a value of a parsed file that is of another type."""
    for value in values:
        if type(value) is not kind:
            raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")


def rows(values: Sequence[object]) -> str:
    """A JSON list with one element a line."""
    lines = ",\n".join(f"   {json.dumps(value, ensure_ascii=True)}" for value in values)
    return f"[\n{lines}\n  ]" if lines else "[]"
