"""Encodes a session's turns with Delta Tokenizer and with the reference, times both, and compares the IDs.

Every number is of one call, in one process, with the two sides interleaved, a few turns at a time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from ...admission.admit import Admission
from ...metrics import Stats
from ...tokenizer import DeltaTokenizer
from . import templates
from .messages import Message, Turn

_AROUND = 5  # IDs shown on either side of a difference


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One turn, measured; times in seconds.

    new_chars: of the messages that the session's previous turn did not have, and of a changed message the part between
        its common ends: what any method must read, independent of what Delta Tokenizer did.
    reused_tokens: taken over from the turns before.
    """

    session: int
    turn: int
    kind: str
    chars: int
    new_chars: int
    tokens: int
    reused_tokens: int
    reference_s: float
    delta_s: float
    reference_cpu_s: float
    delta_cpu_s: float
    identical: bool

    @property
    def reused(self) -> float:
        """Share of this turn's tokens taken over."""
        return self.reused_tokens / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a turn's IDs first differ, with the IDs around it. IDs only: a prompt's text is nobody's business."""

    session: int
    turn: int
    position: int
    expected: tuple[int, ...]
    got: tuple[int, ...]
    expected_length: int
    got_length: int


@dataclass(frozen=True, slots=True)
class Report:
    """All turns of a run, in order, and the tokenizer's state at its end."""

    turns: tuple[TurnResult, ...]
    differences: tuple[Difference, ...]
    admission: Admission
    stats: Stats
    interrupted: bool


@dataclass(frozen=True, slots=True)
class _Timed:
    """One call: its IDs, and its wall and CPU time in seconds. reused: how many of the IDs were taken over."""

    ids: list[int]
    seconds: float
    cpu: float
    reused: int = 0


def measure(
    tok: DeltaTokenizer,
    reference: Tokenizer,
    sessions: Sequence[Sequence[Turn]],
    *,
    family: str,
    block: int = 1,
    on_turn: Callable[[TurnResult], None] = lambda _: None,
) -> Report:
    """Encode every turn with both, compare the IDs, and report; a KeyboardInterrupt ends it with what was done.

    reference: a tokenizer object of its own. A tokenizer caches words, and neither side may warm the other's caches.
    block: how many turns one side does before the other does the same ones. With 1, each of ours follows an encode of
        the whole text by the reference, which has emptied the processor's caches: no server does that between turns.
    """
    results: list[TurnResult] = []
    differences: list[Difference] = []
    interrupted = False
    try:
        for number, turns in enumerate(sessions):
            previous: Sequence[Message] = ()
            for turn, text, ours, theirs in _measured(tok, reference, turns, family, number, block):
                result = TurnResult(
                    session=number,
                    turn=turn.index,
                    kind=turn.kind,
                    chars=len(text),
                    new_chars=_new_chars(previous, turn.messages),
                    tokens=len(theirs.ids),
                    reused_tokens=ours.reused,
                    reference_s=theirs.seconds,
                    delta_s=ours.seconds,
                    reference_cpu_s=theirs.cpu,
                    delta_cpu_s=ours.cpu,
                    identical=ours.ids == theirs.ids,
                )
                previous = turn.messages
                results.append(result)
                if not result.identical:
                    differences.append(_difference(result, theirs.ids, ours.ids))
                on_turn(result)
    except KeyboardInterrupt:
        interrupted = True
    return Report(tuple(results), tuple(differences), tok.admission, tok.stats(), interrupted)


