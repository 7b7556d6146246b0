"""Cold text and big gaps through the pool: exact, with checkpoints, served by the caller when the pool is not there."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from conftest import Subject

from delta_core import DeltaTokenizer, splice
from delta_core.encoders import Encoder
from delta_core.pool import WorkerPool
from delta_core.splice import Encoded, Gap, Transcript, divided, encode_gap


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 500 characters, and nothing is too short for the pool."""
    monkeypatch.setattr(splice, "CHUNK", 500)
    monkeypatch.setattr(splice, "DIVIDE_FROM", 1000)
    monkeypatch.setattr("delta_core.tokenizer.DIVIDE_FROM", 1000)
    monkeypatch.setattr(Encoder, "inline", 1000)


@pytest.fixture
def tokenizer(synthetic: Callable[..., Subject], small_chunks: None) -> Callable[..., tuple[Subject, DeltaTokenizer]]:
    """A fresh DeltaTokenizer over a synthetic tokenizer, and its subject: `tokenizer(name, workers=2)`."""

    def make(name: str = "qwen3", workers: int = 2, nasty: bool = False) -> tuple[Subject, DeltaTokenizer]:
        subject = synthetic(name, nasty)
        tok = DeltaTokenizer(subject.live, config=subject.frozen, encoder="reference")
        tok._pool = WorkerPool(encoder_of(tok), 1e-3, threads=workers)
        return subject, tok

    return make


def encoder_of(tok: DeltaTokenizer) -> Callable[[Gap], Encoded]:
    rules, encode = tok._rules, tok._encoder.encode_flat
    return lambda gap: encode_gap(rules, encode, gap, 64)


def want(subject: Subject, text: str) -> list[int]:
    ids: list[int] = subject.live.encode(text, add_special_tokens=False).ids
    return ids


def stored(tok: DeltaTokenizer, key: str) -> Transcript:
    _, name = tok._store.name(None, key, list)
    (branch,) = tok._store.of_key(name)
    return branch.transcript


