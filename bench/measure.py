"""Interleaved timing: all contestants make the same calls in turn; every answer is compared with the reference's.

A *case* is one call with what was sent before it, a *scene* some cases of one kind, a *contestant* whoever answers.
In every round each contestant brings up its state untimed, then makes one timed call; the order changes from round to
round. In a tight loop the call follows at once, with everything still in the processor's caches; in server mode other
work comes between, as on a server. The first round warms up and is thrown away. A contestant that has used up its share
of the time sits out, so that a scene has a price; each result says how many calls it is of.

Nothing here needs more than the standard library: workers in other environments import it.
"""

from __future__ import annotations

import gc
import json
import math
import os
import platform
import random
import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

LEAST_CALLS = 3  # timed calls of even the slowest contestant


@dataclass(frozen=True, slots=True)
class Case:
    """One timed call.

    session: whose text this is. before: (session, text) pairs that were sent before it, in order.
    anew: everything older is forgotten first; False for a conversation that goes on from the case before.
    """

    session: str
    text: str
    before: tuple[tuple[str, str], ...] = ()
    anew: bool = True


@dataclass(frozen=True, slots=True)
class Timed:
    """One call: its IDs, and its wall and CPU time (all threads of the process) in seconds."""

    ids: Any
    wall: float
    cpu: float


def timed(call: Callable[[], Any]) -> Timed:
    cpu = time.process_time()
    start = time.perf_counter()
    ids = call()
    end = time.perf_counter()
    return Timed(ids, end - start, time.process_time() - cpu)


TIGHT, SERVER = "tight loop", "server mode"
_TOUCHED = bytearray(8 << 20)
_LINE = 64  # bytes that a processor's cache takes in at once
_NEXT = bytes((n + 1) % 256 for n in range(256))
_OTHERS = {"messages": [{"role": "user", "content": f"Message {n} of another client. " * 30} for n in range(64)]}


def other_work() -> None:
    """What lies between two turns of a conversation on a server: another request's JSON, and 8 MB read and written."""
    json.loads(json.dumps(_OTHERS))
    _TOUCHED[::_LINE] = _TOUCHED[::_LINE].translate(_NEXT)


class Contestant:
    """Whoever turns texts into IDs. exact: part of this project, so that a difference is a failure of the run."""

    name: str
    exact = False

    def prepare(self, case: Case) -> None:
        """Bring up the state before the call; not timed. By default the last text before, so that caches are warm."""
        if case.before:
            self.encode(Case(case.session, case.before[-1][1]))

    def encode(self, case: Case) -> Any:
        """The IDs of case.text, as this contestant gives them to its caller."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Other work in the process that encodes; not timed."""
        other_work()

    def time(self, case: Case) -> Timed:
        return timed(partial(self.encode, case))


@dataclass(frozen=True, slots=True)
class Scene:
    """Cases of one kind.

    name: what happens in it. tokenizer, kind: by name. chars: of the text before. new_chars: of the new text.
    stored: how many other sessions are held. cases: one a round, over and over. mode: TIGHT or SERVER.
    """

    name: str
    tokenizer: str
    kind: str
    chars: int
    new_chars: int
    cases: Sequence[Case] = field(repr=False)
    stored: int = 0
    mode: str = TIGHT

    def in_both_modes(self) -> list[Scene]:
        return [replace(self, mode=mode) for mode in (TIGHT, SERVER)]


@dataclass(frozen=True, slots=True)
class Result:
    """One contestant in one scene; the scene's fields as there. Milliseconds per call, seconds in all.

    tokens: of the last text. calls: timed. wrong: of these, with IDs other than the reference's.
    """

    scene: str
    tokenizer: str
    kind: str
    chars: int
    new_chars: int
    stored: int
    mode: str
    row: str
    tokens: int
    calls: int
    wrong: int
    ours: bool
    median_ms: float
    p99_ms: float
    low_ms: float
    wall_s: float
    cpu_s: float


class Answers:
    """The reference's IDs by text, as bytes: each text is encoded once."""

    def __init__(self, reference: Callable[[str], Sequence[int]]) -> None:
        self._reference = reference
        self._known: dict[int, tuple[str, bytes]] = {}

    def __call__(self, text: str) -> bytes:
        if id(text) not in self._known:  # the string is kept, so its id stays its own
            self._known[id(text)] = text, packed(self._reference(text))
        return self._known[id(text)][1]


def packed(ids: Any) -> bytes:
    """IDs in any container, for comparing: 8 bytes each."""
    return array("q", ids if isinstance(ids, list | tuple | array) else ids.tolist()).tobytes()


