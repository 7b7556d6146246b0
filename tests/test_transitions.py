"""The table of safe transitions: derived again from the reference, and refuted when it is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from delta_core.admission.sections import GPT2_PATTERN
from delta_core.characters import CharacterClasses, PatternProbe
from delta_core.tools.freezing import derive as derivation
from delta_core.tools.freezing.derive import TransitionError, classes_of, derive, pre_tokenizer_from, refute
from delta_core.tools.verify.generators import CONFIGS, PIPELINES, frozen_config

# One per pre-tokenizer: a table depends on nothing else.
DISTINCT = PIPELINES


@pytest.mark.parametrize("samples", [0, 1], ids=["first samples", "second samples"])
@pytest.mark.parametrize("name", DISTINCT)
def test_no_short_string_refutes_a_bundled_table(name: str, samples: int) -> None:
    config = frozen_config(name)
    length = 4 if len(config.transitions.signatures) <= 15 and samples == 0 else 3
    assert refute(config.sections.pre_tokenizer, config.transitions, length, samples=samples) == set()


@pytest.mark.parametrize("name", DISTINCT)
def test_a_derivation_to_a_smaller_length_gives_a_superset(name: str) -> None:
    """Longer strings only ever take transitions away: what is safe in the table is safe over short strings, too."""
    config = frozen_config(name)
    t = config.transitions
    k = len(t.signatures)
    layers = derivation._Layers(config.sections.pre_tokenizer, "".join(s[0] for s in t.samples), None)
    left = {(a, b) for a in range(k) for b in range(k)}
    sizes = []
    for n in range(1, 4):
        layers.grow()
        refuted = layers.refuted(n)
        left = {(a, b) for a, b in left if not refuted[a, b]}
        sizes.append(len(left))
        assert set(t.safe) <= left
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < k * k
    assert t.derivation.reduced_length >= 6
    assert t.derivation.runs >= 4
    assert t.derivation.run_length >= 4


@pytest.mark.parametrize("name", DISTINCT)
def test_the_running_library_has_no_class_that_the_table_lacks(name: str, run_slow: bool) -> None:
    """A sample of all blocks by default, every code point under --run-slow; a class unknown is never a cut."""
    t = frozen_config(name).transitions
    probe = PatternProbe(t.tests)
    starts = [*range(0, 0xD800, 256), *range(0xE000, 0x110000, 256)]
    for start in starts if run_slow else [*starts[::37], 0, 0x100, 0x300, 0x2000, 0x3000, 0x1F600]:
        assert set(probe.signatures(start, 256).tolist()) <= set(t.signatures), hex(start)


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTINCT)
def test_the_full_derivation_gives_the_bundled_table(name: str) -> None:
    config = frozen_config(name)
    again = derive(config.sections.pre_tokenizer)
    assert dataclasses.replace(again, derivation=config.transitions.derivation) == config.transitions


@pytest.mark.parametrize("name", DISTINCT)
def test_a_planted_wrong_transition_is_refuted(name: str) -> None:
    """Every transition that the table does not have is one that some string refutes; refute finds planted ones."""
    config = frozen_config(name)
    t = config.transitions
    k = len(t.signatures)
    wrong = [(a, b) for a in range(k) for b in range(k) if (a, b) not in set(t.safe)]
    everything = dataclasses.replace(t, safe=tuple((a, b) for a in range(k) for b in range(k)))
    found = refute(config.sections.pre_tokenizer, everything, 3)
    assert found <= set(wrong)
    assert len(found) >= 0.9 * len(wrong), "length 3 shows nearly all; longer strings the rest"
    planted = sorted(found)[len(found) // 2]
    table = dataclasses.replace(t, safe=tuple(sorted({*t.safe, planted})))
    assert refute(config.sections.pre_tokenizer, table, 3) == {planted}


@pytest.mark.parametrize("name", CONFIGS)
def test_samples_are_of_their_class_in_the_running_library(name: str) -> None:
    t = frozen_config(name).transitions
    classes = CharacterClasses(t.tests, t.signatures)
    assert [{classes.of(c) for c in samples} for samples in t.samples] == [{i} for i in range(len(t.samples))]


def split_on(pattern: str, behavior: str = "Isolated", invert: bool = False) -> list[dict[str, Any]]:
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}]


def test_a_small_derivation_says_what_a_reader_of_the_pattern_would() -> None:
    """Letters and the rest, each in runs: cuts are safe exactly where the kind changes."""
    t = derive(split_on(r"\p{L}+|\P{L}+"))
    of = {samples[0]: i for i, samples in enumerate(t.samples)}
    letter, other = of["A"], of["\x00"]
    assert set(t.safe) == {(letter, other), (other, letter)}


def test_digit_groups_need_runs_and_get_them() -> None:
    t = derive(split_on(r"\p{N}{1,3}|\P{N}"))
    digit = next(i for i, s in enumerate(t.samples) if s[0] == "0")
    assert (digit, digit) not in t.safe
    assert (1 - digit, 1 - digit) in t.safe


def test_a_lookahead_over_runs_is_seen() -> None:
    r"""`\s+(?!\S)` gives a space back when a word follows: the place inside the run depends on its end."""
    t = derive(split_on(r"\s+(?!\S)|\s+|\S+"))
    space = next(i for i, s in enumerate(t.samples) if s[0] == "\t")
    assert (space, space) not in t.safe
    assert (1 - space, space) in t.safe
    assert (space, 1 - space) not in t.safe


def test_what_only_longer_runs_show_is_seen() -> None:
    """Before 4, a run of two 3s gives one back: five characters show it, and strings here have four."""
    t = derive(split_on(r"1+2+3+(?!4)|1+2+3+|."), reduced_length=4)
    of = {samples[0]: i for i, samples in enumerate(t.samples)}
    assert t.derivation.full_length == 4
    assert (of["3"], of["4"]) not in t.safe
    assert (of["4"], of["3"]) in t.safe


def test_a_pattern_that_counts_is_seen_to_its_end() -> None:
    """No short string has ten of a letter in a row; a cut there would tear the piece."""
    t = derive(split_on(r"a{10}b|."))
    of = {samples[0]: i for i, samples in enumerate(t.samples)}
    assert not {(of["a"], of["a"]), (of["a"], of["b"])} & set(t.safe)
    assert {(of["b"], of["a"]), (of["b"], of["b"])} <= set(t.safe)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"abcdefg|.", "looks at 7 characters in a row"),
        (r"1+2+3+4+5+(?!6)|1+2+3+4+5+|.", "5 runs follow each other"),  # 12345|5|6 alone shows it, seven characters
        (r"(?:a(?: ?b*)*)+c|x+y+z+.v|.", "runs follow each other"),
        (r"a{2000}|.", "counts to 2000"),
        ("|".join(f"a{{{n}}}" for n in range(4, 60)), "56 different lengths"),
        ("abcdef|" + "|".join("ghijklmnop"), "a match of 6 characters"),
    ],
)
def test_what_no_string_of_the_derivation_could_show_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(TransitionError, match=why):
        derive(split_on(pattern))


def test_a_pre_tokenizer_that_drops_text_is_refused() -> None:
    with pytest.raises(TransitionError, match="drops text"):
        derive(split_on(r"\s+", "Removed"))
    with pytest.raises(TransitionError, match="drops text"):
        derive(split_on(r"\p{L}+", "Removed", True))


def test_a_character_that_folds_to_two_literals_is_refused() -> None:
    with pytest.raises(TransitionError, match="folds to 'st'"):
        classes_of(split_on(r"(?i:st)|."))


def test_interchangeable_classes_are_found_by_swapping_them() -> None:
    """S and t after an apostrophe behave alike; a letter and the apostrophe do not."""
    layers = derivation._Layers(split_on(r"'(?:s|t)|."), "st'x", None)
    for _ in range(4):
        layers.grow()
    assert derivation._interchangeable(layers.masks[4], 4) == [0, 0, 2, 3]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_canonical_section_splits_as_the_library_does(name: str) -> None:
    section = frozen_config(name).sections.pre_tokenizer
    split = pre_tokenizer_from(section)
    text = "Hello  world's 1234 中文\n\n  x=/\n"
    assert "".join(text[a:b] for _, (a, b) in split(text)) == text


def test_gpt2s_pattern_is_the_one_inside_byte_level() -> None:
    """The library shows this pattern nowhere; the copy must split as the library does."""
    inside = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    text = "Hello  world's we'LL 1234٣½ 中文\n\n  x=/\n \t\u00a0\u2028a\u0301"
    section = split_on(GPT2_PATTERN)
    assert [span for _, span in pre_tokenizer_from(section)(text)] == [
        span for _, span in inside.pre_tokenize_str(text)
    ]
