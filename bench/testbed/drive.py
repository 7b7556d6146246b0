"""The open-loop driver: requests come when they are due, whether or not the front end keeps up."""

from __future__ import annotations

import asyncio
import gc
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..measure import p99, packed
from .designs import Design
from .load import Arrival

BEHIND = 2.0  # seconds; a front end that is this late at the end of the arrivals does not keep up
_BEAT = 0.001  # seconds between two looks at whether the loop stands still


@dataclass(frozen=True, slots=True)
class Kind:
    """Latencies of one kind of request, in ms."""

    requests: int
    median_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Run:
    """What one design did under one load.

    rate: requests a second that were due, without bursts. kept_up: False when the backlog rule ended it.
    unfinished: requests without an answer then. kinds: by kind, "all" among them, warm-up left out.
    stall_ms: the longest time the loop stood still, and idle_stall_ms, the same on an idle loop before.
    checked, wrong: of the sample that was encoded again by the reference.
    """

    design: str
    scenario: str
    rate: float
    seconds: float
    kept_up: bool
    unfinished: int
    kinds: dict[str, Kind]
    stall_ms: float
    idle_stall_ms: float
    checked: int
    wrong: int

    @property
    def p99_ms(self) -> float:
        return self.kinds["all"].p99_ms if self.kept_up and "all" in self.kinds else math.inf


class _Beat:
    """Notes by how much a short sleep is late."""

    def __init__(self) -> None:
        self.late: list[float] = []

    async def go(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _BEAT
            await asyncio.sleep(_BEAT)
            self.late.append((loop.time() - due) * 1e3)


def drive(
    design: Design, scenario: str, rate: float, seconds: float, arrivals: Sequence[Arrival], warm_up: float, sample: int
) -> Run:
    """Run arrivals against a design. Latency is completion minus due time; those due in the first `warm_up` seconds
    don't count. sample: answers that are compared with the reference's after the run.
    """
    gc.collect()
    return asyncio.run(_drive(design, scenario, rate, seconds, arrivals, warm_up, sample))


async def _drive(
    design: Design, scenario: str, rate: float, seconds: float, arrivals: Sequence[Arrival], warm_up: float, sample: int
) -> Run:
    loop = asyncio.get_running_loop()
    beat = _Beat()
    heart = asyncio.ensure_future(beat.go())
    await asyncio.sleep(0.2)
    idle = max(beat.late)
    beat.late.clear()

    rng = random.Random(0)
    sampled = set(rng.sample(range(len(arrivals)), min(sample, len(arrivals))))
    answers: list[tuple[str, Any]] = []
    latencies: list[tuple[str, float]] = []
    began = loop.time()

    async def serve(number: int, arrival: Arrival) -> None:
        text = arrival.text
        ids = await design.encode(arrival, text)
        if arrival.at >= warm_up:
            latencies.append((arrival.kind, (loop.time() - began - arrival.at) * 1e3))
        if number in sampled:
            answers.append((text, ids))

    open_: set[asyncio.Task[None]] = set()
    kept_up = True
    for number, arrival in enumerate(arrivals):
        # A loop that is late does not sleep, yet gives way, so that what is open can go on.
        await asyncio.sleep(max(0.0, began + arrival.at - loop.time()))
        if loop.time() - began - arrival.at > BEHIND:
            kept_up = False
            break
        task = asyncio.ensure_future(serve(number, arrival))
        open_.add(task)
        task.add_done_callback(open_.discard)
    if open_ and kept_up:
        await asyncio.wait(open_, timeout=BEHIND)
    kept_up = kept_up and not open_
    unfinished = list(open_)
    for task in unfinished:
        task.cancel()
    outcomes = await asyncio.gather(*unfinished, return_exceptions=True)
    heart.cancel()
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    wrong = sum(packed(ids) != packed(design.live.encode(text, add_special_tokens=False).ids) for text, ids in answers)
    late = sorted(beat.late) or [0.0]
    kinds = {kind: [ms for k, ms in latencies if k == kind] for kind in {k for k, _ in latencies}}
    if latencies:
        kinds["all"] = [ms for _, ms in latencies]
    return Run(
        design.name, scenario, rate, seconds, kept_up, len(unfinished),
        {kind: _summary(sorted(values)) for kind, values in sorted(kinds.items())},
        late[-1], idle, len(answers), wrong,
    )  # fmt: skip


def _summary(ordered: Sequence[float]) -> Kind:
    return Kind(len(ordered), ordered[len(ordered) // 2], p99(ordered))


def highest_rate(
    run: Callable[[float], Run], limit_ms: float, first: float, steps: int, most: float, note: Callable[[Run], None]
) -> float:
    """The highest rate with P99 <= limit_ms that was seen, and 0.0 when not even a low one was: doubling from `first`,
    then `steps` halvings of the interval between the last good and the first bad one.
    """
    good, bad = 0.0, math.inf
    rate = first
    for _ in range(64):
        result = run(rate)
        note(result)
        if result.p99_ms <= limit_ms:
            good = rate
            if good >= most:
                break
        else:
            bad = rate
        if math.isinf(bad):
            rate = min(most, rate * 2)
        elif good == 0.0:
            if rate <= first / 4:
                break
            rate /= 2
        elif steps:
            steps -= 1
            rate = (good + bad) / 2
        else:
            break
    return good
