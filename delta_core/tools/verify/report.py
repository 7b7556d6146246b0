"""What a campaign leaves behind: a state to resume from, and the summary of one or more of them."""

from __future__ import annotations

import json
import platform
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ...errors import DeltaError
from ...reference import Reference
from ..version import installed_fast
from .cases import Difference
from .controls import ControlResult
from .tally import SERVED


class StateError(DeltaError):
    """The report folder holds another campaign; the message says which."""


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """One finished unit. seconds: of the worker. variant, outcome: see Tally."""

    tokenizer: str
    encoder: str
    battery: str
    unit: int
    cases: int
    cuts: int
    differences: int
    seconds: float
    variant: str = ""
    outcome: str = ""


@dataclass(slots=True)
class Refusals:
    """How many flagged tokenizers were tried, and which were admitted although they must not be."""

    tried: int = 0
    missed: list[str] = field(default_factory=list)


class State:
    """The campaign so far, as lines of `state.jsonl`: appended as units finish, read again to resume."""

    def __init__(self, path: Path, seed: str, reference: str) -> None:
        self.path = path
        self.seed = seed
        self.reference = reference
        self.encoders: dict[str, str] = {}
        self.records: list[UnitRecord] = []
        self.controls: list[ControlResult] = []
        self.refusals = Refusals()
        self.examples: list[list[str]] = []
        self.skipped: dict[str, str] = {}
        self.done: set[tuple[str, str, str, int]] = set()

    @staticmethod
    def seed_of(folder: Path) -> str | None:
        """The seed of the campaign in a folder, None when there is none."""
        try:
            with (folder / "state.jsonl").open(encoding="utf-8") as file:
                return str(json.loads(file.readline())["seed"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @staticmethod
    def open(folder: Path, seed: str) -> State:
        """The state of a folder, resumed when it holds the same campaign. Raises StateError."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "state.jsonl"
        state = State(path, seed, Reference.version)
        state.encoders = installed_fast()
        if not path.exists():
            state._write(seed=seed, reference=state.reference, encoders=state.encoders)
            return state
        found = State.load(folder)
        for what, has, wants in (
            ("seed", found.seed, seed),
            ("tokenizers", found.reference, state.reference),
            ("encoders", found.encoders, state.encoders),
        ):
            if has != wants:
                raise StateError(f"{folder} holds a campaign with {what} {has}, not {wants}; choose another --report")
        return found

    @staticmethod
    def load(folder: Path) -> State:
        """The state of a folder as it is. A last line that a kill cut short is left out. Raises StateError, OSError."""
        path = folder / "state.jsonl"
        try:
            return State._read(path)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise StateError(f"{path} holds no campaign of this version; choose another --report") from error

    @staticmethod
    def _read(path: Path) -> State:
        head, *rows = map(json.loads, path.read_text(encoding="utf-8").split("\n")[:-1])
        state = State(path, head["seed"], head["reference"])
        state.encoders = head["encoders"]
        for row in rows:
            if "unit" in row:
                state._take(UnitRecord(**row["unit"]))
            elif "control" in row:
                state.controls.append(ControlResult(**row["control"]))
            elif "refusals" in row:
                state.refusals = Refusals(**row["refusals"])
            elif "skipped" in row:
                state.skipped.update(row["skipped"])
            else:
                state.examples.append(row["example"])
        return state

    def add(self, records: list[UnitRecord], found: list[Difference]) -> None:
        """Note finished units, and the differences found in them."""
        for record in records:
            self._take(record)
            self._write(unit=asdict(record))
        for difference in found:
            self.examples.append(difference.lines())
            self._write(example=difference.lines())

    def add_control(self, result: ControlResult) -> None:
        """Note what a control did."""
        self.controls.append(result)
        self._write(control=asdict(result))

    def add_refusals(self, result: Refusals) -> None:
        """Note which tokenizers were refused."""
        self.refusals = result
        self._write(refusals=asdict(result))

    def skip(self, pair: str, why: str) -> None:
        """Note that a tokenizer can't be verified with an encoder here."""
        if self.skipped.get(pair) != why:
            self.skipped[pair] = why
            self._write(skipped={pair: why})

    def _take(self, record: UnitRecord) -> None:
        self.skipped.pop(f"{record.tokenizer} {record.encoder}", None)  # it was certified since
        self.records.append(record)
        self.done.add((record.tokenizer, record.encoder, record.battery, record.unit))

    def _write(self, **row: object) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report: counts of one tokenizer, encoder with its version, reference version and battery."""

    tokenizer: str
    encoder: str
    reference: str
    battery: str
    units: int
    cases: int
    cuts: int
    differences: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Variant:
    """What became of the tokenizers changed in one way, under one encoder: how many were served, or why not."""

    kind: str
    encoder: str
    reference: str
    served: int
    refused: dict[str, int]


@dataclass(frozen=True, slots=True)
class Summary:
    """The report. seconds: summed over workers. dull_controls: controls that found no difference.

    never_served: kinds of changed tokenizers that none was served of: nothing was compared there.
    """

    seeds: list[str]
    references: list[str]
    encoders: dict[str, str]
    machine: str
    cases: int
    cuts: int
    differences: int
    seconds: float
    rows: list[Row]
    controls: list[ControlResult]
    dull_controls: list[str]
    refusals_tried: int
    refusals_missed: list[str]
    skipped: dict[str, str]
    examples: list[list[str]]
    variants: list[Variant] = field(default_factory=list)
    never_served: list[str] = field(default_factory=list)


def summarise(states: list[State]) -> Summary:
    """One summary over campaigns, one per reference version for instance. Linear in their units."""
    sums: dict[tuple[str, str, str, str], list[float]] = {}
    outcomes: dict[tuple[str, str, str], Counter[str]] = {}
    for state in states:
        for r in state.records:
            encoder = " ".join(filter(None, (r.encoder, state.encoders.get(r.encoder))))
            if r.variant:
                outcomes.setdefault((r.variant, encoder, state.reference), Counter())[r.outcome] += 1
            row = sums.setdefault((r.tokenizer, encoder, state.reference, r.battery), [0, 0, 0, 0, 0.0])
            for i, value in enumerate((1, r.cases, r.cuts, r.differences, r.seconds)):
                row[i] += value
    rows = [
        Row(*key, int(units), int(cases), int(cuts), int(differences), round(seconds, 1))
        for key, (units, cases, cuts, differences, seconds) in sorted(sums.items())
    ]
    variants = [
        Variant(*key, found.pop(SERVED, 0), dict(found.most_common())) for key, found in sorted(outcomes.items())
    ]
    served = {variant.kind for variant in variants if variant.served}
    controls = [replace(c, reference=state.reference) for state in states for c in state.controls]
    return Summary(
        seeds=[s.seed for s in states],
        references=sorted({s.reference for s in states}),
        encoders={k: v for s in states for k, v in s.encoders.items()},
        machine=f"{platform.machine()}, Python {platform.python_version()}",
        cases=sum(r.cases for r in rows),
        cuts=sum(r.cuts for r in rows),
        differences=sum(r.differences for r in rows),
        seconds=round(sum(r.seconds for r in rows), 1),
        rows=rows,
        controls=controls,
        dull_controls=[f"{c.name} ({c.config})" for c in controls if not c.found],
        refusals_tried=sum(s.refusals.tried for s in states),
        refusals_missed=[m for s in states for m in s.refusals.missed],
        skipped={f"{k}, tokenizers {s.reference}": v for s in states for k, v in s.skipped.items()},
        examples=[e for s in states for e in s.examples],
        variants=variants,
        never_served=sorted({variant.kind for variant in variants} - served),
    )
