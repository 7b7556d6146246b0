"""What is remembered is small, and stays under its budget however many conversations come and go."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Subject
from oracle import case, ids_of

from delta_core import DeltaTokenizer
from delta_core.tools.verify.generators import prose

TOKENS = 100_000
STATE = 1.2e6  # bytes for a session of that many tokens, beside its text


def long_text(subject: Subject) -> tuple[str, list[int]]:
    """A conversation of at least TOKENS tokens, and its IDs."""
    text = prose(5, 200_000)
    while len(ids := ids_of(subject.live, text)) < TOKENS:
        text += prose(len(text), 50_000)
    return text, ids


@pytest.mark.parametrize("name", ["llama3_1", "qwen3"])
def test_a_session_of_100k_tokens_keeps_at_most_1_2_mb_beside_its_text(
    name: str, synthetic: Callable[..., Subject]
) -> None:
    subject = synthetic(name)
    text, ids = long_text(subject)
    tok = DeltaTokenizer(subject.live, config=subject.frozen)
    # Classes, memos and the table of integers are there before anything is measured.
    tok.encode(text, add_special_tokens=False)
    for turns in (1, 40):
        with case(name, turns):
            holds_little(tok, [text[: len(text) * (n + 1) // turns] for n in range(turns)], ids)


def holds_little(tok: DeltaTokenizer, texts: list[str], ids: list[int]) -> None:
    tok.clear()
    gc.collect()
    tracemalloc.start()
    try:
        for text in texts:
            tok.encode(text, session="s", add_special_tokens=False)
        gc.collect()
        measured = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    limit = STATE * len(ids) / TOKENS
    # The text itself belongs to the caller here: the store holds the very object, not a copy.
    assert measured <= limit, f"{measured} bytes for {len(ids)} tokens"
    assert tok.stats().bytes - sys.getsizeof(texts[-1]) <= limit
    assert tok.stats().bytes - sys.getsizeof(texts[-1]) >= 0.9 * measured, "what is counted is what is held"
    assert tok.encode(texts[-1], session="s", add_special_tokens=False) == ids


def test_a_400_turn_session_holds_its_ids_once_not_once_a_turn(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("llama3_1")
    tok = DeltaTokenizer(subject.live, config=subject.frozen)
    text = prose(9, 120_000)
    for n in range(1, 401):
        tok.encode(text[: len(text) * n // 400], session="s", add_special_tokens=False)
    held = tok.stats().bytes
    tok.clear()
    tok.encode(text, session="s", add_special_tokens=False)
    assert held <= 1.35 * tok.stats().bytes


def test_ids_cost_a_pointer_each_because_the_integers_are_the_processs(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("llama3_1")
    tok = DeltaTokenizer(subject.live, config=subject.frozen)
    for n in range(20):
        tok.encode(f"{n} " + prose(n, 3000), session=str(n), add_special_tokens=False)
    kept = [i for b in tok._store._branches.values() for i in b.transcript.ids.copy()]
    assert len(set(map(id, kept))) == len(set(kept)), "one object for all stored IDs that are equal"


CHURN = """
import random, sys
sys.path[:0] = sys.argv[1:3]
from delta_core.tools.verify.generators import frozen_from, live_from, prose, spec
from delta_core import DeltaTokenizer

BUDGET = 26 << 20
live = live_from(spec("llama3_1"))
tok = DeltaTokenizer(live, config=frozen_from(live), budget=BUDGET)
source = prose(1, 300_000)
rng = random.Random(1)

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

first = rss()
seen = []
for n in range(2000):
    at = rng.randrange(len(source) - 9000)
    text = f"session {n} " + source[at : at + 2800]
    tok.encode(text, session=f"s{n}", add_special_tokens=False)
    tok.encode(text + source[at + 2800 : at + 3400], session=f"s{n}", add_special_tokens=False)
    assert tok.stats().bytes <= BUDGET
    if n % 200 == 199:
        seen.append(rss())
tok._store._check()
assert tok.encode(text, add_special_tokens=False) == live.encode(text, add_special_tokens=False).ids
print(tok.stats().evictions, first, *seen)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_memory_is_flat_over_two_thousand_churned_sessions() -> None:
    """In a process of its own, whose memory nobody else moves."""
    here = Path(__file__).resolve().parent
    done = subprocess.run(
        [sys.executable, "-c", CHURN, str(here), str(here.parent)], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    evictions, first, *seen = map(int, done.stdout.split())
    assert evictions > 300, "the budget was reached"
    full = seen[len(seen) // 2]
    assert max(seen[len(seen) // 2 :]) <= full * 1.05, seen
    assert seen[-1] - first <= 1.6 * (26 << 20), seen
