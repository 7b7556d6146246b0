"""The campaign: it finds what is planted, shrinks it, resumes, and fails where a control stays silent."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import Subject as Shared

from delta_core.admission.frozen import METHOD, Certification, load_path
from delta_core.cuts import CutRules
from delta_core.encoders import encode_each, version_of
from delta_core.reference import Reference
from delta_core.tools import cli
from delta_core.tools.opening import OpenError
from delta_core.tools.verify import campaign, controls
from delta_core.tools.verify.batteries import BATTERIES, outcome
from delta_core.tools.verify.cases import Call, Difference, shrink
from delta_core.tools.verify.pages import write_report
from delta_core.tools.verify.planted import PlantedEncoder
from delta_core.tools.verify.refusals import refused, run_refusals
from delta_core.tools.verify.report import State, StateError, UnitRecord, summarise
from delta_core.tools.verify.subjects import left_out, open_subject, read_texts
from delta_core.tools.verify.tally import Subject, Tally


def opened(shared: Shared, **changes: object) -> Subject:
    tok = shared.tok
    reference = tok._reference
    assert reference is not None
    subject = Subject("tiny", shared.live, reference, shared.frozen, tok._rules, tok, tok._encoder)
    return replace(subject, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("battery", sorted(set(BATTERIES) - {"user", "variants"}))
def test_every_battery_counts_and_finds_nothing_in_a_right_tokenizer(
    battery: str, synthetic: Callable[..., Shared]
) -> None:
    tally = Tally()
    BATTERIES[battery].run(opened(synthetic("qwen3", True)), 1, "seed", tally)
    assert tally.cases > 0
    assert not tally.failed


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss"])
def test_every_position_that_a_rule_allows_is_checked(name: str, synthetic: Callable[..., Shared]) -> None:
    subject = opened(synthetic(name, True))
    text = subject.maker("seed").text(600)
    assert subject.every_cut(text) == [p for p in range(1, len(text)) if subject.rules.at(text, p) is not None]


def test_the_reference_is_asked_once_for_all_encoders_and_every_encoder_is_compared(
    synthetic: Callable[..., Shared],
) -> None:
    first = opened(synthetic("gpt2"))
    tally = Tally()
    BATTERIES["added_tokens"].run(first, 1, "seed", tally)
    assert tally.cuts
    assert not tally.failed

    class Wrong(PlantedEncoder):
        name = "wrong"

        def each(self, segments: Sequence[str]) -> list[list[int]]:
            return [ids[:-1] for ids in encode_each(first.encoder, segments)]

    asked = len(first.answers)
    second, found = replace(first, encoder=Wrong(), known={}), Tally()
    BATTERIES["added_tokens"].run(second, 1, "seed", found)
    assert second.answers is first.answers
    assert len(first.answers) == asked
    assert (found.cases, found.cuts) == (tally.cases, tally.cuts)
    assert len(found.failed or []) == found.cases


def test_the_users_text_is_cut_grown_and_edited(synthetic: Callable[..., Shared]) -> None:
    shared = synthetic("llama3_1")
    tally = Tally()
    BATTERIES["user"].run(opened(shared, texts=(shared.maker(1).text(400),)), 0, "seed", tally)
    assert tally.cases > 20
    assert tally.cuts > 100
    assert not tally.failed


def test_a_planted_transition_is_found_and_shrunk_to_a_few_letters(synthetic: Callable[..., Shared]) -> None:
    shared = synthetic("qwen3")
    table = shared.frozen.transitions
    letter = next(i for i, characters in enumerate(table.samples) if characters[0] == "A")
    wrong = replace(shared.frozen, transitions=replace(table, safe=(*table.safe, (letter, letter))))
    reference = shared.tok._reference
    assert reference is not None
    subject = opened(shared, frozen=wrong, rules=CutRules.of(wrong, reference))
    tally = Tally()
    BATTERIES["cuts"].run(subject, 0, "seed", tally)
    assert tally.failed

    def fails(calls: Sequence[Call]) -> bool:
        got, want = outcome(subject, "cuts", calls)
        return got != want

    (call,) = shrink(tally.failed[0], fails)
    assert fails([call])
    assert len(call.text) <= 4
    assert call.text.isalpha()


def test_shrinking_drops_calls_flags_and_shared_text() -> None:
    calls = [Call("one"), *(Call(text, "k", "n", True, True) for text in ("xx needle yy", "xx needle yy and more"))]

    def fails(candidate: Sequence[Call]) -> bool:
        return len(candidate) > 1 and all("needle" in call.text for call in candidate[-2:])

    assert shrink(calls, fails) == [Call("needle"), Call("needle")]


def test_a_call_is_made_as_it_is_written(synthetic: Callable[..., Shared]) -> None:
    shared = synthetic("llama3_1")
    text = shared.maker(5).text(50)
    for call in (Call(text), Call(text, "k", "n", True, True)):
        got = eval(call.source(), {"tok": shared.tok})
        assert type(got).__name__ == ("array" if call.array else "list")
        assert list(got) == call.of(shared.tok) == shared.live.encode(text, add_special_tokens=call.array).ids


def test_a_difference_tells_where_and_how_to_repeat_it() -> None:
    found = Difference("t", "reference", "sessions", 3, (Call("é", "k"),), (1, 2, 3), (1, 9))
    assert found.at == 1
    assert found.lines() == [
        "sessions unit 3 on t with reference: differs at token 1",
        "    tok.encode('\\xe9', session='k', add_special_tokens=False)",
        "    expected [1, 2, 3] of 3",
        "    got      [1, 9] of 2",
    ]
    assert "with reference, cut everywhere: differs" in replace(found, how="cut everywhere").lines()[0]


# -- controls and refusals --


def test_a_control_that_finds_nothing_fails_the_campaign(tmp_path: Path) -> None:
    state = State.open(tmp_path, "s")
    state.add_control(controls.ControlResult("a guard", "qwen3", 100, False))
    assert summarise([state]).dull_controls == ["a guard (qwen3)"]
    _, text, page = write_report([state], tmp_path)
    assert f"| a guard | synthetic/qwen3 | {Reference.version} | none | 100 |" in text.read_text()
    assert "every control found a difference" not in page.read_text()


def test_every_tokenizer_that_must_be_refused_is() -> None:
    result = run_refusals()
    assert result.tried == len(list(refused())) > 35
    assert not result.missed


def test_a_structure_that_is_not_refused_any_more_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delta_core.admission.admit.not_covered", lambda sections: [])
    assert {"dropout", "added token with lstrip", "padding"} <= set(run_refusals().missed)


# -- state --


def record(unit: int, differences: int = 0) -> UnitRecord:
    return UnitRecord("t", "reference", "cuts", unit, 10, 100, differences, 0.5)


def test_a_state_is_read_again_even_when_its_last_line_was_cut_short(tmp_path: Path) -> None:
    state = State.open(tmp_path, "s")
    state.add([record(0), record(1, 1)], [])
    with state.path.open("a") as file:
        file.write('{"unit": {"tok')
    again = State.open(tmp_path, "s")
    assert again.done == {("t", "reference", "cuts", 0), ("t", "reference", "cuts", 1)}
    summary = summarise([again])
    assert (summary.cases, summary.cuts, summary.differences) == (20, 200, 1)


def test_another_campaign_in_the_folder_is_not_mixed_with_this_one(tmp_path: Path) -> None:
    State.open(tmp_path, "s")
    assert State.seed_of(tmp_path) == "s"
    with pytest.raises(StateError, match="seed s, not other"):
        State.open(tmp_path, "other")


# -- the report --


class Tables(HTMLParser):
    """The cells of each table, by the heading before it; every element must be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.heading = ""
        self.tables: dict[str, list[list[str]]] = {}
        self.pre: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag == "meta":
            return
        self.open.append(tag)
        if tag == "h2":
            self.heading = ""
        elif tag == "table":
            self.tables[self.heading] = []
        elif tag == "tr":
            self.tables[self.heading].append([])
        elif tag in ("td", "th"):
            self.tables[self.heading][-1].append("")
        elif tag == "pre":
            self.pre.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["h2"]:
            self.heading += data
        elif self.open[-1:] in (["td"], ["th"]):
            self.tables[self.heading][-1][-1] += data
        elif self.open[-1:] == ["pre"]:
            self.pre[-1] += data


