"""A SIMULATION of front ends with more cores than this machine has. Nothing in here was measured on such a machine.

Service times are measured here, one at a time, by the process's CPU clock; the simulation adds queueing. Its resources:
the interpreter lock, which one thread holds at a time (the event loop's work, a chunk's cutting and lists), and the
workers, each of which encodes without the lock. Worker processes cut and encode on their own; only their answers are
unpacked under the lock. Left out: memory bandwidth, caches that are cold, the scheduler, other load.
How far it is off with as many workers as this machine has is shown beside the measured figure.
"""

from __future__ import annotations

import heapq
import math
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from delta_core.pool import DIVIDE_FROM, Stretch, encode_stretch
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
    putting together and remembering. inline: characters up to which the loop encodes itself."""

    append_ms: float
    locked: float
    free: float
    unpack: float
    finish: float
    inline: int


def measure(bench: Bench, fleet: Fleet, rounds: int = 5) -> Costs:
    """Least CPU time of a few rounds each. About a second with a fast encoder, ten with the reference."""
    tok, _ = bench.tokenizer()
    rules, encoder = tok._rules, tok._encoder
    segment = segment_for(encoder.name)
    chunk = Stretch(fleet.corpus, 0, CHUNK)
    kilo = CHUNK / 1000
    cuts = rules.cuts(chunk.text, 0, CHUNK, segment)
    edges = [0, *(cut.position for cut in cuts), CHUNK]
    segments = [chunk.text[a:b] for a, b in pairwise(edges)]
    free, locked, unpacking = math.inf, math.inf, math.inf
    for _ in range(rounds):
        began = time.process_time()
        encoded = encode_stretch(rules, encoder.encode_flat, chunk, segment)
        whole = time.process_time() - began
        began = time.process_time()
        encoder.encode_flat(segments, array)  # nearly all of it without the lock
        free = min(free, time.process_time() - began)
        locked = min(locked, max(0.0, whole - free))
        message = bytearray(pack(encoded))
        began = time.process_time()
        unpack(message, list)
        unpacking = min(unpacking, time.process_time() - began)
    text = fleet.sources[0]
    for session in ("first", "second"):  # the first one fills the memo of character pairs
        appends = []
        tok.encode(text[: fleet.base], session=session, namespace=session)
        for end in range(fleet.base + APPEND, len(text), APPEND):
            turn = text[:end]
            began = time.process_time()
            tok.encode(turn, session=session, namespace=session)
            appends.append(time.process_time() - began)
    job = tok._look_up("x" + fleet.corpus[:DIVIDE_FROM], list, None, None)
    done = [encode_stretch(rules, encoder.encode_flat, stretch, segment) for stretch in job.stretches]
    began = time.process_time()
    tok._finish(job, False, done)
    finish = time.process_time() - began
    return Costs(
        sorted(appends)[len(appends) // 2] * 1e3, locked * 1e3 / kilo, free * 1e3 / kilo,
        unpacking * 1e3 / kilo, finish * 1e6 / DIVIDE_FROM, tok._inline,
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


class _Servers:
    """So many equal servers behind one queue; the smallest key is served first."""

    def __init__(self, clock: _Clock, number: int) -> None:
        self._clock = clock
        self._free = number
        self._waiting: list[tuple[float, int, Callable[[Callable[[], None]], None]]] = []
        self._number = count()

    def take(self, key: float, work: Callable[[Callable[[], None]], None]) -> None:
        """work is called when a server is free, with what to call when it is done."""
        heapq.heappush(self._waiting, (key, next(self._number), work))
        self._next()

    def hold(self, key: float, ms: float, then: Callable[[], None]) -> None:
        def work(done: Callable[[], None]) -> None:
            def end() -> None:
                done()
                then()

            self._clock.at(self._clock.now + ms, end)

        self.take(key, work)

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
    lock, crew = _Servers(clock, 1), _Servers(clock, workers)
    latencies: dict[str, list[float]] = {"all": []}

    def serve(arrival: Arrival) -> None:
        began = clock.now
        size = arrival.end
        kilo = size / 1000
        locked, free = costs.locked * kilo, costs.free * kilo

        def answered() -> None:
            latencies.setdefault(arrival.kind, []).append(clock.now - began)
            latencies["all"].append(clock.now - began)

        if arrival.kind == "append":
            lock.hold(clock.now, costs.append_ms, answered)
            return
        if size <= costs.inline:
            lock.hold(clock.now, locked + free + costs.finish * kilo, answered)
            return
        most = MOST_CHUNKS if aging else min(MOST_CHUNKS, workers)
        chunks = min(most, size // CHUNK) if chunked and size >= DIVIDE_FROM and workers > 1 else 1
        left = [chunks]

        def chunk_done() -> None:
            left[0] -= 1
            if not left[0]:
                lock.hold(clock.now, costs.finish * kilo, answered)

        def work(done: Callable[[], None]) -> None:
            def unlocked() -> None:
                clock.at(clock.now + free / chunks, finished)

            def finished() -> None:
                if processes:
                    lock.hold(clock.now, costs.unpack * kilo / chunks, both)
                else:
                    both()

            def both() -> None:
                done()
                chunk_done()

            if processes:
                clock.at(clock.now + (locked + free) / chunks, finished)
            else:
                lock.hold(clock.now, locked / chunks, unlocked)

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
    half that rate, with the bursts."""

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
