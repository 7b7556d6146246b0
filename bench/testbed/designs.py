"""The front ends under test. Each answers on one event loop; where texts are encoded, and in which order, differs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from delta_core import DeltaTokenizer
from delta_core.admission.frozen import load_frozen
from delta_core.encoders import FastokensEncoder
from delta_core.pool import Encoded, Request, Stretch, WorkerPool, encode_stretch, thread_pool
from delta_core.pool.processes import Setup, process_pool
from delta_core.tokenizer import _COST, segment_for

from .load import Arrival


class Design:
    """One front end. name: its row. live: the tokenizer it must agree with."""

    def __init__(self, name: str, live: Tokenizer) -> None:
        self.name = name
        self.live = live

    async def encode(self, arrival: Arrival, text: str) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


class OnLoop(Design):
    """Every text as a whole, on the loop, by one call."""

    def __init__(self, name: str, live: Tokenizer, call: Callable[[str], Any]) -> None:
        super().__init__(name, live)
        self._call = call

    async def encode(self, arrival: Arrival, text: str) -> Any:
        return self._call(text)


class Delta(Design):
    """A DeltaTokenizer with a pool of its own.

    inline: characters encoded on the loop; None leaves the tokenizer's own bound. serial: all of it on the loop.
    """

    def __init__(
        self,
        name: str,
        tok: DeltaTokenizer,
        live: Tokenizer,
        pool: Any,
        *,
        inline: int | None = None,
        serial: bool = False,
    ) -> None:
        super().__init__(name, live)
        self.tok = tok
        self._serial = serial
        self._pool = tok._pool = pool
        if inline is not None:
            tok._inline = inline

    async def encode(self, arrival: Arrival, text: str) -> Any:
        if self._serial:
            return self.tok.encode(text, session=arrival.session)
        return await self.tok.encode_async(text, session=arrival.session)

    def close(self) -> None:
        self._pool.close()


class Lanes:
    """Several pools that look like one: `pick` says which takes a request."""

    def __init__(self, pools: Sequence[WorkerPool], pick: Callable[[Sequence[Stretch], bytes | None], int]) -> None:
        self._pools = pools
        self._pick = pick
        self.most_chunks = 1

    def submit(self, stretches: Sequence[Stretch], key: bytes | None = None) -> Request:
        return self._pools[self._pick(stretches, key) % len(self._pools)].submit(stretches, key)

    def close(self) -> None:
        for pool in self._pools:
            pool.close()


class Whole(Lanes):
    """One pool that gets every text in one piece."""

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__([pool], lambda stretches, key: 0)


SHORT = 16_384  # characters; what goes to the short lane


@dataclass(frozen=True, slots=True)
class Bench:
    """What designs are made of. path: a tokenizer.json. encoder: for all of ours. workers: threads or processes."""

    path: str
    encoder: str
    workers: int

    def live(self) -> Tokenizer:
        return Tokenizer.from_file(self.path)

    def tokenizer(self) -> tuple[DeltaTokenizer, Tokenizer]:
        live = self.live()
        tok = DeltaTokenizer(live, encoder=self.encoder)
        if not tok.admission.admitted:
            raise ValueError(f"{self.path} is not admitted")
        tok.prepare()
        return tok, live

    def threads(self, tok: DeltaTokenizer, workers: int, aging: float = 1.0) -> WorkerPool:
        rules, encode, name = tok._rules, tok._encoder.encode_flat, tok._encoder.name
        segment = segment_for(name)

        def one(stretch: Stretch) -> Encoded:
            return encode_stretch(rules, encode, stretch, segment)

        return thread_pool(one, _COST[name], workers=workers, aging=aging)

    def processes(self, tok: DeltaTokenizer, live: Tokenizer) -> WorkerPool:
        name = tok.admission.encoder
        setup = Setup(live.to_str(), load_frozen(tok.admission.config or ""), name, segment_for(name))
        pool = process_pool(setup, _COST[name], workers=self.workers)
        if not pool.wait_ready(60.0):
            raise RuntimeError("the worker processes did not start")
        return pool

    def make(self, name: str) -> Design:
        """One of NAMES. Starts its workers."""
        if name == "reference":
            live = self.live()
            return OnLoop(name, live, lambda text: live.encode(text, add_special_tokens=False).ids)
        if name == "fastokens":
            live = self.live()
            fast = FastokensEncoder(live.to_str())
            return OnLoop(name, live, lambda text: fast.encode_segments([text])[0])
        tok, live = self.tokenizer()
        n = self.workers
        if name == "delta as shipped":
            return Delta(name, tok, live, tok._workers())
        if name == "delta serial":
            return Delta(name, tok, live, self.threads(tok, 1), serial=True)
        if name == "delta threads":
            return Delta(name, tok, live, self.threads(tok, n))
        if name == "delta processes":
            return Delta(name, tok, live, self.processes(tok, live))
        if name == "whole documents":
            return Delta(name, tok, live, Whole(self.threads(tok, n)))
        pools: dict[str, Callable[[], Any]] = {
            "queue: per-worker FIFO": lambda: Lanes(
                [self.threads(tok, 1, 0.0) for _ in range(n)], lambda _, key: zlib.crc32(key or b"")
            ),
            "queue: two lanes": lambda: Lanes(
                [self.threads(tok, max(1, n // 2), 0.0), self.threads(tok, max(1, n - n // 2), 0.0)],
                lambda stretches, _: sum(s.end - s.start for s in stretches) > SHORT,
            ),
            "queue: shared FIFO": lambda: Whole(self.threads(tok, n, 0.0)),
            "queue: shared SJF": lambda: Whole(self.threads(tok, n, 1.0)),
            "queue: chunked FIFO": lambda: self.threads(tok, n, 0.0),
            "queue: chunked SJF": lambda: self.threads(tok, n, 1.0),
        }
        # Here every text goes through the queue, the shortest, too: that is what tells the orders apart.
        return Delta(name, tok, live, pools[name](), inline=-1)


OURS = ("delta as shipped", "delta serial", "delta threads", "delta processes")
FRONT_ENDS = ("reference", "fastokens", *OURS)
QUEUES = (
    "queue: per-worker FIFO",
    "queue: two lanes",
    "queue: shared FIFO",
    "queue: shared SJF",
    "queue: chunked FIFO",
    "queue: chunked SJF",
)
NAMES = (*FRONT_ENDS, "whole documents", *QUEUES)
