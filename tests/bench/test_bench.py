"""The benchmark's own arithmetic and honesty: what it times, what it compares, what it leaves out, what it says."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Subject
from oracle import ids_of

from bench import __main__ as command
from bench import measure, memory, ours, page, parallel, peers, report, texts, workloads
from bench.measure import (
    SERVER,
    TIGHT,
    Case,
    Check,
    Churn,
    Contestant,
    Record,
    Result,
    Scene,
    State,
    Timed,
    fit,
    p99,
    packed,
    replay,
)
from bench.measure import run as run_all
from delta_core import DeltaTokenizer

BASE = "<|im_start|>user\n" + "One line of text, and 123 more. " * 40
NEW = "<|im_end|>\n<|im_start|>user\nAnd then?"


def codes(text: str) -> list[int]:
    return [ord(c) for c in text]


class Clocked(Contestant):
    """Answers with code points; each call takes as long as it is told to."""

    def __init__(self, name: str, seconds: Callable[[int], float], wrong: bool = False) -> None:
        self.name, self._seconds, self._wrong = name, seconds, wrong
        self.seen: list[Case] = []

    def time(self, case: Case) -> Timed:
        self.seen.append(case)
        return Timed(codes(case.text)[self._wrong :], self._seconds(len(self.seen) - 1), 0.5)


SCENE = Scene("append", "tiny", "english", 3, 1, [Case("s", "abcd"), Case("s", "abce")])


def result(row: str, **changes: Any) -> Result:
    values = (
        "append",
        "qwen3",
        "english",
        400_000,
        400,
        0,
        TIGHT,
        row,
        100,
        5,
        0,
        row.startswith(("Delta", "floor")),
        1.0,
        2.0,
        0.5,
        1.0,
        1.0,
    )
    return replace(Result(*values), **changes)


def test_medians_and_percentiles_are_of_the_rounds_after_the_first() -> None:
    slow_first = Clocked("a", lambda call: 9.0 if call == 0 else call / 1000)
    (found,) = run_all([(SCENE, slow_first)], codes, rounds=5, seconds=60)
    assert (found.calls, found.median_ms, found.p99_ms, found.low_ms) == (5, 3.0, 5.0, 1.0)
    assert (found.cpu_s, found.tokens, found.wrong) == (2.5, 4, 0)
    assert p99(range(1, 201)) == 198
    assert p99([7]) == 7


def test_a_wrong_id_is_counted_in_every_call() -> None:
    right, wrong = run_all(
        [(SCENE, Clocked("a", lambda _: 1)), (SCENE, Clocked("b", lambda _: 1, wrong=True))], codes, rounds=4, seconds=9
    )
    assert (right.wrong, wrong.wrong) == (0, 5), "the warm-up is compared, too"


def test_all_contestants_get_the_same_cases_and_no_string_that_another_has_touched() -> None:
    first, second = Clocked("a", lambda _: 1), Clocked("b", lambda _: 1)
    run_all([(SCENE, first), (SCENE, second)], codes, rounds=6, seconds=9)
    assert [c.text for c in first.seen] == [c.text for c in second.seen] == ["abcd", "abce"] * 3 + ["abcd"]
    strings = [c.text for c in first.seen + second.seen]
    assert len(set(map(id, strings))) == len(strings)


def test_who_has_used_up_the_time_sits_out_but_for_three_calls() -> None:
    found = run_all([(SCENE, Clocked("a", lambda _: 1))], codes, rounds=50, seconds=0.0)
    assert found[0].calls == 3


def test_a_replay_makes_every_call_once_in_order() -> None:
    contestant = Clocked("a", lambda call: 1.0)
    (found,) = replay(SCENE, [contestant], codes)
    assert [c.text for c in contestant.seen] == ["abcd", "abce"]
    assert found.wall_s == 2.0
    assert found.cpu_s == 1.0


@pytest.mark.parametrize("form", [list, tuple, lambda ids: array("q", ids), lambda ids: np.array(ids, np.uint32)])
def test_ids_are_the_same_in_any_container(form: Callable[[list[int]], Any]) -> None:
    assert packed(form([1, 2, 300_000])) == packed([1, 2, 300_000]) != packed([1, 2, 300_001])


def test_the_fit_finds_the_constant_and_the_slope() -> None:
    grown = [result("floor, list", chars=n, median_ms=0.05 + n / 1e6 * 0.3) for n in (16_000, 400_000, 4_000_000)]
    found = fit(grown)
    assert found.constant_us == pytest.approx(50)
    assert found.slope_us == pytest.approx(300)
    assert found.worst == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("kind", texts.KINDS)
def test_a_transcript_has_the_length_that_was_asked_for_and_is_the_same_every_time(kind: str) -> None:
    text = texts.transcript(kind, "qwen3", 60_000)
    texts.transcript.cache_clear()
    assert texts.transcript(kind, "qwen3", 60_000) == text
    assert len(text) == 60_000
    assert texts.transcript(kind, "qwen3", 30_000) == text[:30_000]
    assert text.count("<|im_start|>") > 5
    assert "Current time: " in text
    blocks = {text[n : n + 200] for n in range(0, len(text) - 200, 200)}
    assert len(blocks) == len(range(0, len(text) - 200, 200)), "nothing stands in it twice"
    assert len({len(t) for t in texts.turns(kind, "qwen3", 400, 3)} | {400}) == 1


def test_a_file_can_be_given_and_is_said_to_be_too_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_given", {})
    (tmp_path / "text").write_text("".join(f"Line {n} of a file.\n" for n in range(9_000)), encoding="utf-8")
    texts.give("mine", tmp_path / "text")
    assert "Line 9 of a file.\n" in texts.transcript("mine", "qwen3", 20_000)
    with pytest.raises(texts.TooShort, match="mine"):
        texts.transcript("mine", "qwen3", 1_000_000)


@pytest.mark.parametrize("form", ["list", "array"])
@pytest.mark.parametrize("name", ["qwen3", "gpt_oss"])
def test_the_floor_and_ours_give_the_references_ids(name: str, form: str, synthetic: Callable[..., Subject]) -> None:
    shared = synthetic(name)
    floor = ours.Floor("floor", shared.live, shared.tok, form=form)
    delta = ours.Delta("Delta", shared.tok, form=form)
    first = Case("s", BASE + NEW, (("s", BASE[:-90]), ("s", BASE)))
    for case in (first, Case("t", BASE * 2 + NEW, (("t", BASE * 2),))):
        for contestant in (floor, delta):
            contestant.prepare(case)
            ids = contestant.encode(case)
            assert type(ids) is (array if form == "array" else list)
            assert list(ids) == ids_of(shared.live, case.text)
    with pytest.raises(AssertionError, match="appends only"):
        floor.encode(Case("s", "x" + BASE))


def test_a_worker_without_the_peers_says_so_and_has_no_rows(tmp_path: Path, synthetic: Callable[..., Subject]) -> None:
    synthetic("qwen3").live.save(str(tmp_path / "tokenizer.json"))
    worker = peers.Worker(Path(sys.executable))
    try:
        found, notes = worker.open("qwen3", tmp_path / "tokenizer.json")
        missing = {"toktier", "tiktoken"} - set(worker.versions)
        assert {note.split()[0] for note in notes} >= missing
        assert not [c for c in found if c.name.split(",")[0] in missing]
        with pytest.raises(RuntimeError, match="KeyError"):
            peers.Remote(worker, "nobody").time(Case("s", "x"))
    finally:
        worker.close()


def test_no_environment_for_the_worker_is_a_note_not_a_failure(tmp_path: Path) -> None:
    notes: list[str] = []
    assert peers.start(str(tmp_path / "python"), tmp_path, notes.append) is None
    assert peers.start("none", tmp_path, notes.append) is None
    assert len(notes) == 2
    assert all("toktier" in note for note in notes)


def record() -> Record:
    machine = {
        "cpu": "a CPU", "cores": 2, "memory_gib": 8, "load_average": [0.1], "python": "3", "date": "2031-01-01",
        "versions": {"tokenizers": "1"}, "apart": None,
    }  # fmt: skip
    rows = [result(ours.FLOOR), result(ours.KEYED, median_ms=1.25), result("fast but wrong", wrong=1, median_ms=0.01)]
    grown = [fit([result(row), result(row, chars=1_000_000, median_ms=2.0)]) for row in (ours.FLOOR, ours.KEYED)]
    return Record("turn", machine, rows, grown, [Check("a target", 1.7, 1.6)])


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    kept = record()
    kept.states.append(State("qwen3", "english", "list", 10, 3, 59, 1000))
    kept.churns.append(Churn("Delta", "qwen3", 100, [(1, 2, 3, 4)]))
    kept.save(tmp_path)
    loaded = Record.load(tmp_path / "turn.json")
    assert (loaded.results, loaded.fits, loaded.checks, loaded.states) == (
        kept.results, kept.fits, kept.checks, kept.states,
    )  # fmt: skip
    assert [tuple(sample) for sample in loaded.churns[0].samples] == [(1, 2, 3, 4)]


@pytest.mark.parametrize("what", ["turn", "edit", "memory"])
def test_a_record_is_drawn(what: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    kept = record()
    kept.command = what
    if what == "memory":
        kept.churns.append(Churn("Delta", "qwen3", 100, [(1, 2, 3, 4), (2, 3, 3, 4)]))
    report.plot(kept, tmp_path)
    drawn = (tmp_path / f"{what}.svg").read_text(encoding="utf-8")
    assert report.TITLES[what] in drawn
    assert (tmp_path / f"{what}.png").read_bytes().startswith(b"\x89PNG")
    assert ("Delta, keyed" if what != "memory" else "conversations served") in drawn
    assert "fast but wrong" not in drawn


def test_a_peer_that_was_wrong_is_in_no_table_and_ours_is_marked() -> None:
    shown = report.markdown(record())
    assert "fast but wrong" not in shown
    assert f"| {ours.KEYED} | 1.25 (2.00) |" in shown
    assert "**misses**" in shown
    failing = record()
    failing.results[1] = replace(failing.results[1], wrong=2)
    assert "1.25 (2.00) WRONG" in report.markdown(failing)
    assert failing.failed == [failing.results[1]]
    assert not record().failed, "a peer's fault is not ours"


def test_the_fastest_exact_peer_is_the_one_to_beat() -> None:
    rows = [*record().results, result("slow", median_ms=9.0), result("quick", median_ms=5.0)]
    peer = workloads.exact_peer(rows)
    assert peer is not None
    assert peer.row == "quick"


def test_the_page_is_made_of_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "benchmarks.md"
    assert page.docs(tmp_path, target) == 2, "nothing was measured"
    assert not target.exists()
    kept = record()
    kept.results += [replace(r, mode=SERVER, median_ms=3.0) for r in kept.results]
    kept.note("tiktoken left out")
    kept.save(tmp_path)
    assert page.docs(tmp_path, target) == 0
    written = target.read_text(encoding="utf-8")
    assert "\npython -m bench turn\npython -m bench docs --write\n" in written, "how to repeat it"
    assert "a CPU, 2 cores, 8 GiB; load at the start 0.1; Python 3, tokenizers 1; 2031-01-01." in written
    assert "**qwen3, english, tight loop**" in written
    assert written.index("| 1.25 (2.00) |") < written.index("**qwen3, english, server mode**")
    assert written.index("**qwen3, english, server mode**") < written.index("| 3.00 (2.00) |")
    assert "| a target | ≤ 1.6 | 1.70 | 1.70 to 1.70 | 0 of 1 |" in written
    assert "- tiktoken left out" in written
    assert "fast but wrong" not in written
    assert page.docs(tmp_path, None) == 0
    assert capsys.readouterr().out == written + "\n"


def test_the_page_says_when_little_was_measured_and_when_the_machine_was_busy(tmp_path: Path) -> None:
    kept = record()
    kept.save(tmp_path)
    calm = page.page(tmp_path)
    kept.machine |= {"quick": True, "load_average": [5.0]}
    kept.save(tmp_path)
    busy = page.page(tmp_path)
    assert [phrase in text for text in (calm, busy) for phrase in ("quick set", "shared and busy", "turn --quick")] == [
        False, False, False, True, True, True,
    ]  # fmt: skip


TINY = replace(
    workloads.QUICK, sizes=(7_000, 9_000), size=9_000, kinds=("english",), edited=("english",), stored=(13,),
    variants=1, rounds=2, seconds=0.01, replayed=50_000, churned=20,
)  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synthetic: Callable[..., Subject]) -> list[str]:
    """Arguments for a tokenizer.json that a config in the user's folder admits."""
    shared = synthetic("qwen3")
    replace(shared.frozen, name="qwen3_tiny").write(tmp_path / "configs")
    monkeypatch.setenv("DELTA_CONFIGS", str(tmp_path / "configs"))
    monkeypatch.delenv("DELTA_SHARED", raising=False)
    monkeypatch.setattr(command, "QUICK", TINY)
    monkeypatch.setattr(memory, "ROWS", memory.ROWS[:1])
    monkeypatch.setattr(report, "plot", lambda record, folder: None)  # a second each
    monkeypatch.setattr(measure, "other_work", lambda: None)  # 3 ms a call
    shared.live.save(str(tmp_path / "tokenizer.json"))
    common = ["--quick", "--tokenizers", str(tmp_path / "tokenizer.json"), "--out", str(tmp_path / "out")]
    return [*common, "--peers", "none"]


