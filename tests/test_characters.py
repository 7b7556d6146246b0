"""What the reference's engines say about single characters, and that nobody else is asked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from delta_core import characters
from delta_core.characters import UNKNOWN, CharacterClasses, NfcStability, NoNormalizer, PatternProbe
from delta_core.tools.verify.generators import PIPELINES, frozen_config

NFC, NFD = normalizers.NFC(), normalizers.NFD()


@pytest.fixture(scope="module")
def nfc() -> NfcStability:
    return NfcStability()


CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def test_a_probe_gives_the_engines_own_answer_for_each_test() -> None:
    tests = [r"\p{L}", r"[\r\n]", r"(?i:s)", r"\s"]
    signatures = PatternProbe(tests).signatures(0, 0x300)
    for code, signature in enumerate(signatures.tolist()):
        for bit, test in enumerate(tests):
            passes = pre_tokenizers.Split(Regex(test), "removed").pre_tokenize_str(chr(code)) == []
            assert bool(signature >> bit & 1) == passes, (chr(code), test)


def test_the_engine_folds_the_long_s_with_s() -> None:
    (signature,) = PatternProbe(["(?i:s)"]).signatures(0x17F, 1).tolist()
    assert signature == 1


def test_more_tests_than_fit_a_signature_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 63"):
        PatternProbe(["a"] * 64)
    with pytest.raises(ValueError, match="at most 254"):
        CharacterClasses(["a"], range(255))


@pytest.mark.parametrize("name", PIPELINES)
def test_every_code_point_has_the_class_that_it_has_alone(name: str) -> None:
    """Blocks are asked as one text; a character's neighbours must not change its answer."""
    t = frozen_config(name).transitions
    classes = CharacterClasses(t.tests, t.signatures)
    alone = PatternProbe(t.tests)
    for code in [*range(0x20, 0x100), 0x17F, 0x212A, 0x301, 0x958, 0x4E00, 0xAC00, 0x1F600, 0x10FFFF, 0x3000, 0x2028]:
        (signature,) = alone.signatures(code, 1).tolist()
        assert classes.of(chr(code)) == t.signatures.index(signature)


def test_surrogates_have_no_class() -> None:
    t = frozen_config("qwen3").transitions
    classes = CharacterClasses(t.tests, t.signatures)
    assert {classes.of(chr(c)) for c in range(0xD800, 0xE000, 100)} == {UNKNOWN}


def test_memory_is_a_byte_per_code_point_asked() -> None:
    t = frozen_config("llama3_1").transitions
    classes = CharacterClasses(t.tests, t.signatures)
    for code in range(0, 0x3000):
        classes.of(chr(code))
    assert sum(map(len, classes._blocks.values())) == 0x3000


def test_prepared_classes_are_those_that_are_asked_one_by_one() -> None:
    t = frozen_config("llama3_1").transitions
    prepared, asked = CharacterClasses(t.tests, t.signatures), CharacterClasses(t.tests, t.signatures)
    prepared.prepare()
    blocks = dict(prepared._blocks)
    for character in "aé中가\u3042\u2028\u0958\U0001f600１":
        assert prepared.of(character) == asked.of(character)
    assert prepared._blocks == blocks, "nothing was left to ask"
    assert asked._blocks.items() <= blocks.items()


def test_without_a_normalizer_everything_is_stable() -> None:
    stability = NoNormalizer()
    assert stability.left("\u0301")
    assert stability.right("\u0301")
    assert stability.outcomes("e") == ("e",)


@pytest.mark.parametrize("character", ["a", "1", ".", "\n", "é", "中", "한", "\u1100", "<", "😀", "\x00"])
def test_ordinary_characters_are_stable(nfc: NfcStability, character: str) -> None:
    assert nfc.right(character)
    assert nfc.left(character)


@pytest.mark.parametrize(
    "character",
    [
        "\u0301",  # a mark, composes with what stands before
        "\u0335",  # a mark that is reordered
        "\u0958",  # NFC takes it apart
        "\u0344",  # NFC replaces it by two marks
        "\u1161",  # a Hangul vowel joins the consonant before
        "\u11ab",  # a Hangul final joins the syllable before
        "\u0cd5",  # a starter that still composes with the one before
        "\u212b",  # a singleton: becomes another character
        "\ud800",  # no text
    ],
)
def test_characters_that_join_move_or_change_are_not(nfc: NfcStability, character: str) -> None:
    assert not nfc.right(character)


def test_outcomes_are_all_compositions_that_begin_with_the_character(nfc: NfcStability) -> None:
    assert {"e", "é", "ế", "ê"} <= set(nfc.outcomes("e"))
    assert {"≮", "<"} == set(nfc.outcomes("<"))
    assert "한" in nfc.outcomes("\u1112")
    assert "하" in nfc.outcomes("\u1112")
    assert set(nfc.outcomes("1")) == {"1"}


def test_no_canonical_decomposition_lies_outside_the_planes_looked_at() -> None:
    """If Unicode ever puts one elsewhere, this fails before a cut is wrong."""
    looked_at = {c for codes in characters._DECOMPOSABLE for c in codes}
    others = [c for c in CODE_POINTS if c not in looked_at]
    text = "".join(map(chr, others))
    assert NFD.normalize_str(text) == text
    assert NFC.normalize_str(text) == text


STARTERS = st.sampled_from(["a", "e", "1", ".", "\n", "<", "é", "中", "한", "하", "\u1100", "q", "か", "=", "\u0915"])
ANY = st.one_of(
    st.characters(exclude_categories=("Cs",)),
    st.characters(categories=("Mn", "Mc")),
    st.sampled_from(["\u1161", "\u11ab", "\u0301", "\u0338", "\u3099", "\u0323", "\u0cd5", "\u0dcf"]),
)


@given(st.text(ANY, max_size=4), st.one_of(STARTERS, ANY), st.one_of(STARTERS, ANY), st.text(ANY, max_size=4))
@settings(max_examples=600)
def test_the_normalizer_splits_between_two_stable_characters(before: str, left: str, right: str, after: str) -> None:
    nfc = _NFC
    if not (nfc.left(left) and nfc.right(right)):
        return
    head, tail = NFC.normalize_str(before + left), NFC.normalize_str(right + after)
    assert NFC.normalize_str(before + left + right + after) == head + tail
    assert head.endswith(left), "the left one stays as it is"
    assert tail[0] in nfc.outcomes(right), "the right one becomes nothing unforeseen"


_NFC = NfcStability()


def test_every_code_point_called_stable_splits_from_marks_vowels_and_letters_around_it(nfc: NfcStability) -> None:
    """Exhaustive over the right-hand character, in front of it what composes most readily."""
    stable = [chr(c) for c in CODE_POINTS if c < 0x30000 and nfc.right(chr(c))]
    assert len(stable) > 150_000
    for before in (
        "e",
        "\u1112\u1161",
        "\u1100",
        "\u0915",
        "か",
        "\u0627",
        "\u0dd9",
        "a\u0323\u0301",
        "\u0c46",
        "\u1025",
    ):
        joined = before + ("\n" + before).join(stable)
        apart = NFC.normalize_str(before) + ("\n" + NFC.normalize_str(before)).join(stable)
        assert NFC.normalize_str(joined) == apart


def test_verdicts_are_kept_for_a_bounded_number_of_characters() -> None:
    stability = NfcStability()
    for code in CODE_POINTS[: (1 << 16) + 50]:
        stability.right(chr(code))
    assert len(stability._verdict) <= 1 << 16
