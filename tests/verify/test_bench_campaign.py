"""The campaign under both references: one script, one table, and it goes on where it was."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Subject as Shared

from bench import campaign
from delta_core.reference import Reference
from delta_core.tools.verify.report import State, UnitRecord


def test_campaigns_of_both_references_are_one_table_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synthetic: Callable[..., Shared]
) -> None:
    shared = synthetic("gpt2")
    replace(shared.frozen, name="tiny").write(tmp_path / "configs")
    monkeypatch.setenv("DELTA_CONFIGS", str(tmp_path / "configs"))
    tokenizer, report = tmp_path / "tokenizer.json", tmp_path / "report"
    shared.live.save(str(tokenizer))
    other = State.open(report / "0.0.1", "s")
    other.path.write_text(json.dumps({"seed": "s", "reference": "0.0.1", "encoders": {}}) + "\n")
    other.add([UnitRecord("tiny", "reference", "cuts", 0, 48, 1_000_000, 0, 30.0)], [])

    def run() -> dict[str, object]:
        options = ["--battery", "added_tokens", "--encoder", "reference", "--workers", "1", "--no-controls"]
        ours = ["--python", sys.executable, "--report", str(report), "--tokenizer", str(tokenizer)]
        assert campaign.main([*ours, "--cuts", "3000", *options]) == 0
        found: dict[str, object] = json.loads((report / "report.json").read_text())
        return found

    first = run()
    assert first["references"] == ["0.0.1", Reference.version]
    rows = first["rows"]
    assert isinstance(rows, list)
    assert first["cuts"] == sum(row["cuts"] for row in rows)
    here = [row for row in rows if row["reference"] == Reference.version]
    assert str(tokenizer) in {row["tokenizer"] for row in here}
    assert sum(row["cuts"] for row in here) >= 3000
    assert run() == first, "the same goal again: nothing is left to do"


def test_an_interpreter_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(["--python", str(tmp_path / "python"), "--report", str(tmp_path)]) == 2
    assert "No such file" in capsys.readouterr().err


def test_the_gravest_exit_code_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference under one reference must not be lost because the other found none."""
    codes = iter((1, 0))
    versions = iter(("0.22.2", "0.23.3"))
    asked: list[list[str]] = []

    def verify(python: Path, options: list[str]) -> int:
        asked.append(options)
        return next(codes)

    monkeypatch.setattr(campaign, "reference_of", lambda python: next(versions))
    monkeypatch.setattr(campaign, "verify", verify)
    pythons = ["--python", "old", "--python", "new"]
    assert campaign.main([*pythons, "--report", str(tmp_path), "--cuts", "10", "--workers", "1"]) == 1
    assert asked == [
        ["all", "--cuts", "5", "--report", str(tmp_path / version), "--workers", "1"]
        for version in ("0.22.2", "0.23.3")
    ]