def two_references(folder: Path) -> list[State]:
    """Campaigns under two references; the second has a difference, and names that are markup."""
    old, new = State(folder / "old.jsonl", "s1", "0.22.2"), State(folder / "new.jsonl", "s2", "0.23.3")
    new.encoders = {"fastokens": "0.3.5"}
    old.add([UnitRecord("qwen3", "reference", "cuts", 0, 48, 50_000, 0, 1800.0)], [])
    new.add([UnitRecord("qwen3", "fastokens", "cuts", n, 48, 60_000, 0, 900.0) for n in range(2)], [])
    call = Call("<b>&|", "k")
    found = Difference("a<b>|c", "reference", "whole", 7, (call,), (1, 2), (1, 3))
    new.add([UnitRecord("a<b>|c", "reference", "whole", 7, 10, 0, 1, 5.0)], [found])
    new.add_control(controls.ControlResult("a guard", "qwen3", 231, True, (call.source(),)))
    old.skip("gpt4o fastokens", "not certified")
    return [old, new]


def test_the_html_page_holds_every_count(tmp_path: Path) -> None:
    _, _, path = write_report(two_references(tmp_path), tmp_path)
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"<script|https?:|src=|href=", page), "one file on its own"
    found = Tables(page)
    assert found.tables["Reference versions"][1:] == [
        ["0.22.2", "48", "50,000", "0", "0.50"],
        ["0.23.3", "106", "120,000", "1", "0.50"],
    ]
    assert sorted(found.tables["Tokenizers and encoders"][1:]) == [
        ["a<b>|c", "reference", "0.23.3", "10", "0", "1", "0.00"],
        ["qwen3", "fastokens 0.3.5", "0.23.3", "96", "120,000", "0", "0.50"],
        ["qwen3", "reference", "0.22.2", "48", "50,000", "0", "0.50"],
    ]
    assert [row[0] for row in found.tables["Batteries"][1:]] == ["cuts", "whole"]
    assert ["qwen3", "fastokens 0.3.5", "0.23.3", "cuts", "96", "120,000", "0", "0.50"] in found.tables["Every count"]
    assert found.tables["Controls"][1:] == [
        ["a guard", "synthetic/qwen3", "0.23.3", "tok.encode('<b>&|', session='k', add_special_tokens=False)", "231"]
    ]
    assert found.tables["Left out"][1:] == [["gpt4o fastokens, tokenizers 0.22.2", "not certified"]]
    assert len(found.pre) == 1
    assert "tok.encode('<b>&|', session='k', add_special_tokens=False)" in found.pre[0]
    assert "170,000 safe cuts" in re.sub(r"\s+", " ", page)


