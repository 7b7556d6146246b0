"""A copy is the live tokenizer, or it encodes nothing: whatever tokens were added, in whatever way."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from conftest import Subject
from oracle import ids_of
from tokenizers import AddedToken, Tokenizer

from delta_core import DeltaTokenizer, Reason, encoders, identity
from delta_core.admission.admit import admit
from delta_core.admission.frozen import METHOD, Certification, Frozen
from delta_core.encoders import EncoderDiffers, ReferenceEncoder, choose
from delta_core.errors import FreezeError
from delta_core.reference import CopyDiffers, Reference
from delta_core.tools.freezing.freeze import freeze
from delta_core.tools.verify.generators import live_from, spec

FAST = ("fastokens", "gigatoken")
Change = Callable[[Tokenizer], object]


def with_holes(name: str = "gpt4o") -> Tokenizer:
    """A tokenizer as gpt-4o's: its added tokens stand in the vocabulary, at IDs behind holes."""
    parsed = json.loads(live_from(spec("llama3_1")).to_str())
    vocabulary = parsed["model"]["vocab"]
    first = max(vocabulary.values()) + 20
    for n, token in enumerate(parsed["added_tokens"]):
        token["id"] = vocabulary[token["content"]] = first + 3 * n
    return Tokenizer.from_str(json.dumps(parsed))


def frozen_of(live: Tokenizer, known: Frozen) -> Frozen:
    """Frozen anew, with every installed fast encoder certified on paper: what it is must be found at the start."""
    frozen = freeze(Reference(live), "changed", known=[known])
    for name in FAST:
        try:
            version = encoders.version_of(name)
        except encoders.EncoderUnavailable:
            continue
        frozen = frozen.with_certification(Certification(name, version, Reference.version, (), 1, METHOD))
    return frozen


CHANGES: dict[str, Change] = {
    "special": lambda live: live.add_special_tokens([f"<|n{i}|>" for i in range(5)]),
    "normal": lambda live: live.add_tokens([f"new{i}" for i in range(5)]),
    "normalized": lambda live: live.add_tokens([AddedToken(f"<n{i}>", normalized=True) for i in range(3)]),
    "not normalized": lambda live: live.add_tokens([AddedToken(f"<n{i}>", normalized=False) for i in range(3)]),
    "of the vocabulary": lambda live: live.add_special_tokens(["the", "he"]),
    "of the vocabulary and new": lambda live: live.add_tokens(["<n0>", "the", "<n1>"]),
    "nested": lambda live: live.add_special_tokens(["<|", "|>", "<|n|>", "<|n|><|n|>"]),
    "with spaces": lambda live: live.add_tokens([" new ", "\n\nnew", "\t"]),
    "not ASCII": lambda live: live.add_special_tokens(["〈n〉", "é", "日本"]),
    "again": lambda live: [live.add_tokens(["<n0>"]), live.add_special_tokens(["<n0>", "<n1>"])],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])
def test_tokens_added_to_the_live_tokenizer_have_its_ids_with_every_encoder(
    holes: bool, change: str, synthetic: Callable[..., Subject]
) -> None:
    live = with_holes() if holes else live_from(spec("llama3_1"))
    CHANGES[change](live)
    frozen = frozen_of(live, synthetic("llama3_1").frozen)
    contents = [t.content for t in live.get_added_tokens_decoder().values()]
    texts = ["Hello " + " world ".join(contents[:k]) * 3 + " the end\n" * k for k in range(len(contents) + 1)]
    for name in ("reference", *FAST):
        tok = DeltaTokenizer(live, config=frozen, encoder=name)
        assert tok.admission.admitted, tok.admission
        for text in texts:
            assert tok.encode(text, add_special_tokens=False) == ids_of(live, text), (name, text)
        assert tok.admission.encoder == name or tok.admission.note, "served, or said why not"