class Cell:
    """One contestant in one scene, and what was measured of it."""

    def __init__(self, scene: Scene, contestant: Contestant) -> None:
        self.scene, self.contestant = scene, contestant
        self.walls: list[float] = []
        self.cpus: list[float] = []
        self.wrong = 0
        self.tokens = 0
        self.spent = 0.0  # preparation included

    def call(self, case: Case, answers: Answers, *, count: bool = True) -> None:
        start = time.perf_counter()
        self.contestant.prepare(case)
        if self.scene.mode == SERVER:
            self.contestant.interrupt()
        # A string of its own, as a request brings one: encoding a string leaves its UTF-8 form in it for the next one.
        done = self.contestant.time(replace(case, text=case.text[:1] + case.text[1:]))
        spent = time.perf_counter() - start
        want = answers(case.text)
        self.tokens = len(want) // 8
        self.wrong += packed(done.ids) != want
        if count:
            self.walls.append(done.wall)
            self.cpus.append(done.cpu)
            self.spent += spent

    def result(self) -> Result:
        s, ms = self.scene, sorted(w * 1e3 for w in self.walls)
        return Result(
            s.name, s.tokenizer, s.kind, s.chars, s.new_chars, s.stored, s.mode, self.contestant.name, self.tokens,
            len(ms), self.wrong, self.contestant.exact, statistics.median(ms), p99(ms), ms[0], sum(self.walls),
            sum(self.cpus),
        )  # fmt: skip


def p99(ordered: Sequence[float]) -> float:
    """The nearest-rank 99th percentile: of fewer than 100 values, the largest."""
    return ordered[math.ceil(0.99 * len(ordered)) - 1]


def run(
    pairs: Sequence[tuple[Scene, Contestant]],
    reference: Callable[[str], Sequence[int]],
    *,
    rounds: int,
    seconds: float,
) -> list[Result]:
    """Measure all pairs interleaved with each other. seconds: what one pair may cost in all, preparations included."""
    answers, rng = Answers(reference), random.Random(0)
    cells = [Cell(scene, contestant) for scene, contestant in pairs]
    for cell in cells:
        cell.call(cell.scene.cases[0], answers, count=False)
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            due = (number + 1) / rounds
            for cell in rng.sample(cells, len(cells)):
                if cell.spent <= due * seconds or len(cell.walls) < due * LEAST_CALLS:
                    cases = cell.scene.cases
                    cell.call(cases[(number + 1) % len(cases)], answers)
    finally:
        if enabled:
            gc.enable()
    return [cell.result() for cell in cells]


def replay(scene: Scene, contestants: Sequence[Contestant], reference: Callable[[str], Sequence[int]]) -> list[Result]:
    """Measure all cases of a scene once, in order: a whole conversation. Turn by turn interleaved, nobody sits out."""
    rng = random.Random(0)
    cells = [Cell(scene, contestant) for contestant in contestants]
    for case in scene.cases:
        answers = Answers(reference)  # of this turn only: a conversation's texts add up
        for cell in rng.sample(cells, len(cells)):
            cell.call(case, answers)
    return [cell.result() for cell in cells]


@dataclass(frozen=True, slots=True)
class Fit:
    """t = constant + slope * characters, by least squares of relative errors. Microseconds; per million characters."""

    tokenizer: str
    row: str
    constant_us: float
    slope_us: float
    worst: float
    """The largest relative deviation of a point."""


def fit(results: Sequence[Result]) -> Fit:
    """Time against history length over the results of one row. Needs two lengths."""
    points = [(r.chars / 1e6, r.median_ms * 1e3) for r in results]
    # Weighted by 1/t^2: with plain squares the longest history alone would decide the constant.
    s, sx, sy, sxx, sxy = (
        sum(f(x, y) / y**2 for x, y in points)
        for f in (lambda x, y: 1, lambda x, y: x, lambda x, y: y, lambda x, y: x * x, lambda x, y: x * y)
    )
    slope = (s * sxy - sx * sy) / (s * sxx - sx * sx)
    constant = (sy - slope * sx) / s
    worst = max(abs(constant + slope * x - y) / y for x, y in points)
    return Fit(results[0].tokenizer, results[0].row, constant, slope, worst)


@dataclass(frozen=True, slots=True)
class Check:
    """A target of the project, and what was measured. at_most: whether `limit` is the highest that holds."""

    name: str
    value: float
    limit: float
    at_most: bool = True

    @property
    def holds(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit


@dataclass(frozen=True, slots=True)
class State:
    """What one stored conversation costs. Bytes as the store counts them; text_bytes belong to the caller's string."""

    tokenizer: str
    kind: str
    form: str
    chars: int
    tokens: int
    text_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Churn:
    """Resident memory of a process that serves one new conversation after the other.

    budget: bytes of the store, 0 for a contestant without one. samples: conversations so far, resident bytes,
    bytes that the store counts, evictions.
    """

    row: str
    tokenizer: str
    budget: int
    samples: list[tuple[int, int, int, int]]


@dataclass(slots=True)
class Record:
    """What one subcommand found."""

    command: str
    machine: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    churns: list[Churn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[Result]:
        """Results of this project that gave a wrong ID."""
        return [r for r in self.results if r.ours and r.wrong]

    def note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)

    def save(self, folder: Path) -> None:
        (folder / f"{self.command}.json").write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Record:
        return cls.of(json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Record:
        """What `asdict` made of a record."""
        rows = {name: [kind(**row) for row in raw[name]] for name, kind in _ROWS.items()}
        return cls(**{**raw, **rows})


_ROWS: dict[str, type[Any]] = {"results": Result, "fits": Fit, "checks": Check, "states": State, "churns": Churn}


def machine(**settings: Any) -> dict[str, Any]:
    """The machine, the versions that count, and how busy it was."""
    info = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    versions: dict[str, str | None] = {}
    for name in ("tokenizers", "fastokens", "gigatoken", "numpy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions,
        **settings,
    }