def test_markdown_has_the_tables_of_the_page(tmp_path: Path) -> None:
    _, text, path = write_report(two_references(tmp_path), tmp_path)
    lines = text.read_text(encoding="utf-8").splitlines()
    for rows in Tables(path.read_text(encoding="utf-8")).tables.values():
        for row in rows:
            assert "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" in lines


def test_what_was_left_out_is_forgotten_once_it_ran(tmp_path: Path) -> None:
    state = State.open(tmp_path, "s")
    state.skip("t reference", "not certified")
    assert State.load(tmp_path).skipped == {"t reference": "not certified"}
    state.add([record(0)], [])
    assert State.load(tmp_path).skipped == {} == state.skipped


# -- the plan --


def tasks(batteries: dict[str, int | None], expired: Callable[[], bool] = lambda: False, **limits: object) -> list[str]:
    plan = campaign.Plan(("t",), ("reference",), tuple(batteries), None, None, 1, "s", (), False)
    plan = replace(plan, **limits)  # type: ignore[arg-type]
    found = campaign.tasks_for("t", "reference", plan, batteries, lambda battery, first: False, expired)
    return [f"{task.battery} {task.first}+{task.count}" for task in found]


def test_batteries_take_turns_until_each_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "_RANDOM_UNITS", 8)
    assert tasks({"cuts": None, "added_tokens": 6, "user": 1}) == [
        "cuts 0+4", "added_tokens 0+4", "user 0+1", "cuts 4+4", "added_tokens 4+2",
    ]  # fmt: skip


def test_a_goal_of_cuts_ends_where_none_can_be_made() -> None:
    assert tasks({"whole": None, "added_tokens": 2}, cuts=10) == ["whole 0+4", "added_tokens 0+2", "whole 4+4"]


def test_the_time_ends_an_endless_battery() -> None:
    clock = iter([False] * 5 + [True])
    assert len(tasks({"cuts": None, "whole": None}, lambda: next(clock), minutes=1.0)) == 5


def test_units_are_those_of_the_opened_tokenizer(tokenizer_file: Path) -> None:
    """Of a path, too, whatever its name is."""
    batteries = ("added_tokens", "code_points", "user", "cuts")
    tokens = json.loads(tokenizer_file.read_text())["added_tokens"]
    assert len(tokens) not in (0, 64)
    assert campaign.units_of(str(tokenizer_file), "reference", batteries, ()) == {
        "added_tokens": len(tokens), "code_points": 0x110000 // 256, "user": 0, "cuts": None,
    }  # fmt: skip


def test_an_encoder_without_a_record_is_left_out_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delta_core.tools.verify.subjects.version_of", lambda encoder: "0.0.1")
    why = left_out("qwen3", "fastokens")
    assert why is not None
    assert "fastokens 0.0.1 is not certified for qwen3 with tokenizers" in why
    assert left_out("qwen3", "reference") is None
    assert left_out("./some/tokenizer.json", "fastokens") is None, "only opening it can tell"


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
    return cli.main(["verify", *arguments])