def test_the_library_numbers_added_tokens_anew_where_the_vocabulary_has_holes() -> None:
    """What the check is for: if this fails, the library keeps IDs, and the state need not be rewritten."""
    live = with_holes()
    live.add_special_tokens(["<|n0|>"])
    assert Tokenizer.from_str(live.to_str()).token_to_id("<|n0|>") != live.token_to_id("<|n0|>")
    copy = Reference(live).copy()
    assert copy.token_to_id("<|n0|>") == live.token_to_id("<|n0|>")
    assert identity.difference(identity.Known(live), copy) is None


def test_a_token_that_the_model_may_spell_does_not_reach_its_vocabulary(
    monkeypatch: pytest.MonkeyPatch, synthetic: Callable[..., Subject]
) -> None:
    # llama3 takes a whole piece for the entry that it spells: " yyzcfd" is spelled as this added token is named.
    live = with_holes()
    live.add_special_tokens(["<|n0|>", "Ġyyzcfd"])
    text = "a yyzcfd b <|n0|> Ġyyzcfd" * 20
    tok = DeltaTokenizer(live, config=frozen_of(live, synthetic("llama3_1").frozen))
    assert tok.admission.admitted
    assert tok.encode(text, add_special_tokens=False) == ids_of(live, text)
    monkeypatch.setattr("delta_core.reference._out_of_reach", lambda content: True)
    with pytest.raises(CopyDiffers, match="yyzcfd"):  # the control: the battery finds what the rule is for
        Reference(live).copy()


def declared_twice() -> Tokenizer:
    """A token that the vocabulary holds at one ID, declared as an added token with another one."""
    parsed = json.loads(live_from(spec("llama3_1")).to_str())
    vocabulary = parsed["model"]["vocab"]
    parsed["added_tokens"][0]["content"] = "the" if "the" in vocabulary else next(t for t in vocabulary if len(t) == 2)
    return Tokenizer.from_str(json.dumps(parsed))


def test_a_token_declared_with_another_id_than_the_vocabularys_is_exact_or_refused(
    synthetic: Callable[..., Subject],
) -> None:
    live = declared_twice()
    frozen: Frozen | None = None
    refused: Reason | None = None
    try:
        frozen = frozen_of(live, synthetic("llama3_1").frozen)
    except FreezeError as error:
        refused = error.reason
    if frozen is None:
        assert refused is Reason.COPY_DIFFERS
        return
    text = "Hello the world, then the end " * 20
    for name in ("reference", *FAST):
        assert DeltaTokenizer(live, config=frozen, encoder=name).encode(text, add_special_tokens=False) == ids_of(
            live, text
        )


def swapped(state: str) -> str:
    """The same tokenizer with two tokens that have each other's IDs."""
    parsed = json.loads(state)
    vocabulary = parsed["model"]["vocab"]
    a, b = list(vocabulary)[-2:]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    return json.dumps(parsed)