def test_every_subcommand_measures_writes_and_is_exact(tiny: list[str], tmp_path: Path) -> None:
    assert command.main(["all", *tiny]) == 0
    for name in report.ORDER:
        kept = Record.load(tmp_path / "out" / f"{name}.json")
        assert kept.results or kept.states
        assert not kept.failed
    turns = Record.load(tmp_path / "out" / "turn.json")
    rows = {r.row for r in turns.results}
    assert {ours.FLOOR, ours.FLOOR_ARRAY, ours.KEYED, ours.UNKEYED, ours.ARRAY, ours.REFERENCE} < rows
    assert {"HF encode", "fastokens, segment cache", "gigatoken, array"} < rows
    assert len(turns.fits) == 4
    churned = Record.load(tmp_path / "out" / "memory.json").churns
    assert [c.row for c in churned] == ["Delta"]
    conversations, _, held, evicted = churned[0].samples[-1]
    assert conversations == 20
    assert 0 < held <= churned[0].budget
    assert evicted > 0
    assert command.main(["docs", "--from", str(tmp_path / "out"), "--write", str(tmp_path / "page.md")]) == 0
    written = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert all(f"## {title}" in written for title in report.TITLES.values())
    for name in ("turn", "edit", "cold"):
        modes = {r.mode for r in Record.load(tmp_path / "out" / f"{name}.json").results}
        assert modes == {TIGHT, SERVER}


