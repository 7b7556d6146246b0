"""WorkerPool: a crew of workers behind one queue. Threads here; processes, which only look different, in processes.py.

Every worker has a thread in this process that takes its tasks from the queue. A ThreadWorker encodes in that thread,
beside the others as far as the encoder releases the GIL; a ProcessWorker sends the text to a process and waits. So the
queue, the failures and the results are the same for both.

What can go wrong, and what the caller gets: an exception of Request.result and Request.wait is always a PoolError, and
always means "encode it yourself". The pool decides nothing about a text: whether one that fails here is a bad one is
found out where the reference is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Protocol

from .chunks import MOST_CHUNKS, Encoded, Stretch
from .queueing import Estimator, PoolClosed, PoolError, Task, TaskQueue

log = logging.getLogger("delta_core")

DEADLINE = 60.0  # seconds for one request, waiting included
CAPACITY = 1024  # tasks that may wait
_LEAVE = 2.0  # seconds that an exit waits for what is running


class WorkerDied(PoolError):
    """The worker is gone, or does not answer; it is retired, the others go on."""


class EncodingFailed(PoolError):
    """The encoder raised for one of the chunks; the message is the error's type, never its text."""


class DeadlineExceeded(PoolError):
    """The pool took too long."""


class Worker(Protocol):
    """Encodes one stretch at a time, in the thread that serves it.

    ready: it can take tasks without `start` having run.
    """

    ready: bool

    def start(self) -> None:
        """Called once, before the first task. Raises WorkerDied."""

    def run(self, stretch: Stretch) -> Encoded:
        """Raises WorkerDied when the worker is gone; anything else it raises concerns this stretch alone."""

    def close(self) -> None:
        """Called once, after the last task. Nothing of the worker is left running."""


class ThreadWorker:
    """Encodes in its own thread.

    warm: called first in that thread; encoders make caches in each new one. What it raises is nobody's concern.
    """

    ready = True

    def __init__(self, encode: Callable[[Stretch], Encoded], warm: Callable[[], object] | None = None) -> None:
        self._encode = encode
        self._warm = warm

    def start(self) -> None:
        if self._warm is not None:
            with contextlib.suppress(BaseException):  # a panic in Rust is no Exception
                self._warm()

    def run(self, stretch: Stretch) -> Encoded:
        return self._encode(stretch)

    def close(self) -> None:
        pass


class Request:
    """The chunks of one text, on their way. Ask once, by `result` or by `wait`."""

    def __init__(self, queue: TaskQueue, tasks: Sequence[Task], deadline: float) -> None:
        self._queue = queue
        self._tasks = tasks
        self._deadline = deadline

    def result(self) -> list[Encoded]:
        """What the chunks gave, in order. Blocks. Raises PoolError; what still waited is dropped then."""
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
    """Workers behind one queue.

    workers: each gets a thread at once.
    ms_per_character: first guess of the estimate, corrected by what is measured.
    aging: order of the queue, see TaskQueue.
    homes: the chunks of a session go to the same workers each time, where these are free.
    capacity: tasks that may wait. deadline: seconds for one request.

    Running work is never interrupted. Interpreter exit waits a moment for it; a fork's child has no pool.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        ms_per_character: float,
        *,
        aging: float = 1.0,
        homes: bool = False,
        capacity: int = CAPACITY,
        deadline: float = DEADLINE,
    ) -> None:
        self._queue = TaskQueue(len(workers), capacity, aging)
        self.estimator = Estimator(ms_per_character)
        self._homes = homes
        self._deadline = deadline
        self._process = os.getpid()
        self._threads = []
        for number, worker in enumerate(workers):
            if worker.ready:
                self._queue.join(number)
            # The threads know the queue and not the pool: a pool that is forgotten ends them.
            arguments = (number, worker, self._queue, self.estimator)
            thread = threading.Thread(target=_serve, args=arguments, name=f"delta-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._finalizer = weakref.finalize(self, _shut, self._queue, self._threads, self._process, _LEAVE)

    @property
    def workers(self) -> int:
        """Workers that take tasks."""
        return len(self._queue.crew)

    def wait_ready(self, timeout: float) -> bool:
        """Wait until all workers have started, or failed to. True when at least one serves. For start-up and tests."""
        if self._process != os.getpid():
            return False
        return self._queue.wait_complete(timeout)

    @property
    def waiting(self) -> int:
        """Tasks in the queue."""
        return len(self._queue)

    @property
    def most_chunks(self) -> int:
        """Into how many chunks a text should be divided at most.

        One per worker; more only where the queue's order lets shorter work in between.
        """
        if self.workers < 2 or self._process != os.getpid():
            return 1
        return MOST_CHUNKS if self._queue.aging else min(MOST_CHUNKS, self.workers)

    def submit(self, stretches: Sequence[Stretch], key: bytes | None = None) -> Request:
        """Queue the chunks of one text, all or none.

        key: the session's. Raises PoolFull, PoolClosed, at once. O(chunks * log(waiting)).
        """
        if self._process != os.getpid():  # before any lock: another thread may have held it when we were forked
            raise PoolClosed("the pool belongs to the process this one was forked from")
        weights = [Estimator.weigh(stretch.text, stretch.start, stretch.end) for stretch in stretches]
        estimate = self.estimator.estimate(sum(weights))
        home = zlib.crc32(key) if self._homes and key is not None else None
        return Request(self._queue, self._queue.put(stretches, weights, estimate, home), self._deadline)

    def close(self, timeout: float | None = None) -> bool:
        """Refuse new work, fail what waits, wait up to `timeout` seconds for what runs. True when all is ended."""
        self._finalizer.detach()
        return _shut(self._queue, self._threads, self._process, timeout)


def thread_pool(
    encode: Callable[[Stretch], Encoded],
    ms_per_character: float,
    *,
    warm: Callable[[], object] | None = None,
    workers: int | None = None,
    aging: float = 1.0,
    capacity: int = CAPACITY,
    deadline: float = DEADLINE,
) -> WorkerPool:
    """A pool of threads, one for each core this process may use. warm: see ThreadWorker."""
    crew = [ThreadWorker(encode, warm) for _ in range(workers or cores())]
    return WorkerPool(crew, ms_per_character, aging=aging, capacity=capacity, deadline=deadline)


def cores() -> int:
    """CPU cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def _serve(number: int, worker: Worker, queue: TaskQueue, estimator: Estimator) -> None:
    """The life of one worker, in its thread."""
    try:
        worker.start()
        queue.join(number)
        while (task := queue.take(number)) is not None:
            began = time.monotonic()
            try:
                encoded = worker.run(task.stretch)
            except BaseException as error:  # a panic in Rust is no Exception
                task.future.set_exception(error)
                if isinstance(error, WorkerDied):
                    raise
            else:
                estimator.measured(task.weight, (time.monotonic() - began) * 1e3)
                task.future.set_result(encoded)
                del encoded
            del task  # a worker that waits must not keep a text
    except WorkerDied as error:
        log.warning("worker %d is retired: %s", number, error)
    finally:
        queue.leave(number)
        worker.close()


def _shut(queue: TaskQueue, threads: Sequence[threading.Thread], process: int, timeout: float | None) -> bool:
    if process != os.getpid():
        return True
    queue.close()
    end = None if timeout is None else time.monotonic() + timeout
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
