"""Texts from outside: they meet what versions of Unicode dispute, and every way in which an encoder may be wrong."""

from __future__ import annotations

import ast
import random
import threading
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from conftest import Subject as Shared

import delta_core
from delta_core.admission.frozen import Certification
from delta_core.encoders import Encoder, encode_each
from delta_core.tools.verify import outside
from delta_core.tools.verify.batteries import BATTERIES, outcome
from delta_core.tools.verify.outside import Strings, calls_of, compare, conversation, guard_edges, repertoire
from delta_core.tools.verify.planted import PlantedEncoder
from delta_core.tools.verify.tally import Subject, Tally

Wrong = Callable[[Sequence[str], list[list[int]]], list[list[int]]]


class Planted(PlantedEncoder):
    """The encoder that serves, with its answers put through something that is wrong at times."""

    name = "reference"

    def __init__(self, encoder: Encoder, wrong: Wrong) -> None:
        self.encoder = encoder
        self.wrong = wrong

    def each(self, segments: Sequence[str]) -> list[list[int]]:
        return self.wrong(segments, encode_each(self.encoder, segments))


@pytest.fixture
def subject(synthetic: Callable[..., Shared]) -> Subject:
    shared = synthetic("deepseek_v3")
    tok = shared.tok
    assert tok._reference is not None
    return Subject("tiny", shared.live, tok._reference, shared.frozen, tok._rules, tok, tok._encoder)


