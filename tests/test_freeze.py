"""Freezing a user's own tokenizer: taken over, derived, or refused with every section that is not covered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from oracle import assert_all_ways, battery

from delta_core import DeltaTokenizer, FreezeError, Reason
from delta_core.admission.frozen import Frozen
from delta_core.reference import Reference
from delta_core.tools.freezing.freeze import freeze
from delta_core.tools.verify.dense import dense
from delta_core.tools.verify.generators import PIPELINES, bundled, frozen_from, live_from, maker_for, spec, template


@pytest.mark.parametrize("name", PIPELINES)
def test_a_fine_tune_with_more_added_tokens_takes_over_the_known_table(name: str) -> None:
    live = live_from(spec(name, ["<|tool|>", "<|/tool|>"]))
    frozen = frozen_from(live)  # fails when it would have to derive
    assert frozen.file_sha256 is None
    assert frozen.certified == ()
    tok = DeltaTokenizer(live, config=frozen)
    assert tok.admission.admitted
    assert tok.admission.config == "synthetic"
    assert_all_ways(tok, live, maker_for(live, frozen, 4).session(5, 150))


def test_a_frozen_config_admits_after_writing_and_reading() -> None:
    live = live_from(spec("qwen3"))
    frozen = Frozen.from_json(frozen_from(live).to_json())
    assert DeltaTokenizer(live, config=frozen).admission.admitted


def test_a_user_config_in_the_users_folder_is_found(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    live = live_from(spec("llama3_1"))
    assert DeltaTokenizer(live).admission.config == "structure of llama3"
    monkeypatch.setenv("DELTA_CONFIGS", str(tmp_path))
    frozen_from(live, "mine").write(tmp_path)
    assert DeltaTokenizer(live).admission.config == "mine"


def own_pattern(pattern: str) -> dict[str, Any]:
    s = spec("llama3_1")
    s["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
    return s


def test_a_pattern_of_ones_own_is_derived_and_then_exact() -> None:
    """Words, groups of two digits, everything else in runs: a pattern that no config has."""
    live = live_from(own_pattern(r" ?\p{L}+|\p{N}{1,2}|[^\p{L}\p{N}\s]+|\s+"))
    lines: list[str] = []
    frozen = freeze(Reference(live), "own", known=bundled(), log=lines.append)
    assert lines
    assert frozen.transitions.safe
    tok = DeltaTokenizer(live, config=frozen)
    with dense():
        finding = battery(tok, live, maker_for(live, frozen, 2), 300)
    assert finding is None, finding.what


@pytest.mark.parametrize("pattern", [r"(?<=a)b|[^b]", r"^x|.", r"(a)\1|."])
def test_a_pattern_that_looks_back_is_refused(pattern: str) -> None:
    with pytest.raises(FreezeError, match="pre_tokenizer") as caught:
        freeze(Reference(live_from(own_pattern(pattern))), "own")
    assert caught.value.reason is Reason.UNSUPPORTED_PRE_TOKENIZER


def test_every_section_that_is_not_covered_is_named_at_once() -> None:
    s = spec("qwen3")
    s["normalizer"] = {"type": "NFKC"}
    s["model"]["dropout"] = 0.5
    s["added_tokens"][0]["lstrip"] = True
    with pytest.raises(FreezeError) as caught:
        freeze(Reference(live_from(s)), "own")
    for named in ("NFKC", "dropout", "lstrip"):
        assert named in str(caught.value)


def test_a_tokenizer_with_truncation_on_is_refused() -> None:
    live = live_from(spec("qwen3"))
    live.enable_truncation(5)
    with pytest.raises(FreezeError) as caught:
        freeze(Reference(live), "own")
    assert caught.value.reason is Reason.TRUNCATION_SET


def test_prefix_and_suffix_of_a_template_are_frozen_with_it(synthetic: Callable[..., Any]) -> None:
    s = spec("llama3_1", ["<s>", "</s>"])
    ids = {row["content"]: row["id"] for row in s["added_tokens"]}
    s["post_processor"] = template([("<s>", ids["<s>"])], [("</s>", ids["</s>"])])
    live = live_from(s)
    tok = DeltaTokenizer(live, config=frozen_from(live))
    assert tok.admission.admitted
    assert tok.encode("", add_special_tokens=True) == [ids["<s>"], ids["</s>"]] == live.encode("").ids
