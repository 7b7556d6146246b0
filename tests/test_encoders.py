"""Encoders: the reference can always serve; a fast one only where it is certified, guarded segment by segment."""

from __future__ import annotations

import logging
import random
import sys
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from conftest import Subject
from oracle import assert_same, ids_of

from delta_core import DeltaTokenizer, Reason, encoders
from delta_core.admission.frozen import METHOD, Certification
from delta_core.encoders import (
    EncoderUnavailable,
    FastokensEncoder,
    Guarded,
    ReferenceEncoder,
    build,
    choose,
    encode_each,
    version_of,
)
from delta_core.reference import Reference
from delta_core.tools.verify.generators import FRAGMENTS
from delta_core.tools.verify.planted import PlantedEncoder


class Recording(PlantedEncoder):
    """An encoder that notes what it was given, and gives each segment's length as its IDs."""

    name = "recording"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def each(self, segments: Sequence[str]) -> list[list[int]]:
        self.seen += segments
        return [[len(segment)] if segment else [] for segment in segments]


class Failing(PlantedEncoder):
    name = "failing"

    def each(self, segments: Sequence[str]) -> list[list[int]]:
        raise RuntimeError("the text was: secret")


def guarded(reference: Reference, *guards: tuple[int, int]) -> tuple[Guarded, Recording]:
    inner = Recording()
    return Guarded(inner, Certification("recording", "1", "1", guards, 1), reference), inner


