"""Two checkouts beside each other: that both are what they are said to be, compared on equal terms, and exact."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Subject

import delta_core
from bench import compare, measure, workloads
from bench.measure import SERVER, TIGHT, Case, Contestant, Scene

ROOT = compare.ROOT
MODES = (TIGHT, SERVER)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synthetic: Callable[..., Subject]) -> str:
    """A tokenizer.json that a config in the user's folder admits."""
    shared = synthetic("qwen3")
    replace(shared.frozen, name="qwen3_tiny").write(tmp_path / "configs")
    monkeypatch.setenv("DELTA_CONFIGS", str(tmp_path / "configs"))
    monkeypatch.setattr(compare, "QUICK", replace(workloads.QUICK, variants=2))
    shared.live.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A checkout whose answers to longer texts lack the last ID."""
    folder = tmp_path / "broken"
    shutil.copytree(ROOT / "delta_core", folder / "delta_core", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", folder / "configs")
    planted = (
        "\n\n_right = DeltaTokenizer._encode\n\n\n"
        "def _wrong(self, text, *rest):\n"
        "    ids = _right(self, text, *rest)\n"
        "    return ids[:-1] if len(text) > 9_000 else ids\n\n\n"
        "DeltaTokenizer._encode = _wrong\n"
    )
    with open(folder / "delta_core" / "tokenizer.py", "a", encoding="utf-8") as source:
        source.write(planted)
    return folder


def options(*checkouts: Path, model: str, out: Path) -> list[str]:
    arguments = ["--model", model, "--tokens", "7000", "--encoders", "reference", "--rounds", "2", "--out", str(out)]
    return [*map(str, checkouts), *arguments]


def test_each_checkout_is_a_package_of_its_own() -> None:
    one, two = compare.load(ROOT, "delta_core_one"), compare.load(ROOT, "delta_core_two")
    assert len({one.DeltaTokenizer, two.DeltaTokenizer, delta_core.DeltaTokenizer}) == 3
    assert one.DeltaTokenizer.__module__ == "delta_core_one.tokenizer"
    assert sys.modules["delta_core_two.store"] is not sys.modules["delta_core.store"]
    with pytest.raises(workloads.BenchError, match="no delta_core"):
        compare.load(ROOT / "tests", "delta_core_none")


@pytest.mark.parametrize("line", ["import delta_core.store", "from delta_core.store import Branch"])
def test_a_package_that_would_get_anothers_modules_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "delta_core").mkdir()
    (tmp_path / "delta_core" / "__init__.py").write_text(f"{line}\n")
    with pytest.raises(workloads.BenchError, match="by its full name"):
        compare.load(tmp_path, "delta_core_guest")


def test_turn_tail_edit_and_cold_text_are_measured_in_both_modes_and_exact(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(options(ROOT, model=model, out=tmp_path)) == 0
    found = json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))
    names = (*compare.SCENES.values(), "cold text")
    assert [(r["scene"], r["mode"]) for r in found["rows"]] == [(name, mode) for name in names for mode in MODES]
    assert all(r["rounds"] == 2 and r["low"] <= r["ratio"] <= r["high"] for r in found["rows"])
    assert all(7000 <= r["tokens"] < 9000 for r in found["rows"])
    assert found["old"] == found["new"]
    assert capsys.readouterr().out == (tmp_path / "compare.md").read_text(encoding="utf-8") + "\n"


def test_a_wrong_id_of_one_side_is_counted_there_and_fails(
    model: str, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(options(broken, ROOT, model=model, out=tmp_path)) == 1
    rows = json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))["rows"]
    assert all(r["old_wrong"] == 3 and r["new_wrong"] == 0 for r in rows), "the warm-up is compared, too"
    assert "old WRONG: 3" in capsys.readouterr().out


def test_an_encoder_that_does_not_serve_both_is_left_out_and_said(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = options(ROOT, model=model, out=tmp_path)
    arguments[arguments.index("reference")] = "gigatoken"
    assert compare.main(arguments) == 2, "nothing was measured"
    assert "gigatoken left out" in capsys.readouterr().out


def test_the_interval_of_a_median_narrows_around_it() -> None:
    few = compare.interval([0.8, 1.0, 1.3])
    many = compare.interval([0.8, 1.0, 1.3, 1.0, 1.0, 0.99, 1.01] * 10)
    assert few == compare.interval([0.8, 1.0, 1.3]) == (0.8, 1.3)
    assert 0.99 <= many[0] <= 1.0 <= many[1] <= 1.01


def test_other_work_comes_between_preparation_and_call_in_server_mode_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Noting(Contestant):
        name = "noting"

        def prepare(self, case: Case) -> None:
            done.append("prepare")

        def encode(self, case: Case) -> Any:
            done.append("encode")
            return [1]

    monkeypatch.setattr(measure, "other_work", lambda: done.append("other work"))
    scenes = Scene("append", "tiny", "english", 3, 1, [Case("s", "abcd")]).in_both_modes()
    assert [scene.mode for scene in scenes] == [TIGHT, SERVER]
    for scene in scenes:
        measure.run([(scene, Noting())], lambda text: [1], rounds=1, seconds=9)
    assert done == ["prepare", "encode"] * 2 + ["prepare", "other work", "encode"] * 2