@pytest.fixture
def plant(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> Callable[[Wrong], Subject]:
    def planted(wrong: Wrong) -> Subject:
        monkeypatch.setattr(subject.tok, "_encoder", Planted(subject.encoder, wrong))
        return subject

    return planted


def found(subject: Subject, battery: str, units: int = 1) -> Tally:
    """What so many units find: in eighths, as nothing is looked for behind the first difference."""
    tally = Tally()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_SINGLES", "_SESSIONS", "_SUSPECTS", "_LONG", "_REAL_SESSIONS"):
            patch.setattr(outside, name, -(-getattr(outside, name) // 8))
        for unit in range(8 * units):
            BATTERIES[battery].run(subject, unit, f"seed/{unit}", tally)
            if tally.failed:
                break
    return tally


def one(subject: Subject, battery: str) -> Tally:
    tally = Tally()
    BATTERIES[battery].run(subject, 0, "seed", tally)
    return tally


def in_place_of(characters: str, other: str, subject: Subject) -> Wrong:
    """Takes the characters for another one, in all that depends on it: the pieces that a text is split into."""
    table = str.maketrans(dict.fromkeys(characters, other))

    def wrong(segments: Sequence[str], ids: list[list[int]]) -> list[list[int]]:
        seen = [segment.translate(table) for segment in segments]
        return [own if a == b else encode_each(subject.encoder, [b])[0]
                for own, a, b in zip(ids, segments, seen, strict=True)]  # fmt: skip

    return wrong


# -- what is compared --


@pytest.mark.parametrize("battery", ["unicode", "realtext"])
def test_a_unit_is_many_comparisons_of_lists_and_arrays_warm_and_cold(battery: str, subject: Subject) -> None:
    before = subject.tok.stats()
    tally = one(subject, battery)
    assert not tally.failed
    assert tally.cases > (2000 if battery == "unicode" else 60)
    paths = subject.tok.stats().by_path
    assert not subject.tok.stats().fallbacks
    assert {"append", "cold"} <= set(paths)
    assert sum(paths.values()) - sum(before.by_path.values()) == tally.cases


def test_texts_depend_on_the_seed_alone() -> None:
    first, again, other = (Strings(seed, ["<a>"], [0x378]) for seed in ("s", "s", "t"))
    texts = [[s.text() for _ in range(200)] for s in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert conversation(random.Random(1)) == conversation(random.Random(1))


def test_no_text_holds_a_lone_surrogate(subject: Subject) -> None:
    strings = Strings("s", ["<a>"], guard_edges(subject))
    "".join(strings.text() for _ in range(3000)).encode()
    "".join(turn for n in range(20) for turn in conversation(random.Random(n))).encode()


def test_characters_that_came_with_some_version_are_met_before_and_behind_every_kind_of_run() -> None:
    assert any(0x1E4F0 in stretch for stretch in (*repertoire().disputed, *repertoire().newer))
    strings = Strings("s", ["<|added|>"])
    text = "\0".join(chain(strings.placed(10_000), (strings.text() for _ in range(20_000))))
    known = {c for alphabet in chain(*repertoire().alphabets.values()) for c in alphabet}
    seen = {(unicodedata.category(a), unicodedata.category(c))
            for a, b, c in zip(text, text[1:], text[2:], strict=False)
            if b not in known and not b.isascii() and a in known and c in known}  # fmt: skip
    often = {"Nd", "Ll", "Lu", "Lo", "Zs", "Po", "Mn"}
    assert {(a, b) for a in often for b in often} <= seen


def test_the_edges_of_guards_are_met(subject: Subject) -> None:
    record = Certification("fastokens", "1", "1", ((0x3400, 0x3402), (0xE000, 0xE000)), 1)
    edges = guard_edges(replace(subject, frozen=replace(subject.frozen, certified=(record,))))
    assert edges == [0x33FF, 0x3400, 0x3402, 0x3403, 0xE000, 0xE001], "and no surrogate"
    strings = Strings("s", [], edges)
    assert {chr(edge) for edge in edges} <= set("".join(strings.text() for _ in range(500)))


def test_the_users_own_texts_take_the_place_of_this_machines(subject: Subject) -> None:
    own = ("zq " * 900,)
    letters = set("".join(turn for n in range(5) for turn in conversation(random.Random(n), own)))
    assert letters <= set("zq x\n12é")


def test_nothing_is_shared_with_certification() -> None:
    """An independent look must not be made of the same texts, nor by the same code."""
    folder = Path(delta_core.__file__).parent / "tools"
    of_certification = sorted((folder / "certify").glob("*.py"))
    assert of_certification
    ours = ast.parse((folder / "verify" / "outside.py").read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(ours) if isinstance(node, ast.ImportFrom)}
    names = {alias.name for node in ast.walk(ours) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert not {"certify", "contexts", "generators"} & (modules | names)

    def fragments(tree: ast.AST) -> set[str]:
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is str}
        return {text for text in texts if len(text) > 2 and not (text.isascii() and text.replace("_", "").isalnum())}

    for path in of_certification:
        assert not fragments(ours) & fragments(ast.parse(path.read_text(encoding="utf-8"))), path.name


# -- what is found --


@pytest.mark.parametrize(("kind", "other"), [("digit", "7"), ("letter", "x"), ("mark", "\u0301")])
def test_an_encoder_that_takes_characters_of_a_newer_version_for_something_is_found(
    kind: str, other: str, subject: Subject, plant: Callable[[Wrong], Subject]
) -> None:
    newer = "".join(chr(code) for code in range(0x1E4D0, 0x1E4FA))  # Unicode 15
    tally = found(plant(in_place_of(newer, other, subject)), "unicode", 4)
    assert tally.failed


def test_an_encoder_that_is_wrong_behind_three_digits_only_is_found(
    subject: Subject, plant: Callable[[Wrong], Subject]
) -> None:
    def wrong(segments: Sequence[str], ids: list[list[int]]) -> list[list[int]]:
        return [own[:-1] if any(c.isdigit() and c.isascii() and s[i + 1 : i + 3].isdigit() and ord(s[i - 1]) > 0x10000
                                for i, c in enumerate(s) if i) else own
                for own, s in zip(ids, segments, strict=True)]  # fmt: skip

    assert found(plant(wrong), "unicode").failed


@pytest.mark.parametrize("battery", ["unicode", "realtext"])
def test_an_encoder_that_is_wrong_in_a_batch_only_is_found(battery: str, plant: Callable[[Wrong], Subject]) -> None:
    tally = found(plant(lambda segments, ids: ids[::-1] if len(segments) > 16 else ids), battery, 3)
    assert tally.failed


@pytest.mark.parametrize("battery", ["unicode", "realtext"])
def test_an_encoder_that_is_wrong_from_its_second_call_on_is_found(
    battery: str, plant: Callable[[Wrong], Subject]
) -> None:
    calls: list[int] = []

    def wrong(segments: Sequence[str], ids: list[list[int]]) -> list[list[int]]:
        calls.append(1)
        return ids if len(calls) == 1 else [own[:1] for own in ids]

    assert found(plant(wrong), battery).failed


def test_an_encoder_that_is_wrong_in_other_threads_only_is_found(plant: Callable[[Wrong], Subject]) -> None:
    main = threading.get_ident()

    def wrong(segments: Sequence[str], ids: list[list[int]]) -> list[list[int]]:
        return ids if threading.get_ident() == main else [own[:1] for own in ids]

    assert found(plant(wrong), "unicode").failed


def test_a_fault_that_real_text_alone_shows_is_found(plant: Callable[[Wrong], Subject]) -> None:
    def wrong(segments: Sequence[str], ids: list[list[int]]) -> list[list[int]]:
        return [own[:-1] if "return" in s or "SIGN" in s or "20" in s else own
                for own, s in zip(ids, segments, strict=True)]  # fmt: skip

    tally = found(plant(wrong), "realtext", 3)
    assert tally.failed


def test_what_the_stored_turns_make_wrong_is_found_with_the_turns(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of a difference are those of one conversation from its start: they can be made again."""
    monkeypatch.setattr("delta_core.cuts.CutRules.transition", lambda *_: True)
    subject.rules._memo.clear()
    tally = Tally()
    rng = random.Random(3)
    strings = Strings("s")
    for _ in range(20):
        compare(subject, [calls_of(strings.turns(8), rng) for _ in range(8)], tally, scale_dense=True)
        if tally.failed:
            break
    subject.rules._memo.clear()
    assert tally.failed
    monkeypatch.undo()
    got, want = outcome(subject, "dense", tally.failed[0])
    assert got == want
    subject.rules._memo.clear()


def test_a_machine_without_sources_and_catalogs_has_texts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "_sources", lambda: ())
    monkeypatch.setattr(outside, "_catalogs", lambda: ())
    texts = [turn for n in range(10) for turn in conversation(random.Random(n))]
    assert len(set(texts)) > 50
    assert any(unicodedata.category(c) == "Lo" for text in texts for c in text)
