"""A SIMULATION of front ends with more cores than this machine has. Nothing in here was measured on such a machine.

Service times are measured here by the process's CPU clock, on text that is not in any cache, while as many threads work
as there are workers; the simulation adds queueing. Its resources: the interpreter lock, which one thread holds at a
time (the event loop's work, a chunk's cutting and lists), the workers, each of which encodes without the lock, and the
cores, one for each worker, on which all of this runs in slices. Worker processes cut and encode on their own; only
their answers are unpacked under the lock. Left out: that memory gets slower with more cores, the scheduler's whims, how
long the interpreter makes a thread wait for the lock (up to 5 ms), other load.
How far it is off with as many workers as this machine has is shown beside the measured figure; cold text is made dearer
by that factor for the rest, so that it starts from what was measured.
"""

from __future__ import annotations

import heapq
import math
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any

from delta_core.pool import DIVIDE_FROM, Encoded, Stretch, encode_stretch
from delta_core.pool.chunks import CHUNK, MOST_CHUNKS
from delta_core.pool.processes import pack, unpack
from delta_core.tokenizer import segment_for

from ..measure import p99
from .designs import Bench
from .load import APPEND, Arrival, Fleet


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured here. append_ms: a warm turn, all of it on the loop. Per 1,000 characters of cold text, in ms: locked,
    under the interpreter lock in a thread; free, in the encoder without it; unpack, of a process's answer; finish,
    looking up, dividing, putting together and remembering. inline: characters up to which the loop encodes itself.
    """

    append_ms: float
    locked: float
    free: float
    unpack: float
    finish: float
    inline: int

    def dearer(self, factor: float) -> Costs:
        """Cold text costs so many times as much: what the simulation leaves out, made up for."""
        cold = {name: getattr(self, name) * factor for name in ("locked", "free", "unpack", "finish")}
        return replace(self, **cold)


def measure(bench: Bench, fleet: Fleet) -> Costs:
    """About two seconds with a fast encoder, ten with the reference."""
    tok, _ = bench.tokenizer()
    rules, encoder = tok._rules, tok._encoder
    segment = segment_for(encoder.name)
    corpus = fleet.corpus
    # All chunks once, as documents come from anywhere: what has just been encoded costs a fraction.
    chunks = [Stretch(corpus, at, at + CHUNK) for at in range(0, len(corpus) - CHUNK + 1, CHUNK)]

    def segments(chunk: Stretch) -> list[str]:
        cuts = rules.cuts(corpus, chunk.start, chunk.end, segment)
        return [corpus[a:b] for a, b in pairwise([chunk.start, *(cut.position for cut in cuts), chunk.end])]

    divided = [segments(chunk) for chunk in chunks]
    kilos = len(chunks) * CHUNK / 1000
    with ThreadPoolExecutor(bench.workers) as crew:

        def spent(call: Callable[..., Any], *arguments: Sequence[Any]) -> float:
            """CPU seconds of all calls."""
            began = time.process_time()
            for _ in crew.map(call, *arguments):
                pass
            return time.process_time() - began

        def whole(chunk: Stretch) -> Encoded:
            return encode_stretch(rules, encoder.encode_flat, chunk, segment)

        done = list(crew.map(whole, chunks))  # the memo of character pairs is full after this
        all_of_it = spent(whole, chunks)
        free = spent(lambda parts: encoder.encode_flat(parts, array), divided)  # nearly all of it without the lock
    messages = [bytearray(pack(encoded)) for encoded in done]
    began = time.process_time()
    for message in messages:
        unpack(message, list)
    unpacking = time.process_time() - began
    text = fleet.sources[0]
    for session in ("first", "second"):  # the first one fills the memo of character pairs
        appends = []
        tok.encode(text[: fleet.base], session=session, namespace=session)
        for end in range(fleet.base + APPEND, len(text), APPEND):
            turn = text[:end]
            began = time.process_time()
            tok.encode(turn, session=session, namespace=session)
            appends.append(time.process_time() - began)
    document = "x" + corpus[: 8 * DIVIDE_FROM]
    began = time.process_time()
    job = tok._look_up(document, list, None, None)
    job.divide(rules, MOST_CHUNKS)
    finish = time.process_time() - began
    done = [whole(stretch) for stretch in job.stretches]
    began = time.process_time()
    tok._finish(job, False, done)
    finish += time.process_time() - began
    return Costs(
        sorted(appends)[len(appends) // 2] * 1e3, max(0.0, all_of_it - free) * 1e3 / kilos, free * 1e3 / kilos,
        unpacking * 1e3 / kilos, finish * 1e6 / len(document), tok._inline,
    )  # fmt: skip


class _Clock:
    """Events in order of time, in ms."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, when: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), then))

    def run(self) -> None:
        while self._events:
            self.now, _, then = heapq.heappop(self._events)
            then()


_SLICE = 3.0  # ms that a thread runs before another one has its turn