def _measured(
    tok: DeltaTokenizer, reference: Tokenizer, turns: Sequence[Turn], family: str, number: int, block: int
) -> Iterator[tuple[Turn, str, _Timed, _Timed]]:
    """Per turn its text, our call and the reference's."""

    def ours(text: str) -> _Timed:
        before = tok.stats().reused_tokens
        timed = _timed(lambda: tok.encode(text, session=f"demo-{number}", add_special_tokens=False))
        return _Timed(timed.ids, timed.seconds, timed.cpu, tok.stats().reused_tokens - before)

    def theirs(text: str) -> _Timed:
        # The stock path at its best: the batch call is faster than `encode`, and releases the GIL.
        return _timed(lambda: reference.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    for start in range(0, len(turns), block):
        part = turns[start : start + block]
        texts = [templates.render_turn(family, turn) for turn in part]
        # Whoever goes second finds the texts in the processor's caches, so the two take turns at it.
        if (number + start // block) % 2 == 0:
            mine = list(map(ours, texts))
            stock = list(map(theirs, texts))
        else:
            stock = list(map(theirs, texts))
            mine = list(map(ours, texts))
        yield from zip(part, texts, mine, stock, strict=True)


def _timed(call: Callable[[], list[int]]) -> _Timed:
    cpu = time.process_time()
    start = time.perf_counter()
    ids = call()
    end = time.perf_counter()
    return _Timed(ids, end - start, time.process_time() - cpu)


def _difference(turn: TurnResult, expected: list[int], got: list[int]) -> Difference:
    pairs = zip(expected, got, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(got)))
    near = slice(max(0, at - _AROUND), at + _AROUND + 1)
    return Difference(turn.session, turn.turn, at, tuple(expected[near]), tuple(got[near]), len(expected), len(got))


def _new_chars(old: Sequence[Message], new: Sequence[Message]) -> int:
    # The turns of a session share their message objects, so identity tells what is new, at no cost in the text.
    before, after = {id(m) for m in old}, {id(m) for m in new}
    gone = {(m.role, m.tool_call_id): m for m in old if id(m) not in after and m.role in ("system", "tool")}
    total = 0
    for m in new:
        if id(m) in before:
            continue
        was = gone.get((m.role, m.tool_call_id))
        total += m.size if was is None else _changed_chars(was.content or "", m.content or "")
    return total


def _changed_chars(old: str, new: str) -> int:
    shorter = min(len(old), len(new))
    head = _longest(shorter, lambda n: old.startswith(new[:n]))
    tail = _longest(shorter - head, lambda n: old.endswith(new[len(new) - n :]))
    return len(new) - head - tail


def _longest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest n up to `most` for which `holds`, which holds from 0 up to some point: bisection on memcmp."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


# -- a run in a few numbers --


@dataclass(frozen=True, slots=True)
class KindSummary:
    """Medians over the turns of one kind; times in milliseconds."""

    kind: str
    turns: int
    new_chars: float
    reused: float
    reference_ms: float
    delta_ms: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in a few numbers; times in milliseconds, of all turns but the first of each session, if there are any."""

    turns: int
    identical: int
    warm_turns: int
    tokens: int
    last_tokens: int
    reused: float
    reference_median_ms: float
    reference_p99_ms: float
    delta_median_ms: float
    delta_p99_ms: float
    ratio: float
    reference_cpu_s: float
    delta_cpu_s: float
    state_bytes: int
    kinds: tuple[KindSummary, ...]


def summarise(report: Report) -> Summary:
    """The run in a few numbers."""
    turns = report.turns
    first = {t.session: t.turn for t in reversed(turns)}
    warm = [t for t in turns if t.turn != first[t.session]]
    reference = [t.reference_s * 1e3 for t in warm or turns]
    delta = [t.delta_s * 1e3 for t in warm or turns]
    tokens = sum(t.tokens for t in turns)
    return Summary(
        turns=len(turns),
        identical=sum(t.identical for t in turns),
        warm_turns=len(warm),
        tokens=tokens,
        last_tokens=turns[-1].tokens if turns else 0,
        reused=sum(t.reused_tokens for t in turns) / tokens if tokens else 0.0,
        reference_median_ms=_median(reference),
        reference_p99_ms=_p99(reference),
        delta_median_ms=_median(delta),
        delta_p99_ms=_p99(delta),
        ratio=ratio(_median(reference), _median(delta)),
        reference_cpu_s=sum(t.reference_cpu_s for t in turns),
        delta_cpu_s=sum(t.delta_cpu_s for t in turns),
        state_bytes=report.stats.bytes,
        kinds=tuple(_of_kind(kind, turns) for kind in dict.fromkeys(t.kind for t in turns)),
    )


def _of_kind(kind: str, turns: Sequence[TurnResult]) -> KindSummary:
    turns = [t for t in turns if t.kind == kind]
    return KindSummary(
        kind=kind,
        turns=len(turns),
        new_chars=_median([t.new_chars for t in turns]),
        reused=_median([t.reused for t in turns]),
        reference_ms=_median([t.reference_s * 1e3 for t in turns]),
        delta_ms=_median([t.delta_s * 1e3 for t in turns]),
    )


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _p99(values: Sequence[float]) -> float:
    """The nearest-rank 99th percentile: of fewer than 100 values, the largest."""
    return sorted(values)[-1 - len(values) // 100] if values else 0.0


def ratio(slow: float, fast: float) -> float:
    """How many times as long; 0 where there is nothing to compare."""
    return slow / fast if fast > 0 else 0.0
