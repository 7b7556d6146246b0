"""The queue and the pool: order, bounds, failures, cancellation, shutdown. Workers here are threads with a gate."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import PATIENCE, until

from delta_core import pool as pool_module
from delta_core.pool import (
    DeadlineExceeded,
    EncodingFailed,
    Estimator,
    PoolClosed,
    PoolFull,
    Task,
    TaskQueue,
    WorkerPool,
)
from delta_core.splice import Checkpoints, Encoded, Gap


def gap(text: str) -> Gap:
    return Gap(text, 0, len(text))


def codes(piece: Gap) -> Encoded:
    """Stands for an encoder: the IDs are the code points."""
    return Encoded([ord(c) for c in piece.text[piece.start : piece.end]], Checkpoints())


def test_each_thread_is_warmed_first_and_serves_whatever_that_gave() -> None:
    warmed: list[str] = []

    def warm() -> None:
        warmed.append(threading.current_thread().name)
        raise RuntimeError("planted")

    pool = WorkerPool(codes, 1e-3, warm=warm, threads=3)
    until(lambda: len(warmed) == 3)
    assert sorted(warmed) == ["delta-0", "delta-1", "delta-2"]
    (encoded,) = pool.submit([gap("abc")]).result()
    assert encoded.ids == [97, 98, 99]
    assert pool.threads == 3
    assert pool.close(PATIENCE)


class Panic(BaseException):
    """What a panic in Rust is to Python."""


class Gated:
    """An encoder that waits at a gate, text by text, and records who came when."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.gates: dict[str, threading.Event] = {}

    def __call__(self, piece: Gap) -> Encoded:
        content = piece.text[piece.start : piece.end]
        gate = self.gates.get(content)
        self.entered.append(content)
        if gate is not None:
            assert gate.wait(PATIENCE)
        if content.startswith("raise"):
            raise ValueError("the message may quote the text")
        if content.startswith("panic"):
            raise Panic
        return codes(piece)

    def hold(self, content: str) -> threading.Event:
        gate = self.gates[content] = threading.Event()
        return gate


@pytest.fixture
def gated() -> Iterator[Gated]:
    encoder = Gated()
    yield encoder
    for gate in encoder.gates.values():
        gate.set()


@pytest.fixture
def pool_of(gated: Gated) -> Iterator[Callable[..., WorkerPool]]:
    """Pools of gated workers; afterwards every thread must have ended."""
    pools: list[WorkerPool] = []

    def make(threads: int = 1, **options: Any) -> WorkerPool:
        pools.append(WorkerPool(gated, 1e-3, threads=threads, **options))
        return pools[-1]

    yield make
    for gate in gated.gates.values():
        gate.set()
    for pool in pools:
        assert pool.close(PATIENCE)
        pool._queue._check()


# -- estimates --


def test_the_estimate_is_a_fixed_part_and_one_by_weighted_characters() -> None:
    estimator = Estimator(0.001)
    assert Estimator.weigh("a" * 1000, 0, 1000) == 1000
    assert Estimator.weigh("中" * 1000, 0, 1000) == 6000
    assert Estimator.weigh("a中" * 500, 0, 1000) in (1000, 6000, 3500)  # a sample may see one of two
    assert Estimator.weigh("ab中" * 500, 100, 100) == 0
    assert estimator.estimate(1000) == pytest.approx(1.2)
    estimator.measured(1000, 2.2)  # 2 ms for 1000 characters, where 1 was expected
    assert estimator.b == pytest.approx(0.001 + 0.05 * 0.001)
    for _ in range(300):
        estimator.measured(1000, 2.2)
    assert estimator.b == pytest.approx(0.002, rel=1e-3)


# -- the queue --


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the queue's time, in ms."""
    now = [0.0]
    monkeypatch.setattr(pool_module.time, "monotonic", lambda: now[0] / 1e3)

    def at(ms: float) -> None:
        now[0] = ms

    return at


def queue_of(capacity: int = 100) -> TaskQueue:
    return TaskQueue(capacity)


def put(queue: TaskQueue, text: str, estimate: float = 1.0, chunks: int = 1) -> list[Task]:
    texts = [text] if chunks == 1 else [f"{text}{i}" for i in range(chunks)]
    return queue.put([gap(t) for t in texts], [1.0] * chunks, estimate)


def taken(queue: TaskQueue, count: int) -> list[str]:
    tasks = [queue.take() for _ in range(count)]
    return [task.gap.text for task in tasks if task is not None]


def test_short_work_goes_first_but_none_starves(clock: Callable[[float], None]) -> None:
    queue = queue_of()
    put(queue, "long", 100.0, chunks=2)
    clock(98)
    put(queue, "short", 1.0)  # 98 + 1 < 0 + 100
    clock(99.5)
    put(queue, "late", 1.0)  # 99.5 + 1 > 0 + 100
    assert taken(queue, 4) == ["short", "long0", "long1", "late"]


