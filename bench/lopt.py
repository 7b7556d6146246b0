"""LoPT as its paper describes it, for comparison: overlapping chunks joined where token spans coincide.

The text is cut into overlapping chunks, each is encoded with character offsets, and neighbours are joined at a place in
the overlap where two successive tokens have the same spans in both. When there is none, the overlap is doubled, at
most five times; then the whole text is encoded serially. Nothing shows that tokens before such a place agree, and a
span does not even name a token: the tokens of one multi-byte character all have the span of that character.

    python -m bench.lopt [--model NAME] [--chars N]    a shrunk failing example, and speed beside safe cuts
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from tokenizers import Tokenizer

from delta_core import DeltaTokenizer, fetch
from delta_core.demo.session import generate
from delta_core.demo.templates import render_turn
from delta_core.verify.cases import Call, shrink

CHUNKS, OVERLAP, COINCIDING, DOUBLINGS = 32, 512, 2, 5

Spans = list[tuple[int, int]]


def lopt(
    live: Tokenizer, text: str, *, chunks: int = CHUNKS, overlap: int = OVERLAP, doublings: int = DOUBLINGS
) -> list[int]:
    """The IDs that LoPT gives. Any text that can't be joined after the last doubling is encoded serially."""
    for _ in range(doublings + 1):
        joined = _once(live, text, chunks, overlap)
        if joined is not None:
            return joined
        overlap *= 2
    return list(live.encode(text, add_special_tokens=False).ids)


def _once(live: Tokenizer, text: str, chunks: int, overlap: int) -> list[int] | None:
    size = -(-len(text) // chunks)
    if size <= overlap:
        return None
    starts = list(range(0, len(text), size))
    pieces = [text[max(0, s - overlap) : s + size] for s in starts]
    encodings = live.encode_batch(pieces, add_special_tokens=False)
    ids: list[int] = []
    spans: Spans = []
    for start, encoding in zip(starts, encodings, strict=True):
        base = max(0, start - overlap)
        new_ids = encoding.ids
        new_spans = [(a + base, b + base) for a, b in encoding.offsets]
        if not ids:
            ids, spans = new_ids, new_spans
            continue
        seam = _seam(spans, new_spans)
        if seam is None:
            return None
        keep, skip = seam
        ids = ids[:keep] + new_ids[skip:]
        spans = spans[:keep] + new_spans[skip:]
    return ids


def _seam(left: Spans, right: Spans) -> tuple[int, int] | None:
    """Where COINCIDING successive spans of both are the same: how many tokens of the left to keep, how many to skip."""
    first = right[0][0] if right else 0
    places: dict[tuple[tuple[int, int], ...], int] = {}
    for i in range(len(left) - COINCIDING, -1, -1):
        if left[i][0] < first:
            break
        places.setdefault(tuple(left[i : i + COINCIDING]), i)
    middle = len(right)
    for j in range(min(middle, len(places) + 64)):
        i = places.get(tuple(right[j : j + COINCIDING]))
        if i is not None:
            return i, j
    return None


def failing_example(live: Tokenizer, seed: int = 0) -> str | None:
    """A short text, in two chunks with an overlap of 16 characters, for which LoPT gives other IDs."""
    rng = random.Random(seed)
    parts = ["word ", "中文", "👩\u200d👩\u200d👧", "🇨🇳", "🫨", "é", " the", "\n", "123", "क्षि", "𓀀", "\U0001f6d8"]

    def differs(calls: object) -> bool:
        text = calls[0].text  # type: ignore[index]
        return bool(text) and lopt(live, text, chunks=2, overlap=16, doublings=1) != live.encode(
            text, add_special_tokens=False
        ).ids

    for _ in range(20_000):
        calls = [Call("".join(rng.choices(parts, k=rng.randrange(12, 40))))]
        if differs(calls):
            return shrink(calls, differs)[0].text
    return None


def _interleaved(runs: dict[str, object], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, call in runs.items():
            began = time.perf_counter()
            call()  # type: ignore[operator]
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(t) for name, t in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="LoPT beside safe cuts, with the same encoder.")
    parser.add_argument("--model", default="qwen3")
    parser.add_argument("--chars", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    live = Tokenizer.from_file(str(fetch.fetch(args.model)))

    example = failing_example(live)
    if example is None:
        print("no failing example found")
    else:
        got = lopt(live, example, chunks=2, overlap=16, doublings=1)
        print(f"LoPT differs on {example!r} (2 chunks, overlap 16)")
        print(f"  reference {live.encode(example, add_special_tokens=False).ids}")
        print(f"  LoPT      {got}")

    *_, last = generate(target_chars=args.chars)
    text = render_turn("qwen3", last)
    tok = DeltaTokenizer(live, encoder="reference")

    def safe_cuts() -> None:
        tok.clear()
        tok.encode(text)

    want = live.encode(text, add_special_tokens=False).ids
    print(f"{len(text):,} characters, {len(want):,} tokens; LoPT equal: {lopt(live, text) == want}")
    tok.clear()
    print(f"safe cuts equal: {tok.encode(text) == want}")
    medians = _interleaved(
        {
            "reference, whole text": lambda: live.encode_batch_fast([text], add_special_tokens=False)[0].ids,
            "LoPT, 32 chunks, same encoder": lambda: lopt(live, text),
            "safe cuts, cold, same encoder": safe_cuts,
        },
        args.rounds,
    )
    base = medians["reference, whole text"]
    for name, seconds in medians.items():
        print(f"{name:32} {seconds * 1e3:8.1f} ms   {base / seconds:5.2f}x the reference")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
