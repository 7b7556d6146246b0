"""The front ends under test. Each answers on one event loop; where texts are encoded differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from delta_core import DeltaTokenizer
from delta_core.pool import cores

from .load import Arrival

STOCK, FAST, ON_LOOP = "reference", "fastokens", "delta, on the loop"


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
    """A DeltaTokenizer. threads: of its pool; 0: everything on the loop."""

    def __init__(self, live: Tokenizer, tok: DeltaTokenizer, threads: int) -> None:
        shipped = threads == (tok._encoder.threads or cores())
        name = f"delta, {threads} thread{'s' if threads > 1 else ''}" if threads else ON_LOOP
        super().__init__(name + (", as shipped" if shipped else ""), live)
        self.tok = tok
        self._off_loop = threads > 0
        if threads:
            tok._encoder.threads = threads  # the pool asks when it is made
        tok.prepare()

    async def encode(self, arrival: Arrival, text: str) -> Any:
        if self._off_loop:
            return await self.tok.encode_async(text, session=arrival.session, add_special_tokens=False)
        return self.tok.encode(text, session=arrival.session, add_special_tokens=False)

    def close(self) -> None:
        if self.tok._pool is not None:
            self.tok._pool.close()


@dataclass(frozen=True, slots=True)
class Bench:
    """What designs are made of. path: a tokenizer.json. encoder: of all of ours. threads: pool sizes to try."""

    path: str
    encoder: str
    threads: tuple[int, ...]

    def makers(self) -> list[Callable[[], Design]]:
        """All designs, each made when it is called: what is idle keeps no threads and no memory."""
        ours = [lambda n=n: self.delta(n) for n in (0, *self.threads)]
        return [self.stock, self.fastokens, *ours]

    def _live(self) -> Tokenizer:
        return Tokenizer.from_file(self.path)

    def stock(self) -> Design:
        live = self._live()
        return OnLoop(STOCK, live, lambda text: live.encode(text, add_special_tokens=False).ids)

    def fastokens(self) -> Design:
        import fastokens

        live = self._live()
        fast = fastokens.Tokenizer.from_json_str(live.to_str())
        return OnLoop(FAST, live, lambda text: fast.encode(text, add_special_tokens=False).ids)

    def delta(self, threads: int) -> Design:
        """Raises ValueError for a tokenizer that is not admitted, or an encoder that may not serve it."""
        live = self._live()
        tok = DeltaTokenizer(live, encoder=self.encoder)
        if not tok.admission.admitted or tok.admission.encoder != self.encoder:
            raise ValueError(f"{self.path}: {tok.describe()}")
        return Delta(live, tok, threads)