def test_cold_text_is_measured_beside_its_encoder_alone_and_lopt(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "ODD_CHARS", 9_000)
    found = parallel.measure(tiny[2], [8_000], ["english", parallel.CHAT], rounds=2)
    assert not found.failed
    cold = {(r.kind, r.row) for r in found.results if r.scene == "cold"}
    assert {(k, r) for k in ("english", "chat") for r in ("reference", "Delta, reference", parallel.LOPT)} <= cold
    assert {r.scene for r in found.results} == {"cold", "U+017F", *workloads.SPOILS}
    found = Record.of(json.loads(json.dumps(asdict(found))))
    assert not any("differs" in line for line in parallel.markdown({1: found}).splitlines())
    wrong = [replace(r, wrong=1, ours=r.row.startswith("Delta")) for r in found.results]
    shown = parallel.markdown({1: replace(found, results=wrong)})
    assert "| english, 0.008M | 1 | differs |" in shown
    assert "WRONG" in shown


def test_one_wrong_id_of_ours_fails_the_run(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encode = DeltaTokenizer.encode

    def faulty(self: DeltaTokenizer, text: str, **options: Any) -> list[int]:
        ids = encode(self, text, **options)
        return [*ids[:-1], ids[-1] + 1] if len(text) > 9_000 else ids

    monkeypatch.setattr(DeltaTokenizer, "encode", faulty)
    assert command.main(["edit", *tiny]) == 1
    notes = json.loads((tmp_path / "out" / "edit.json").read_text(encoding="utf-8"))["notes"]
    assert any(f"{ours.KEYED}: FAILED" in note for note in notes)
    assert "WRONG" in capsys.readouterr().out


def test_a_name_that_nobody_knows_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--tokenizers", "nobody", "--out", str(tmp_path), "--peers", "none"]
    assert command.main(["turn", *arguments]) == 2
    assert "nobody" in capsys.readouterr().err