def test_a_tokenizer_whose_copy_is_another_one_is_refused_with_a_reason_of_its_own(
    monkeypatch: pytest.MonkeyPatch, synthetic: Callable[..., Subject], caplog: pytest.LogCaptureFixture
) -> None:
    subject = synthetic("llama3_1")
    live = live_from(spec("llama3_1"))
    serialized = Reference.serialized
    monkeypatch.setattr(Reference, "serialized", lambda self, **how: swapped(serialized(self, **how)))
    with pytest.raises(CopyDiffers):
        Reference(live).copy()
    with pytest.raises(FreezeError) as caught:
        freeze(Reference(live), "x", known=[subject.frozen])
    assert caught.value.reason is Reason.COPY_DIFFERS
    verdict = admit(Reference(live), [subject.frozen])
    assert (verdict.frozen, verdict.reason) == (None, Reason.COPY_DIFFERS)
    tok = DeltaTokenizer(live, config=subject.frozen, encoder="auto")
    text = "Hello the world " * 30
    with caplog.at_level(logging.WARNING, "delta_core"):
        assert (
            tok.encode(text, add_special_tokens=False)
            == tok.encode(text, add_special_tokens=False)
            == ids_of(live, text)
        )
    assert not tok.admission.admitted
    assert tok.stats().fallbacks == {"copy_differs": 2}
    assert [r.getMessage().startswith("stock path: copy_differs (copy: ") for r in caplog.records] == [True]


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("fault", ["vocabulary", "added token", "raises", "answers"])
def test_an_encoder_that_is_another_tokenizer_does_not_serve(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch, synthetic: Callable[..., Subject]
) -> None:
    pytest.importorskip(name)
    subject = synthetic("llama3_1")
    live = live_from(spec("llama3_1"))
    frozen = frozen_of(live, subject.frozen)
    token = list(live.get_added_tokens_decoder().values())[-1].content
    kind: Any = {"fastokens": encoders.FastokensEncoder, "gigatoken": encoders.GigatokenEncoder}[name]
    encode = kind.encode_flat

    def wrong(self: Any, segments: Sequence[str]) -> list[list[int]]:
        if fault == "raises":
            raise RuntimeError("no")
        found: list[list[int]] = encode(self, segments)
        if fault == "answers":
            return found[:-1]
        return [ids + [7] * (token in s) for s, ids in zip(segments, found, strict=True)]

    if fault == "vocabulary":
        monkeypatch.setattr(kind, "differs_from", lambda self, known: "it has 'a' as 1 and 2 as 'b'")
    else:
        monkeypatch.setattr(kind, "encode_flat", wrong)
    choice = choose(name, frozen, Reference(live))
    assert choice.encoder.name == "reference"
    assert choice.reason is Reason.ENCODER_DIFFERS
    assert choice.note is not None
    assert choice.note.startswith(f"{name} makes another tokenizer of this one: ")
    tok = DeltaTokenizer(live, config=frozen, encoder=name)
    assert tok.admission.admitted
    assert tok.admission.encoder == "reference"
    assert tok.admission.note == choice.note
    assert tok.stats().fallbacks == {"encoder_differs": 1}
    assert tok.encode("Hello the world " * 30, add_special_tokens=False) == ids_of(live, "Hello the world " * 30)


@pytest.mark.parametrize("name", FAST)
def test_the_vocabulary_of_a_fast_encoder_is_compared_both_ways(name: str) -> None:
    pytest.importorskip(name)
    live, other = live_from(spec("llama3_1")), live_from(spec("llama3_1"))
    encoder = encoders.build(name, Reference(live))
    assert encoder.differs_from(identity.Known(live)) is None
    other.add_special_tokens(["<|n0|>"])
    assert "<|n0|>" in str(encoder.differs_from(identity.Known(other))), "an ID that it lacks"
    assert encoders.build(name, Reference(other)).differs_from(identity.Known(live)) is not None or name == "fastokens"
    assert encoder.differs_from(identity.Known(Tokenizer.from_str(swapped(live.to_str())))) is not None


def test_every_difference_of_a_copy_is_found() -> None:
    live = live_from(spec("llama3_1"))
    assert identity.difference(identity.Known(live), Tokenizer.from_str(live.to_str())) is None
    changes: list[Change] = [
        lambda copy: copy.add_tokens(["<n0>"]),
        lambda copy: copy.add_special_tokens([AddedToken("<|eot_id|>", lstrip=True, special=True)]),
        lambda copy: copy.add_tokens(["the"]),
        lambda copy: setattr(copy, "encode_special_tokens", True),
        lambda copy: setattr(copy, "pre_tokenizer", live_from(spec("gpt2")).pre_tokenizer),
        lambda copy: setattr(copy.model, "dropout", 1.0),
    ]
    for change in changes:
        copy = Tokenizer.from_str(live.to_str())
        change(copy)
        assert identity.difference(identity.Known(live), copy) is not None


def test_one_copy_serves_all_who_need_one() -> None:
    reference = Reference(live_from(spec("llama3_1")))
    assert ReferenceEncoder(reference)._copy is ReferenceEncoder(reference)._copy