class _Servers:
    """So many equal servers behind one queue; the smallest key is served first."""

    def __init__(self, clock: _Clock, number: int) -> None:
        self._clock = clock
        self._free = number
        self._waiting: list[tuple[float, int, Callable[[Callable[[], None]], None]]] = []
        self._number = count()

    def take(self, key: float, work: Callable[[Callable[[], None]], None]) -> None:
        """Work is called when a server is free, with what to call when it is done."""
        heapq.heappush(self._waiting, (key, next(self._number), work))
        self._next()

    def run(self, ms: float, then: Callable[[], None]) -> None:
        """So much work of a thread, in slices that take turns with those of others."""

        def slice_(done: Callable[[], None]) -> None:
            def end() -> None:
                done()
                self.run(ms - _SLICE, then) if ms > _SLICE else then()

            self._clock.at(self._clock.now + min(ms, _SLICE), end)

        self.take(self._clock.now, slice_)

    def _next(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            heapq.heappop(self._waiting)[2](self._release)

    def _release(self) -> None:
        self._free += 1
        self._next()


def simulate(
    arrivals: Sequence[Arrival], costs: Costs, workers: int, *, processes: bool, chunked: bool, aging: float
) -> dict[str, list[float]]:
    """Latencies by kind, in ms, ascending."""
    clock = _Clock()
    lock, crew, cpu = _Servers(clock, 1), _Servers(clock, workers), _Servers(clock, workers)
    latencies: dict[str, list[float]] = {"all": []}

    def hold(ms: float, then: Callable[[], None]) -> None:
        """So much work under the interpreter lock."""

        def work(done: Callable[[], None]) -> None:
            def end() -> None:
                done()
                then()

            cpu.run(ms, end)

        lock.take(clock.now, work)

    def serve(arrival: Arrival) -> None:
        began = clock.now
        size = arrival.end
        kilo = size / 1000
        locked, free = costs.locked * kilo, costs.free * kilo

        def answered() -> None:
            latencies.setdefault(arrival.kind, []).append(clock.now - began)
            latencies["all"].append(clock.now - began)

        if arrival.kind == "append":
            hold(costs.append_ms, answered)
            return
        if size <= costs.inline:
            hold(locked + free + costs.finish * kilo, answered)
            return
        most = MOST_CHUNKS if aging else min(MOST_CHUNKS, workers)
        chunks = min(most, size // CHUNK) if chunked and size >= DIVIDE_FROM and workers > 1 else 1
        left = [chunks]

        def chunk_done() -> None:
            left[0] -= 1
            if not left[0]:
                hold(costs.finish * kilo, answered)

        def work(done: Callable[[], None]) -> None:
            def unlocked() -> None:
                cpu.run(free / chunks, finished)

            def finished() -> None:
                if processes:
                    hold(costs.unpack * kilo / chunks, both)
                else:
                    both()

            def both() -> None:
                done()
                chunk_done()

            if processes:
                cpu.run((locked + free) / chunks, finished)
            else:
                hold(locked / chunks, unlocked)

        key = clock.now + aging * (locked + free)
        for _ in range(chunks):
            crew.take(key, work)

    for arrival in arrivals:
        clock.at(arrival.at * 1e3, lambda arrival=arrival: serve(arrival))  # type: ignore[misc]
    clock.run()
    return {kind: sorted(values) for kind, values in latencies.items()}


@dataclass(frozen=True, slots=True)
class Simulated:
    """One row. rate: the highest with P99 <= limit, 0.0 when there was none. document_ms: P99 of the documents at
    half that rate, with the bursts.
    """

    design: str
    workers: int
    rate: float
    document_ms: float


VARIANTS = {
    "threads, whole FIFO": (False, False, 0.0),
    "threads, chunked SJF": (False, True, 1.0),
    "processes, whole FIFO": (True, False, 0.0),
    "processes, chunked SJF": (True, True, 1.0),
}


def sweep(
    arrivals_at: Callable[[float, bool], Sequence[Arrival]], costs: Costs, workers: Sequence[int], limit_ms: float
) -> list[Simulated]:
    """Each variant for each number of workers. arrivals_at(rate, with the bursts)."""
    rows = []
    for number in workers:
        for name, (processes, chunked, aging) in VARIANTS.items():

            def latencies(
                rate: float, bursts: bool, n: int = number, p: bool = processes, c: bool = chunked, a: float = aging
            ) -> dict[str, list[float]]:
                return simulate(arrivals_at(rate, bursts), costs, n, processes=p, chunked=c, aging=a)

            good, bad = 0.0, 2e3 / costs.append_ms  # the loop alone allows half as much
            while bad - good > bad / 10:
                middle = (good + bad) / 2
                values = latencies(middle, False)["all"]
                good, bad = (middle, bad) if values and p99(values) <= limit_ms else (good, middle)
                if bad < 1:
                    break
            documents = latencies(max(good / 2, 1.0), True).get("document", [])
            rows.append(Simulated(name, number, good, p99(documents) if documents else math.nan))
    return rows
