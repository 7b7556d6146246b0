"""The campaign: it finds what is planted, shrinks it, resumes, and fails where a control stays silent."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Subject as Shared

from delta_core.tokenizer import rules_for
from delta_core.verify import campaign, controls
from delta_core.verify.batteries import BATTERIES, Subject, Tally, outcome
from delta_core.verify.cases import Call, Difference, shrink
from delta_core.verify.refusals import flagged, run_refusals
from delta_core.verify.report import State, StateError, UnitRecord, summarise, write_report
from delta_core.verify.subjects import SubjectError, open_subject, read_texts


def opened(shared: Shared, **changes: object) -> Subject:
    tok = shared.tok
    reference = tok._reference
    assert reference is not None
    subject = Subject("tiny", shared.live, reference, shared.frozen, tok._rules, tok, tok._encoder)
    return replace(subject, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("battery", sorted(set(BATTERIES) - {"user"}))
def test_every_battery_counts_and_finds_nothing_in_a_right_tokenizer(
    battery: str, synthetic: Callable[..., Shared]
) -> None:
    tally = Tally()
    BATTERIES[battery].run(opened(synthetic("qwen3", True)), 1, "seed", tally)
    assert tally.cases > 0 and not tally.failed


def test_the_users_text_is_cut_grown_and_edited(synthetic: Callable[..., Shared]) -> None:
    shared = synthetic("llama3_1")
    tally = Tally()
    BATTERIES["user"].run(opened(shared, texts=(shared.maker(1).text(400),)), 0, "seed", tally)
    assert tally.cases > 20 and tally.seams > 100 and not tally.failed


def test_a_planted_transition_is_found_and_shrunk_to_a_few_letters(synthetic: Callable[..., Shared]) -> None:
    shared = synthetic("qwen3")
    table = shared.frozen.transitions
    letter = next(i for i, characters in enumerate(table.samples) if characters[0] == "A")
    wrong = replace(shared.frozen, transitions=replace(table, safe=(*table.safe, (letter, letter))))
    reference = shared.tok._reference
    assert reference is not None
    subject = opened(shared, frozen=wrong, rules=rules_for(wrong, reference))
    tally = Tally()
    BATTERIES["seams"].run(subject, 0, "seed", tally)
    assert tally.failed

    def fails(calls: Sequence[Call]) -> bool:
        got, want = outcome(subject, "seams", calls)
        return got != want

    (call,) = shrink(tally.failed[0], fails)
    assert fails([call]) and len(call.text) <= 4 and call.text.isalpha()


def test_shrinking_drops_calls_flags_and_shared_text() -> None:
    calls = [Call("one"), Call("xx needle yy", "k", "n", True), Call("xx needle yy and more", "k", "n", True)]

    def fails(candidate: Sequence[Call]) -> bool:
        return len(candidate) > 1 and all("needle" in call.text for call in candidate[-2:])

    assert shrink(calls, fails) == [Call("needle"), Call("needle")]


def test_a_difference_tells_where_and_how_to_repeat_it() -> None:
    found = Difference("t", "reference", "sessions", 3, (Call("é", "k"),), (1, 2, 3), (1, 9))
    assert found.at == 1
    assert "tok.encode('\\xe9', session='k')" in "\n".join(found.lines())


# -- controls and refusals --


@pytest.mark.parametrize("index", range(len(controls.CONTROLS)), ids=lambda i: controls.CONTROLS[i].name)
def test_each_control_bites(index: int) -> None:
    result = controls.run_control(index, "seed")
    assert result.found, result


def test_the_namespace_control_bites() -> None:
    assert controls.run_namespace_control("seed").found


def test_a_control_that_finds_nothing_fails_the_campaign(tmp_path: Path) -> None:
    state = State.open(tmp_path, "s")
    state.add_control(controls.ControlResult("a guard", "qwen3", 100, False))
    assert summarise([state]).dull_controls == ["a guard (qwen3)"]
    assert "**nothing in 100**" in write_report([state], tmp_path)[1].read_text()


def test_flagged_tokenizers_are_refused() -> None:
    result = run_refusals()
    assert result.tried == len(list(flagged())) > 15 and not result.missed


# -- state --


def record(unit: int, differences: int = 0) -> UnitRecord:
    return UnitRecord("t", "reference", "seams", unit, 10, 100, differences, 0.5)


def test_a_state_is_read_again_even_when_its_last_line_was_cut_short(tmp_path: Path) -> None:
    state = State.open(tmp_path, "s")
    state.add([record(0), record(1, 1)], [])
    with state.path.open("a") as file:
        file.write('{"unit": {"tok')
    again = State.open(tmp_path, "s")
    assert again.done == {("t", "reference", "seams", 0), ("t", "reference", "seams", 1)}
    summary = summarise([again])
    assert (summary.cases, summary.seams, summary.differences) == (20, 200, 1)


def test_another_campaign_in_the_folder_is_not_mixed_with_this_one(tmp_path: Path) -> None:
    State.open(tmp_path, "s")
    assert State.seed_of(tmp_path) == "s"
    with pytest.raises(StateError, match="seed s, not other"):
        State.open(tmp_path, "other")


# -- the command --


@pytest.fixture
def tokenizer_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synthetic: Callable[..., Shared]) -> Path:
    """A tokenizer.json with its frozen config in the user's folder."""
    shared = synthetic("gpt2")
    replace(shared.frozen, name="tiny").write(tmp_path / "configs")
    monkeypatch.setenv("DELTA_CONFIGS", str(tmp_path / "configs"))
    path = tmp_path / "tokenizer.json"
    shared.live.save(str(path))
    return path


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    campaign.add_arguments(parser)
    return campaign.run(parser.parse_args(list(arguments)))


def test_the_command_runs_reports_and_resumes(
    tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "_RANDOM_UNITS", 4)
    monkeypatch.setattr(campaign, "_SYNTHETIC", ())
    text = tmp_path / "text.txt"
    text.write_text("Some text of the user's, 123 times.\n" * 50)
    arguments = (
        str(tokenizer_file), "--encoder", "reference", "--battery", "seams", "--battery", "user", "--text", str(text),
        "--workers", "1", "--no-controls", "--report", str(tmp_path / "out"),
    )  # fmt: skip
    assert command(*arguments, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert first["seams"] > 1000 and first["differences"] == 0 and first["references"]
    assert {row["battery"] for row in first["rows"]} == {"seams", "user"}
    assert "seam checks" in (tmp_path / "out" / "report.md").read_text()
    assert command(*arguments, "--json") == 0, "the same folder and no seed: resumed, nothing left to do"
    assert json.loads(capsys.readouterr().out)["rows"] == first["rows"]


def test_what_cannot_be_verified_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--text", str(tmp_path / "nowhere.txt"), "--report", str(tmp_path)) == 2
    assert "no such file" in capsys.readouterr().err
    with pytest.raises(SubjectError, match="no such file, and no name"):
        open_subject("nonsense", "reference")


def test_sessions_in_jsonl_give_a_text_each(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"messages": [{"content": "a"}, {"content": null}]}\n{"messages": [{"content": "b"}]}\n')
    assert read_texts(path) == ["a\n", "b"]