def test_equal_keys_keep_their_order(clock: Callable[[float], None]) -> None:
    queue = queue_of()
    for text in "abcdefgh":
        put(queue, text)
    assert taken(queue, 8) == list("abcdefgh")


def test_the_queue_is_bounded_and_takes_a_request_whole_or_not() -> None:
    queue = queue_of(capacity=3)
    kept = put(queue, "a", chunks=2)
    with pytest.raises(PoolFull):
        put(queue, "b", chunks=2)
    assert len(queue) == 2
    queue.drop(kept[:1])  # a dropped task makes room
    put(queue, "c", chunks=2)
    queue._check()
    assert taken(queue, 3) == ["a1", "c0", "c1"]


@pytest.mark.parametrize("seed", range(20))
def test_every_task_ends_once_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    queue = queue_of(capacity=30)
    tasks: list[Task] = []
    running: list[Task] = []
    for number in range(300):
        action = rng.random()
        if action < 0.5:
            try:
                tasks += put(queue, f"t{number}", rng.expovariate(0.1), rng.randrange(1, 6))
            except PoolFull:
                assert len(queue) > 24
        elif action < 0.8 and len(queue):
            task = queue.take()
            assert task is not None
            running.append(task)
        else:
            queue.drop(rng.sample(tasks, min(3, len(tasks))))
        queue._check()
    queue.close()
    queue._check()
    assert len({id(task) for task in running}) == len(running)
    for task in tasks:
        is_running = task in running
        assert task.future.running() == is_running
        assert is_running or task.future.cancelled() or isinstance(task.future.exception(0), PoolClosed)


# -- requests --


