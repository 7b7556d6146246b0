"""Shadow checks: they see a wrong ID, open the circuit, and never fail or delay a request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
from conftest import Subject
from oracle import ids_of
from tokenizers import Tokenizer

from delta_core import DeltaTokenizer, Reason

LONG = "The quick brown fox, 1234 times; "


def shadowed(subject: Subject, rate: float = 1.0) -> tuple[DeltaTokenizer, Tokenizer]:
    live = Tokenizer.from_str(subject.live.to_str())
    return DeltaTokenizer(live, config=subject.frozen, shadow_rate=rate), live


def drain(tok: DeltaTokenizer) -> None:
    assert tok._shadow is not None
    tok._shadow.drain()


def test_equal_ids_are_counted_as_same(synthetic: Callable[..., Subject]) -> None:
    tok, live = shadowed(synthetic("qwen3"))
    for n in (20, 40, 41):
        assert tok.encode(LONG * n, session="s", add_special_tokens=False) == ids_of(live, LONG * n)
        drain(tok)
    assert tok.stats().shadow == {"same": 3}


def test_a_caller_that_changes_its_list_does_not_fool_the_check(synthetic: Callable[..., Subject]) -> None:
    tok, _ = shadowed(synthetic("qwen3"))
    del tok.encode(LONG * 30, add_special_tokens=False)[5:]
    drain(tok)
    assert tok.stats().shadow == {"same": 1}


def _spoiled(ids: list[int], ends: list[int]) -> tuple[list[int], list[int]]:
    return [*ids[:-1], 7], ends


def test_a_difference_opens_the_circuit(
    synthetic: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tok, live = shadowed(synthetic("qwen3"))
    honest = tok._encode_flat
    monkeypatch.setattr(tok, "_encode_flat", lambda segments, kind: _spoiled(*honest(segments, kind)))
    with caplog.at_level(logging.WARNING, "delta_core"):
        assert tok.encode(LONG * 40, session="s", add_special_tokens=False) != ids_of(
            live, LONG * 40
        )  # the planted fault
        drain(tok)
        for n in (41, 42):
            assert tok.encode(LONG * n, session="s", add_special_tokens=False) == ids_of(live, LONG * n)
    stats = tok.stats()
    assert stats.shadow == {"different": 1}
    assert stats.fallbacks == {Reason.SHADOW_DIFFERS.value: 2}
    assert stats.bytes == 0  # nothing that was remembered is used again
    assert "fox" not in caplog.text
    assert caplog.text.count("shadow check") == 1


def test_a_tokenizer_changed_meanwhile_is_no_difference(synthetic: Callable[..., Subject]) -> None:
    tok, live = shadowed(synthetic("llama3_1"))
    entered, go = threading.Event(), threading.Event()
    assert tok._shadow is not None
    honest = tok._shadow._check

    def wait(text: str, ids: object) -> None:
        entered.set()
        go.wait(30)
        honest(text, ids)  # type: ignore[arg-type]

    tok._shadow._check = wait  # type: ignore[assignment]
    tok.encode(LONG * 30, add_special_tokens=False)
    assert entered.wait(30)
    live.enable_truncation(5)
    go.set()
    drain(tok)
    assert tok.stats().shadow == {"skipped": 1}


def test_a_full_queue_skips_checks_and_holds_nobody_up(synthetic: Callable[..., Subject]) -> None:
    tok, live = shadowed(synthetic("qwen3"))
    go = threading.Event()
    assert tok._shadow is not None
    honest = tok._shadow._check
    tok._shadow._check = lambda text, ids: (go.wait(30), honest(text, ids))[1]  # type: ignore[method-assign, func-returns-value]
    for n in range(20, 60):
        assert tok.encode(LONG * n, session="s", add_special_tokens=False) == ids_of(live, LONG * n)
    skipped = tok.stats().shadow["skipped"]
    assert skipped >= 40 - 9
    go.set()
    drain(tok)
    assert tok.stats().shadow == {"skipped": skipped, "same": 40 - skipped}


def test_rate_zero_has_no_shadow_and_a_small_rate_draws_few(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("qwen3")
    assert DeltaTokenizer(subject.live, config=subject.frozen)._shadow is None
    tok, _ = shadowed(subject, 1e-12)
    for n in range(20, 30):
        tok.encode(LONG * n, add_special_tokens=False)
    assert tok.stats().shadow == {}
