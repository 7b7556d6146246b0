"""Workers for cold text: a queue, threads or processes behind it, and the chunks they encode."""

from .chunks import DIVIDE_FROM, Encoded, Stretch, divide, encode_stretch
from .queueing import Estimator, PoolClosed, PoolError, PoolFull, TaskQueue
from .workers import DEADLINE, Request, ThreadWorker, WorkerDied, WorkerPool, thread_pool

__all__ = [
    "DEADLINE",
    "DIVIDE_FROM",
    "Encoded",
    "Estimator",
    "PoolClosed",
    "PoolError",
    "PoolFull",
    "Request",
    "Stretch",
    "TaskQueue",
    "ThreadWorker",
    "WorkerDied",
    "WorkerPool",
    "divide",
    "encode_stretch",
    "thread_pool",
]