def test_results_come_in_order_whichever_chunk_is_ready_first(gated: Gated, pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(3)
    gates = [gated.hold(text) for text in ("one", "two", "three")]
    request = pool.submit([gap("one"), gap("two"), gap("three")])
    for gate in reversed(gates):
        gate.set()
    assert [e.ids for e in request.result()] == [[ord(c) for c in text] for text in ("one", "two", "three")]


def test_a_request_of_nothing_is_answered(pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of()
    assert pool.submit([]).result() == []
    assert asyncio.run(_ask(pool)) == []


def test_only_the_gap_is_encoded(pool_of: Callable[..., WorkerPool]) -> None:
    (encoded,) = pool_of().submit([Gap("abcdef", 2, 4)]).result()
    assert encoded.ids == [ord("c"), ord("d")]


def test_the_first_error_fails_the_request_and_drops_the_rest(gated: Gated, pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(2)
    gated.hold("held")
    gated.hold("next")  # so that the second worker gets no further
    request = pool.submit([gap(t) for t in ("held", "raise", "next", "never", "never")])
    with pytest.raises(EncodingFailed) as caught:
        request.result()
    assert str(caught.value) == "ValueError"
    assert pool.waiting == 0
    for gate in gated.gates.values():
        gate.set()
    assert asyncio.run(_ask(pool, "other")) == [[ord(c) for c in "other"]]
    assert "never" not in gated.entered


@pytest.mark.parametrize("poison", ["raise", "panic"])
def test_a_poisoned_text_fails_alone(poison: str, pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(1)
    bad, good = pool.submit([gap(poison)]), pool.submit([gap("good")])
    with pytest.raises(EncodingFailed):
        bad.result()
    assert good.result()[0].ids == [ord(c) for c in "good"]
    assert pool.threads == 1


def test_the_deadline_frees_the_caller_and_the_queue(gated: Gated, pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(1, deadline=0.05)
    gate = gated.hold("slow")
    request = pool.submit([gap("slow"), gap("behind")])
    with pytest.raises(DeadlineExceeded):
        request.result()
    assert pool.waiting == 0
    with pytest.raises(DeadlineExceeded):
        asyncio.run(_ask(pool, "more"))
    assert pool.waiting == 0
    gate.set()  # a running encode is not interrupted, its worker goes on
    until(lambda: _serves(pool))
    assert "behind" not in gated.entered


def _serves(pool: WorkerPool) -> bool:
    try:
        return pool.submit([gap("x")]).result()[0].ids == [ord("x")]
    except DeadlineExceeded:
        return False


def test_a_full_queue_refuses_at_once(gated: Gated, pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(1, capacity=2)
    gate = gated.hold("held")
    held = pool.submit([gap("held")])
    until(lambda: gated.entered == ["held"])
    accepted = pool.submit([gap("a"), gap("b")])
    with pytest.raises(PoolFull):
        pool.submit([gap("c")])
    gate.set()
    assert [e.ids for r in (held, accepted) for e in r.result()] == [[ord(c) for c in t] for t in ("held", "a", "b")]


def test_a_text_is_divided_where_several_threads_can_take_its_chunks(pool_of: Callable[..., WorkerPool]) -> None:
    assert pool_of(1).most_chunks == 1
    assert pool_of(3).most_chunks == 16


# -- on an event loop --


async def _ask(pool: WorkerPool, *texts: str) -> list[list[int]]:
    return [encoded.ids for encoded in await pool.submit([gap(text) for text in texts]).wait()]


def test_a_thousand_awaits_at_once_all_get_their_own(pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(4, capacity=4000)
    texts = [(f"{i}a" * 3, f"{i}b") for i in range(1000)]

    async def ask_all() -> list[list[list[int]]]:
        return await asyncio.gather(*(_ask(pool, *pair) for pair in texts))

    assert asyncio.run(ask_all()) == [[[ord(c) for c in text] for text in pair] for pair in texts]
    assert pool.waiting == 0


def test_a_cancelled_await_leaves_nothing_behind(gated: Gated, pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(1)
    gate = gated.hold("run")
    text = "".join(map(chr, range(1000, 3000)))
    references = sys.getrefcount(text)

    async def scenario() -> None:
        asks = [asyncio.ensure_future(_ask(pool, "run", text, text))]
        while gated.entered != ["run"]:
            await asyncio.sleep(0)
        asks += [asyncio.ensure_future(_ask(pool, text)) for _ in range(10)]
        while pool.waiting < 12:
            await asyncio.sleep(0)
        for ask in asks:
            ask.cancel()
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)

    asyncio.run(scenario())
    assert pool.waiting == 0
    pool._queue._check()
    gate.set()
    assert asyncio.run(_ask(pool, "next")) == [[ord(c) for c in "next"]]
    assert gated.entered == ["run", "next"]
    gc.collect()
    until(lambda: sys.getrefcount(text) == references)


def test_cancelled_and_served_awaits_mix(pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(2)

    async def scenario() -> None:
        asks = {i: asyncio.ensure_future(_ask(pool, f"text {i}", f"end {i}")) for i in range(300)}
        await asyncio.sleep(0)
        for i in range(0, 300, 3):
            asks[i].cancel()
        outcomes = await asyncio.gather(*asks.values(), return_exceptions=True)
        for i, outcome in enumerate(outcomes):
            expected = [[ord(c) for c in f"text {i}"], [ord(c) for c in f"end {i}"]]
            assert outcome == expected or (i % 3 == 0 and isinstance(outcome, asyncio.CancelledError))

    asyncio.run(scenario())
    assert pool.waiting == 0


def test_an_error_on_the_loop_is_told_once_and_logged_nowhere(
    pool_of: Callable[..., WorkerPool], caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_of(2)
    with pytest.raises(EncodingFailed):
        asyncio.run(_ask(pool, "raise", "raise", "fine"))
    gc.collect()
    assert not caplog.records


# -- shutdown and forks --


def test_closing_waits_for_what_runs_and_fails_what_waits(gated: Gated, pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(1)
    gate = gated.hold("run")
    running = pool.submit([gap("run")])
    until(lambda: gated.entered == ["run"])
    waiting = pool.submit([gap("wait")])
    assert not pool.close(0.01)
    with pytest.raises(PoolClosed):
        waiting.result()
    with pytest.raises(PoolClosed):
        pool.submit([gap("late")])
    gate.set()
    assert running.result()[0].ids == [ord(c) for c in "run"]
    assert pool.close(PATIENCE)


def test_a_pool_that_is_forgotten_ends_its_threads() -> None:
    pool = WorkerPool(codes, 1e-3, threads=3)
    threads = list(pool._threads)
    assert pool.submit([gap("abc")]).result()[0].ids == [97, 98, 99]
    del pool
    gc.collect()
    until(lambda: not any(thread.is_alive() for thread in threads))


def test_the_interpreter_exits_with_work_running_and_waiting() -> None:
    code = """
import threading
from delta_core.pool import WorkerPool
from delta_core.splice import Checkpoints, Encoded, Gap
entered = threading.Event()
def encode(gap):
    entered.set()
    sum(range(2_000_000))
    return Encoded([], Checkpoints())
pool = WorkerPool(encode, 1.0, threads=2)
for _ in range(50):
    pool.submit([Gap("x", 0, 1)])
entered.wait()
print("end")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_at_once_even_while_a_lock_is_held(pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(2)
    with pool._queue._changed:  # as another thread might at the moment of the fork
        child = os.fork()
        if child == 0:
            try:
                pool.submit([gap("x")])
            except PoolClosed:
                os._exit(10 + pool.most_chunks)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 11
    assert pool.submit([gap("x")]).result()[0].ids == [ord("x")]
