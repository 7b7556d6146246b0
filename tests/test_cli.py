"""The `delta` command: what its small subcommands print, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import delta_core
from delta_core.tools import cli
from delta_core.tools.verify.generators import live_from, spec

Own = Callable[..., str]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Own:
    """Writes a tokenizer.json with changed sections, which no bundled config knows whole; nothing is frozen yet."""
    monkeypatch.setenv("DELTA_CONFIGS", str(tmp_path / "configs"))

    def write(**changed: Any) -> str:
        path = tmp_path / "own" / "tokenizer.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(live_from({**spec("llama3_1"), **changed}).to_str())
        return str(path)

    return write


def test_a_tokenizer_is_admitted_by_structure_then_frozen_then_by_name(
    own: Own, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = own()
    assert cli.main(["doctor", path]) == 0
    assert "admitted as structure of llama3" in capfd.readouterr().out
    assert cli.main(["freeze", path, "--no-certify"]) == 0
    assert Path(capfd.readouterr().out.strip()) == tmp_path / "configs" / "own.json"
    assert cli.main(["doctor", path]) == 0
    out = capfd.readouterr().out
    assert "admitted as own" in out
    assert "DIFF" not in out


def test_doctor_says_the_same_to_a_machine(own: Own, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", own(normalizer={"type": "NFKC"}), "--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert report["admitted"] is False
    assert report["reason"] == "unsupported_normalizer"
    assert report["sections"]["normalizer"] != "same"
    path = own()
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


def test_a_folder_that_cannot_be_written_is_said_in_one_line(
    own: Own, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = own()
    (tmp_path / "file").touch()
    capfd.readouterr()
    assert cli.main(["freeze", path, "--no-certify", "--into", str(tmp_path / "file")]) == 2
    assert "delta freeze: " in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_tells_its_options(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: delta {name}" in capfd.readouterr().out


# What a call of the command loads of the modules that hold commands: no call waits for another command's imports.
@pytest.mark.parametrize(
    ("arguments", "loads"),
    [
        (["--help"], set()),
        (["--version"], set()),
        (["version"], {"version"}),
        (["demo", "--help"], {"demo", "fetch"}),
        (["doctor", "--help"], {"doctor", "fetch", "version"}),
        (["certify", "--help"], {"certify", "fetch"}),
    ],
)
def test_a_command_loads_only_what_it_runs(arguments: list[str], loads: set[str]) -> None:
    program = f"""
import sys
from delta_core.tools import cli
try:
    cli.main({arguments})
except SystemExit:
    pass
print("loaded", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    parts = [module.split(".") for module in done.stdout.rpartition("loaded")[2].split()]
    loaded = {part[2] for part in parts if part[:2] == ["delta_core", "tools"] and len(part) > 2}
    assert loaded & cli.COMMANDS.keys() == loads


def test_versions(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["tokenizers"] == tokenizers.__version__
    assert cli.main(["version"]) == 0
    assert f"tokenizers {tokenizers.__version__}\n" in capfd.readouterr().out
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capfd.readouterr().out == f"delta-tokenizer {delta_core.__version__}\n"


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
