"""The `delta` command: what its small subcommands print, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from delta_core.tools import cli
from delta_core.tools.verify.generators import live_from, spec

Own = Callable[..., str]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Own:
    """own(**changed sections): the path of a tokenizer.json that no bundled config fits; nothing is frozen yet."""
    monkeypatch.setenv("DELTA_CONFIGS", str(tmp_path / "configs"))

    def write(**changed: Any) -> str:
        path = tmp_path / "own" / "tokenizer.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(live_from({**spec("llama3_1"), **changed}).to_str())
        return str(path)

    return write


def test_a_tokenizer_is_refused_then_frozen_then_admitted(
    own: Own, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = own()
    assert cli.main(["doctor", path]) == 1
    assert "not admitted" in capfd.readouterr().out
    assert cli.main(["freeze", path, "--no-certify"]) == 0
    assert Path(capfd.readouterr().out.strip()) == tmp_path / "configs" / "own.json"
    assert cli.main(["doctor", path]) == 0
    out = capfd.readouterr().out
    assert "admitted as own" in out
    assert "DIFF" not in out


def test_doctor_says_the_same_to_a_machine(own: Own, capfd: pytest.CaptureFixture[str]) -> None:
    path = own()
    assert cli.main(["doctor", path, "--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert report["admitted"] is False
    assert report["reason"]
    assert report["sections"]["vocab"] != "same"
    assert cli.main(["freeze", path, "--no-certify", "--name", "mine"]) == 0
    capfd.readouterr()
    assert cli.main(["doctor", path, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["admitted"] is True
    assert report["config"] == "mine"
    assert set(report["sections"].values()) == {"same"}
    assert next(e for e in report["encoders"] if e["encoder"] == "reference")["serves"] is True


def test_what_no_rule_covers_is_not_frozen(own: Own, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = own(normalizer={"type": "NFKC"})
    assert cli.main(["freeze", path, "--no-certify"]) == 1
    assert "NFKC" in capfd.readouterr().err
    assert not (tmp_path / "configs" / "own.json").exists()


@pytest.mark.parametrize("command", ["doctor", "freeze"])
def test_a_file_that_is_not_there_is_wrong_use(command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, str(tmp_path / "none.json")]) == 2
    assert "none.json" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["doctor", "freeze"])
@pytest.mark.parametrize("content", ["", "{", "[1]", '{"format": 99}', "é"])
def test_a_file_that_is_no_tokenizer_is_said_in_one_line(
    command: str, content: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content, encoding="utf-8")
    assert cli.main([command, str(path)]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert f"{path}: not a tokenizer.json" in said


def test_a_foreign_file_among_the_configs_keeps_nobody_from_anything(
    own: Own, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = own()
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "foreign.json").write_text("{")
    assert cli.main(["freeze", path, "--no-certify"]) == 0
    assert cli.main(["doctor", path]) == 0
    assert "admitted as own" in capfd.readouterr().out


def test_versions(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["tokenizers"] == tokenizers.__version__
    assert cli.main(["version"]) == 0
    assert f"tokenizers {tokenizers.__version__}\n" in capfd.readouterr().out


def test_bench_is_run_where_a_checkout_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "turn"]) == 2
    assert "checkout" in capfd.readouterr().err
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()  # a package comes before the one of an editable install
    (tmp_path / "bench" / "__main__.py").write_text("import sys; print(*sys.argv[1:]); sys.exit(7)")
    arguments = ["turn", "--quick", "--out", "x", "--tokenizers", "qwen3", "-h"]
    assert cli.main(["bench", *arguments]) == 7
    assert capfd.readouterr().out.split() == arguments


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["version", "--bogus"], ["doctor"]])
def test_wrong_use_ends_with_2(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert "usage" in capfd.readouterr().err
