"""LoPT as its paper describes it, for comparison: overlapping chunks joined where token spans coincide.

The text is cut into overlapping chunks, each is encoded with character offsets, and neighbours are joined at a place in
the overlap where two successive tokens have the same spans in both. When there is none, the overlap is doubled, at
most five times; then the whole text is encoded serially. Of several places the description leaves the choice, so there
are two readings: the first pair, and the middle of the longest run.

A span does not name a token: all tokens of one multi-byte character have the span of that character, and two of them
coincide with any other two. Both readings fail on that: the first pair at any overlap, the longest run where no longer
one coincides in a short overlap.

    python -m bench.lopt [--model NAME] [--chars N]     failing examples, fall-backs, and speed beside safe cuts
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from tokenizers import Tokenizer

from delta_core import DeltaTokenizer
from delta_core.tools import fetch
from delta_core.tools.verify.cases import Call, shrink

from .texts import session

CHUNKS, OVERLAP, COINCIDING, DOUBLINGS = 32, 512, 2, 5
_SMALL = {"chunks": 2, "overlap": 4, "doublings": 1}  # for examples that fit on a line

Spans = list[tuple[int, int]]
# Where two neighbours are joined: how many tokens of the left to keep, how many of the right to skip.
Seam = Callable[[Spans, Spans], "tuple[int, int] | None"]


@dataclass(frozen=True, slots=True)
class Joined:
    """What LoPT gives. overlap: the one that joined all chunks, in characters; None when it encoded serially."""

    ids: list[int]
    overlap: int | None


def lopt(
    live: Tokenizer, text: str, seam: Seam, *, chunks: int = CHUNKS, overlap: int = OVERLAP, doublings: int = DOUBLINGS
) -> Joined:
    """Encode by overlapping chunks. The chunks of each attempt are encoded on all of the library's threads."""
    size = max(1, -(-len(text) // chunks))
    for _ in range(doublings + 1):
        if overlap >= size:
            break
        ids = _once(live, text, seam, size, overlap)
        if ids is not None:
            return Joined(ids, overlap)
        overlap *= 2
    return Joined(_whole(live, text), None)


def _whole(live: Tokenizer, text: str) -> list[int]:
    return list(live.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _once(live: Tokenizer, text: str, seam: Seam, size: int, overlap: int) -> list[int] | None:
    starts = [max(0, s - overlap) for s in range(0, len(text), size)]
    pieces = [text[start : n * size + size] for n, start in enumerate(starts)]
    ids: list[int] = []
    spans: Spans = []
    for start, encoding in zip(starts, live.encode_batch(pieces, add_special_tokens=False), strict=True):
        new_spans = [(a + start, b + start) for a, b in encoding.offsets]
        keep, skip = 0, 0
        if ids:
            joint = seam(spans, new_spans)
            if joint is None:
                return None
            keep, skip = joint
        ids[keep:] = encoding.ids[skip:]
        spans[keep:] = new_spans[skip:]
    return ids


def _in_overlap(left: Spans, right: Spans) -> int:
    """The index of the first token of the left that the right may know."""
    i = len(left)
    while right and i and left[i - 1][0] >= right[0][0]:
        i -= 1
    return i


def first_pair(left: Spans, right: Spans) -> tuple[int, int] | None:
    """The first COINCIDING successive spans that are the same in both. Linear in the overlap."""
    places: dict[tuple[tuple[int, int], ...], int] = {}
    for i in range(_in_overlap(left, right), len(left) - COINCIDING + 1):
        places.setdefault(tuple(left[i : i + COINCIDING]), i)
    for j in range(len(right)):
        if right[j] > left[-1]:
            return None
        i_found = places.get(tuple(right[j : j + COINCIDING]))
        if i_found is not None:
            return i_found, j
    return None


def longest_run(left: Spans, right: Spans) -> tuple[int, int] | None:
    """The middle of the longest run of spans that are the same in both. Linear in the overlap."""
    i, j, run = _in_overlap(left, right), 0, 0
    best, at = 0, (0, 0)
    while i < len(left) and j < len(right):
        if left[i] == right[j]:
            run, i, j = run + 1, i + 1, j + 1
            if run > best:
                best, at = run, (i, j)
        else:
            run = 0
            if left[i] < right[j]:
                i += 1
            else:
                j += 1
    back = best - best // 2
    return (at[0] - back, at[1] - back) if best >= COINCIDING else None


READINGS: dict[str, Seam] = {"first pair": first_pair, "longest run": longest_run}

_MANY_BYTES = ("word ", "中文", "👩\u200d👩\u200d👧", "🇨🇳", "🫨", "é", " the", "\n", "123", "क्षि", "𓀀", "\U0001f6d8")


def failing_example(live: Tokenizer, seam: Seam, *, tries: int = 20_000) -> str | None:
    """A short text, in two chunks with an overlap of 4 characters, for which LoPT gives other IDs."""
    rng = random.Random(0)

    def differs(calls: Sequence[Call]) -> bool:
        text = calls[0].text
        return lopt(live, text, seam, **_SMALL).ids != _whole(live, text)

    for _ in range(tries):
        calls = [Call("".join(rng.choices(_MANY_BYTES, k=rng.randrange(4, 24))))]
        if differs(calls):
            return shrink(calls, differs)[0].text
    return None


# -- how often it falls back, and how often it differs --


def samples(characters: int, texts: int) -> Iterator[tuple[str, list[str]]]:
    """Kinds of long text, seeded."""
    rng = random.Random(7)
    yield "agent sessions", [session("qwen3", characters, seed) for seed in range(texts)]
    yield "many-byte characters", ["".join(rng.choices(_MANY_BYTES, k=characters // 3)) for _ in range(texts)]
    # Runs longer than the largest overlap: tables drawn with lines, padding, counters, minified data.
    runs = ("-", " ", "ab", "=*", "0123456789", "🫨", "\n", "中文")
    lengths = range(characters // 64, characters // 8)
    yield (
        "long runs",
        ["".join(rng.choice(runs) * rng.choice(lengths) for _ in range(16))[:characters] for _ in range(texts)],
    )


def _show_samples(live: Tokenizer, characters: int, texts: int) -> None:
    print(f"\n{'texts':22} {'reading':12} {'differ':>8} {'doubled':>8} {'serial':>8} {'of':>4}")
    for kind, found in samples(characters, texts):
        wanted = [_whole(live, text) for text in found]
        for reading, seam in READINGS.items():
            results = [lopt(live, text, seam) for text in found]
            differ = sum(r.ids != want for r, want in zip(results, wanted, strict=True))
            doubled = sum(r.overlap is not None and r.overlap > OVERLAP for r in results)
            serial = sum(r.overlap is None for r in results)
            print(f"{kind:22} {reading:12} {differ:8} {doubled:8} {serial:8} {len(found):4}")


# -- speed --


def _safe_chunks(tok: DeltaTokenizer, live: Tokenizer, text: str) -> list[int]:
    """LoPT's chunks, cut at safe positions: no overlap, no offsets, nothing to join."""
    size = -(-len(text) // CHUNKS)
    edges = [0, *(cut.position for cut in tok._rules.cuts(text, 0, len(text), size)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    return list(chain.from_iterable(e.ids for e in live.encode_batch_fast(pieces, add_special_tokens=False)))


def _interleaved(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float]]:
    """Median seconds of each: by the clock, and of CPU over all threads."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, call in runs.items():
            began = time.perf_counter(), time.process_time()
            call()
            times[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    wall, cpu = ({name: statistics.median(t[i] for t in ts) for name, ts in times.items()} for i in (0, 1))
    return {name: (wall[name], cpu[name]) for name in times}


def _show_speed(live: Tokenizer, text: str, rounds: int) -> None:
    tok = DeltaTokenizer(live, encoder="reference")

    def shipped() -> list[int]:
        tok.clear()
        return tok.encode(text, add_special_tokens=False)

    runs: dict[str, Callable[[], list[int]]] = {
        "reference, whole text": lambda: _whole(live, text),
        f"LoPT, {CHUNKS} chunks": lambda: lopt(live, text, longest_run).ids,
        f"{CHUNKS} chunks at safe cuts": lambda: _safe_chunks(tok, live, text),
        "safe cuts as shipped, cold": shipped,
    }
    want = runs["reference, whole text"]()
    overlap = lopt(live, text, longest_run).overlap
    print(f"\n{len(text):,} characters, {len(want):,} tokens; LoPT joined with overlap {overlap} (None: serial)")
    for name, run in runs.items():
        print(f"  {name:28} {'equal' if run() == want else 'DIFFERS'}")
    for threads, parallel in ((1, "false"), (len(os.sched_getaffinity(0)), "true")):
        os.environ["TOKENIZERS_PARALLELISM"] = parallel  # the library reads it at every call
        medians = _interleaved(dict(runs), rounds)
        base, _ = medians["reference, whole text"]
        print(f"{threads} thread{'s' if threads > 1 else ''}, the reference as encoder, medians of {rounds}:")
        for name, (wall, cpu) in medians.items():
            print(f"  {name:28} {wall * 1e3:8.1f} ms  CPU {cpu * 1e3:8.1f} ms  {base / wall:5.2f}x the reference")


def main() -> int:
    parser = argparse.ArgumentParser(description="LoPT beside safe cuts, with the same encoder and threads.")
    parser.add_argument("--model", default="qwen3")
    parser.add_argument("--chars", type=int, default=400_000)
    parser.add_argument("--texts", type=int, default=8, help="of each kind")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    live = Tokenizer.from_file(str(fetch.fetch(args.model)))
    for reading, seam in READINGS.items():
        example = failing_example(live, seam)
        if example is None:
            print(f"LoPT, {reading}: no difference found")
            continue
        print(f"LoPT, {reading}: differs on {example!r} ({len(example)} characters, 2 chunks, overlap 4)")
        print(f"  reference {_whole(live, example)}")
        print(f"  LoPT      {lopt(live, example, seam, **_SMALL).ids}")
    _show_samples(live, args.chars, args.texts)
    _show_speed(live, session("qwen3", args.chars, 0), args.rounds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
