"""Tables by pre-tokenizer: bundled ones are right and in their file form, cached ones are believed only when whole."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oracle import battery

from delta_core import ConfigError, DeltaTokenizer
from delta_core.admission import tables as tables_module
from delta_core.admission.frozen import Frozen, bundled_folder
from delta_core.admission.sections import not_covered, patterns_of, sections_of
from delta_core.admission.tables import Table, cached_path, digest_of, load_table, table_of
from delta_core.characters import CharacterClasses
from delta_core.tools import cli
from delta_core.tools.freezing.derive import derive, refute
from delta_core.tools.freezing.pattern import atoms_of
from delta_core.tools.verify.dense import dense
from delta_core.tools.verify.generators import CONFIGS, frozen_config, live_from, maker_for, spec

BUNDLED = {path.stem: path for path in sorted((bundled_folder() / "tables").glob("*.json"))}


def bundled(name: str) -> Table:
    return load_table(BUNDLED[name])


def split_on(pattern: str) -> list[dict[str, Any]]:
    """A canonical pre-tokenizer that no config and no bundled table has."""
    return [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
    ]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DELTA_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def own() -> Table:
    """A small table, derived in seconds: letters and the rest, each in runs."""
    section = split_on(r"\p{L}+|\P{L}+")
    return Table("own", section, derive(section))


# ------------------------------------------------------------------------------------------------------- bundled ones


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_table_is_in_the_form_that_write_gives(name: str, tmp_path: Path) -> None:
    table = bundled(name)
    assert table.name == name
    assert Table.from_json(table.to_json()) == table
    written = table.write(tmp_path / "table.json")
    assert written.read_bytes() == BUNDLED[name].read_bytes()


def test_every_pre_tokenizer_is_bundled_once_and_every_name_is_one_thing() -> None:
    tables = [bundled(name) for name in BUNDLED]
    assert [table.name for table in tables_module.bundled()] == [table.name for table in tables]
    assert not set(BUNDLED) & set(CONFIGS)
    digests = [table.digest for table in tables]
    assert len(set(digests)) == len(digests)
    assert not set(digests) & {digest_of(frozen_config(name).sections.pre_tokenizer) for name in CONFIGS}


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_table_is_of_a_covered_pre_tokenizer_over_all_its_tests(name: str) -> None:
    table = bundled(name)
    pre_tokenizer = {"type": "Sequence", "pretokenizers": table.pre_tokenizer}
    sections = sections_of({"pre_tokenizer": pre_tokenizer, "model": {"type": "BPE", "vocab": {}, "merges": []}})
    assert sections.pre_tokenizer == table.pre_tokenizer, "canonical"
    assert not_covered(sections) == []
    assert atoms_of(patterns_of(table.pre_tokenizer)).tests == table.transitions.tests
    assert table.transitions.derivation.reduced_length >= 6
    assert table.transitions.derivation.runs >= 4


@pytest.mark.parametrize("samples", [0, 1], ids=["first samples", "second samples"])
@pytest.mark.parametrize("name", BUNDLED)
def test_no_short_string_refutes_a_bundled_table(name: str, samples: int) -> None:
    table = bundled(name)
    length = 4 if len(table.transitions.signatures) <= 12 and samples == 0 else 3
    assert refute(table.pre_tokenizer, table.transitions, length, samples=samples) == set()


@pytest.mark.parametrize("name", BUNDLED)
def test_a_planted_wrong_transition_is_refuted(name: str) -> None:
    table = bundled(name)
    t = table.transitions
    k = len(t.signatures)
    everything = dataclasses.replace(t, safe=tuple((a, b) for a in range(k) for b in range(k)))
    found = refute(table.pre_tokenizer, everything, 3)
    assert not found & set(t.safe)
    planted = sorted(found)[len(found) // 2]
    wrong = dataclasses.replace(t, safe=tuple(sorted({*t.safe, planted})))
    assert refute(table.pre_tokenizer, wrong, 3) == {planted}


@pytest.mark.parametrize("name", BUNDLED)
def test_samples_are_of_their_class_in_the_running_library(name: str) -> None:
    t = bundled(name).transitions
    classes = CharacterClasses(t.tests, t.signatures)
    assert [{classes.of(c) for c in samples} for samples in t.samples] == [{i} for i in range(len(t.samples))]


@pytest.mark.parametrize("name", BUNDLED)
def test_a_tokenizer_with_a_bundled_table_is_exact_with_a_cut_wherever_one_is_allowed(name: str) -> None:
    table = bundled(name)
    specification = spec("llama3_1")
    specification["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {**leaf, "trim_offsets": True} if leaf["type"] == "ByteLevel" else leaf for leaf in table.pre_tokenizer
        ],
    }
    live = live_from(specification)
    frozen = Frozen(name, None, sections_of(json.loads(live.to_str())), table.transitions)
    assert frozen.sections.pre_tokenizer == table.pre_tokenizer
    tok = DeltaTokenizer(live, config=frozen, encoder="reference")
    with dense():
        finding = battery(tok, live, maker_for(live, frozen, 3), 120)
    assert finding is None, finding.what


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_the_full_derivation_gives_the_bundled_table(name: str) -> None:
    table = bundled(name)
    again = derive(table.pre_tokenizer)
    assert dataclasses.replace(again, derivation=table.transitions.derivation) == table.transitions


# ----------------------------------------------------------------------------------------- where a table is looked for


def test_the_first_place_that_has_a_table_gives_it(own: Table, cache: Path) -> None:
    """A config before the bundled tables before the cache."""
    name = next(iter(BUNDLED))
    table = bundled(name)
    config = frozen_config("qwen3")
    mine = dataclasses.replace(
        config, name="mine", sections=dataclasses.replace(config.sections, pre_tokenizer=table.pre_tokenizer)
    )
    cached = Table("cached", table.pre_tokenizer, own.transitions)
    cached.write(cached_path(table.pre_tokenizer))

    assert table_of(table.pre_tokenizer, [config]) == table
    found = table_of(table.pre_tokenizer, [config, mine])
    assert found is not None
    assert found.name == "mine"
    assert table_of(config.sections.pre_tokenizer, [config]) == Table(
        "qwen3", config.sections.pre_tokenizer, config.transitions
    )


def test_a_table_that_was_derived_here_is_found_in_the_cache(own: Table, cache: Path) -> None:
    assert table_of(own.pre_tokenizer) is None
    assert own.write(cached_path(own.pre_tokenizer)) == cache / "tables" / f"{own.digest}.json"
    assert table_of(own.pre_tokenizer) == own
    assert table_of(split_on(r"\p{N}|\P{N}")) is None


def foreign(table: Table) -> str:
    return Table("foreign", split_on(r"\p{N}|\P{N}"), table.transitions).to_json()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda table: "",
        lambda table: table.to_json()[:-20],
        lambda table: "[" * 100_000,
        lambda table: table.to_json().replace('"format": 1', '"format": 2'),
        lambda table: table.to_json().replace('"name": "own"', '"name": 7'),
        lambda table: "é" + table.to_json(),
        foreign,
    ],
    ids=["empty", "cut off", "nested", "another format", "no name", "not ASCII", "another pre-tokenizer"],
)
def test_a_broken_or_foreign_file_in_the_cache_is_named_once_and_left_out(
    own: Table, cache: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Table], str]
) -> None:
    path = cached_path(own.pre_tokenizer)
    path.parent.mkdir(parents=True)
    path.write_text(spoil(own), encoding="utf-8")
    with caplog.at_level(logging.WARNING, logger="delta_core"):
        assert table_of(own.pre_tokenizer) is None
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]
    assert "\n" not in caplog.records[0].getMessage()


def test_a_folder_in_place_of_the_cached_file_is_none(own: Table, cache: Path) -> None:
    cached_path(own.pre_tokenizer).mkdir(parents=True)
    assert table_of(own.pre_tokenizer) is None


def test_a_broken_bundled_table_is_said_with_its_path(
    own: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package itself is broken then; nothing else may take the table's place."""
    monkeypatch.setattr(tables_module, "bundled_folder", lambda: tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "broken.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"broken\.json"):
        table_of(own.pre_tokenizer)


def test_writing_leaves_no_other_file_behind(own: Table, tmp_path: Path) -> None:
    path = own.write(tmp_path / "a" / "own.json")
    own.write(path)
    assert [p.name for p in path.parent.iterdir()] == ["own.json"]
    assert path.stat().st_mode & 0o777 == 0o644


# --------------------------------------------------------------------------------------------------------- the command


def test_the_command_lists_every_pre_tokenizer_once(own: Table, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own.write(cached_path(own.pre_tokenizer))
    (cache / "tables" / "broken.json").write_text("{}")
    assert cli.main(["tables"]) == 0
    out, err = capfd.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert len({row[1] for row in rows}) == len(rows)
    assert {row[0] for row in rows if row[2] == "bundled"} == set(BUNDLED)
    assert [row[0] for row in rows if row[2] == "cache"] == ["own"]
    assert "broken.json" in err


def saved(specification: dict[str, Any], folder: Path) -> str:
    folder.mkdir()
    path = folder / "tokenizer.json"
    path.write_text(live_from(specification).to_str(), encoding="utf-8")
    return str(path)


def with_pattern(pattern: str) -> dict[str, Any]:
    specification = spec("llama3_1")
    specification["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
    return specification


def test_the_command_derives_a_table_where_servers_look_for_it(
    cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    section = split_on(r"\p{L}|\P{L}+")
    assert cli.main(["tables", saved(with_pattern(r"\p{L}|\P{L}+"), tmp_path / "mine")]) == 0
    out = capfd.readouterr().out
    assert Path(out.strip()) == cached_path(section)
    table = table_of(section)
    assert table is not None
    assert table.name == "mine"
    assert refute(section, table.transitions, 4) == set()


def test_the_command_takes_a_known_table_over(cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = saved(spec("qwen3"), tmp_path / "mine")
    assert cli.main(["tables", path, "--into", str(tmp_path), "--name", "other"]) == 0
    assert "known: that of qwen" in capfd.readouterr().err
    assert load_table(tmp_path / "other.json").transitions == frozen_config("qwen3").transitions


@pytest.mark.parametrize("pattern", [r"(?<=a)b|[^b]", "abcdefg|."])
def test_the_command_says_what_it_can_not_derive(
    pattern: str, cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tables", saved(with_pattern(pattern), tmp_path / "mine")]) == 1
    assert capfd.readouterr().err.splitlines()[-1].startswith("delta tables: pre_tokenizer: ")
    assert not (cache / "tables").exists()
