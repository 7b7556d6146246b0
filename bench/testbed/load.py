"""What arrives, and when: sessions that grow turn by turn, texts without a session, documents, session starts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..texts import transcript

STATELESS_SHARE = 0.023  # requests that belong to no session
APPEND = 1300  # characters of a turn
STATELESS = 32_000  # characters of a request without a session


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request.

    at: when it is due, in seconds from the start. kind: append, stateless, document or start.
    session: its key, or None. source, end: the text is the beginning of a longer one, cut when it is due, because all
    turns at once would not fit in memory.
    """

    at: float
    kind: str
    session: str | None
    source: str
    end: int

    @property
    def text(self) -> str:
        return self.source[: self.end]


@dataclass(frozen=True, slots=True)
class Fleet:
    """The sessions, and the text that everything else is cut from.

    base: characters of a session before its first timed turn. sources: a text per session, longer than base.
    """

    base: int
    sources: Sequence[str]
    corpus: str

    @staticmethod
    def generated(family: str, sessions: int, base: int, turns: int, corpus: int) -> Fleet:
        """About 0.5 s per million characters."""
        room = base + turns * APPEND
        return Fleet(
            base,
            [transcript("mixed", family, room, seed) for seed in range(sessions)],
            transcript("mixed", family, corpus, 10_000),
        )

    def warming(self) -> Iterator[Arrival]:
        """One request a session, to have it remembered."""
        for number, source in enumerate(self.sources):
            yield Arrival(0.0, "warm", f"session {number}", source, self.base)


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests that come all at once, again and again.

    kind: document (no session) or start (a session's first request). every: seconds. count, characters: of them.
    """

    kind: str
    every: float
    count: int
    characters: int


def schedule(fleet: Fleet, rate: float, seconds: float, seed: int, *, bursts: Sequence[Burst] = ()) -> list[Arrival]:
    """Poisson arrivals at `rate` a second, appends but for STATELESS_SHARE, and bursts between them."""
    # A design keeps what it was given: in no other scenario may the same texts come again.
    rng = random.Random(f"{seed} {rate} {[burst.kind for burst in bursts]}")
    ends = [fleet.base] * len(fleet.sources)
    arrivals = []
    at = rng.expovariate(rate)
    while at < seconds:
        if rng.random() < STATELESS_SHARE:
            arrivals.append(_elsewhere(rng, fleet, at, "stateless", STATELESS))
        else:
            number = rng.randrange(len(ends))
            ends[number] += APPEND
            if ends[number] > len(fleet.sources[number]):
                ends[number] = fleet.base  # the history is trimmed to where it began
            arrivals.append(Arrival(at, "append", f"session {number}", fleet.sources[number], ends[number]))
        at += rng.expovariate(rate)
    for burst in bursts:
        due = burst.every / 2
        while due < seconds:
            arrivals += [_elsewhere(rng, fleet, due, burst.kind, burst.characters) for _ in range(burst.count)]
            due += burst.every
    return sorted(arrivals, key=lambda a: a.at)


def _elsewhere(rng: random.Random, fleet: Fleet, at: float, kind: str, characters: int) -> Arrival:
    """A text like no other: made here, where copying it costs no request anything."""
    characters = min(characters, len(fleet.corpus))
    start = rng.randrange(len(fleet.corpus) - characters + 1)
    mark = f"{rng.getrandbits(64):016x}\n"
    text = mark + fleet.corpus[start : start + characters]
    return Arrival(at, kind, f"new {mark}" if kind == "start" else None, text, len(text))
