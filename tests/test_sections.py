"""What counts as the same tokenizer, what is refused, and that the difference is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from delta_core import DeltaTokenizer, Reason
from delta_core.admission.sections import AddedToken, differences, not_covered, sections_of
from delta_core.reference import Reference
from delta_core.tools.verify.generators import PIPELINES, live_from, spec, template, token
from delta_core.tools.verify.refusals import refused

Spec = dict[str, Any]


@pytest.fixture
def qwen() -> Spec:
    return spec("qwen3")


@pytest.fixture
def llama() -> Spec:
    return spec("llama3_1")


def refusal(changed: Spec) -> tuple[str, str, Reason]:
    """The one thing that stands against a tokenizer: section, difference, reason."""
    found = not_covered(sections_of(changed))
    assert len(found) == 1, found
    return found[0].section, found[0].difference, found[0].reason


def difference(original: Spec, changed: Spec) -> tuple[str, str]:
    found = differences(sections_of(original), sections_of(changed))
    assert len(found) == 1, found
    return found[0].section, found[0].difference


# -- siblings: written otherwise, the same tokenizer --


def merges_as_strings(s: Spec) -> None:
    s["model"]["merges"] = [" ".join(pair) for pair in s["model"]["merges"]]


def sequence_of_one(s: Spec) -> None:
    s["normalizer"] = {"type": "Sequence", "normalizers": [s["normalizer"]] if s["normalizer"] else []}


def nested_sequences(s: Spec) -> None:
    s["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [s["pre_tokenizer"]]}


def trim_offsets(s: Spec) -> None:
    for leaf in s["pre_tokenizer"]["pretokenizers"]:
        if leaf["type"] == "ByteLevel":
            leaf["trim_offsets"] = not leaf["trim_offsets"]


def byte_level_post_processor(s: Spec) -> None:
    leaf = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    s["post_processor"] = {
        "type": "Sequence",
        "processors": [leaf, *([s["post_processor"]] if s["post_processor"] else [])],
    }


def older_model(s: Spec) -> None:
    """Older files leave out the type and flags that came later, and write empty strings for absent affixes."""
    for flag in ("type", "byte_fallback", "fuse_unk"):
        s["model"].pop(flag, None)
    s["model"].update(continuing_subword_prefix="", end_of_word_suffix="")


SIBLINGS = [merges_as_strings, sequence_of_one, nested_sequences, trim_offsets, byte_level_post_processor,
            older_model]  # fmt: skip


@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
@pytest.mark.parametrize("rewrite", SIBLINGS, ids=lambda f: f.__name__)
def test_a_sibling_has_the_same_sections(rewrite: Callable[[Spec], None], name: str) -> None:
    original, sibling = spec(name), spec(name)
    rewrite(sibling)
    assert sibling != original or rewrite is sequence_of_one
    assert differences(sections_of(original), sections_of(sibling)) == []


@pytest.mark.parametrize("name", PIPELINES)
def test_formatting_and_field_order_do_not_matter(name: str) -> None:
    original = spec(name)
    reformatted = json.loads(json.dumps(original, indent=4, sort_keys=True, ensure_ascii=True))
    assert sections_of(original) == sections_of(reformatted)


@pytest.mark.parametrize("name", PIPELINES)
def test_the_library_writes_what_it_read(name: str) -> None:
    """The live state, written out by the running library, has the sections of the file."""
    original = spec(name)
    assert differences(sections_of(original), sections_of(Reference(live_from(original)).parsed())) == []


def test_a_sibling_is_admitted_and_encodes(synthetic: Callable[..., Any]) -> None:
    subject = synthetic("qwen3")
    sibling = spec("qwen3")
    for rewrite in SIBLINGS:
        rewrite(sibling)
    sibling["model"]["type"] = "BPE"  # without it the library would not know the model
    live = live_from(sibling)
    tok = DeltaTokenizer(live, config=subject.frozen)
    assert tok.admission.admitted
    text = subject.maker(2).text(200)
    assert tok.encode(text, add_special_tokens=True) == subject.live.encode(text).ids


# -- refusals: structures that the cut rules do not cover --


def test_what_the_cut_rules_do_not_cover_is_refused_by_name() -> None:
    """The same list that the campaign tries on live tokenizers; patterns are refused when they are frozen."""
    wrong = []
    for each in refused():
        uncovered = not_covered(sections_of(each.specification))
        found = [(m.section, m.reason, each.named in m.difference) for m in uncovered]
        if found != ([] if each.pattern else [(each.section, each.reason, True)]):
            wrong.append((each.name, found))
    assert not wrong


def test_an_added_token_that_looks_around_is_named() -> None:
    assert "<mask>" in refusal(spec("llama3_1", [token("<mask>", 0, lstrip=True)]))[1]


def test_an_empty_added_token_is_refused(llama: Spec) -> None:
    llama["added_tokens"].append(token("", 99_999))
    assert refusal(llama)[0] == "added_tokens"


@pytest.mark.parametrize("name", PIPELINES)
def test_every_bundled_pipeline_is_covered(name: str) -> None:
    assert not_covered(sections_of(spec(name))) == []


# -- differences are named --


@pytest.mark.parametrize("flag", ["ignore_merges", "fuse_unk", "byte_fallback"])
def test_a_model_flag_that_differs_is_named(llama: Spec, flag: str) -> None:
    changed = copy.deepcopy(llama)
    changed["model"][flag] = not changed["model"].get(flag, False)
    section, what = difference(llama, changed)
    assert section == "model"
    assert flag in what


def test_an_added_token_more_less_or_other_is_named(llama: Spec) -> None:
    changed = copy.deepcopy(llama)
    changed["added_tokens"].append(token("<new>", 9_999))
    assert difference(llama, changed) == ("added_tokens", "1 added (9999 '<new>')")
    gone = changed["added_tokens"].pop(0)
    changed["added_tokens"].pop()
    assert difference(llama, changed) == ("added_tokens", f"1 missing ({gone['id']} {gone['content']!r})")
    changed = copy.deepcopy(llama)
    changed["added_tokens"][0]["special"] ^= True
    assert "1 changed" in difference(llama, changed)[1]


def test_another_pattern_normalizer_or_template_is_named(llama: Spec, qwen: Spec) -> None:
    changed = copy.deepcopy(llama)
    changed["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] += "|x"
    assert difference(llama, changed)[0] == "pre_tokenizer"
    changed = copy.deepcopy(qwen)
    changed["normalizer"] = None
    section, what = difference(qwen, changed)
    assert section == "normalizer"
    assert "NFC" in what
    changed = copy.deepcopy(llama)
    changed["post_processor"] = template([], [("<|eot_id|>", 1)])
    assert difference(llama, changed)[0] == "post_processor"


def test_another_vocabulary_or_merge_order_is_named(llama: Spec) -> None:
    changed = copy.deepcopy(llama)
    words = list(changed["model"]["vocab"])
    v = changed["model"]["vocab"]
    v[words[-1]], v[words[-2]] = v[words[-2]], v[words[-1]]
    assert difference(llama, changed)[0] == "vocab"
    changed = copy.deepcopy(llama)
    m = changed["model"]["merges"]
    m[0], m[1] = m[1], m[0]
    assert difference(llama, changed)[0] == "merges"


def test_digests_do_not_run_words_together(llama: Spec) -> None:
    """`a`, `bc` and `ab`, `c` are different vocabularies."""
    changed = copy.deepcopy(llama)
    llama["model"]["merges"], changed["model"]["merges"] = [["a", "bc"]], [["ab", "c"]]
    assert difference(llama, changed)[0] == "merges"


def test_a_long_difference_is_shortened(llama: Spec) -> None:
    changed = copy.deepcopy(llama)
    changed["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x" * 10_000
    assert len(difference(llama, changed)[1]) < 1000


def test_added_token_rows_survive_their_compact_form() -> None:
    row = AddedToken(7, "<x>", True, False, True, False, True)
    assert AddedToken.from_row(row.to_row()) == row
    assert AddedToken.from_json(row.to_json()) == row


# -- the verdict of a whole tokenizer --


def test_admission_names_what_differs_from_the_nearest_config(synthetic: Callable[..., Any]) -> None:
    subject = synthetic("llama3_1")
    tok = DeltaTokenizer(live_from(spec("llama3_1", ["<extra>"])), config=subject.frozen)
    assert not tok.admission.admitted
    assert tok.admission.config == subject.frozen.name
    assert tok.admission.reason is Reason.SECTION_DIFFERS
    assert [m.section for m in tok.admission.mismatches] == ["added_tokens"]
    assert "<extra>" in str(tok.admission.mismatches[0])


def test_an_unknown_vocabulary_is_told_to_freeze() -> None:
    tok = DeltaTokenizer(live_from(spec("llama3_1")), admit="frozen")
    assert tok.admission.reason is Reason.UNKNOWN_TOKENIZER
    assert tok.admission.config is None
    assert "delta freeze" in str(tok.admission.mismatches[0])


def test_encode_special_tokens_is_refused() -> None:
    live = live_from(spec("llama3_1"))
    live.encode_special_tokens = True
    assert DeltaTokenizer(live).admission.reason is Reason.UNSUPPORTED_ADDED_TOKEN
