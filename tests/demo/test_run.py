"""The demo measures, compares, reports and exits as it says: the real tokenizer, with answers that a test may spoil."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, normalizers

from delta_core import DeltaTokenizer
from delta_core.tools import cli
from delta_core.tools.demo.embedded import embedded_config, embedded_tokenizer
from delta_core.tools.demo.measure import Report, TurnResult, measure, summarise
from delta_core.tools.demo.session import Turn, generate
from delta_core.tools.demo.show import difference_line, select_rows

CHARS = 25_000

Spoil = Callable[[int, list[int]], list[int]]  # makes other IDs of those of a call, by its number


@pytest.fixture(scope="module")
def live() -> Tokenizer:
    return embedded_tokenizer()


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    return list(generate(target_chars=CHARS))


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Spoil], None]:
    """Has the calls of every DeltaTokenizer go through a function."""

    def put(spoil: Spoil) -> None:
        encode, calls = DeltaTokenizer.encode, iter(range(1000))

        def encode_and_spoil(tok: DeltaTokenizer, text: str, **options: object) -> list[int]:
            return spoil(next(calls), encode(tok, text, **options))  # type: ignore[arg-type]

        monkeypatch.setattr(DeltaTokenizer, "encode", encode_and_spoil)

    return put


def wrong_at(call: int, position: int) -> Spoil:
    def spoil(n: int, ids: list[int]) -> list[int]:
        return [*ids[:position], ids[position] + 1, *ids[position + 1 :]] if n == call else ids

    return spoil


def interrupt_at(call: int) -> Spoil:
    def spoil(n: int, ids: list[int]) -> list[int]:
        if n == call:
            raise KeyboardInterrupt
        return ids

    return spoil


# --- measuring ------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(live: Tokenizer) -> Callable[..., Report]:
    tok = DeltaTokenizer(live, encoder="reference", config=embedded_config(live))
    return lambda sessions, **options: measure(tok, live, sessions, family="qwen3", **options)


def test_measure_and_summarise(measured: Callable[..., Report], turns: list[Turn]) -> None:
    seen: list[TurnResult] = []
    report = measured([turns, turns[:3]], on_turn=seen.append)
    assert list(report.turns) == seen
    assert len(seen) == len(turns) + 3
    assert all(t.identical for t in report.turns)
    assert not report.differences
    assert not report.interrupted
    assert seen[0].new_chars == sum(m.size for m in turns[0].messages)
    assert seen[0].reused_tokens == 0
    assert all(0 < t.reused_tokens < t.tokens for t in seen[1:])
    assert report.stats.reused_tokens == sum(t.reused_tokens for t in seen)
    clock = next(t for t in seen if t.kind == "edit" and t.chars == seen[t.turn - 1].chars)
    assert 0 < clock.new_chars <= 20, "a changed time of day is a few characters, not the whole system prompt"
    assert all(0 < t.new_chars < 5_000 for t in seen if t.kind == "trim")

    summary = summarise(report)
    assert summary.turns == summary.identical == len(seen)
    assert summary.warm_turns == len(seen) - 2
    assert {k.kind for k in summary.kinds} == {"start", "append", "think", "edit", "trim"}
    assert summary.delta_median_ms <= summary.delta_p99_ms


def test_a_wrong_id_is_found_and_shown_without_text(
    measured: Callable[..., Report], turns: list[Turn], spoiled: Callable[[Spoil], None]
) -> None:
    spoiled(wrong_at(4, 100))
    report = measured([turns[:6]])
    [difference] = report.differences
    assert (difference.turn, difference.position) == (4, 100)
    assert len(difference.expected) == len(difference.got) == 11
    assert difference.got[5] == difference.expected[5] + 1
    assert [t.identical for t in report.turns] == [True] * 4 + [False, True]
    assert "turn 4: token 100 differs" in difference_line(difference)


def test_missing_ids_differ_at_the_end(
    measured: Callable[..., Report], turns: list[Turn], spoiled: Callable[[Spoil], None]
) -> None:
    spoiled(lambda _, ids: ids[:-2])
    [difference] = measured([turns[:1]]).differences
    assert difference.position == difference.got_length == difference.expected_length - 2


def test_an_interrupt_keeps_what_was_done(
    measured: Callable[..., Report], turns: list[Turn], spoiled: Callable[[Spoil], None]
) -> None:
    spoiled(interrupt_at(3))
    report = measured([turns])
    assert report.interrupted
    assert len(report.turns) == 3
    spoiled(interrupt_at(0))
    assert summarise(measured([turns])).turns == 0


def test_selected_rows_tell_the_run() -> None:
    def row(turn: int, kind: str = "append", identical: bool = True) -> TurnResult:
        return TurnResult(0, turn, kind, 1, 1, 1, 1, 1.0, 1.0, 1.0, 1.0, identical)

    rows = [row(i, "think" if i % 40 == 7 else "append", i != 100) for i in range(300)]
    chosen = [t.turn for t in select_rows(rows)]
    assert len(chosen) == 60
    assert chosen == sorted(set(chosen))
    assert {0, 100, 299, *(i for i in range(300) if i % 40 == 7)} <= set(chosen)
    assert select_rows(rows[:60]) == rows[:60]
    assert len(select_rows([row(i, "start") for i in range(500)])) == 60


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Runs `delta demo ARGS --offline` with an empty cache: the embedded tokenizer stands in for the default one."""
    pytest.importorskip("rich")
    monkeypatch.setenv("DELTA_CACHE", str(tmp_path / "cache"))
    return lambda *args: cli.main(["demo", *args, "--offline", "--target-chars", str(CHARS)])


