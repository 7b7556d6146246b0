"""WorkerPool: threads behind one queue, for what would take too long on an event loop or is best encoded in chunks.

What can go wrong, and what the caller gets: an exception of Request.result and Request.wait is always a PoolError, and
always means "encode it yourself". The pool decides nothing about a text: whether one that fails here is a bad one is
found out where the reference is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field

from .splice import MOST_CHUNKS, Encoded, Gap

DEADLINE = 60.0  # seconds for one request, waiting included
CAPACITY = 1024  # gaps that may wait
_LEAVE = 2.0  # seconds that an exit waits for what is running

_FIXED_MS = 0.2  # what a gap costs beside its characters: hand-over, waking up
_GAIN = 0.05  # weight of a new measurement in the moving average
_NON_ASCII = 5.0  # a non-ASCII character is taken to cost this many ASCII ones more
_SAMPLE = 256  # characters looked at for the share of non-ASCII ones


class PoolError(Exception):
    """The pool did not encode this request; the caller does it on its own. Never an error of the text."""


class PoolFull(PoolError):
    """The queue holds all it may hold."""


class PoolClosed(PoolError):
    """The pool was shut down, or belongs to another process (a fork)."""


class EncodingFailed(PoolError):
    """The encoder raised for one of the gaps; the message is the error's type, never its text."""


class DeadlineExceeded(PoolError):
    """The pool took too long."""


