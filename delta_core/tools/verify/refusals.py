"""Tokenizers that must not be admitted: each flag and structure that the cut rules don't cover, one at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...admission.admit import admit
from ...admission.frozen import Frozen
from ...errors import FreezeError, Reason
from ...reference import Reference
from ..freezing.freeze import freeze
from .generators import frozen_from, live_from, spec, token
from .report import Refusals


@dataclass(frozen=True, slots=True)
class Refused:
    """A tokenizer.json that must be refused.

    section, reason: what the refusal must say. named: what the difference must name.
    pattern: refused when it is frozen, where patterns are read; admission compares a pattern with that of a config.
    """

    name: str
    specification: dict[str, Any]
    section: str
    reason: Reason
    named: str
    pattern: bool = False


_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_SPLIT = {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": "Isolated", "invert": False}
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}

_NORMALIZERS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((name, {"type": name}) for name in ("NFKC", "NFD", "NFKD", "Lowercase", "StripAccents")),
    ("Prepend", {"type": "Prepend", "prepend": "▁"}),
    ("Replace", _REPLACE),
    ("Strip", {"type": "Strip", "strip_left": True, "strip_right": True}),
    ("Lowercase", {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}),
)

_PRE_TOKENIZERS: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
    ("none", ()),
    ("Metaspace", (_METASPACE,)),
    ("Digits", ({"type": "Digits", "individual_digits": True}, _BYTES)),
    ("Whitespace", ({"type": "Whitespace"},)),
    ("Punctuation", ({"type": "Punctuation", "behavior": "Isolated"}, _BYTES)),
    ("add_prefix_space", ({**_BYTES, "add_prefix_space": True, "use_regex": True},)),
    ("add_prefix_space", (_SPLIT, {**_BYTES, "add_prefix_space": True})),
    ("Split on a string", ({**_SPLIT, "pattern": {"String": " "}}, _BYTES)),
    *(
        (behavior, ({**_SPLIT, "behavior": behavior}, _BYTES))
        for behavior in ("MergedWithPrevious", "MergedWithNext", "Contiguous", "Removed")
    ),
    ("invert", ({**_SPLIT, "invert": True}, _BYTES)),
    # Behind ByteLevel a pattern sees bytes in disguise: classes of characters say nothing about them.
    ("ByteLevel", (_BYTES, _SPLIT)),
    ("ByteLevel", (_SPLIT, {**_BYTES, "use_regex": True}, _SPLIT)),
)

_PATTERNS = (("'^'", r"^\p{L}+|."), ("'$'", r"\s+$|."), ("(?<=", r"(?<=a)\p{L}+|."), ("\\1", r"(a)\1|."))

_TEXT = {"Sequence": {"id": "A", "type_id": 0}}
_PAIR = [_TEXT, {"Sequence": {"id": "B", "type_id": 1}}]


def refused() -> Iterator[Refused]:
    """A small tokenizer with one thing changed at a time. All of them can be loaded by the reference."""
    base = spec("qwen3")

    def changed(name: str, section: str, reason: Reason, named: str, **sections: Any) -> Refused:
        return Refused(name, {**copy.deepcopy(base), **sections}, section, reason, named)

    for flag in ("lstrip", "rstrip", "single_word"):
        tokens = [*base["added_tokens"], token("<mask>", 9000, **{flag: True})]
        yield changed(
            f"added token with {flag}", "added_tokens", Reason.UNSUPPORTED_ADDED_TOKEN, flag, added_tokens=tokens
        )
    for n, (named, section) in enumerate(_NORMALIZERS):
        reason = Reason.UNSUPPORTED_NORMALIZER
        yield changed(f"normalizer {n}, {named}", "normalizer", reason, named, normalizer=section)
    for n, (named, leaves) in enumerate(_PRE_TOKENIZERS):
        sequence = {"type": "Sequence", "pretokenizers": list(leaves)} if leaves else None
        reason = Reason.UNSUPPORTED_PRE_TOKENIZER
        yield changed(f"pre-tokenizer {n}, {named}", "pre_tokenizer", reason, named, pre_tokenizer=sequence)
    for named, regex in _PATTERNS:
        section = {"type": "Sequence", "pretokenizers": [{**_SPLIT, "pattern": {"Regex": regex}}, _BYTES]}
        reason = Reason.UNSUPPORTED_PRE_TOKENIZER
        each = changed(f"pattern {regex}", "pre_tokenizer", reason, named, pre_tokenizer=section)
        yield replace(each, pattern=True)
    model = base["model"]
    models: tuple[dict[str, Any], ...] = (
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
        {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a", "continuing_subword_prefix": "##",
         "max_input_chars_per_word": 100},
        {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 0, "byte_fallback": False},
    )  # fmt: skip
    what = "dropout 0.1 makes IDs random"
    yield changed("dropout", "model", Reason.UNSUPPORTED_MODEL, what, model={**model, "dropout": 0.1})
    for other in models:
        kind = other["type"]
        yield changed(f"model {kind}", "model", Reason.UNSUPPORTED_MODEL, kind, model=other, added_tokens=[])
    truncation = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    yield changed("truncation", "truncation", Reason.TRUNCATION_SET, "", truncation=truncation)
    padding = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "a"}  # fmt: skip
    yield changed("padding", "padding", Reason.PADDING_SET, "", padding=padding)
    posts: list[tuple[str, dict[str, Any]]] = [
        ("BertProcessing", {"type": "BertProcessing", "sep": ["a", 0], "cls": ["b", 1]}),
        ("RobertaProcessing", {"type": "RobertaProcessing", "sep": ["a", 0], "cls": ["b", 1], "trim_offsets": True,
                               "add_prefix_space": False}),
        *(("", {"type": "TemplateProcessing", "single": single, "pair": _PAIR, "special_tokens": {}})
          for single in ([], [_TEXT, _TEXT])),
    ]  # fmt: skip
    for n, (named, post) in enumerate(posts):
        reason = Reason.UNSUPPORTED_POST_PROCESSOR
        yield changed(f"post-processor {n}, {post['type']}", "post_processor", reason, named, post_processor=post)


def run_refusals() -> Refusals:
    """Try all of them, each against a config that fits it in every section: nothing but the structure refuses."""
    result = Refusals()
    frozen = frozen_from(live_from(spec("qwen3")))
    for each in refused():
        result.tried += 1
        if _reason(each, frozen) is not each.reason:
            result.missed.append(each.name)
    return result


def _reason(each: Refused, frozen: Frozen) -> Reason | None:
    """Why a tokenizer was refused, None when it was not. frozen: of any tokenizer."""
    reference = Reference(live_from(each.specification))
    if not each.pattern:
        return admit(reference, [replace(frozen, sections=admit(reference, []).sections)]).reason
    try:
        freeze(reference, each.name)
    except FreezeError as error:
        return error.reason
    return None