def test_the_command_runs_reports_and_resumes(
    tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "_RANDOM_UNITS", 4)
    monkeypatch.setattr(campaign, "_SYNTHETIC", ())
    text = tmp_path / "text.txt"
    text.write_text("Some text of the user's, 123 times.\n" * 50)
    arguments = (
        str(tokenizer_file), "--encoder", "reference", "--battery", "cuts", "--battery", "user", "--text", str(text),
        "--workers", "1", "--no-controls", "--report", str(tmp_path / "out"),
    )  # fmt: skip
    assert command(*arguments, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert first["cuts"] > 1000
    assert first["differences"] == 0
    assert first["references"]
    assert {row["battery"] for row in first["rows"]} == {"cuts", "user"}
    assert "safe cuts" in (tmp_path / "out" / "report.md").read_text()
    assert command(*arguments, "--json") == 0, "the same folder and no seed: resumed, nothing left to do"
    assert json.loads(capsys.readouterr().out)["rows"] == first["rows"]


def test_what_the_time_did_not_suffice_for_is_said(
    tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "_SYNTHETIC", ())
    arguments = (
        str(tokenizer_file), "--encoder", "reference", "--battery", "added_tokens", "--workers", "1", "--no-controls",
        "--report", str(tmp_path / "out"), "--json",
    )  # fmt: skip
    assert command(*arguments, "--minutes", "0") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["rows"] == []
    assert list(summary["skipped"].values()) == ["the time was over before its turn"]
    assert command(*arguments) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["rows"], "resumed with time enough"
    assert not summary["skipped"]


def test_a_wrong_transition_in_a_config_is_found_shrunk_and_reported(
    tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "_RANDOM_UNITS", 1)
    monkeypatch.setattr(campaign, "_SYNTHETIC", ())
    (path,) = (tmp_path / "configs").iterdir()
    config = load_path(path)
    table = config.transitions
    letter = next(i for i, characters in enumerate(table.samples) if characters[0] == "A")
    replace(config, transitions=replace(table, safe=(*table.safe, (letter, letter)))).write(path.parent)
    out = tmp_path / "out"
    assert command(
        str(tokenizer_file), "--encoder", "reference", "--battery", "dense_sessions", "--battery", "cuts",
        "--workers", "1", "--no-controls", "--seed", "1", "--report", str(out), "--json",
    ) == 1  # fmt: skip
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["differences"] > 0
    assert {row["battery"] for row in summary["rows"]} == {"dense_sessions", "cuts"}
    shown = Tables((out / "report.html").read_text(encoding="utf-8")).pre
    assert shown == ["\n".join(example) for example in summary["examples"]]
    for example in summary["examples"]:
        assert "\n".join(example) in printed.err
        texts = [ast.literal_eval(found) for found in re.findall(r"tok\.encode\(('[^']*')", "\n".join(example))]
        # Shrunk to what one token spans: letters, with the space that belongs to them.
        assert all(text.removeprefix(" ").isalpha() for text in texts)
        assert sum(map(len, texts)) <= 8


def test_every_certified_encoder_is_counted_for_itself(
    tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fastokens = version_of("fastokens")
    monkeypatch.setattr(campaign, "_SYNTHETIC", ())
    (path,) = (tmp_path / "configs").iterdir()
    record = Certification("fastokens", fastokens, Reference.version, (), 1, METHOD)
    load_path(path).with_certification(record).write(path.parent)
    out = tmp_path / "out"
    arguments = ("--battery", "added_tokens", "--workers", "1", "--no-controls", "--report", str(out), "--json")
    assert command(str(tokenizer_file), *arguments) == 0
    summary = json.loads(capsys.readouterr().out)
    rows = {(row["encoder"], row["reference"]): row for row in summary["rows"]}
    assert rows.keys() == {("reference", Reference.version), (f"fastokens {fastokens}", Reference.version)}
    assert len({(row["units"], row["cuts"]) for row in rows.values()}) == 1, "both on the same texts"
    (why,) = summary["skipped"].values()
    assert "gigatoken" in why
    assert "not certified" in why


def test_what_cannot_be_verified_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--text", str(tmp_path / "nowhere.txt"), "--report", str(tmp_path)) == 2
    assert "no such file" in capsys.readouterr().err
    with pytest.raises(OpenError, match="no such file, and no name"):
        open_subject("nonsense", "reference")


def test_sessions_in_jsonl_give_a_text_each(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"messages": [{"content": "a"}, {"content": null}]}\n{"messages": [{"content": "b"}]}\n')
    assert read_texts(path) == ["a\n", "b"]