class Estimator:
    """Expected service time of a text in milliseconds: a + b * N * (1 + 5s), s the share of non-ASCII characters.

    b is a moving average over what was measured; one Estimator serves one kind of work. Thread-safe: a lost update
    of the average does no harm.
    """

    def __init__(self, ms_per_character: float) -> None:
        self.b = ms_per_character

    @staticmethod
    def weigh(text: str, start: int, end: int) -> float:
        """N * (1 + 5s), from a sample. O(1)."""
        sample = text[start : end : max(1, (end - start) // _SAMPLE)]
        if not sample:
            return 0.0
        share = 0.0 if sample.isascii() else sum(c > "\x7f" for c in sample) / len(sample)
        return (end - start) * (1 + _NON_ASCII * share)

    def estimate(self, weight: float) -> float:
        """Milliseconds for a text of this weight."""
        return _FIXED_MS + self.b * weight

    def measured(self, weight: float, ms: float) -> None:
        """Take in what a text of this weight took."""
        if weight > 0:
            self.b += _GAIN * (max(0.0, ms - _FIXED_MS) / weight - self.b)


@dataclass(slots=True)
class Task:
    """One gap in the queue. order: its place there, smallest first. weight: as of Estimator.weigh."""

    gap: Gap
    order: float
    weight: float
    future: Future[Encoded] = field(default_factory=Future)


class TaskQueue:
    """A bounded queue, shortest first: order = arrival + estimate, both in ms.

    A task that waits is overtaken only by those that arrive before it would have been done alone: none starves. The
    estimate of a chunk is that of its whole request, so a short request slips in between the chunks of a long one.
    O(log n).
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Reentrant: a finalizer that closes the queue may run wherever memory is allocated, in here, too.
        self._changed = threading.Condition(threading.RLock())
        self._heap: list[tuple[float, int, Task]] = []
        self._number = 0  # of tasks ever: equal places keep their order
        self.closed = False

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, gaps: Sequence[Gap], weights: Sequence[float], estimate: float) -> list[Task]:
        """Queue the gaps of one request, all or none. estimate: of the whole request, in ms.

        Raises PoolFull, PoolClosed.
        """
        order = time.monotonic() * 1e3 + estimate
        with self._changed:
            if self.closed:
                raise PoolClosed("the pool is closed")
            if len(self._heap) + len(gaps) > self._capacity:
                raise PoolFull(f"{len(self._heap)} gaps are waiting already")
            tasks = [Task(gap, order, weight) for gap, weight in zip(gaps, weights, strict=True)]
            for task in tasks:
                self._number += 1
                heapq.heappush(self._heap, (order, self._number, task))
            self._changed.notify(len(tasks))
            return tasks

    def take(self) -> Task | None:
        """The next task, marked as running; waits for one. None: the queue is closed, go home."""
        with self._changed:
            while True:
                if self.closed:
                    return None
                if self._heap:
                    task = heapq.heappop(self._heap)[2]
                    if task.future.set_running_or_notify_cancel():
                        return task
                    del task  # while we wait, nothing may keep a text
                else:
                    self._changed.wait()

    def drop(self, tasks: Sequence[Task]) -> None:
        """Take tasks that nobody waits for out of the queue. Running ones go on. O(capacity)."""
        with self._changed:
            gone = {id(task) for task in tasks if task.future.cancel()}
            if gone:
                self._heap[:] = [entry for entry in self._heap if id(entry[2]) not in gone]
                heapq.heapify(self._heap)

    def close(self) -> None:
        """Refuse what comes, fail what waits. Running tasks end as they end."""
        with self._changed:
            self.closed = True
            waiting = [entry[2] for entry in self._heap]
            self._heap.clear()
            self._changed.notify_all()
        for task in waiting:
            if task.future.set_running_or_notify_cancel():
                task.future.set_exception(PoolClosed("the pool was closed"))

    def _check(self) -> None:
        with self._changed:
            heap = self._heap
            assert len(heap) <= self._capacity
            assert all(heap[(i - 1) // 2] <= heap[i] for i in range(1, len(heap)))
            assert not self.closed or not heap


class Request:
    """The gaps of one text, on their way. Ask once, by `result` or by `wait`."""

    def __init__(self, queue: TaskQueue, tasks: Sequence[Task], deadline: float) -> None:
        self._queue = queue
        self._tasks = tasks
        self._deadline = deadline

    def result(self) -> list[Encoded]:
        """What the gaps gave, in order. Blocks. Raises PoolError; what still waited is dropped then."""
        try:
            futures = [task.future for task in self._tasks]
            wait(futures, timeout=self._deadline, return_when=FIRST_EXCEPTION)
            return self._collect(futures)
        finally:
            self._queue.drop(self._tasks)

    async def wait(self) -> list[Encoded]:
        """As `result`, on an event loop. A request that is cancelled leaves nothing in the queue."""
        waiting = [asyncio.wrap_future(task.future) for task in self._tasks]
        try:
            if waiting:
                await asyncio.wait(waiting, timeout=self._deadline, return_when=asyncio.FIRST_EXCEPTION)
            return self._collect([task.future for task in self._tasks])
        finally:
            for future in waiting:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # looked at: asyncio logs those that nobody asked for
            self._queue.drop(self._tasks)

    @staticmethod
    def _collect(futures: Sequence[Future[Encoded]]) -> list[Encoded]:
        for future in futures:
            error = future.exception() if future.done() and not future.cancelled() else None
            if isinstance(error, PoolError):
                raise error
            if error is not None:
                raise EncodingFailed(type(error).__name__)
        if not all(future.done() for future in futures):
            raise DeadlineExceeded("the deadline passed")
        if any(future.cancelled() for future in futures):
            raise PoolClosed("the request was cancelled")
        return [future.result() for future in futures]


class WorkerPool:
    """Threads that encode gaps, behind one queue.

    encode: what encodes one gap, beside the other threads as far as it releases the GIL.
    ms_per_character: first guess of the estimate, corrected by what is measured.
    warm: called first in each thread; encoders make caches in each new one. What it raises is nobody's concern.
    threads: one for each core this process may use, unless it is given.
    capacity: gaps that may wait. deadline: seconds for one request.

    Running work is never interrupted. Interpreter exit waits a moment for it; a fork's child has no pool.
    """

    def __init__(
        self,
        encode: Callable[[Gap], Encoded],
        ms_per_character: float,
        *,
        warm: Callable[[], object] | None = None,
        threads: int | None = None,
        capacity: int = CAPACITY,
        deadline: float = DEADLINE,
    ) -> None:
        self._queue = TaskQueue(capacity)
        self.estimator = Estimator(ms_per_character)
        self._deadline = deadline
        self._process = os.getpid()
        # The threads know the queue and not the pool: a pool that is forgotten ends them.
        arguments = (encode, warm, self._queue, self.estimator)
        self._threads = [
            threading.Thread(target=_serve, args=arguments, name=f"delta-{number}", daemon=True)
            for number in range(threads or cores())
        ]
        for thread in self._threads:
            thread.start()
        self._finalizer = weakref.finalize(self, _shut, self._queue, self._threads, self._process, _LEAVE)

    @property
    def threads(self) -> int:
        """How many there are."""
        return len(self._threads)

    @property
    def waiting(self) -> int:
        """Gaps in the queue."""
        return len(self._queue)

    @property
    def most_chunks(self) -> int:
        """Into how many chunks a text should be divided at most: with one thread, none is encoded sooner."""
        return MOST_CHUNKS if self.threads > 1 and self._process == os.getpid() else 1

    def submit(self, gaps: Sequence[Gap]) -> Request:
        """Queue the gaps of one text, all or none. Raises PoolFull, PoolClosed, at once. O(gaps * log(waiting))."""
        if self._process != os.getpid():  # before any lock: another thread may have held it when we were forked
            raise PoolClosed("the pool belongs to the process this one was forked from")
        weights = [Estimator.weigh(gap.text, gap.start, gap.end) for gap in gaps]
        estimate = self.estimator.estimate(sum(weights))
        return Request(self._queue, self._queue.put(gaps, weights, estimate), self._deadline)

    def close(self, timeout: float | None = None) -> bool:
        """Refuse new work, fail what waits, wait up to `timeout` seconds for what runs. True when all is ended."""
        self._finalizer.detach()
        return _shut(self._queue, self._threads, self._process, timeout)


def cores() -> int:
    """CPU cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def _serve(
    encode: Callable[[Gap], Encoded], warm: Callable[[], object] | None, queue: TaskQueue, estimator: Estimator
) -> None:
    """The life of one thread."""
    if warm is not None:
        with contextlib.suppress(Exception):
            warm()
    while (task := queue.take()) is not None:
        began = time.monotonic()
        try:
            encoded = encode(task.gap)
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            task.future.set_exception(error)
        else:
            estimator.measured(task.weight, (time.monotonic() - began) * 1e3)
            task.future.set_result(encoded)
            del encoded
        del task  # a thread that waits must not keep a text


def _shut(queue: TaskQueue, threads: Sequence[threading.Thread], process: int, timeout: float | None) -> bool:
    if process != os.getpid():
        return True
    queue.close()
    end = None if timeout is None else time.monotonic() + timeout
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