def test_the_reference_encoder_gives_the_ids_of_each_segment(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("llama3_1")
    segments = [subject.maker(i).text(30) for i in range(9)]
    encoder = ReferenceEncoder(Reference(subject.live))
    assert encode_each(encoder, segments) == [ids_of(subject.live, segment) for segment in segments]
    assert encode_each(encoder, []) == []


def test_only_the_segments_with_a_guarded_character_go_to_the_reference(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("llama3_1")
    encoder, inner = guarded(Reference(subject.live), (0x300, 0x36F), (0x1F600, 0x1F600))
    segments = ["plain", "e\u0301", "é", "a😀b", "中", ""]
    want = [[5], ids_of(subject.live, "e\u0301"), [1], ids_of(subject.live, "a😀b"), [1], []]
    assert encode_each(encoder, segments) == want
    assert "e\u0301" not in inner.seen
    assert "a😀b" not in inner.seen
    assert "é" in inner.seen


@pytest.mark.parametrize("kind", [list, array])
@pytest.mark.parametrize("order", ["", "+", "-", "+-", "-+", "--++-", "+--+", "-++0-", "0-0"])
def test_guarded_segments_come_in_their_place_in_the_flat_form(
    order: str, kind: type, synthetic: Callable[..., Subject]
) -> None:
    encoder, inner = guarded(Reference(synthetic("llama3_1").live), (0x300, 0x36F))
    segments = [{"+": f"plain {n}", "-": f"e\u0301 {n}", "0": ""}[c] for n, c in enumerate(order)]
    parts = encode_each(encoder, segments)
    ids, ends = encoder.encode_flat(segments, kind)
    assert type(ids) is kind
    assert list(ids) == [i for part in parts for i in part]
    assert ends == list(accumulate(map(len, parts)))
    assert not any("\u0301" in seen for seen in inner.seen)


@pytest.mark.parametrize("character", ["]", "^", "-", "\\", "[", "\n", "\x00", "&", "~", "\U0010ffff"])
def test_any_character_can_be_guarded(character: str, synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("llama3_1")
    encoder, _ = guarded(Reference(subject.live), (ord(character), ord(character)))
    assert encode_each(encoder, [f"a{character}b", "ab"]) == [ids_of(subject.live, f"a{character}b"), [2]]


def test_without_guards_everything_goes_to_the_encoder(synthetic: Callable[..., Subject]) -> None:
    encoder, inner = guarded(Reference(synthetic("llama3_1").live))
    assert encode_each(encoder, ["a", "😀"]) == [[1], [1]]
    assert inner.seen == ["a", "😀"]


def test_a_failing_encoder_costs_time_not_the_request(
    synthetic: Callable[..., Subject], caplog: pytest.LogCaptureFixture
) -> None:
    subject = synthetic("llama3_1")
    tok = DeltaTokenizer(subject.live, config=subject.frozen)
    tok._encoder = Failing()
    text = subject.maker(1).text(200)
    with caplog.at_level(logging.WARNING, "delta_core"):
        for n in range(3):
            assert_same(tok, subject.live, text + str(n) * 300, session="s")
    assert tok.stats().fallbacks == {str(Reason.ENCODER_FAILED): 3}
    assert len(caplog.records) == 1, "said once"
    assert "secret" not in caplog.text, "an encoder's message may quote the text"
    assert tok.stats().by_path.get("stock", 0) == 0, "what was stored is still used"


def test_what_fails_in_the_reference_too_is_the_callers_error(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("llama3_1")
    tok = DeltaTokenizer(subject.live, config=subject.frozen)
    tok._encoder = Failing()
    with pytest.raises(TypeError):
        tok.encode("\ud800" * 400, add_special_tokens=False)
    assert tok.stats().fallbacks == {str(Reason.BAD_TEXT): 1}


# -- which one may serve --


def certified(subject: Subject, name: str, **other: str) -> Any:
    record = {"encoder_version": version_of(name), "reference_version": Reference.version, **other}
    return subject.frozen.with_certification(Certification(encoder=name, guards=(), cases=1, method=METHOD, **record))


@pytest.fixture
def subject(synthetic: Callable[..., Subject]) -> Subject:
    return synthetic("llama3_1")


def test_an_uncertified_encoder_does_not_serve_and_says_so_once(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("fastokens")
    with caplog.at_level(logging.WARNING, "delta_core"):
        encoder, note, *_ = choose("fastokens", subject.frozen, Reference(subject.live))
    assert encoder.name == "reference"
    assert note is not None
    assert "delta certify" in note
    assert len(caplog.records) == 1
    assert choose("auto", subject.frozen, Reference(subject.live))[0].name == "reference"


def test_a_certified_encoder_serves(subject: Subject) -> None:
    pytest.importorskip("fastokens")
    encoder, note, *_ = choose("auto", certified(subject, "fastokens"), Reference(subject.live))
    assert encoder.name == "fastokens"
    assert note is None


@pytest.mark.parametrize("other", [{"encoder_version": "0.0.1"}, {"reference_version": "0.0.1"}])
def test_a_certification_of_other_versions_does_not_count(subject: Subject, other: dict[str, str]) -> None:
    pytest.importorskip("fastokens")
    assert choose("fastokens", certified(subject, "fastokens", **other), Reference(subject.live))[0].name == "reference"


def test_an_encoder_that_is_not_installed_is_named(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> str:
        raise encoders.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(encoders.metadata, "version", gone)
    with pytest.raises(EncoderUnavailable, match="not installed"):
        version_of("fastokens")
    encoder, note, *_ = choose("fastokens", subject.frozen, Reference(subject.live))
    assert encoder.name == "reference"
    assert note is not None
    assert "not installed" in note


def test_an_unknown_name_is_an_error_of_the_caller(subject: Subject) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        choose("nonsense", subject.frozen, Reference(subject.live))
    with pytest.raises(ValueError, match="nonsense"):
        build("nonsense", Reference(subject.live))
    with pytest.raises(ValueError, match="nonsense"):
        DeltaTokenizer(subject.live, config=subject.frozen, encoder="nonsense")


@pytest.mark.parametrize("name", ["fastokens", "gigatoken"])
def test_a_fast_encoder_takes_few_and_many_segments_alike(name: str, real_tokenizer: Callable[[str], Subject]) -> None:
    pytest.importorskip(name)
    real = real_tokenizer("qwen3")
    encoder = build(name, Reference(real.live))
    rng = random.Random(2)
    segments = ["".join(rng.choices([f for f in FRAGMENTS if f.isascii()], k=20)) for _ in range(40)]
    many = encode_each(encoder, segments)
    assert many == [encode_each(encoder, [segment])[0] for segment in segments]
    assert all(type(i) is int for ids in many for i in ids)


@pytest.mark.parametrize("kind", [list, array])
@pytest.mark.parametrize("name", ["reference", "fastokens", "gigatoken"])
def test_the_flat_form_holds_the_same_ids(name: str, kind: type, real_tokenizer: Callable[[str], Subject]) -> None:
    if name != "reference":
        pytest.importorskip(name)
    reference = Reference(real_tokenizer("qwen3").live)
    encoder = ReferenceEncoder(reference) if name == "reference" else build(name, reference)
    rng = random.Random(3)
    segments = ["".join(rng.choices([f for f in FRAGMENTS if f.isascii()], k=n)) for n in (0, 1, 0, 20, 7, 0)]
    for some in (segments, segments[:1], []):
        parts = encode_each(encoder, some)
        ids, ends = encoder.encode_flat(some, kind)
        assert type(ids) is kind
        assert list(ids) == [i for part in parts for i in part]
        assert ends == list(accumulate(map(len, parts)))


def test_the_flat_form_has_the_same_guards(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("llama3_1")
    encoder, inner = guarded(Reference(subject.live), (0x300, 0x36F))
    odd = ids_of(subject.live, "e\u0301")
    assert encoder.encode_flat(["plain", "e\u0301", "é"], list) == ([5, *odd, 1], [1, 1 + len(odd), 2 + len(odd)])
    assert "e\u0301" not in inner.seen
    assert encoder.encode_flat(["plain", "é"], array) == (array("q", [5, 1]), [1, 2])


class Unreadable:
    def copy(self) -> None:
        pass

    def serialized(self, *, dense: bool) -> str:
        return "{}"


def test_a_fast_encoder_built_from_a_tokenizer_it_does_not_take_is_unavailable() -> None:
    pytest.importorskip("fastokens")
    with pytest.raises(EncoderUnavailable, match="does not take"):
        FastokensEncoder(Unreadable())  # type: ignore[arg-type]


def test_ids_given_back_are_the_shared_objects(subject: Subject) -> None:
    tok = DeltaTokenizer(subject.live, config=replace(subject.frozen))
    text = subject.maker(3).text(300)
    assert all(
        a is b
        for a, b in zip(
            tok.encode(text, add_special_tokens=False), tok.encode(text, add_special_tokens=False), strict=True
        )
    )


def test_a_panic_of_a_fast_encoder_does_not_fail_the_request(
    synthetic: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rust panics reach Python as a BaseException that is no Exception."""
    subject = synthetic("qwen3")

    class Panic(BaseException):
        pass

    class Panicking:
        def encode_batch_fast(self, *_: object, **__: object) -> None:
            raise Panic("the text")

    right = subject.tok._encoder
    wrong = ReferenceEncoder(Reference(subject.live))
    wrong._copy = Panicking()  # type: ignore[assignment]
    monkeypatch.setattr(subject.tok, "_encoder", wrong)
    text = subject.maker(5).text(200)
    assert_same(subject.tok, subject.live, text, session="s")
    assert subject.tok.stats().fallbacks == {"encoder_failed": 1}

    def interrupted(segments: Sequence[str], kind: type) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(subject.tok, "_encoder", right)
    monkeypatch.setattr(right, "encode_flat", interrupted)
    with pytest.raises(KeyboardInterrupt):
        subject.tok.encode(text + "more", add_special_tokens=False)


@pytest.mark.parametrize("name", ["fastokens", "gigatoken"])
def test_one_encoder_object_serves_many_threads_without_an_error(name: str, synthetic: Callable[..., Subject]) -> None:
    # gigatoken lends its object to one thread and raises "Already borrowed" for the next: with texts this long, once in
    # eighty calls.
    pytest.importorskip(name)
    subject = synthetic("llama3_1")
    encoder = build(name, Reference(subject.live))
    rng = random.Random(5)
    words = [f for f in FRAGMENTS if f.isascii()]
    segments = ["".join(rng.choices(words, k=4000)) for _ in range(4)]
    want = [ids_of(subject.live, segment) for segment in segments]

    def work(n: int) -> bool:
        ids, _ = encoder.encode_flat(segments, array if n % 2 else list)
        return encode_each(encoder, segments) == want and list(ids) == [i for part in want for i in part]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(60)))
    finally:
        sys.setswitchinterval(interval)
