"""`delta verify`: runs the batteries and the controls in worker processes, resumes, reports."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TextIO

from .. import fetch
from ..admission.frozen import load_all
from ..encoders import NAMES, EncoderUnavailable, version_of
from ..errors import DeltaError
from ..reference import Reference
from . import controls
from .batteries import BATTERIES, Subject, Tally, outcome
from .cases import Call, Difference, shrink
from .refusals import run_refusals
from .report import State, UnitRecord, summarise, write_report
from .subjects import SYNTHETIC, SubjectError, open_subject, read_texts

_SYNTHETIC = ("qwen3", "llama3_1", "gpt_oss", "deepseek_v3", "gpt2", "kimi_k3")
_RANDOM_UNITS = 24  # of each random battery, when no time is given
_CHUNK = 4  # units of one task: long enough to pay for the trip to a worker
_MOST_SHRUNK = 3  # differences shrunk per task; the rest is counted


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
    return open_subject(name, encoder, texts)


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
        for calls in failed[:_MOST_SHRUNK]:
            found.append(_difference(subject, task, unit, calls, kind.replay))
        if sum(subject.tok.stats().fallbacks.values()) != faults:
            # The stock path gave right IDs, and hid that ours failed.
            failed = [*failed, []]
        records.append(
            UnitRecord(
                task.tokenizer, task.encoder, task.battery, unit, tally.cases, tally.seams, len(failed),
                round(time.perf_counter() - began, 3),
            )
        )  # fmt: skip
    return records, found


def _difference(subject: Subject, task: Task, unit: int, calls: list[Call], replay: str) -> Difference:
    def fails(candidate: object) -> bool:
        got, want = outcome(subject, replay, candidate)  # type: ignore[arg-type]
        return got != want

    if fails(calls):
        calls = shrink(calls, fails)
    got, want = outcome(subject, replay, calls)  # equal when it took other threads to show: then as it was
    return Difference(task.tokenizer, task.encoder, task.battery, unit, tuple(calls), tuple(want), tuple(got))


# -- in the parent --


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign is to do. minutes: None for a fixed amount of work."""

    tokenizers: tuple[str, ...]
    encoders: tuple[str, ...]
    batteries: tuple[str, ...]
    minutes: float | None
    workers: int
    seed: str
    text_paths: tuple[str, ...]
    controls: bool


