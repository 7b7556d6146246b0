"""Frozen configs: read back as written, found by name, broken ones named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from delta_core import ConfigError
from delta_core.admission import frozen as frozen_module
from delta_core.admission.frozen import METHOD, Certification, Frozen, bundled_folder, load_all, load_frozen, load_path
from delta_core.tools.verify.generators import CONFIGS, frozen_config

RECORD = Certification("fastokens", "0.3.5", "0.23.3", ((0x10FFFF, 0x10FFFF), (0x300, 0x36F)), 1000, METHOD)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_is_bundled_under_its_name_and_reads_back_as_written(name: str) -> None:
    config = frozen_config(name)
    assert config.name == name
    assert Frozen.from_json(config.to_json()) == config
    assert config.file_sha256 is not None
    assert len(config.file_sha256) == 64
    text = (bundled_folder() / f"{name}.json").read_text(encoding="ascii")
    assert config.to_json() == text, "the file is in the form that write() gives"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_bundled_config_holds_no_vocabulary(name: str) -> None:
    raw = json.loads((bundled_folder() / f"{name}.json").read_text())
    assert set(raw["digests"]) == {"vocab", "merges"}
    assert all(len(d) == 64 for d in raw["digests"].values())
    assert "vocab" not in raw["sections"]["model"]
    assert "merges" not in raw["sections"]["model"]


def test_tables_are_shared_by_the_configs_with_the_same_pre_tokenizer() -> None:
    tables: dict[str, Frozen] = {}
    for name in CONFIGS:
        config = frozen_config(name)
        other = tables.setdefault(json.dumps(config.sections.pre_tokenizer), config)
        assert other.transitions.safe == config.transitions.safe


def test_certifications_survive_writing_and_replace_their_older_self() -> None:
    config = frozen_config("qwen3").with_certification(RECORD)
    assert Frozen.from_json(config.to_json()) == config
    again = config.with_certification(replace(RECORD, cases=2000))
    assert again.certification("fastokens", "0.3.5", "0.23.3") == replace(RECORD, cases=2000)
    assert len(again.certified) == len(config.certified)


def test_a_certification_counts_for_exactly_its_triple() -> None:
    config = frozen_config("qwen3").with_certification(replace(RECORD, encoder_version="0.0.1"))
    assert config.certification("fastokens", "0.0.1", "0.23.3")
    for triple in (
        ("gigatoken", "0.0.1", "0.23.3"),
        ("fastokens", "0.0.2", "0.23.3"),
        ("fastokens", "0.0.1", "0.23.4"),
    ):
        assert config.certification(*triple) is None


def test_write_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = frozen_config("qwen3")
    target = config.write(tmp_path / "new" / "folder")
    assert load_path(target) == config
    assert target.stat().st_mode & 0o777 == 0o644

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(frozen_module.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        replace(config, file_sha256=None).write(target.parent)
    assert load_path(target) == config


def test_the_users_config_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTA_CONFIGS", str(tmp_path))
    mine = replace(frozen_config("qwen3"), file_sha256=None)
    mine.write(tmp_path)
    assert load_frozen("qwen3") == mine
    assert next(iter(load_all())) == mine


def test_the_user_folder_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTA_CONFIGS", "/some/where")
    assert frozen_module.user_folder() == Path("/some/where")
    monkeypatch.delenv("DELTA_CONFIGS")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/xdg")
    assert frozen_module.user_folder() == Path("/xdg/delta-tokenizer/configs")


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no frozen config named 'nonsense'"):
        load_frozen("nonsense")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"format": 99}', '{"format": 1, "name": "x"}', "\u00e9", "null"]
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"broken\.json"):
        load_path(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json"):
        load_path(tmp_path / "absent.json")


@pytest.mark.parametrize("field", ["sections", "digests", "added_tokens", "transitions", "certified", "name"])
def test_a_config_without_one_of_its_parts_is_an_error(field: str) -> None:
    raw = json.loads(frozen_config("qwen3").to_json())
    del raw[field]
    with pytest.raises(ConfigError):
        Frozen.from_json(json.dumps(raw))


# -- all of them, where some can't be read --

FOREIGN = {
    "empty": "",
    "broken": "{",
    "a package.json": '{"name": "x", "version": "1.0.0"}',
    "a list": "[1, 2]",
    "another format": '{"format": 99}',
    "format 1, nothing else": '{"format": 1}',
    "strings for parts": '{"format": 1, "name": "x", "digests": "a", "transitions": "b", "sections": "c"}',
    "not ASCII": '{"name": "é"}',
    "not UTF-8": b"\xff\xfe{}",
    "nested without end": "[" * 100_000,
    "digests that are numbers": frozen_config("qwen3").to_json().replace('"vocab": "', '"vocab": 5, "x": "', 1),
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder."""
    folder = tmp_path / "configs"
    folder.mkdir()
    monkeypatch.setenv("DELTA_CONFIGS", str(folder))
    return folder


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_among_the_users_is_left_out_and_named_once(
    content: str | bytes, mine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = mine / "foreign.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    replace(frozen_config("qwen3"), name="zz").write(mine)
    for _ in range(3):
        assert [config.name for config in load_all()] == ["zz", *sorted(CONFIGS)]
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]
    assert "\n" not in caplog.records[0].getMessage()
    with pytest.raises(ConfigError, match=r"foreign\.json"):
        load_frozen("foreign")


def test_a_folder_and_a_dead_link_named_like_a_config_are_left_out_and_named_once(
    mine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (mine / "folder.json").mkdir()
    (mine / "link.json").symlink_to(mine / "nothing")
    for _ in range(2):
        assert [config.name for config in load_all()] == sorted(CONFIGS)
    assert sorted(record.getMessage().split(": ")[1] for record in caplog.records) == [
        str(mine / "folder.json"),
        str(mine / "link.json"),
    ]


def test_a_file_and_a_folder_that_may_not_be_read_are_left_out_and_named_once(
    mine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = replace(frozen_config("qwen3"), name="secret").write(mine)
    read_text, is_dir = Path.read_text, Path.is_dir

    def refuse_file(self: Path, **options: str) -> str:
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return read_text(self, **options)

    def refuse_folder(self: Path) -> bool:
        if self == mine:
            raise PermissionError(13, "Permission denied", str(self))
        return is_dir(self)

    monkeypatch.setattr(Path, "read_text", refuse_file)
    for _ in range(2):
        assert [config.name for config in load_all()] == sorted(CONFIGS)
    monkeypatch.setattr(Path, "is_dir", refuse_folder)
    for _ in range(2):
        assert [config.name for config in load_all()] == sorted(CONFIGS)
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [str(path), str(mine)]
