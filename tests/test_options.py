"""Options read from the environment, and what they do to a DeltaTokenizer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Subject
from oracle import ids_of

from delta_core import DeltaTokenizer, Options

ALL = {
    "DELTA_POLICY": "Keyed",
    "DELTA_BUDGET": "512M",
    "DELTA_ENCODER": "reference",
    "DELTA_SHADOW_RATE": "0.25",
    "DELTA_ADMIT": "frozen",
    "DELTA_BACKGROUND": "0",
    "DELTA_RID_SEPARATOR": "::",
}


def test_every_option_has_a_variable() -> None:
    assert Options.from_environment(ALL) == Options("keyed", 512 << 20, "reference", 0.25, "frozen", False, "::")
    assert Options.from_environment({}) == Options()


def test_empty_means_default() -> None:
    assert Options.from_environment(dict.fromkeys(ALL, "")) == Options()


@pytest.mark.parametrize(
    ("value", "size"), [("1073741824", 1 << 30), ("2G", 2 << 30), ("64 MiB", 64 << 20), ("8kb", 8192)]
)
def test_sizes(value: str, size: int) -> None:
    assert Options.from_environment({"DELTA_BUDGET": value}).budget == size


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DELTA_POLICY", "sometimes"),
        ("DELTA_BUDGET", "-1"),
        ("DELTA_BUDGET", "lots"),
        ("DELTA_ENCODER", "tiktoken"),
        ("DELTA_SHADOW_RATE", "2"),
        ("DELTA_SHADOW_RATE", "nan"),
        ("DELTA_SHADOW_RATE", "half"),
    ],
)
def test_a_bad_value_is_named_and_the_default_stays(
    variable: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "delta_core"):
        assert Options.from_environment({variable: value}) == Options()
    assert variable in caplog.text
    assert value in caplog.text


def tokenizer(subject: Subject, policy: str) -> DeltaTokenizer:
    return DeltaTokenizer(subject.live, config=subject.frozen, policy=policy)


def test_content_finds_a_text_without_its_key_and_keyed_does_not(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("qwen3")
    text = subject.maker(3).text(300)
    while len(text) < 4096:
        text += " more of it " + text
    for policy, path in (("content", "append"), ("keyed", "cold")):
        tok = tokenizer(subject, policy)
        tok.encode(text, session="one", add_special_tokens=False)
        assert tok.encode(text + " end", session="two", add_special_tokens=False) == ids_of(subject.live, text + " end")
        assert tok.stats().by_path.get(path, 0) == (1 if policy == "content" else 2)
        assert tok.encode(text + " end!", session="one", add_special_tokens=False) == ids_of(
            subject.live, text + " end!"
        )
        assert tok.stats().reused_tokens > 0


def test_an_unknown_policy_is_an_error(synthetic: Callable[..., Subject]) -> None:
    with pytest.raises(ValueError, match="policy"):
        tokenizer(synthetic("qwen3"), "sometimes")


def test_options_build_the_tokenizer(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("qwen3")
    tok = replace(Options(), policy="keyed", admit="frozen", background=False).tokenizer(subject.live)
    assert tok.encode("as the live one", add_special_tokens=False) == ids_of(subject.live, "as the live one")
    assert tok.admission.admitted is False  # a synthetic vocabulary is no known tokenizer
    assert "not admitted" in tok.describe()


def test_a_serving_process_begins_prepared(real_tokenizer: Callable[[str], Subject]) -> None:
    subject = real_tokenizer("qwen3")
    tok = Options().tokenizer(subject.live)
    assert tok.admission.admitted
    assert set(b"\x00\x4e\xac") <= set(tok._rules._classes._blocks)
    text = "a b 中文 한글 \U0001f600 " * 200
    assert tok.encode(text, add_special_tokens=False) == ids_of(subject.live, text)


def test_the_startup_line_names_config_encoder_policy_and_budget(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("qwen3")
    line = DeltaTokenizer(subject.live, config=subject.frozen, policy="keyed", budget=64 << 20).describe()
    for part in (f"config {subject.frozen.name}", "encoder reference", "policy keyed", "budget 64 MiB"):
        assert part in line


# -- arguments of the constructor --


@pytest.mark.parametrize(
    ("budget", "size"), [(0, 0), (4096, 4096), ("512M", 512 << 20), ("1G", 1 << 30), (" 64 MiB ", 64 << 20)]
)
def test_a_budget_is_a_number_or_what_the_variable_takes(
    budget: int | str, size: int, synthetic: Callable[..., Subject]
) -> None:
    assert DeltaTokenizer(synthetic("qwen3").live, budget=budget)._store.budget == size


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("budget", -1, ValueError),
        ("budget", "-1", ValueError),
        ("budget", "lots", ValueError),
        ("budget", "", ValueError),
        ("budget", "1e9", ValueError),
        ("budget", "\u0661G", ValueError),
        ("budget", 1e9, TypeError),
        ("budget", float("nan"), TypeError),
        ("budget", True, TypeError),
        ("budget", None, TypeError),
        ("budget", b"1G", TypeError),
        ("shadow_rate", -0.1, ValueError),
        ("shadow_rate", 1.5, ValueError),
        ("shadow_rate", float("nan"), ValueError),
        ("shadow_rate", "0.5", TypeError),
        ("shadow_rate", True, TypeError),
        ("shadow_rate", None, TypeError),
        ("encoder", "tiktoken", ValueError),
        ("encoder", "", ValueError),
        ("encoder", None, TypeError),
        ("encoder", 3, TypeError),
        ("policy", "Content", ValueError),
        ("policy", None, TypeError),
        ("policy", ["keyed"], TypeError),
        ("config", "qwen3", TypeError),
        ("config", {}, TypeError),
        ("config", False, TypeError),
    ],
)
@pytest.mark.parametrize("admitted", [True, False])
def test_an_argument_that_can_not_be_meant_is_an_error_at_once_that_names_it(
    name: str, value: object, error: type[Exception], admitted: bool, synthetic: Callable[..., Subject]
) -> None:
    subject = synthetic("qwen3")
    options: dict[str, Any] = {"config": subject.frozen} if admitted else {}
    with pytest.raises(error, match="size in bytes" if name == "budget" else name):
        DeltaTokenizer(subject.live, **{**options, name: value})


@pytest.mark.parametrize("live", ["tokenizer.json", b"tokenizer.json", Path("tokenizer.json")])
def test_a_path_in_place_of_a_tokenizer_is_an_error_that_names_what_opens_one(live: object) -> None:
    with pytest.raises(TypeError, match="from_file"):
        DeltaTokenizer(live)


def test_arguments_of_a_tokenizer_from_a_file_are_checked_too(
    tmp_path: Path, synthetic: Callable[..., Subject]
) -> None:
    path = tmp_path / "tokenizer.json"
    synthetic("qwen3").live.save(str(path))
    assert DeltaTokenizer.from_file(path, budget="2M")._store.budget == 2 << 20
    for wrong in ({"budget": -1}, {"encoder": "tiktoken"}, {"policy": "sometimes"}):
        with pytest.raises(ValueError, match=r"bytes|encoder|policy"):
            DeltaTokenizer.from_file(path, **wrong)
    with pytest.raises(TypeError):
        DeltaTokenizer.from_file(synthetic("qwen3").live)  # type: ignore[arg-type]
