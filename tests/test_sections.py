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
from delta_core.verify.generators import PIPELINES, live_from, spec, template, token

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


@pytest.mark.parametrize(
    ("normalizer", "named"),
    [
        ({"type": "NFKC"}, "NFKC"),
        ({"type": "NFD"}, "NFD"),
        ({"type": "NFKD"}, "NFKD"),
        ({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, "Replace"),
        ({"type": "Lowercase"}, "Lowercase"),
        ({"type": "Prepend", "prepend": "▁"}, "Prepend"),
        ({"type": "Strip", "strip_left": True, "strip_right": True}, "Strip"),
        ({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}, "Lowercase"),
    ],
)
def test_other_normalizers_are_refused(qwen: Spec, normalizer: Spec, named: str) -> None:
    qwen["normalizer"] = normalizer
    section, what, reason = refusal(qwen)
    assert (section, reason) == ("normalizer", Reason.UNSUPPORTED_NORMALIZER) and named in what


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("leaves", "named"),
    [
        ([], "none"),
        ([{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}], "Metaspace"),
        ([{"type": "Digits", "individual_digits": True}, BYTES], "Digits"),
        ([{"type": "Whitespace"}], "Whitespace"),
        ([{"type": "Punctuation", "behavior": "Isolated"}, BYTES], "Punctuation"),
        ([{**BYTES, "add_prefix_space": True, "use_regex": True}], "add_prefix_space"),
        ([{**SPLIT, "pattern": {"String": " "}}, BYTES], "Split on a string"),
        ([{**SPLIT, "behavior": "MergedWithPrevious"}, BYTES], "MergedWithPrevious"),
        ([{**SPLIT, "behavior": "MergedWithNext"}, BYTES], "MergedWithNext"),
        ([{**SPLIT, "behavior": "Contiguous"}, BYTES], "Contiguous"),
        ([{**SPLIT, "behavior": "Removed"}, BYTES], "Removed"),
        ([{**SPLIT, "invert": True}, BYTES], "invert"),
    ],
)
def test_other_pre_tokenizers_are_refused(llama: Spec, leaves: list[Spec], named: str) -> None:
    llama["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": leaves} if leaves else None
    section, what, reason = refusal(llama)
    assert (section, reason) == ("pre_tokenizer", Reason.UNSUPPORTED_PRE_TOKENIZER) and named in what


@pytest.mark.parametrize("leaves", [[BYTES, SPLIT], [SPLIT, {**BYTES, "use_regex": True}, SPLIT]])
def test_a_split_behind_byte_level_is_refused(llama: Spec, leaves: list[Spec]) -> None:
    """Behind ByteLevel a pattern sees bytes in disguise: classes of characters say nothing about them."""
    llama["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": leaves}
    section, what, reason = refusal(llama)
    assert (section, reason) == ("pre_tokenizer", Reason.UNSUPPORTED_PRE_TOKENIZER) and "ByteLevel" in what


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_added_tokens_that_look_around_are_refused_by_name(flag: str) -> None:
    section, what, reason = refusal(spec("llama3_1", [token("<mask>", 0, **{flag: True})]))
    assert (section, reason) == ("added_tokens", Reason.UNSUPPORTED_ADDED_TOKEN)
    assert "<mask>" in what and flag in what


def test_an_empty_added_token_is_refused(llama: Spec) -> None:
    llama["added_tokens"].append(token("", 99_999))
    assert refusal(llama)[0] == "added_tokens"


def test_dropout_is_refused(llama: Spec) -> None:
    llama["model"]["dropout"] = 0.1
    assert refusal(llama) == ("model", "dropout 0.1 makes IDs random", Reason.UNSUPPORTED_MODEL)


@pytest.mark.parametrize("kind", ["Unigram", "WordPiece", "WordLevel"])
def test_other_models_are_refused(llama: Spec, kind: str) -> None:
    llama["model"]["type"] = kind
    if kind == "Unigram":
        llama["model"]["vocab"] = [["a", -1.0]]
    section, what, reason = refusal(llama)
    assert (section, reason) == ("model", Reason.UNSUPPORTED_MODEL) and kind in what


def test_truncation_and_padding_in_the_tokenizer_are_refused(llama: Spec) -> None:
    changed = copy.deepcopy(llama)
    changed["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    assert refusal(changed)[2] is Reason.TRUNCATION_SET
    changed = copy.deepcopy(llama)
    changed["padding"] = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                          "pad_type_id": 0, "pad_token": "x"}  # fmt: skip
    assert refusal(changed)[2] is Reason.PADDING_SET


@pytest.mark.parametrize("kind", ["RobertaProcessing", "BertProcessing"])
def test_other_post_processors_are_refused(llama: Spec, kind: str) -> None:
    llama["post_processor"] = {"type": kind, "sep": ["a", 1], "cls": ["b", 2]}
    section, what, reason = refusal(llama)
    assert (section, reason) == ("post_processor", Reason.UNSUPPORTED_POST_PROCESSOR) and kind in what


def test_a_template_that_holds_the_text_twice_or_never_is_refused(llama: Spec) -> None:
    for single in ([], [{"Sequence": {"id": "A", "type_id": 0}}] * 2):
        llama["post_processor"]["processors" if "processors" in llama["post_processor"] else "single"] = single
        assert refusal(llama)[2] is Reason.UNSUPPORTED_POST_PROCESSOR


@pytest.mark.parametrize("name", PIPELINES)
def test_every_bundled_pipeline_is_covered(name: str) -> None:
    assert not_covered(sections_of(spec(name))) == []


# -- differences are named --


@pytest.mark.parametrize("flag", ["ignore_merges", "fuse_unk", "byte_fallback"])
def test_a_model_flag_that_differs_is_named(llama: Spec, flag: str) -> None:
    changed = copy.deepcopy(llama)
    changed["model"][flag] = not changed["model"].get(flag, False)
    section, what = difference(llama, changed)
    assert section == "model" and flag in what


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
    assert section == "normalizer" and "NFC" in what
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
    assert AddedToken.from_row(row.to_row()) == row and AddedToken.from_json(row.to_json()) == row


# -- the verdict of a whole tokenizer --


def test_admission_names_what_differs_from_the_nearest_config(synthetic: Callable[..., Any]) -> None:
    subject = synthetic("llama3_1")
    tok = DeltaTokenizer(live_from(spec("llama3_1", ["<extra>"])), config=subject.frozen)
    assert not tok.admission.admitted and tok.admission.config == subject.frozen.name
    assert tok.admission.reason is Reason.SECTION_DIFFERS
    assert [m.section for m in tok.admission.mismatches] == ["added_tokens"]
    assert "<extra>" in str(tok.admission.mismatches[0])


def test_an_unknown_vocabulary_is_told_to_freeze() -> None:
    tok = DeltaTokenizer(live_from(spec("llama3_1")))
    assert tok.admission.reason is Reason.UNKNOWN_TOKENIZER and tok.admission.config is None
    assert "delta freeze" in str(tok.admission.mismatches[0])


def test_encode_special_tokens_is_refused() -> None:
    live = live_from(spec("llama3_1"))
    live.encode_special_tokens = True
    assert DeltaTokenizer(live).admission.reason is Reason.UNSUPPORTED_ADDED_TOKEN