@pytest.mark.parametrize("nasty", [False, True])
@pytest.mark.parametrize("name", ["qwen3", "gpt_oss", "deepseek_v3", "llama3"])
def test_cold_text_in_chunks_is_exact_and_the_next_turns_reuse_it(
    name: str, nasty: bool, tokenizer: Callable[..., tuple[Subject, DeltaTokenizer]]
) -> None:
    subject, tok = tokenizer(name, 3, nasty)
    for seed in range(3):
        text = subject.maker(seed).text(4000)
        key = f"s{seed}"
        assert tok.encode(text, session=key, add_special_tokens=False) == want(subject, text)
        transcript = stored(tok, key)
        transcript._check()
        c = transcript.checkpoints
        for i in range(0, len(c), 1 + len(c) // 5):
            assert want(subject, text[: c.positions[i]]) == want(subject, text)[: c.tokens[i]]
        # An append, then an edit in the middle with a gap that is divided again.
        for turn in (text + "more", text[:1500] + subject.maker(seed + 50).text(1500) + text[2500:]):
            assert tok.encode(turn, session=key, add_special_tokens=False) == want(subject, turn)
            stored(tok, key)._check()
        array_ids = asyncio.run(tok.encode_array_async(text[::-1], session=key, add_special_tokens=True))
        assert array_ids.tolist() == subject.live.encode(text[::-1], add_special_tokens=True).ids
    stats = tok.stats()
    assert stats.by_path["cold"] >= 3
    assert not stats.fallbacks
    assert tok._pool is not None
    assert tok._pool.waiting == 0


def test_cuts_between_chunks_are_checkpoints(tokenizer: Callable[..., tuple[Subject, DeltaTokenizer]]) -> None:
    subject, tok = tokenizer()
    text = subject.maker(1).text(8000)
    edges = [gap.start for gap in divided(tok._rules, Gap(text, 0, len(text)), 16)][1:]
    assert len(edges) > 8
    tok.encode(text, session="a", add_special_tokens=False)
    assert set(edges) <= set(stored(tok, "a").checkpoints.positions)


@pytest.mark.parametrize("text", ["a" * 50_000, "\u0301" * 20_000, " " * 30_000, "😀" * 8000, "中" * 20_000])
def test_text_without_cuts_stays_whole(text: str, tokenizer: Callable[..., tuple[Subject, DeltaTokenizer]]) -> None:
    subject, tok = tokenizer()
    assert tok.encode(text, add_special_tokens=False) == want(subject, text)
    assert asyncio.run(tok.encode_async(text + "x", add_special_tokens=False)) == want(subject, text + "x")


def test_dividing_looks_at_a_bounded_number_of_characters(
    synthetic: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = synthetic("qwen3").tok._rules
    looked = 0

    class Text(str):
        def __getitem__(self, key: Any) -> str:
            nonlocal looked
            looked += 1
            return str.__getitem__(self, key)

    text = Text("a" * 5_000_000)
    assert divided(rules, Gap(text, 0, 5_000_000), 16) == [Gap(text, 0, 5_000_000)]
    assert looked <= splice.MOST_CHUNKS * (splice._BACK + 1) * 3


def test_lone_surrogates_get_the_references_own_error(tokenizer: Callable[..., tuple[Subject, DeltaTokenizer]]) -> None:
    subject, tok = tokenizer()
    text = "some words " * 300 + "\ud800" + "some words " * 300
    with pytest.raises(TypeError):
        subject.live.encode(text)
    with pytest.raises(TypeError):
        tok.encode(text, add_special_tokens=False)
    with pytest.raises(TypeError):
        asyncio.run(tok.encode_async(text, add_special_tokens=False))
    assert tok.stats().branches == 0


# -- without the pool --


def _refuses(tok: DeltaTokenizer) -> None:
    assert tok._pool is not None
    tok._pool._queue._capacity = 0


def _is_closed(tok: DeltaTokenizer) -> None:
    assert tok._pool is not None
    tok._pool.close()


def _fails(tok: DeltaTokenizer) -> None:
    def fail(gap: Gap) -> Encoded:
        raise ValueError("no")

    tok._pool = WorkerPool(fail, 1e-3, threads=2)


def _is_slow(tok: DeltaTokenizer) -> None:
    gate = threading.Event()
    encode = encoder_of(tok)

    def wait(gap: Gap) -> Encoded:
        gate.wait(0.5)
        return encode(gap)

    tok._pool = WorkerPool(wait, 1e-3, threads=2, deadline=0.01)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (_refuses, "pool_full"),
        (_is_closed, "pool_failed"),
        (_fails, "pool_failed"),
        (_is_slow, "pool_failed"),
    ],
)
def test_when_the_pool_does_not_serve_the_caller_does(
    broken: Callable[[DeltaTokenizer], None],
    reason: str,
    tokenizer: Callable[..., tuple[Subject, DeltaTokenizer]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject, tok = tokenizer()
    broken(tok)
    text = subject.maker(2).text(6000)
    other = subject.maker(3).text(6000)
    assert tok.encode(text, session="a", add_special_tokens=False) == want(subject, text)
    assert asyncio.run(tok.encode_async(other, session="b", add_special_tokens=False)) == want(subject, other)
    stats = tok.stats()
    assert stats.by_path == {"cold": 2}
    assert set(stats.fallbacks) <= {"pool_full", "pool_failed"}
    assert reason in stats.fallbacks
    stored(tok, "a")._check()
    assert tok.encode(text + "!", session="a", add_special_tokens=False) == want(subject, text + "!")
    assert len([r for r in caplog.records if reason in r.getMessage()]) == 1


def test_a_thousand_awaits_cold_and_warm_and_cancelled(
    tokenizer: Callable[..., tuple[Subject, DeltaTokenizer]],
) -> None:
    subject, tok = tokenizer()
    documents = [subject.maker(seed).text(1200) for seed in range(20)]
    texts = [documents[i % 20] + f" turn {i % 50}" for i in range(1000)]
    expected = {text: want(subject, text) for text in set(texts)}

    async def scenario() -> list[Any]:
        asks = [
            asyncio.ensure_future(tok.encode_async(text, session=f"k{i % 20}", add_special_tokens=False))
            for i, text in enumerate(texts)
        ]
        await asyncio.sleep(0)
        for ask in asks[::7]:
            ask.cancel()
        return await asyncio.gather(*asks, return_exceptions=True)

    for i, (text, got) in enumerate(zip(texts, asyncio.run(scenario()), strict=True)):
        if isinstance(got, asyncio.CancelledError):
            assert i % 7 == 0
        else:
            assert got == expected[text]
    assert tok._pool is not None
    assert tok._pool.waiting == 0


def test_a_cancelled_request_leaves_nothing_behind(
    tokenizer: Callable[..., tuple[Subject, DeltaTokenizer]],
) -> None:
    subject, tok = tokenizer(workers=1)
    assert tok._pool is not None
    entered, gate = threading.Event(), threading.Event()
    encode = encoder_of(tok)

    def held(gap: Gap) -> Encoded:
        entered.set()
        assert gate.wait(30)
        return encode(gap)

    pool = tok._pool = WorkerPool(held, 1e-3, threads=2)
    text = subject.maker(4).text(9000)

    async def scenario() -> None:
        ask = asyncio.ensure_future(tok.encode_async(text, session="gone", add_special_tokens=False))
        while not entered.is_set():
            await asyncio.sleep(0)
        ask.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ask

    asyncio.run(scenario())
    assert pool.waiting == 0
    gate.set()
    assert pool.close(30)
    assert tok.stats().branches == 0
    assert tok.stats().requests == 0


# -- life and death --


def test_a_tokenizer_that_is_forgotten_ends_its_threads(synthetic: Callable[..., Subject], small_chunks: None) -> None:
    subject = synthetic("qwen3")
    tok = DeltaTokenizer(subject.live, config=subject.frozen, encoder="reference")
    text = subject.maker(5).text(4000)
    assert asyncio.run(tok.encode_async(text, add_special_tokens=False)) == want(subject, text)
    pool = tok._pool
    assert isinstance(pool, WorkerPool)
    threads, gone = pool._threads, weakref.ref(tok)
    del tok, pool
    gc.collect()
    assert gone() is None
    end = time.monotonic() + 30
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < end
        threading.Event().wait(0.001)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_makes_threads_of_its_own(tokenizer: Callable[..., tuple[Subject, DeltaTokenizer]]) -> None:
    subject, tok = tokenizer()
    text, other = subject.maker(6).text(6000), subject.maker(7).text(6000)
    assert asyncio.run(tok.encode_async(text, add_special_tokens=False)) == want(subject, text)
    expected = want(subject, other)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ids = (
                asyncio.run(asyncio.wait_for(tok.encode_async(other, add_special_tokens=False), 30)),
                tok.encode(other + "!", add_special_tokens=False),
            )
            code = 0 if ids[0] == expected and ids[1][:-9] == expected[:-8][: len(ids[1]) - 9] else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_segments_of_the_reference_are_encoded_by_the_calling_thread(
    synthetic: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of two would wait for the library's own threads, behind every document of others."""
    tok = synthetic("qwen3").tok
    sizes: list[int] = []

    class Copy:
        def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool) -> Any:
            sizes.append(len(texts))
            return synthetic("qwen3").live.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)

    monkeypatch.setattr(tok._encoder, "_copy", Copy())
    tok.encode("some words to encode " * 100, add_special_tokens=False)
    assert sizes
    assert set(sizes) == {1}
