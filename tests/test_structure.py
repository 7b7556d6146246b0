"""Admission by structure: cut rules rest on the pipeline, not on the vocabulary; what is not known yet comes later."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE, Subject, until
from later import Job, do, of_unknown_pattern, waiting_jobs
from oracle import assert_all_ways, assert_same, ids_of
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from delta_core import DeltaTokenizer, Options, Reason, background, encoders
from delta_core.admission.admit import admit
from delta_core.admission.frozen import METHOD, REFUSED, Certification
from delta_core.admission.sections import sections_of
from delta_core.admission.tables import cached_path, note_admission, records_of, records_path, refused_path, table_of
from delta_core.metrics import Prometheus
from delta_core.reference import Reference
from delta_core.tools import background as job_room
from delta_core.tools.freezing.freeze import freeze
from delta_core.tools.verify.generators import CONFIGS, live_from, prose, spec


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DELTA_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, cache: Path) -> list[Job]:
    """What would have been started in the background."""
    return waiting_jobs(monkeypatch, cache)


def sections(live: Tokenizer) -> Any:
    return sections_of(Reference(live).parsed())


# -- at once --


@pytest.mark.parametrize("name", CONFIGS)
def test_an_unknown_vocabulary_of_a_known_pipeline_is_served(name: str, synthetic: Callable[..., Subject]) -> None:
    subject = synthetic(name)
    tok = DeltaTokenizer(subject.live, encoder="reference")
    assert tok.admission.admitted, tok.admission
    assert tok.admission.config is not None
    assert tok.admission.config.startswith("structure of ")
    assert_all_ways(tok, subject.live, subject.maker(7).session(6, 100))
    assert not tok.stats().fallbacks


def test_changes_that_decide_no_cut_are_named_and_served(real_tokenizer: Callable[[str], Subject]) -> None:
    live = Tokenizer.from_str(real_tokenizer("qwen3").live.to_str())
    live.add_special_tokens(["<|mine|>"])
    live.add_tokens([AddedToken("Qwen said", normalized=True)])
    tok = DeltaTokenizer(live)
    assert tok.admission.config == "structure of qwen2_5"
    assert tok.admission.drift.startswith("as qwen3, but added_tokens: 2 added (")
    assert tok.admission.drift in tok.describe()
    assert tok.admission.encoder == "fastokens", "certified for this vocabulary; the battery has shown the new tokens"
    text = prose(3, 2000) + "<|mine|> Qwen said <|im_end|>\n"
    for turn in (text, text + "and Qwen said <|mine|>", text[:900] + "<|mine|>" + text[900:]):
        assert_same(tok, live, turn, session="s")


def test_only_what_a_config_knows_whole_is_admitted_where_that_is_asked(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("qwen3")
    strict = DeltaTokenizer(subject.live, admit="frozen")
    assert strict.admission.reason is Reason.UNKNOWN_TOKENIZER
    assert strict.encode("Hello") == ids_of(subject.live, "Hello", True)
    other = DeltaTokenizer(subject.live, config=replace(subject.frozen, sections=sections(live_from(spec("gpt2")))))
    assert not other.admission.admitted, "a config that is given is the only one"
    assert DeltaTokenizer(subject.live, config=subject.frozen, admit="frozen").admission.admitted
    assert Options.from_environment({"DELTA_ADMIT": "frozen"}).admit == "frozen"


def test_a_structure_that_the_rules_do_not_cover_stays_refused() -> None:
    changes: dict[Reason, Callable[[Tokenizer], object]] = {
        Reason.UNSUPPORTED_NORMALIZER: lambda live: setattr(live, "normalizer", normalizers.NFKC()),
        Reason.UNSUPPORTED_PRE_TOKENIZER: lambda live: setattr(live, "pre_tokenizer", pre_tokenizers.Metaspace()),
        Reason.UNSUPPORTED_ADDED_TOKEN: lambda live: live.add_tokens([AddedToken("<x>", lstrip=True)]),
        Reason.UNSUPPORTED_MODEL: lambda live: setattr(live.model, "dropout", 0.1),
        Reason.TRUNCATION_SET: lambda live: live.enable_truncation(9),
    }
    for reason, change in changes.items():
        live = live_from(spec("llama3_1"))
        change(live)
        tok = DeltaTokenizer(live)
        assert tok.admission.reason is reason, reason
        if reason is not Reason.UNSUPPORTED_MODEL:
            assert tok.encode("Hello there") == ids_of(live, "Hello there", True)


# -- a table that has to be derived --


def test_an_unknown_pattern_is_stock_until_its_table_is_derived_and_then_served(
    cache: Path, jobs: list[Job], caplog: pytest.LogCaptureFixture
) -> None:
    live = of_unknown_pattern()
    tok = DeltaTokenizer(live, background=True, encoder="reference")
    called: list[bool] = []
    tok.when_admitted(lambda: called.append(tok.admission.admitted))
    assert tok.admission.reason is Reason.UNKNOWN_PRE_TOKENIZER
    text = prose(1, 1500) + "12 345\n"
    assert_same(tok, live, text, session="s")
    assert tok.stats().fallbacks == {"unknown_pre_tokenizer": 1}
    (job,) = jobs
    with caplog.at_level(logging.WARNING, "delta_core"):
        do(job)
    assert tok.admission.admitted
    assert called == [False], "before it serves"
    tok.when_admitted(lambda: called.append(tok.admission.admitted))
    assert called == [False, True], "at once where it serves already"
    assert tok.describe() in caplog.text
    for turn in (text, text + "more 12", text[:700] + "!" + text[700:]):
        assert_same(tok, live, turn, session="s")
    assert tok.stats().by_path == {"stock": 1, "cold": 1, "append": 1, "splice": 1}
    again = DeltaTokenizer(of_unknown_pattern(), background=True, encoder="reference")
    assert again.admission.admitted, "known from now on"
    assert len(jobs) == 1


def test_the_metrics_name_who_serves_from_then_on(jobs: list[Job]) -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    tok = DeltaTokenizer(of_unknown_pattern(), background=True, encoder="reference")
    tok.export(Prometheus(registry))

    def admitted() -> dict[str, float]:
        samples = [s for family in registry.collect() for s in family.samples if s.name == "delta_tokenizer_admitted"]
        return {s.labels["section"]: s.value for s in samples}

    assert admitted() == {"pre_tokenizer": 0}
    do(jobs[0])
    assert admitted() == {"pre_tokenizer": 0, "": 1}


def test_who_can_not_serve_with_it_refuses_it(jobs: list[Job], caplog: pytest.LogCaptureFixture) -> None:
    live = of_unknown_pattern()
    tok = DeltaTokenizer(live, background=True, encoder="reference")

    def no() -> None:
        raise ValueError("not this one")

    tok.when_admitted(no)
    do(jobs[0])
    assert tok.admission.reason is Reason.ADAPTER_FAILED
    assert "not this one" in caplog.text
    assert_same(tok, live, "Hello there " * 50)
    assert tok.stats().by_path == {"stock": 1}


def test_requests_that_run_while_it_switches_over_are_right(cache: Path, jobs: list[Job]) -> None:
    live = of_unknown_pattern()
    tok = DeltaTokenizer(live, background=True, encoder="reference")
    texts = [prose(n, 900) for n in range(4)]
    want = {text: ids_of(live, text) for text in texts}
    wrong: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            wrong.extend(t for t in texts if tok.encode(t, session=t[:9], add_special_tokens=False) != want[t])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    do(jobs[0])
    until(lambda: tok.stats().by_path.get("append", 0) + tok.stats().by_path.get("splice", 0) > 20)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert set(tok.stats().fallbacks) == {"unknown_pre_tokenizer"}


def test_without_a_background_nothing_is_started_and_a_library_starts_nothing(jobs: list[Job], cache: Path) -> None:
    DeltaTokenizer(of_unknown_pattern())
    replace(Options(), background=False).tokenizer(of_unknown_pattern())
    assert not jobs
    assert Options().background
    assert Options.from_environment({"DELTA_BACKGROUND": "0"}).background is False
    assert not list(cache.rglob("*"))


def test_a_pattern_without_a_table_is_tried_once_and_named_afterwards(cache: Path, jobs: list[Job]) -> None:
    live = of_unknown_pattern(r"(?<=a)b|\s+|\S+")  # looks behind itself
    first = DeltaTokenizer(live, background=True)
    assert first.admission.reason is Reason.UNKNOWN_PRE_TOKENIZER
    do(jobs[0])
    assert first.admission.reason is Reason.UNSUPPORTED_PRE_TOKENIZER
    second = DeltaTokenizer(live, background=True)
    assert second.admission.reason is Reason.UNSUPPORTED_PRE_TOKENIZER
    assert second.admission.why_not == first.admission.why_not
    assert len(jobs) == 1
    path = refused_path(sections(live).pre_tokenizer)
    path.write_text("another way of deriving\nno")
    assert DeltaTokenizer(live).admission.reason is Reason.UNKNOWN_PRE_TOKENIZER, "tried again by another method"


# -- in a process of its own --


def test_a_real_process_derives_once_for_all_who_ask(cache: Path) -> None:
    live = of_unknown_pattern(r"\s+|[^\s!]+|!")
    waiting = [DeltaTokenizer(live, background=True, encoder="reference") for _ in range(3)]
    assert not any(tok.admission.admitted for tok in waiting)
    until(lambda: all(tok.admission.admitted for tok in waiting))
    path = cached_path(sections(live).pre_tokenizer)
    assert table_of(sections(live).pre_tokenizer) is not None
    written = path.stat().st_mtime_ns, path.stat().st_ino
    background.start(
        {"job": "derive", "name": "again", "pre_tokenizer": sections(live).pre_tokenizer}, lambda: None
    ).join(PATIENCE)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == written, "the second process found it"
    for tok in waiting:
        assert_same(tok, live, "Hello! there " * 80, session="s")


def test_a_job_that_fails_is_one_line_and_the_server_goes_on(
    cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    background.start({"job": "nonsense", "name": "x"}, lambda: called.append(1)).join(PATIENCE)
    monkeypatch.setattr(background.sys, "executable", "/no/such/python")
    background.start({"job": "derive", "name": "y", "pre_tokenizer": []}, lambda: called.append(1)).join(PATIENCE)
    assert not called
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == ["background"] * 2


PARENT = """
import sys, time
from delta_core import background
pattern = r"(?i:'s|'t|'re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+"
split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
background.start({"job": "derive", "name": "x", "pre_tokenizer": [split, level]}, lambda: None)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_it_has_the_lowest_priority_and_ends_with_its_server(cache: Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", PARENT])

    def children() -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == server.pid:
                found.append(int(path.parent.name))
        return found

    try:
        until(lambda: len(children()) == 1)
        (child,) = children()
        until(lambda: os.getpriority(os.PRIO_PROCESS, child) == 19)
        until(lambda: len(os.sched_getaffinity(child)) == 1)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    until(lambda: not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text())


# -- encoders --


def test_a_record_of_the_same_structure_lets_an_encoder_serve_and_of_another_does_not(
    cache: Path, synthetic: Callable[..., Subject]
) -> None:
    pytest.importorskip("fastokens")
    subject = synthetic("llama3_1")
    record = Certification("fastokens", encoders.version_of("fastokens"), Reference.version, (), 1, METHOD)
    known = freeze(Reference(subject.live), "known", known=[subject.frozen]).with_certification(record)
    more = Tokenizer.from_str(subject.live.to_str())
    more.add_special_tokens(["<|more|>"])
    assert records_of(sections(more), [known]) == (record,), "added tokens are shown anew at each start"
    for change in ("vocabulary", "normalizer", "flag"):
        parsed = json.loads(subject.live.to_str())
        if change == "vocabulary":
            vocabulary = parsed["model"]["vocab"]
            a, b = list(vocabulary)[:2]
            vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
        elif change == "normalizer":
            parsed["normalizer"] = {"type": "NFC"}
        else:
            parsed["model"]["ignore_merges"] = not parsed["model"]["ignore_merges"]
        assert records_of(sections(Tokenizer.from_str(json.dumps(parsed))), [known]) == (), change


def test_an_uncertified_encoder_is_certified_beside_the_server_and_then_serves(
    cache: Path, jobs: list[Job], synthetic: Callable[..., Subject]
) -> None:
    pytest.importorskip("fastokens")
    subject = synthetic("llama3_1")
    live = subject.live
    tok = DeltaTokenizer(live, background=True)
    assert tok.admission.encoder == "reference"
    text = prose(5, 1200)
    assert_same(tok, live, text, session="s")
    ((job, done),) = jobs
    assert (job["job"], job["encoder"]) == ("certify", "fastokens")
    path = records_path(sections(live))
    record = Certification("fastokens", encoders.version_of("fastokens"), Reference.version, (), 9, METHOD)
    job_room.write(path, json.dumps([{**record_json(record)}]))
    done()
    assert tok.admission.encoder == "fastokens"
    for turn in (text + " and more", text[:500] + "?" + text[500:]):
        assert_same(tok, live, turn, session="s")
    assert tok.stats().by_path == {"cold": 1, "append": 1, "splice": 1}, "what was remembered is reused"
    assert DeltaTokenizer(live, background=True).admission.encoder == "fastokens"
    assert len(jobs) == 1, "nothing is certified twice"


def record_json(record: Certification) -> dict[str, Any]:
    return {name: getattr(record, name) for name in Certification.__slots__}


def test_the_encoder_stays_where_the_live_tokenizer_has_changed_meanwhile(
    cache: Path, jobs: list[Job], synthetic: Callable[..., Subject]
) -> None:
    pytest.importorskip("fastokens")
    live = Tokenizer.from_str(synthetic("llama3_1").live.to_str())
    tok = DeltaTokenizer(live, background=True)
    record = Certification("fastokens", encoders.version_of("fastokens"), Reference.version, (), 9, METHOD)
    job_room.write(records_path(sections(live)), json.dumps([record_json(record)]))
    live.add_special_tokens(["<|late|>"])
    jobs[0][1]()
    assert tok.admission.encoder == "reference"
    assert_same(tok, live, "a <|late|> b" * 50)


def test_an_encoder_that_was_refused_here_is_not_tried_again(
    cache: Path, jobs: list[Job], synthetic: Callable[..., Subject]
) -> None:
    pytest.importorskip("fastokens")
    live = synthetic("llama3_1").live
    record = Certification("fastokens", encoders.version_of("fastokens"), Reference.version, (), 0, REFUSED)
    job_room.write(records_path(sections(live)), json.dumps([record_json(record)]))
    tok = DeltaTokenizer(live, background=True)
    assert tok.admission.encoder == "reference"
    assert tok.admission.note is not None
    assert "gives other IDs" in tok.admission.note
    assert not jobs
    right = replace(record, method=METHOD)
    known = freeze(Reference(live), "known", known=[synthetic("llama3_1").frozen]).with_certification(right)
    assert records_of(sections(live), [known]) == (right,), "one that came with the package goes first"


def test_records_that_can_not_be_read_are_left_out(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = live_from(spec("llama3_1"))
    path = records_path(sections(live))
    for text in ("{", "[1]", '[{"encoder": "x"}]', '{"a": 1}', "\ud83d".encode("utf-8", "replace").decode() + "é"):
        job_room.write(path, text)
        assert records_of(sections(live)) == ()
    assert len([r for r in caplog.records if "records left out" in r.getMessage()]) == 5


# -- what was admitted before --


def test_what_was_admitted_under_a_name_is_compared_at_the_next_start(cache: Path) -> None:
    frozen = admit(Reference(live_from(spec("llama3_1")))).frozen
    assert frozen is not None
    assert note_admission("org/model", frozen) == ""
    assert note_admission("org/model", frozen) == ""
    live = live_from(spec("llama3_1"))
    live.add_special_tokens(["<|new|>"])
    other = admit(Reference(live)).frozen
    assert other is not None
    said = note_admission("org/model", other)
    assert said.startswith("not as at an earlier start: added_tokens: 1 added (")
    assert note_admission("org/model", other) == "", "and then it is what was admitted"
    assert note_admission("org/other", frozen) == note_admission(None, frozen) == note_admission("", frozen) == ""
    for path in (cache / "admitted").glob("*.json"):
        path.write_text("{")
    assert note_admission("org/model", frozen) == "", "a broken note is written anew"


def test_a_changed_vocabulary_under_the_same_name_is_said_and_right(cache: Path, jobs: list[Job]) -> None:
    transformers = pytest.importorskip("transformers")

    def named(tokenizer: Tokenizer) -> Any:
        live = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        live.name_or_path = "org/model"
        return live

    first = DeltaTokenizer(named(live_from(spec("llama3_1"))), background=True, encoder="reference")
    assert first.admission.drift == ""
    parsed = json.loads(live_from(spec("llama3_1")).to_str())
    vocabulary = parsed["model"]["vocab"]
    text = prose(2, 1500)
    a, b = (first.id_to_token(i) for i in list(dict.fromkeys(first.encode(text)))[4:6])
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    live = named(Tokenizer.from_str(json.dumps(parsed)))
    second = DeltaTokenizer(live, background=True, encoder="reference")
    assert second.admission.admitted
    assert "not as at an earlier start: vocab: digest " in second.describe()
    assert second.encode(text) == live.encode(text) != first.encode(text)


def test_a_cache_that_can_not_be_written_costs_nothing_but_the_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DELTA_CACHE", str(tmp_path / "file" / "below"))
    frozen = admit(Reference(live_from(spec("llama3_1")))).frozen
    assert frozen is not None
    assert note_admission("org/model", frozen) == ""
    began = time.monotonic()
    background.start({"job": "derive", "name": "x", "pre_tokenizer": []}, lambda: None).join(PATIENCE)
    assert time.monotonic() - began < PATIENCE
