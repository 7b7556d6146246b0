"""Runs the batteries and the controls in worker processes, and goes on where an earlier run ended."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ...errors import DeltaError
from ..console import tell
from . import controls
from .batteries import BATTERIES, REPLAYS, outcome, shrunk
from .cases import Call, Difference
from .generators import PIPELINES
from .refusals import run_refusals
from .report import State, UnitRecord, summarise
from .subjects import SYNTHETIC, left_out, open_subject, read_texts
from .tally import Answer, Subject, Tally

_SYNTHETIC = PIPELINES
_RANDOM_UNITS = 24  # of each random battery, when no time is given
_CHUNK = 4  # units of one task: long enough to pay for the trip to a worker
_MOST_SHRUNK = 3  # differences shrunk per task; the rest is counted

# `auto` takes the first of these that is certified; gigatoken serves where it is asked for by name.
_AS_AUTO = ("fastokens", "reference", "gigatoken")


@dataclass(frozen=True, slots=True)
class Task:
    """Units first .. first + count of one battery for one tokenizer and encoder."""

    tokenizer: str
    encoder: str
    battery: str
    first: int
    count: int
    seed: str
    text_paths: tuple[str, ...]


# -- in the worker --


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which stops handing out tasks


@lru_cache(maxsize=1)  # one tokenizer at a time: a large vocabulary costs some 300 MB
def _subject(name: str, encoder: str, text_paths: tuple[str, ...]) -> Subject:
    texts = tuple(text for path in text_paths for text in read_texts(Path(path)) if text)
    return open_subject(name, encoder, texts, _answers(name))


@lru_cache(maxsize=1)
def _answers(name: str) -> dict[bytes, Answer]:
    return {}


def units_of(
    tokenizer: str, encoder: str, batteries: tuple[str, ...], text_paths: tuple[str, ...]
) -> dict[str, int | None]:
    """How many units each battery has for this tokenizer, None for no end. Runs in a worker.

    Raises OpenError, FetchError.
    """
    subject = _subject(tokenizer, encoder, text_paths)
    units = {battery: BATTERIES[battery].units(subject) for battery in batteries}
    if tokenizer.startswith(SYNTHETIC):
        units.pop("code_points", None)  # the real ones of the same pipelines do this
    return units


def run_task(task: Task) -> tuple[list[UnitRecord], list[Difference]]:
    """Runs in a worker. A fault of the product is a finding like any other: it is reported, with its unit."""
    subject = _subject(task.tokenizer, task.encoder, task.text_paths)
    kind = BATTERIES[task.battery]
    records, found = [], []
    for unit in range(task.first, task.first + task.count):
        began = time.perf_counter()
        tally = Tally()
        faults = sum(subject.tok.stats().fallbacks.values())
        kind.run(subject, unit, f"{task.seed}/{task.tokenizer}/{task.battery}/{unit}", tally)
        failed = tally.failed or []
        for calls in list(filter(None, failed))[:_MOST_SHRUNK]:
            found.append(_difference(tally.subject or subject, task, unit, calls, kind.replay))
        if sum(subject.tok.stats().fallbacks.values()) != faults:
            # The stock path gave right IDs, and hid that ours failed.
            failed = [*failed, []]
        records.append(
            UnitRecord(
                task.tokenizer, task.encoder, task.battery, unit, tally.cases, tally.cuts, len(failed),
                round(time.perf_counter() - began, 3), tally.variant, tally.outcome,
            )
        )  # fmt: skip
    return records, found


def _difference(subject: Subject, task: Task, unit: int, calls: list[Call], replay: str) -> Difference:
    if replay == "shipped":
        got, want = outcome(subject, replay, calls)
        if got == want:
            replay = "dense"  # it took a checkpoint at every position, or other threads
    calls = shrunk(subject, replay, calls)
    got, want = outcome(subject, replay, calls)  # equal when it took other threads to show: then as it was
    return Difference(
        subject.name, task.encoder, task.battery, unit, tuple(calls), tuple(want), tuple(got), REPLAYS[replay]
    )


# -- in the parent --


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign is to do. minutes, cuts: when it ends; both None for a fixed amount of work."""

    tokenizers: tuple[str, ...]
    encoders: tuple[str, ...]
    batteries: tuple[str, ...]
    minutes: float | None
    cuts: int | None
    workers: int
    seed: str
    text_paths: tuple[str, ...]
    controls: bool


def tasks_for(
    tokenizer: str,
    encoder: str,
    plan: Plan,
    units: dict[str, int | None],
    done: Callable[[str, int], bool],
    expired: Callable[[], bool],
) -> Iterator[Task]:
    """A task of each battery in turn: whenever the time is over, none was left out for another.

    Ends when every battery is complete, and where a number of cuts is wanted, when none that checks any is left.
    """
    fixed = plan.minutes is None and plan.cuts is None
    ends = {b: _RANDOM_UNITS if n is None and fixed else n for b, n in units.items()}
    first = 0
    while ends and (fixed or plan.minutes is not None or any(BATTERIES[b].replay == "cuts" for b in ends)):
        for battery, end in list(ends.items()):
            if end is not None and first >= end:
                del ends[battery]
                continue
            last = first + _CHUNK if end is None else min(first + _CHUNK, end)
            step = 1 if BATTERIES[battery].long else _CHUNK
            for unit in range(first, last, step):
                if expired():
                    return
                if not done(battery, unit):
                    count = min(step, last - unit)
                    yield Task(tokenizer, encoder, battery, unit, count, plan.seed, plan.text_paths)
        first += _CHUNK


