"""Tokenizers that must not be admitted: each flag and structure that the cut rules don't cover, one at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from ..admission.admit import admit
from ..reference import Reference
from .generators import frozen_from, live_from, spec, token
from .report import Refusals


def flagged() -> Iterator[tuple[str, dict[str, Any]]]:
    """A small tokenizer with one thing changed at a time."""
    base = spec("qwen3")

    def changed(**sections: Any) -> dict[str, Any]:
        return {**copy.deepcopy(base), **sections}

    def pre(*leaves: dict[str, Any]) -> dict[str, Any]:
        return {"type": "Sequence", "pretokenizers": list(leaves)}

    split, byte_level = base["pre_tokenizer"]["pretokenizers"]
    for flag in ("lstrip", "rstrip", "single_word"):
        yield f"added token with {flag}", changed(added_tokens=[token("<x>", 9000, **{flag: True})])
    yield "add_prefix_space", changed(pre_tokenizer=pre(split, {**byte_level, "add_prefix_space": True}))
    yield "truncation", changed(
        truncation={"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    )
    yield "padding", changed(
        padding={
            "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "a",
        }
    )  # fmt: skip
    yield "dropout", changed(model={**base["model"], "dropout": 0.1})
    for name in ("NFKC", "NFD", "Lowercase", "StripAccents"):
        yield f"normalizer {name}", changed(normalizer={"type": name})
    yield "normalizer Prepend", changed(normalizer={"type": "Prepend", "prepend": "▁"})
    yield "normalizer Replace", changed(
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    )
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    yield "pre-tokenizer Metaspace", changed(pre_tokenizer=metaspace)
    yield "pre-tokenizer Digits", changed(pre_tokenizer=pre({"type": "Digits", "individual_digits": True}, byte_level))
    for behavior in ("MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield f"Split {behavior}", changed(pre_tokenizer=pre({**split, "behavior": behavior}, byte_level))
    anchored = {**split, "pattern": {"Regex": r"^\p{L}+|\s+$|."}}
    yield "pattern with anchors", changed(pre_tokenizer=pre(anchored, byte_level))
    behind = {**split, "pattern": {"Regex": r"(?<=a)\p{L}+|."}}
    yield "pattern with look-behind", changed(pre_tokenizer=pre(behind, byte_level))
    yield "no pre-tokenizer", changed(pre_tokenizer=None)
    bert = {"type": "BertProcessing", "sep": ["a", 0], "cls": ["b", 1]}
    yield "post-processor BertProcessing", changed(post_processor=bert)


def run_refusals() -> Refusals:
    """Try all of them, against a config of the unchanged tokenizer too, so that nothing but the change refuses."""
    result = Refusals()
    frozen = frozen_from(live_from(spec("qwen3")))
    for name, specification in flagged():
        result.tried += 1
        if admit(Reference(live_from(specification)), [frozen]).frozen is not None:
            result.missed.append(name)
    return result
