"""Certification: an encoder serves only behind guards that make it the reference, or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from delta_core import encoders
from delta_core.admission.frozen import METHOD, Certification, Frozen, load_frozen, load_path
from delta_core.encoders import EncoderUnavailable, ReferenceEncoder, encode_each
from delta_core.ids import Ids, Kind
from delta_core.reference import Reference
from delta_core.tools import cli
from delta_core.tools.certify import batches, certify, guards, truth
from delta_core.tools.certify.batches import Batch
from delta_core.tools.certify.calls import Difference
from delta_core.tools.certify.certify import Result
from delta_core.tools.certify.contexts import Contexts
from delta_core.tools.certify.search import Search
from delta_core.tools.certify.truth import Truth
from delta_core.tools.freezing.freeze import freeze
from delta_core.tools.verify.planted import PlantedEncoder

pytest.importorskip("fastokens")

CORPUS = ["the tokenizer reads the old text again and again; it's 'quoted' and they're done\n", "café ſ\n"] * 20


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    """A small vocabulary behind Qwen's pipeline."""
    qwen = load_frozen("qwen3").sections
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    pattern = Regex(qwen.pre_tokenizer[0]["pattern"]["Regex"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    markers = ("<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(m, normalized=False, special=True) for m in markers])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


@pytest.fixture(scope="module")
def reference(tiny: Tokenizer) -> Reference:
    return Reference(tiny)


@pytest.fixture(scope="module")
def frozen(reference: Reference) -> Frozen:
    return freeze(reference, "tiny", known=[load_frozen("qwen3")])


@pytest.fixture(scope="module")
def digits() -> tuple[Reference, Frozen]:
    """A small vocabulary behind Llama 3's pipeline, with tokens for runs: where a run is split shows in the IDs."""
    llama = load_frozen("llama3")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(llama.sections.pre_tokenizer[0]["pattern"]["Regex"]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    runs = ["111 11 1112", "!!! !! !!!!", "\n\n\n\n", "    ", "\t\t\t", "aaa aaaa", "''' ''"] * 9
    tokenizer.train_from_iterator(
        CORPUS + runs,
        trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False, special=True)])
    reference = Reference(tokenizer)
    return reference, freeze(reference, "digits", known=[llama])


# What each reference said: the faults differ, the strings hardly do, and asking again would be most of the work.
KNOWN: dict[Reference, dict[str, list[int]]] = {}


class Planted(PlantedEncoder):
    """The reference with a fault."""

    name = "fastokens"

    def __init__(self, reference: Reference, wrong: Callable[[str], bool], error: BaseException | None = None) -> None:
        self._reference = reference
        self._encoder = ReferenceEncoder(reference)
        self._known = KNOWN.setdefault(reference, {})
        self._wrong = wrong
        self._error = error

    def right(self, segments: Sequence[str]) -> list[list[int]]:
        missing = [segment for segment in dict.fromkeys(segments) if segment not in self._known]
        if missing:
            self._known.update(zip(missing, encode_each(self._encoder, missing), strict=True))
        return [self._known[segment] for segment in segments]

    def each(self, segments: Sequence[str]) -> list[list[int]]:
        ids = self.right(segments)
        for i, segment in enumerate(segments):
            if self._wrong(segment):
                if self._error is not None:
                    raise self._error
                ids[i] = [*ids[i], 7]
        return ids


class Retold(Planted):
    """The reference, to which a text is told with some characters in others' place: it takes one for the other."""

    def __init__(self, reference: Reference, told: Callable[[str], str]) -> None:
        super().__init__(reference, lambda text: False)
        self._told = told

    def each(self, segments: Sequence[str]) -> list[list[int]]:
        # What is told has other bytes: only what stands around the character may show that it was taken for another.
        told = [self._told(segment) for segment in segments]
        return [
            here if a == b else _bytes_of(self._reference, b, a)
            for a, b, here in zip(segments, told, super().each(segments), strict=True)
        ]


def _bytes_of(reference: Reference, told: str, text: str) -> list[int]:
    """The IDs of a text in the pieces of another one of the same length."""
    backend = reference.backend
    whole = Tokenizer(backend.model)
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ids: list[int] = []
    for there, here in zip(re.split("(<s>)", told), re.split("(<s>)", text), strict=True):
        if here == "<s>":
            ids.append(backend.token_to_id(here))
            continue
        for _, (a, b) in backend.pre_tokenizer.pre_tokenize_str(there):
            ids += whole.encode(here[a:b], add_special_tokens=False).ids
    return ids


Plant = Callable[..., None]


# The beginnings of all batches, by tokenizer, seed and extent: the same for every fault.
BATCHES: dict[tuple[object, ...], list[Batch]] = {}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few code points and marks, and the beginnings of batches: several runs take seconds."""
    monkeypatch.setattr(batches, "DENSE", (range(0x0, 0x200), range(0x1A80, 0x1B00), range(0x2D00, 0x2E80)))
    monkeypatch.setattr(batches, "SPARSE", (range(0xF0000, 0xF0200),))
    monkeypatch.setattr(batches, "_BLOCKS", (0x0, 0x1A80, 0x2D00, 0x2D80))
    monkeypatch.setattr(batches, "_NEWER", range(0x2D00, 0x2E00))
    parts_of, marks = batches._canonical_pairs()
    few = dict(list(parts_of.items())[:300]), marks[:60]
    monkeypatch.setattr(batches, "_canonical_pairs", lambda: few)
    everything = batches.all_batches

    def beginnings(reference: Reference, frozen: Frozen, contexts: Contexts, *rest: Any) -> list[Batch]:
        key = (frozen.name, *rest)
        if key not in BATCHES:
            BATCHES[key] = list(map(_beginning, everything(reference, frozen, contexts, *rest)))
        return BATCHES[key]

    monkeypatch.setattr(certify, "all_batches", beginnings)


@pytest.fixture
def plant(small: None, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Puts a faulty encoder in fastokens' place."""

    def put(
        wrong: Callable[[str], bool] | None = None,
        error: BaseException | None = None,
        made: Callable[[Reference], Planted] | None = None,
    ) -> None:
        def build(name: str, reference: Reference, *rest: object) -> Planted:
            return Planted(reference, wrong, error) if wrong else made(reference)  # type: ignore[misc]

        monkeypatch.setattr(encoders, "build", build)

    return put


def _beginning(batch: Batch) -> Batch:
    """Not all of a long batch: the planted encoders are as slow as the reference."""
    most = {"batch": 800, "few": 100, "alone": 20, "threads": 200}[batch.way]
    return replace(batch, strings=batch.strings[:most], probes=batch.probes and batch.probes[:most])


@pytest.fixture(scope="module", autouse=True)
def _contexts_once() -> Iterator[None]:
    """The contexts of each tokenizer are made once, then for each set of code points."""
    made: dict[str, Contexts] = {}

    def contexts(reference: Reference, frozen: Frozen, codes: Any) -> Contexts:
        if frozen.name not in made:
            made[frozen.name] = Contexts(reference, frozen, codes)
        return made[frozen.name].over(codes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truth, "Contexts", contexts)
        yield


TRUTHS: dict[tuple[object, ...], Truth] = {}


def truth_of(reference: Reference, frozen: Frozen) -> Truth:
    """The one for all tests over the same code points."""
    key = (frozen.name, *batches.DENSE)
    return TRUTHS.setdefault(key, Truth(reference, 1))


def quick(reference: Reference, frozen: Frozen) -> Result:
    return certify.certify(truth_of(reference, frozen), frozen, "fastokens", quick=True)


def test_fastokens_is_certified_without_guards(reference: Reference, frozen: Frozen) -> None:
    result = quick(reference, frozen)
    assert result.certification == Certification(
        "fastokens", encoders.version_of("fastokens"), Reference.version, (), result.cases, METHOD
    )
    assert result.differences == ()
    assert result.cases > 200_000


def test_a_fault_at_one_code_point_becomes_its_guard(reference: Reference, frozen: Frozen, plant: Plant) -> None:
    plant(lambda text: "\u2e55" in text)
    result = quick(reference, frozen)
    assert result.certification is not None
    assert result.certification.guards == ((0x2E55, 0x2E55),)


def test_only_a_few_characters_with_a_token_of_their_own_may_be_guarded(
    reference: Reference, frozen: Frozen, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [len(ids) for ids in reference.encode_each(["ſ", "é"])] == [1, 1]
    # fastokens 0.3.5 on gpt-oss: a contraction with long s is none to it.
    plant(lambda text: "'ſ'" in text)
    result = quick(reference, frozen)
    assert result.certification is not None
    assert result.certification.guards == ((0x17F, 0x17F),)

    monkeypatch.setattr(guards, "_MOST_COMMON", 0)
    plant(lambda text: "'é" in text)
    (difference,) = quick(reference, frozen).differences
    assert difference.text == "'é"


@pytest.mark.parametrize(
    ("taken_for", "shows"),
    [("٣", True), ("б", True), ("\u2003", True), ("\n", True), ("\u0301", False), ("\u2e5e", False)],
    ids=["digit", "letter", "space", "line break", "mark, which is no class here", "its own class"],
)
def test_an_encoder_that_takes_a_code_point_for_another_kind_needs_a_guard(
    digits: tuple[Reference, Frozen], plant: Plant, taken_for: str, shows: bool
) -> None:
    # As gigatoken takes U+11DE0, which newer versions of Unicode call a digit: groups of three begin elsewhere.
    plant(made=lambda reference: Retold(reference, lambda text: text.replace("\u2e5f", taken_for)))
    result = quick(*digits)
    assert result.certification is not None
    assert result.certification.guards == (((0x2E5F, 0x2E5F),) if shows else ())


def test_a_wrong_digit_that_shows_only_beside_three_digits_is_found(
    digits: tuple[Reference, Frozen], plant: Plant
) -> None:
    def told(text: str) -> str:
        return re.sub("\u2e5f(?=[0-9]{3})", "٣", text)

    plant(made=lambda reference: Retold(reference, told))
    result = quick(*digits)
    assert result.certification is not None
    assert result.certification.guards == ((0x2E5F, 0x2E5F),)


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("length", [1, 3, 4])
def test_a_fault_beside_any_run_is_found(
    digits: tuple[Reference, Frozen], plant: Plant, side: str, length: int
) -> None:
    contexts = truth.Contexts(*digits, batches.code_points(sample=True))
    for c in contexts._runs:
        run = c * length
        fault = run + "\u2e55" if side == "before" else "\u2e55" + run
        plant(lambda text, fault=fault: fault in text)
        encoder = encoders.build("fastokens", digits[0])
        search = Search(truth_of(*digits), encoder, lambda line: None)
        for _, find in search.code_points(contexts, encoder, "<s>", quick=True):
            if found := find():
                search.guards.pin(found)
        assert search.guards.found == {"\u2e55"}, ascii(fault)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda calls, segments, text: len(segments) > 16 and "\u2e55" in text,
        lambda calls, segments, text: calls > 1 and "\u2e55" in text,
        lambda calls, segments, text: len(segments) == 1 and "\u2e55" in text,
    ],
    ids=["only in a batch", "only from the second call on", "only alone"],
)
def test_a_fault_of_one_way_to_call_is_found(
    reference: Reference, frozen: Frozen, plant: Plant, wrong: Callable[[int, Sequence[str], str], bool]
) -> None:
    class Moody(Planted):
        calls = 0

        def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
            self.calls += 1
            self._wrong = lambda text: wrong(self.calls, segments, text)
            return super().encode_flat(segments, kind)

    plant(made=lambda reference: Moody(reference, lambda text: False))
    result = quick(reference, frozen)
    guards = result.certification.guards if result.certification else ()
    assert guards == ((0x2E55, 0x2E55),) or result.differences


def test_a_fault_that_only_several_threads_see_is_refused(reference: Reference, frozen: Frozen, plant: Plant) -> None:
    class Shared(Planted):
        inside = 0

        def right(self, segments: Sequence[str]) -> list[list[int]]:
            return encode_each(self._encoder, segments)  # what is known is told too soon for two to be inside

        def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
            self.inside += 1
            self._wrong = lambda text: self.inside > 1
            try:
                return super().encode_flat(segments, kind)
            finally:
                self.inside -= 1

    plant(made=lambda reference: Shared(reference, lambda text: False))
    (difference,) = quick(reference, frozen).differences
    assert difference.kind == "unstable"


def test_a_record_made_in_another_way_does_not_count(frozen: Frozen) -> None:
    today = Certification("fastokens", "1", "2", (), 1, METHOD)
    for method, counts in ((METHOD, True), ("", False), ("an older one", False)):
        record = replace(today, method=method)
        found = Frozen.from_json(frozen.with_certification(record).to_json()).certification(*today.key)
        assert found == (record if counts else None)


def test_adjacent_guards_merge(reference: Reference, frozen: Frozen, plant: Plant) -> None:
    plant(lambda text: any(c in text for c in ("\u2e55", "\u2e56", "\u2e58", "\U000f0001")))
    result = quick(reference, frozen)
    assert result.certification is not None
    assert result.certification.guards == ((0x2E55, 0x2E56), (0x2E58, 0x2E58), (0xF0001, 0xF0001))


def test_a_newer_table_of_combining_classes_guards_the_new_mark_alone(
    reference: Reference, frozen: Frozen, plant: Plant
) -> None:
    # As if U+1ADD were a mark that the reference does not know: it is reordered, whichever mark stands beside it.
    marks = "\u0301\u0335\u0650\u0323"
    plant(lambda text: any(f"\u1add{m}" in text or f"{m}\u1add" in text for m in marks))
    result = quick(reference, frozen)
    assert result.certification is not None
    assert result.certification.guards == ((0x1ADD, 0x1ADD),)


def test_a_composition_of_two_rare_characters_guards_both(reference: Reference, frozen: Frozen, plant: Plant) -> None:
    # What the blocks' pairs are for: no context of single characters shows it, and another guard does not hide it.
    plant(lambda text: "\u2d30\u2d32" in text or "\u2d40" in text)
    result = quick(reference, frozen)
    assert result.certification is not None
    assert result.certification.guards == ((0x2D30, 0x2D30), (0x2D32, 0x2D32), (0x2D40, 0x2D40))


@pytest.mark.parametrize(
    ("wrong", "example"),
    [
        (lambda text: "tm" in text, "tm"),
        (lambda text: "quoted" in text, "quoted"),
        (lambda text: "S " in text and "D" in text[text.index("S ") :], "S D"),
        (lambda text: "<think>\n" in text, "<think>\n"),
        (lambda text: text.count("\n") > 900, "\n" * 901),
        # A rare character inside a fault of common ones must not take the blame.
        (lambda text: re.search("a.b", text) is not None, None),
    ],
)
def test_a_fault_of_common_characters_is_refused_with_the_shortest_example(
    reference: Reference, frozen: Frozen, plant: Plant, wrong: Callable[[str], bool], example: str | None
) -> None:
    plant(wrong)
    result = quick(reference, frozen)
    assert result.certification is None
    (difference,) = result.differences
    example = example or difference.text
    expected = tuple(reference.encode_each([example])[0])
    assert difference == Difference(example, expected, (*expected, 7), "ids")
    assert example.isascii()


class Panic(BaseException):
    """What a panic in Rust looks like from Python."""


@pytest.mark.parametrize("error", [RuntimeError("no"), Panic()])
def test_an_error_is_a_difference(reference: Reference, frozen: Frozen, plant: Plant, error: BaseException) -> None:
    plant(lambda text: "\u2e55" in text, error)
    result = quick(reference, frozen)
    assert result.certification is not None
    assert result.certification.guards == ((0x2E55, 0x2E55),)

    plant(lambda text: "Dt" in text, error)
    (difference,) = quick(reference, frozen).differences
    assert (difference.text, difference.got, difference.kind) == ("Dt", None, "raises")


def test_answering_for_a_lone_surrogate_is_a_difference(
    reference: Reference, frozen: Frozen, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lenient(Planted):
        def each(self, segments: Sequence[str]) -> list[list[int]]:
            return super().each([s.encode("utf-8", "replace").decode() for s in segments])

    monkeypatch.setattr(encoders, "build", lambda *_: Lenient(reference, lambda text: False))
    (difference,) = quick(reference, frozen).differences
    assert (difference.text, difference.expected, difference.kind) == ("\ud800", None, "accepts")


def test_an_encoder_that_is_wrong_once_is_refused(reference: Reference, frozen: Frozen, plant: Plant) -> None:
    seen: list[str] = []

    def once(text: str) -> bool:
        if seen or len(text) < 8 or "\u2e55" not in text:
            return False
        seen.append(text)
        return True

    plant(once)
    (difference,) = quick(reference, frozen).differences
    assert difference.kind == "unstable"
    assert difference.text == seen[0]


def test_too_many_guards_are_refused(
    reference: Reference, frozen: Frozen, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "MAX_RANGES", 3)
    plant(lambda text: any("\u2d30" <= c <= "\u2d60" and ord(c) % 2 for c in text))
    (difference,) = quick(reference, frozen).differences
    assert difference.kind == "guards"


def test_an_encoder_that_is_not_there_is_said(reference: Reference, frozen: Frozen) -> None:
    with pytest.raises(ValueError, match="unknown fast encoder"):
        certify.certify(Truth(reference), frozen, "nosuch")


# ------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def file(tiny: Tokenizer, frozen: Frozen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny tokenizer's file, admitted by a config in the user's folder."""
    monkeypatch.setenv("DELTA_CONFIGS", str(tmp_path / "configs"))
    frozen.write(tmp_path / "configs")
    path = tmp_path / "tokenizer.json"
    tiny.save(str(path))
    return path


def run(*arguments: object) -> int:
    return cli.main(["certify", *map(str, arguments)])


def test_the_record_goes_into_the_users_folder(
    file: Path, small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, "--encoder", "fastokens", "--quick") == 0
    (record,) = load_path(tmp_path / "configs" / "tiny.json").certified
    assert record.key == ("fastokens", encoders.version_of("fastokens"), Reference.version)
    assert "tiny: fastokens" in capsys.readouterr().out


def test_json_and_into(file: Path, small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--encoder", "fastokens", "--quick", "--json", "--into", tmp_path / "other") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["config"], row["encoder"], row["certified"], row["guards"]) == ("tiny", "fastokens", True, [])
    assert row["recorded"] == str(tmp_path / "other" / "tiny.json")
    assert load_path(tmp_path / "configs" / "tiny.json").certified == ()
    assert load_path(tmp_path / "other" / "tiny.json").certified[0].cases == row["cases"]


def test_a_refusal_exits_with_1_and_takes_the_older_record_out(
    file: Path, frozen: Frozen, tmp_path: Path, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    held = Certification("fastokens", encoders.version_of("fastokens"), Reference.version, (), 1)
    frozen.with_certification(held).write(tmp_path / "configs")
    plant(lambda text: "Dt" in text)
    assert run(file, "--encoder", "fastokens", "--quick") == 1
    assert "NOT certified" in capsys.readouterr().out
    assert load_path(tmp_path / "configs" / "tiny.json").certified == ()


def test_what_cannot_be_tried_exits_with_2(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "nowhere.json", "--quick") == 2
    assert "no such file" in capsys.readouterr().err

    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert run(broken, "--quick") == 2
    assert "not a tokenizer.json" in capsys.readouterr().err

    def unavailable(name: str) -> str:
        raise EncoderUnavailable(f"{name} is not installed")

    monkeypatch.setattr(encoders, "version_of", unavailable)
    assert run(file, "--encoder", "all", "--quick", "--json") == 2
    assert [row["error"] for row in json.loads(capsys.readouterr().out)] == [
        "fastokens is not installed",
        "gigatoken is not installed",
    ]


def test_what_is_not_admitted_exits_with_2(
    tiny: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DELTA_CONFIGS", str(tmp_path / "empty"))
    path = tmp_path / "tokenizer.json"
    tiny.save(str(path))
    assert run(path, "--quick") == 2
    assert "not admitted" in capsys.readouterr().err