def tasks_for(
    tokenizer: str, encoder: str, plan: Plan, done: Callable[[str, int], bool], expired: Callable[[], bool]
) -> Iterator[Task]:
    """Complete batteries first, then the endless ones in turn until the time is over."""
    config = next((f for f in load_all() if f.name == tokenizer.removeprefix(SYNTHETIC)), None)
    texts = sum(len([t for t in read_texts(Path(p)) if t]) for p in plan.text_paths)
    endless = []
    for battery in plan.batteries:
        units = BATTERIES[battery].units(config, texts) if config is not None else None
        if units is None and config is None and battery in ("code_points", "added_tokens", "user"):
            units = {"code_points": 0x110000 // 256, "added_tokens": 64, "user": texts}[battery]
        if units is None:
            endless.append(battery)
            continue
        if tokenizer.startswith(SYNTHETIC) and battery == "code_points":
            continue  # the real ones of the same pipelines do this
        for first in range(0, units, _CHUNK):
            if expired():
                return
            if not done(battery, first):
                yield Task(
                    tokenizer, encoder, battery, first, min(_CHUNK, units - first), plan.seed, plan.text_paths
                )
    first = 0
    while endless and not expired() and (plan.minutes is not None or first < _RANDOM_UNITS):
        for battery in endless:
            if not done(battery, first):
                yield Task(tokenizer, encoder, battery, first, _CHUNK, plan.seed, plan.text_paths)
        first += _CHUNK


class Campaign:
    """One run of a plan. `interrupted` tells whether Ctrl-C ended it."""

    def __init__(self, plan: Plan, folder: Path, out: TextIO) -> None:
        self.plan = plan
        self.out = out
        self.folder = folder
        self.state = State.open(folder, plan.seed)
        self.interrupted = False
        self._shown = 0.0

    def run(self) -> None:
        pairs = [(t, e) for t in self.plan.tokenizers for e in self.plan.encoders]
        pairs += [(SYNTHETIC + name, "reference") for name in _SYNTHETIC]
        began = time.monotonic()
        context = multiprocessing.get_context("spawn")  # a fork after the reference's threads began is not safe
        with ProcessPoolExecutor(self.plan.workers, mp_context=context, initializer=_ignore_interrupts) as pool:
            try:
                if self.plan.controls:
                    self._controls(pool)
                for n, (tokenizer, encoder) in enumerate(pairs):
                    # What is left of the time is shared by the pairs that are left.
                    deadline = None
                    if self.plan.minutes is not None:
                        left = self.plan.minutes * 60 - (time.monotonic() - began)
                        deadline = time.monotonic() + max(left, 0) / (len(pairs) - n)
                    self._pair(pool, tokenizer, encoder, deadline)
            except KeyboardInterrupt:
                self.interrupted = True
                pool.shutdown(wait=True, cancel_futures=True)
        self._show("interrupted" if self.interrupted else "done", force=True)

    def _controls(self, pool: ProcessPoolExecutor) -> None:
        if self.state.controls:
            return  # a resumed campaign
        futures = [pool.submit(controls.run_control, i, self.plan.seed) for i in range(len(controls.CONTROLS))]
        futures.append(pool.submit(controls.run_namespace_control, self.plan.seed))
        for future in futures:
            self.state.add_control(future.result())
            self._show(f"control: {self.state.controls[-1].name}", force=True)
        self.state.add_refusals(pool.submit(run_refusals).result())

    def _pair(self, pool: ProcessPoolExecutor, tokenizer: str, encoder: str, deadline: float | None) -> None:
        def expired() -> bool:
            return deadline is not None and time.monotonic() >= deadline

        def done(battery: str, first: int) -> bool:
            return (tokenizer, encoder, battery, first) in self.state.done

        running: set[Future[tuple[list[UnitRecord], list[Difference]]]] = set()
        tasks = tasks_for(tokenizer, encoder, self.plan, done, expired)
        exhausted = False
        while running or not exhausted:
            while not exhausted and len(running) < 2 * self.plan.workers:
                task = next(tasks, None)
                if task is None:
                    exhausted = True
                else:
                    running.add(pool.submit(run_task, task))
            if not running:
                break
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                try:
                    records, found = future.result()
                except SubjectError as error:
                    self.state.skipped[f"{tokenizer} {encoder}"] = str(error)
                    for other in running:
                        other.cancel()
                    return
                self.state.add(records, found)
                for difference in found:
                    print("\n" + "\n".join(difference.lines()), file=self.out, flush=True)
            self._show(f"{tokenizer} {encoder}")

    def _show(self, what: str, *, force: bool = False) -> None:
        terminal = self.out.isatty()
        if not force and time.monotonic() - self._shown < (0.2 if terminal else 15):
            return
        self._shown = time.monotonic()
        s = summarise([self.state])
        line = f"{what}: {s.cases:,} comparisons, {s.seams:,} seam checks, {s.differences} differences"
        print(f"\r\x1b[K{line}" if terminal else line, end="" if terminal and not force else "\n", file=self.out)
        self.out.flush()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `delta verify`."""
    parser.add_argument("tokenizers", nargs="*", metavar="NAME|PATH", help="default: qwen3; `all` for every name")
    parser.add_argument("--text", type=Path, action="append", default=[], metavar="PATH", help="text or .jsonl")
    parser.add_argument("--minutes", type=float, help="how long; default: a fixed amount of work")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--seed", help="default: a fresh one, printed; a resumed report keeps its own")
    parser.add_argument("--encoder", action="append", choices=[*NAMES, "certified"], help="default: certified")
    parser.add_argument("--battery", action="append", choices=list(BATTERIES), help="default: all")
    parser.add_argument("--report", type=Path, default=Path("delta-verify"), metavar="DIR", help="also resumes from it")
    parser.add_argument("--no-controls", action="store_true", help="leave the controls out")
    parser.add_argument("--json", action="store_true", help="print the report's JSON")


def run(args: argparse.Namespace) -> int:
    """Exit codes: 0 no difference, 1 a difference or a control that found none, 2 wrong use, 130 interrupted."""
    names = tuple(args.tokenizers) or ("qwen3",)
    if names == ("all",):
        names = tuple(n for n in fetch.NAMES if fetch.cached(n) or n != "kimi_k3")  # no registry ships that one
    for path in args.text:
        if not path.is_file():
            print(f"delta verify: {path}: no such file", file=sys.stderr)
            return 2
    seed = args.seed or State.seed_of(args.report) or f"{random.SystemRandom().randrange(1 << 32):08x}"
    asked = args.encoder or ["certified"]
    encoders = tuple(NAMES if "certified" in asked else dict.fromkeys(asked))
    encoders = tuple(e for e in encoders if e in asked or _installed(e))
    batteries = tuple(b for b in args.battery or BATTERIES if b != "user" or args.text)
    print(f"seed {seed}, tokenizers {Reference.version}, report {args.report}", file=sys.stderr)
    plan = Plan(
        names, encoders, batteries, args.minutes, args.workers, seed, tuple(map(str, args.text)), not args.no_controls
    )
    try:
        campaign = Campaign(plan, args.report, sys.stderr)
        campaign.run()
    except DeltaError as error:
        print(f"delta verify: {error}", file=sys.stderr)
        return 2
    summary = summarise([campaign.state])
    written = write_report([campaign.state], args.report)
    if args.json:
        print(json.dumps(asdict(summary), indent=2))
    print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)
    for what, why in campaign.state.skipped.items():
        print(f"left out: {what}: {why}", file=sys.stderr)
    if summary.differences or summary.dull_controls or summary.refusals_missed:
        return 1
    return 130 if campaign.interrupted else 0


def _installed(encoder: str) -> bool:
    try:
        version_of(encoder)
    except EncoderUnavailable:
        return False
    return True
