"""The counters as Prometheus metrics."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Subject

from delta_core import DeltaTokenizer, Reason
from delta_core.metrics import Prometheus

client = pytest.importorskip("prometheus_client")


def test_metrics_count_what_stats_counts(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("llama3_1")
    tok = DeltaTokenizer(subject.live, config=subject.frozen)
    registry = client.CollectorRegistry()
    tok.export(Prometheus(registry))
    text = "A turn of a conversation. " * 60
    for turn in (text, text + "Another one. ", "short", 17):
        with contextlib.suppress(TypeError):
            tok.encode(turn, session="s", add_special_tokens=False)  # type: ignore[arg-type]
    stats = tok.stats()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"delta_tokenizer_{name}", labels)

    for path, count in stats.by_path.items():
        assert value("requests_total", path=path) == count
    assert set(stats.by_path) == {"cold", "append", "short", "stock"}
    assert value("reused_tokens_total") == stats.reused_tokens > 0
    assert value("encoded_characters_total") == stats.encoded_chars > 0
    assert value("fallbacks_total", reason="not_text", part="request") == 1
    assert value("held_bytes") == stats.bytes > 0
    assert value("admitted", config=subject.frozen.name, encoder="reference", section="") == 1


def test_a_refused_tokenizer_names_its_section(synthetic: Callable[..., Subject]) -> None:
    registry = client.CollectorRegistry()
    DeltaTokenizer(object()).export(Prometheus(registry))
    labels = {"config": "", "encoder": "reference", "section": "tokenizer"}
    assert registry.get_sample_value("delta_tokenizer_admitted", labels) == 0


def test_the_help_of_a_metric_names_all_that_it_counts() -> None:
    registry = client.CollectorRegistry()
    Prometheus(registry)
    (said,) = [metric.documentation for metric in registry.collect() if metric.name == "delta_tokenizer_fallbacks"]
    for part in {reason.part for reason in Reason}:
        assert f"{part} (" in said


def test_the_log_line_of_a_reason_has_no_detail_of_another(
    synthetic: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    subject = synthetic("llama3_1")
    tok = DeltaTokenizer(subject.live, config=subject.frozen, encoder="reference")

    def raises(*_: Any, **__: Any) -> Any:
        raise KeyError("planted")

    text = "A turn of a conversation. " * 60
    with monkeypatch.context() as patch:
        patch.setattr(tok, "_look_up", raises)
        for _ in range(2):
            tok.encode(text, add_special_tokens=False)
    for other in (17, "a \ud800 b" * 60):
        with contextlib.suppress(TypeError, UnicodeEncodeError):
            tok.encode(other, add_special_tokens=False)  # type: ignore[arg-type]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3, lines
    assert lines[0].startswith("stock path: internal (KeyError at test_metrics.py:")
    assert lines[1:] == ["stock path: not_text", "stock path: bad_text"]


def test_the_log_line_of_a_refused_tokenizer_names_its_sections_and_a_later_one_does_not(
    synthetic: Callable[..., Subject], caplog: pytest.LogCaptureFixture
) -> None:
    subject = synthetic("llama3_1")
    live = type(subject.live).from_str(subject.live.to_str())
    live.add_special_tokens(["<|planted|>"])
    tok = DeltaTokenizer(live, config=subject.frozen)
    tok.encode("some text", add_special_tokens=False)
    tok.fallback(Reason.NOT_TEXT)
    tok._stock("some text", list, False, Reason.LIVE_CHANGED, "")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"stock path: {tok.admission.reason} ({tok.admission.why_not})", "stock path: live_changed"]


def test_a_metric_that_cannot_be_written_fails_no_request(
    synthetic: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    subject = synthetic("llama3_1")
    tok = DeltaTokenizer(subject.live, config=subject.frozen, encoder="reference")
    tok.export(Prometheus(client.CollectorRegistry()))

    def full(*_: Any, **__: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(client.Counter, "inc", full)
    text = "A turn of a conversation. " * 60
    for _ in range(2):
        assert tok.encode(text, add_special_tokens=False) == subject.live.encode(text, add_special_tokens=False).ids
    tok.fallback(Reason.NOT_TEXT)
    stats = tok.stats()
    assert stats.by_path == {"cold": 1, "append": 1, "stock": 1}
    assert stats.fallbacks == {"not_text": 1}
    assert ["OSError" in record.getMessage() for record in caplog.records] == [True]


MULTIPROCESS = """
import prometheus_client as client
from prometheus_client import multiprocess
from delta_core import DeltaTokenizer
from delta_core.metrics import Prometheus

tok = DeltaTokenizer(object())
tok.export(Prometheus())
try:
    tok.encode("x")
except AttributeError:
    pass
registry = client.CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(client.generate_latest(registry).decode())
"""


def test_multi_process_mode(tmp_path: Path) -> None:
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", MULTIPROCESS], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'delta_tokenizer_requests_total{path="stock"} 1.0' in done.stdout
    assert 'delta_tokenizer_fallbacks_total{part="request",reason="not_fast"} 1.0' in done.stdout