class Campaign:
    """One run of a plan. `interrupted` tells whether Ctrl-C ended it."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.state = State.open(folder, plan.seed)
        self.interrupted = False
        self._shown = 0.0
        self._cuts: Counter[tuple[str, str]] = Counter()
        for r in self.state.records:
            self._cuts[r.tokenizer, r.encoder] += r.cuts

    def run(self) -> None:
        """Do what the plan says, or what is left of it."""
        pairs = self._pairs()
        passed = 0  # safe cuts checked of the pairs that had their turn
        context = multiprocessing.get_context("spawn")  # a fork after the reference's threads began is not safe
        with ProcessPoolExecutor(self.plan.workers, mp_context=context, initializer=_ignore_interrupts) as pool:
            try:
                if self.plan.controls:
                    self._controls(pool)
                over = None if self.plan.minutes is None else time.monotonic() + self.plan.minutes * 60
                for n, (tokenizer, encoder, weight) in enumerate(pairs):
                    # What is left of the time and of the cuts to check is shared by the pairs that are left.
                    quota = None
                    if self.plan.cuts is not None:
                        quota = (self.plan.cuts - passed) / (len(pairs) - n)
                    share = weight / sum(w for _, _, w in pairs[n:])
                    self._pair(pool, tokenizer, encoder, over, quota, share)
                    passed += self._cuts[tokenizer, encoder]
            except KeyboardInterrupt:
                self.interrupted = True
                pool.shutdown(wait=True, cancel_futures=True)
        self._show("interrupted" if self.interrupted else "done", force=True)

    def _pairs(self) -> list[tuple[str, str, float]]:
        """Every tokenizer with every encoder that may serve it, as far as can be told without loading it; its weight.

        A tokenizer's encoder that `auto` takes comes first. Where time is short, those come first of all tokenizers'
        and have half of it: a campaign of a minute tests what serves.
        """
        pairs: list[tuple[str, str]] = []
        serving: set[tuple[str, str]] = set()
        for tokenizer in (*self.plan.tokenizers, *(SYNTHETIC + name for name in _SYNTHETIC)):
            may = []
            for encoder in sorted(self.plan.encoders, key=_AS_AUTO.index):
                why = left_out(tokenizer, encoder)
                if why is None:
                    may.append((tokenizer, encoder))
                elif not tokenizer.startswith(SYNTHETIC):
                    self.state.skip(f"{tokenizer} {encoder}", why)
            if not tokenizer.startswith(SYNTHETIC):
                serving.update(may[:1])
            pairs += may
        if self.plan.minutes is not None:  # otherwise one tokenizer after the other: its encoders share the answers
            pairs.sort(key=lambda pair: pair not in serving)
        weight = max(1.0, (len(pairs) - len(serving)) / max(1, len(serving)))
        return [(*pair, weight if pair in serving else 1.0) for pair in pairs]

    def _controls(self, pool: ProcessPoolExecutor) -> None:
        if self.state.controls:
            return  # a resumed campaign
        futures = [pool.submit(controls.run_control, i, self.plan.seed) for i in range(len(controls.CONTROLS))]
        for future in futures:
            result = future.result()
            self.state.add_control(result)
            found = f"found after {result.cases} comparisons" if result.found else "NOTHING FOUND"
            tell(f"control: {result.name}: {found}")
        self.state.add_refusals(pool.submit(run_refusals).result())

    def _pair(
        self,
        pool: ProcessPoolExecutor,
        tokenizer: str,
        encoder: str,
        over: float | None,
        quota: float | None,
        share: float,
    ) -> None:
        """One turn. over: when the campaign's time is; share: this pair's of what is left of it."""
        deadline = over

        def expired() -> bool:
            if quota is not None and self._cuts[tokenizer, encoder] >= quota:
                return True
            return deadline is not None and time.monotonic() >= deadline

        def done(battery: str, first: int) -> bool:
            return (tokenizer, encoder, battery, first) in self.state.done

        plan = self.plan
        if expired():  # before a tokenizer is loaded for nothing
            if (tokenizer, encoder) not in self._cuts:
                self.state.skip(f"{tokenizer} {encoder}", "the time was over before its turn")
            return
        try:
            units = pool.submit(units_of, tokenizer, encoder, plan.batteries, plan.text_paths).result()
        except DeltaError as error:
            self.state.skip(f"{tokenizer} {encoder}", str(error))
            return
        if over is not None:  # loading took its part of the time of all, not of this pair's
            deadline = time.monotonic() + max(over - time.monotonic(), 0) * share
        tasks = tasks_for(tokenizer, encoder, plan, units, done, expired)
        running: set[Future[tuple[list[UnitRecord], list[Difference]]]] = set()
        while True:
            while len(running) < 2 * plan.workers and (task := next(tasks, None)) is not None:
                running.add(pool.submit(run_task, task))
            if not running:
                return
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                records, found = future.result()
                self.state.add(records, found)
                self._cuts[tokenizer, encoder] += sum(r.cuts for r in records)
                for difference in found:
                    tell("\n" + "\n".join(difference.lines()))
            self._show(f"{tokenizer} {encoder}")

    def _show(self, what: str, *, force: bool = False) -> None:
        terminal = sys.stderr.isatty()
        if not force and time.monotonic() - self._shown < (0.2 if terminal else 15):
            return
        self._shown = time.monotonic()
        s = summarise([self.state])
        line = f"{what}: {s.cases:,} comparisons, {s.cuts:,} safe cuts, {s.differences} differences"
        end = "" if terminal and not force else "\n"
        print(f"\r\x1b[K{line}" if terminal else line, end=end, file=sys.stderr, flush=True)