def test_table_and_totals(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--no-color", "--encoder", "reference") == 0
    out, err = capsys.readouterr()
    assert "using the small embedded tokenizer" in err
    for word in ("think", "edit", "trim", "identical", "config embedded, encoder reference", "19 turns identical"):
        assert word in out
    assert "\x1b" not in out


def test_a_difference_exits_1(
    command: Callable[..., int], spoiled: Callable[[Spoil], None], capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled(wrong_at(2, 7))
    assert command("--turns", "5") == 1
    assert "session 0 turn 2: token 7 differs" in capsys.readouterr().out


def test_ctrl_c_prints_the_summary_and_exits_130(
    command: Callable[..., int], spoiled: Callable[[Spoil], None], capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled(interrupt_at(4))
    assert command("--interleave", "1") == 130
    out, err = capsys.readouterr()
    assert "interrupted after 4 of 19 turns" in err
    assert "all 4 turns identical" in out


def test_json_alone_on_stdout(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--json", "--turns", "4") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["summary"]["identical"] == 4
    assert len(report["turns"]) == 4
    assert report["setup"]["model"] == "embedded"
    assert report["setup"]["template"] == "qwen3"
    assert report["admission"]["config"] == "embedded"
    assert report["stats"]["requests"] == 4


def test_json_and_plot_to_files(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert command("--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.svg"), "--turns", "8") == 0
    assert json.loads((tmp_path / "r.json").read_text())["summary"]["turns"] == 8
    assert "<svg" in (tmp_path / "p.svg").read_text()[:1000]
    assert "Turn by turn" in capsys.readouterr().out


def test_not_admitted_is_said(
    command: Callable[..., int], live: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Tokenizer.from_str(live.to_str())
    other.normalizer = normalizers.NFKC()
    other.save(str(tmp_path / "tokenizer.json"))
    assert command("--turns", "2", "--model", str(tmp_path)) == 0
    out, err = capsys.readouterr()
    assert "not admitted (unsupported_normalizer)" in out
    assert "template qwen3" in err, "the family is told by the markers where no config tells it"
    assert command("--turns", "2", "--model", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["admission"]["reason"] == "unsupported_normalizer"


def test_sessions_of_a_file(command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [{"role": r, "content": f"{r} {i}"} for i in range(6) for r in ("user", "assistant")]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps({"id": i, "messages": messages}) for i in range(3)))
    assert command("--session", str(path), "--turns", "2") == 0
    out, err = capsys.readouterr()
    assert "6 turns in 3 sessions" in err
    assert "session" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--session", "none.jsonl"], "none.jsonl: No such file"),
        (["--model", "none.json"], "none.json: no such file"),
        (["--model", "qwen3"], "no cached copy of qwen3"),
        (["--model", "no-such-name"], "no-such-name"),
        (["--plot", "x.gif"], "must end in .png or .svg"),
    ],
)
def test_what_cannot_start_exits_2(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    assert command(*args) == 2
    out, err = capsys.readouterr()
    assert err.startswith("delta demo: ")
    assert says in err
    assert err.count("\n") == 1
    assert out == ""


def test_a_broken_tokenizer_file_exits_2(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert command("--model", str(tmp_path)) == 2
    assert "not a tokenizer.json" in capsys.readouterr().err


def test_without_rich_what_to_install_is_said(
    command: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert command() == 2
    assert "pip install rich" in capsys.readouterr().err
    assert command("--json", "--turns", "1") == 0, "JSON needs no extra"
