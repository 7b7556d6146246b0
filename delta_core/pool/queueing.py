"""The queue in front of the workers: who is next, how long it will take, and when to say no."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from .chunks import Encoded, Stretch

_FIXED_MS = 0.2  # what a task costs beside its characters: hand-over, waking up
_GAIN = 0.05  # weight of a new measurement in the moving average
_NON_ASCII = 5.0  # a non-ASCII character is taken to cost this many ASCII ones more
_SAMPLE = 256  # characters looked at for the share of non-ASCII ones


class PoolError(Exception):
    """The pool did not encode this request; the caller does it on its own. Never an error of the text."""


class PoolFull(PoolError):
    """The queue holds all it may hold."""


class PoolClosed(PoolError):
    """The pool was shut down, has no worker left, or belongs to another process (a fork)."""


class Estimator:
    """Expected service time of a text in milliseconds: a + b * N * (1 + 5s), s the share of non-ASCII characters.

    b is a moving average over what was measured; one Estimator serves one kind of task. Thread-safe: a lost update
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
        return _FIXED_MS + self.b * weight

    def measured(self, weight: float, ms: float) -> None:
        if weight > 0:
            self.b += _GAIN * (max(0.0, ms - _FIXED_MS) / weight - self.b)


@dataclass(slots=True)
class Task:
    """One stretch in the queue.

    home: the worker that should take it, if that one is free; None for whoever is free.
    key: place in the queue, smallest first. weight: as of Estimator.weigh.
    """

    stretch: Stretch
    home: int | None
    key: float
    weight: float
    future: Future[Encoded] = field(default_factory=Future)


class TaskQueue:
    """A bounded queue of tasks for a fixed crew of workers.

    Order: key = arrival + aging * estimate, both in ms. With aging 0 that is first in, first out. With 1 it is shortest
    first, and a task that waits is overtaken only by those that arrive before it would have been done alone: none
    starves. The estimate of a chunk is that of its whole request, so a short request slips in between the chunks of a
    long one.

    Tasks with a home lie in that worker's heap, the others in a common one. A worker takes the first of its own and
    the common heap; one that finds both empty helps another out. O(log n), taking from another's heap O(workers).
    """

    def __init__(self, workers: int, capacity: int, aging: float) -> None:
        self.aging = aging
        self._capacity = capacity
        self._alive = workers  # ready, or still to come
        # Reentrant: a finalizer that closes the queue may run wherever memory is allocated, in here, too.
        self._changed = threading.Condition(threading.RLock())
        self._heaps: dict[int | None, list[tuple[float, int, Task]]] = {None: []}
        self._count = 0  # of tasks in all heaps
        self._number = 0  # of tasks ever: equal keys keep their order
        self.closed = False

    def __len__(self) -> int:
        return self._count

    @property
    def crew(self) -> list[int]:
        """The workers that take tasks."""
        return sorted(worker for worker in self._heaps if worker is not None)

    def join(self, worker: int) -> None:
        """A worker that takes tasks from now on."""
        with self._changed:
            self._heaps.setdefault(worker, [])
            self._changed.notify_all()

    def wait_complete(self, timeout: float) -> bool:
        """Wait until every worker takes tasks or is retired. False: still not, or none is left."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or len(self.crew) == self._alive, timeout)
            return not self.closed and len(self.crew) == self._alive

    def leave(self, worker: int) -> None:
        """A worker is retired: what waits for it is anyone's. With the last one the queue is closed."""
        with self._changed:
            for entry in self._heaps.pop(worker, ()):
                heapq.heappush(self._heaps[None], entry)
            self._alive -= 1
            self._changed.notify_all()
            last = self._alive == 0
        if last:
            self.close()

    def put(
        self, stretches: Sequence[Stretch], weights: Sequence[float], estimate: float, home: int | None
    ) -> list[Task]:
        """Queue the chunks of one request, all or none. Raises PoolFull, PoolClosed.

        estimate: of the whole request, in ms. home: of the first chunk; the next ones go to the workers after it.
        """
        now = time.monotonic() * 1e3
        with self._changed:
            if self.closed:
                raise PoolClosed("the pool is closed, or has no worker left")
            crew = self.crew
            if not crew:
                raise PoolFull("no worker is ready")
            if self._count + len(stretches) > self._capacity:
                raise PoolFull(f"{self._count} tasks are waiting already")
            tasks = []
            for i, (stretch, weight) in enumerate(zip(stretches, weights, strict=True)):
                at = crew[(home + i) % len(crew)] if home is not None else None
                task = Task(stretch, at, now + self.aging * estimate, weight)
                self._number += 1
                heapq.heappush(self._heaps[at], (task.key, self._number, task))
                tasks.append(task)
            self._count += len(tasks)
            self._changed.notify(len(tasks))
            return tasks

    def take(self, worker: int) -> Task | None:
        """The next task of a worker, marked as running; waits for one. None: the queue is closed, go home."""
        with self._changed:
            while True:
                if self.closed:
                    return None
                heap = self._heap_for(worker)
                if heap:
                    task = heapq.heappop(heap)[2]
                    self._count -= 1
                    if task.future.set_running_or_notify_cancel():
                        return task
                    del task  # while we wait, nothing may keep a text
                else:
                    self._changed.wait()

    def _heap_for(self, worker: int) -> list[tuple[float, int, Task]]:
        own, common = self._heaps[worker], self._heaps[None]
        if own and common:
            return min(own, common)
        return own or common or min((heap for heap in self._heaps.values() if heap), default=own)

    def drop(self, tasks: Sequence[Task]) -> None:
        """Take tasks that nobody waits for out of the queue. Running ones go on. O(capacity)."""
        with self._changed:
            gone = {id(task) for task in tasks if task.future.cancel()}
            if not gone:
                return
            for heap in self._heaps.values():
                kept = [entry for entry in heap if id(entry[2]) not in gone]
                if len(kept) != len(heap):
                    self._count -= len(heap) - len(kept)
                    heap[:] = kept
                    heapq.heapify(heap)

    def close(self) -> None:
        """Refuse what comes, fail what waits. Running tasks end as they end."""
        with self._changed:
            self.closed = True
            waiting = [entry[2] for heap in self._heaps.values() for entry in heap]
            for heap in self._heaps.values():
                heap.clear()
            self._count = 0
            self._changed.notify_all()
        for task in waiting:
            if task.future.set_running_or_notify_cancel():
                task.future.set_exception(PoolClosed("the pool was closed"))

    def _check(self) -> None:
        """The invariants."""
        with self._changed:
            entries = [entry for heap in self._heaps.values() for entry in heap]
            assert self._count == len(entries) <= self._capacity
            assert all(heap[(i - 1) // 2] <= heap[i] for heap in self._heaps.values() for i in range(1, len(heap)))
            assert all(
                entry[2].home == where for where, heap in self._heaps.items() if where is not None for entry in heap
            )
            assert not (self.closed and entries)
