"""The table of models: files that are served, refused and broken, and that a difference fails the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from conftest import Subject

from bench import models, peers
from bench.models import Row, apart, main, measure, page, sessions
from delta_core import DeltaTokenizer
from delta_core.errors import Reason
from delta_core.tools.verify.generators import spec

SMALL = ("--turns", "3", "--chars", "4000", "--rounds", "2")
MACHINE = {
    "cpu": "one", "cores": 2, "memory_gib": 4, "load_average": [0.0], "system": "Linux", "python": "3", "date": "today",
    "versions": {}, "apart": None, "chars": 4000, "rounds": 2,
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path, synthetic: Callable[..., Subject]) -> Path:
    """Two that are served by structure, one with the markers of a family and one without, and one that is refused."""
    named: dict[str, dict[str, str]] = {}
    with_replace = spec("gpt2")
    with_replace["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    made = {
        "marked": synthetic("qwen3").live.to_str(),
        "bare": synthetic("gpt2").live.to_str(),
        "refused": json.dumps(with_replace),
    }
    for name, text in made.items():
        path = tmp_path / f"{name}.json"
        path.write_text(text, encoding="utf-8")
        named[name] = {"path": str(path), "family": f"Family {name}", "source": "made", "structure": "as made"}
    path = tmp_path / "files.json"
    path.write_text(json.dumps(named), encoding="utf-8")
    return path


@pytest.fixture
def small(files: Path) -> Callable[..., Row]:
    """`measure` of a file by name, short."""
    named = json.loads(files.read_text(encoding="utf-8"))
    return lambda name="marked": measure(name, named[name], replayed=3, chars=4_000, rounds=2)


def test_each_file_is_a_row_and_the_page_shows_all(files: Path, tmp_path: Path) -> None:
    out, written = tmp_path / "out" / "models.json", tmp_path / "models.md"
    assert main([str(files), *SMALL, "--json", str(out), "--write", str(written)]) == 0
    rows = [Row(**row) for row in json.loads(out.read_text(encoding="utf-8"))["rows"]]
    assert [row.name for row in rows] == ["marked", "bare", "refused"]
    for row in rows[:2]:
        assert row.admitted.startswith("structure of ")
        assert row.encoder == "reference"
        assert 0 < row.cuts < 1000
        assert (row.turns, row.answers, row.different, row.stock) == (3, 3 * 4 + 2, 0, 0)
        assert row.right
    assert any("Replace" in line for line in rows[2].refused)
    assert rows[2].answers == 0
    text = written.read_text(encoding="utf-8")
    assert all(f"Family {name}" in text for name in ("marked", "bare", "refused"))
    assert "3 files: 2 served, 1 refused. 6 turns replayed; 28 answers compared, 0 different; 0 requests" in text


def test_a_difference_is_counted_warm_and_cold(small: Callable[..., Row], monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(DeltaTokenizer):
        def encode(self, text: str, **options: Any) -> list[int]:
            return super().encode(text, **options)[:-1]

    monkeypatch.setattr(models, "DeltaTokenizer", Wrong)
    row = small()
    assert row.different >= row.answers > 0
    assert not row.right


def test_the_stock_path_is_not_compared_with_itself(small: Callable[..., Row], monkeypatch: pytest.MonkeyPatch) -> None:
    class Stock(DeltaTokenizer):
        def refusal(self, text: Any) -> Reason | None:
            return Reason.LIVE_CHANGED

    monkeypatch.setattr(models, "DeltaTokenizer", Stock)
    row = small()
    assert row.different == 0
    assert row.stock > 0
    assert not row.right


def test_a_peer_with_wrong_ids_is_named_and_never_the_fastest(
    small: Callable[..., Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_peers", lambda path: [peers.Plain("guesses", lambda text: [0])])
    row = small()
    assert (row.peer, row.inexact) == (None, ["guesses"])
    assert row.right, "a peer's fault is not ours"
    assert "guesses" in page([row], MACHINE)


def test_a_peer_that_does_not_take_the_tokenizer_is_left_out(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As Rust code that panics raises it."""

    def panics(*_: Any) -> Any:
        raise Panic

    def takes(path: Path, *_: Any) -> Any:
        return peers.Plain(f"takes {path.name}", len)

    monkeypatch.setattr(peers, "gigatoken", panics)
    monkeypatch.setattr(peers, "fastokens", takes)
    assert [peer.name for peer in models._peers(files)] == [f"takes {files.name}"] * 2


def test_what_went_wrong_decides_the_exit_code(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Row("", "F", admitted="structure of x", encoder="reference", turns=1, answers=4, delta_ms=1, live_ms=9)
    bad = {"different": 1}, {"stock": 1}, {"answers": 0}, {"failed": "no answer"}
    for change, expected in [({}, 0), *((b, 1) for b in bad)]:
        monkeypatch.setattr(models, "apart", lambda f, name, o, c, change=change: replace(good, name=name, **change))
        assert main([str(files), "--json", str(tmp_path / "out.json")]) == expected, change
    assert "FAILED: no answer" in capsys.readouterr().out


def test_one_row_anew_keeps_the_others(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def answers(_files: Path, name: str, *_: Any) -> Row:
        asked.append(name)
        return Row(name, refused=[f"time {len(asked)}"])

    monkeypatch.setattr(models, "apart", answers)
    call = [str(files), "--json", str(tmp_path / "out.json")]
    assert main(call) == main([*call, "--only", "bare"]) == main([*call, "--page"]) == 0
    assert asked == ["marked", "bare", "refused", "bare"]
    rows = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["rows"]
    assert [row["refused"] for row in rows] == [["time 1"], ["time 4"], ["time 3"]]
    assert [row["again"] for row in rows] == [0, 1, 0]
    said = capsys.readouterr().out
    assert "time 4" in said
    assert "measured again, after the others: `bare`" in said
    assert main([*call, "--only", "nobody"]) == 2


def test_a_process_without_an_answer_is_a_failed_row(files: Path, tmp_path: Path) -> None:
    named = json.loads(files.read_text(encoding="utf-8"))
    named["marked"]["path"] += ".gone"
    files.write_text(json.dumps(named), encoding="utf-8")
    row = apart(files, "marked", SMALL, tmp_path)
    assert row.failed
    assert not row.right


def test_sessions_follow_each_other_with_an_added_token_before_each_message() -> None:
    turns: Iterator[tuple[str, str]] = sessions("plain", "<|x|>")
    keys, texts = zip(*islice(turns, 25), strict=True)
    assert sorted(set(keys)) == ["0", "1"]
    assert all("<|x|>### user" in text for text in texts)