def test_a_bad_text_builds_no_tokenizer_on_the_way(
    monkeypatch: pytest.MonkeyPatch, synthetic: Callable[..., Subject]
) -> None:
    pytest.importorskip("fastokens")
    live = live_from(spec("llama3_1"))
    tok = DeltaTokenizer(live, config=frozen_of(live, synthetic("llama3_1").frozen), encoder="fastokens")
    assert tok.admission.encoder == "fastokens", tok.admission

    def built(*_: object) -> None:
        raise AssertionError("a tokenizer is built while a request waits")

    monkeypatch.setattr(Reference, "_make_copy", built)
    for text in ("\ud800", "a\udfffb" * 200):
        with pytest.raises((TypeError, UnicodeEncodeError)):
            tok.encode(text, add_special_tokens=False)
    monkeypatch.setattr(tok._encoder, "encode_flat", built)
    assert tok.encode("Hello " * 100, add_special_tokens=False) == ids_of(live, "Hello " * 100)
    assert tok.stats().fallbacks == {"bad_text": 2, "encoder_failed": 1}


def test_encoder_differs_is_an_unavailable_encoder() -> None:
    assert issubclass(EncoderDiffers, encoders.EncoderUnavailable)


MIXED = {
    "normalized": [AddedToken("<|N|>", normalized=True), AddedToken("K;", normalized=True)],
    "normalized, not ASCII": [AddedToken("<|É|>", normalized=True), AddedToken("\u0301=", normalized=True)],
    "both kinds, overlapping": [AddedToken("ab", normalized=False), AddedToken("xa", normalized=True)],
    "both kinds, nested": [AddedToken("<n>", normalized=False), AddedToken("x<n>y", normalized=True)],
}
BEFORE_NFC = ["<|N|>\u0338", "\u212a;", "K\u037e", "<|E\u0301|>", "a\u0301=", "\u0301=\u0338"]


@pytest.mark.parametrize("config", ["llama3_1", "qwen3"])
@pytest.mark.parametrize("kind", MIXED)
def test_tokens_that_meet_only_once_normalized_or_overlap_have_the_live_ids(
    kind: str, config: str, synthetic: Callable[..., Subject]
) -> None:
    live = live_from(spec(config))
    for token in MIXED[kind]:
        live.add_tokens([token])
    frozen = frozen_of(live, synthetic(config).frozen)
    texts = [*BEFORE_NFC, "xab", "xaab", "abxa", "x<n>y", "x<n>", "<n>y", "xa\u0301b"]
    for name in ("reference", *FAST):
        tok = DeltaTokenizer(live, config=frozen, encoder=name)
        assert tok.admission.admitted, tok.admission
        grown = ""
        for text in texts:
            grown += f" {text} and {text}{text}"
            assert tok.encode(text, add_special_tokens=False) == ids_of(live, text), (name, text)
            assert tok.encode(grown, add_special_tokens=False) == ids_of(live, grown), (name, grown)
        assert tok.admission.encoder == name or tok.admission.note, "served, or said why not"


@pytest.mark.parametrize(
    ("config", "kind"),
    [("llama3_1", "both kinds, overlapping"), ("llama3_1", "both kinds, nested"), ("qwen3", "normalized"),
     ("qwen3", "normalized, not ASCII")],
)  # fmt: skip
def test_an_encoder_that_looks_for_all_added_tokens_at_once_is_found(config: str, kind: str) -> None:
    live, planted = live_from(spec(config)), live_from(spec(config))
    for token in MIXED[kind]:
        live.add_tokens([token])
        planted.add_tokens([AddedToken(token.content, normalized=False)])
    at_once = identity.answers_differ(identity.Known(live), lambda texts: [ids_of(planted, text) for text in texts])
    assert at_once is not None
    assert identity.answers_differ(identity.Known(live), lambda texts: [ids_of(live, text) for text in texts]) is None


def test_the_battery_stays_small_where_every_added_token_overlaps_with_every_other() -> None:
    live = live_from(spec("llama3_1"))
    live.add_tokens([AddedToken(" " * n, normalized=bool(n % 2)) for n in range(2, 60)])
    assert len(identity.battery(identity.Known(live))) < 8000
