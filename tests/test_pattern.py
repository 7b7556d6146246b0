"""The one-character tests of a pattern: complete, or refused with the construct and where it stands."""

from __future__ import annotations

import pytest

from delta_core.admission.sections import GPT2_PATTERN, patterns_of
from delta_core.tools.freezing.pattern import UnsupportedPattern, atoms_of
from delta_core.tools.verify.generators import CONFIGS, frozen_config


def atoms_in(pattern: str) -> set[str]:
    return set(atoms_of([pattern]).tests)


@pytest.mark.parametrize(
    ("pattern", "tests"),
    [
        ("ab", {"a", "b"}),
        (r"\p{L}+|\s*[\r\n]+", {r"\p{L}", r"\s", r"[\r\n]"}),
        (r"\p{N}{1,3}", {r"\p{N}"}),
        (r" ?[^\s\p{L}\p{N}]+", {r"\ ", r"[^\s\p{L}\p{N}]"}),
        (r"\s+(?!\S)|\s+", {r"\s", r"\S"}),
        (r"(?:ab|c)?", {"a", "b", "c"}),
        (r"(ab)+?c*+", {"a", "b", "c"}),
        (r"[\p{Lu}&&[^\p{Han}]]*x", {r"[\p{Lu}&&[^\p{Han}]]", "x"}),
        (r"[a\]b]", {r"[a\]b]"}),
        (r"\.\/\n", {r"\.", r"\/", r"\n"}),
        (r".", {"."}),
        ("中+", {"中"}),
    ],
)
def test_atoms_are_what_the_pattern_asks_of_one_character(pattern: str, tests: set[str]) -> None:
    assert atoms_in(pattern) == tests


def test_under_ignore_case_each_letter_is_its_own_folding_test() -> None:
    atoms = atoms_of(["(?i:'s|'ll)x"])
    assert set(atoms.tests) == {"'", "(?i:s)", "(?i:l)", "x"}


def test_literals_that_could_fold_together_are_listed() -> None:
    """U+FB06 folds to "st": a pattern with st under (?i) might match one character where two are written."""
    assert set(atoms_of(["(?i:stu)"]).folded) == {"st", "stu", "tu"}
    assert atoms_of(["(?i:s|t)"]).folded == ()
    assert atoms_of(["st"]).folded == ()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"^a", "anchor"),
        (r"a$", "anchor"),
        (r"\ba", "escape"),
        (r"\Aa", "escape"),
        (r"(a)\1", "escape"),
        (r"\x41", "escape"),
        (r"\R", "escape"),
        (r"\X", "escape"),
        (r"\K", "escape"),
        (r"(?<=a)b", "group"),
        (r"(?<!a)b", "group"),
        (r"(?<n>a)", "group"),
        (r"(?i)a", "group"),
        (r"(?>a)", "group"),
        (r"(?i:é)", "non-ASCII"),
        (r"(a", "not closed"),
        (r"a)", "unbalanced"),
        (r"[a", "not closed"),
        (r"*a", "quantifier"),
        ("a\\", "escape"),
    ],
)
def test_what_the_atoms_would_not_tell_is_refused_by_name(pattern: str, names: str) -> None:
    with pytest.raises(UnsupportedPattern, match=names) as caught:
        atoms_of([pattern])
    assert "offset" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "reach", "need"),
    [
        ("ab", 2, 2),
        ("a+b*", 2, 2),  # a run counts once, and b is asked after one a
        ("a?b?c?", 3, 1),
        (r"\p{N}{1,3}", 3, 3),
        ("abc|d", 3, 3),
        ("x?(?:abc|d)?", 4, 3),
        ("a(?:bc)+d", 4, 4),
        ("(?:ab?c){3}", 9, 7),
        (r"\s+(?!\S)", 2, 2),
    ],
)
def test_how_far_a_match_looks_is_known(pattern: str, reach: int, need: int) -> None:
    atoms = atoms_of([pattern])
    assert (atoms.reach, atoms.need, atoms.counts) == (reach, need, ())


def test_the_longest_of_several_patterns_counts() -> None:
    assert atoms_of(["ab", "abcd", "a"]).reach == 4


def test_what_counts_further_than_short_strings_show_is_listed() -> None:
    assert atoms_of([r"\s{512}(?!\S)|a{2,7}|b{9,}|c{1,3}"]).counts == ((r"\s", 512), ("a", 7), ("b", 9))


@pytest.mark.parametrize("pattern", ["(?:ab){4}", "(?:a{5})+b", "a{5}b{6}", "(?:a{9}){2}"])
def test_counting_that_no_derivation_could_show_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPattern, match=r"repeated|repetitions"):
        atoms_of([pattern])


def test_deep_nesting_is_the_patterns_own_and_a_long_flat_pattern_does_not_recurse() -> None:
    assert atoms_in("(?:a|" * 50 + "b" + ")" * 50) == {"a", "b"}
    assert atoms_in("ab" * 20_000) == {"a", "b"}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_atoms_of_every_bundled_config_are_those_its_table_was_derived_over(name: str) -> None:
    config = frozen_config(name)
    assert atoms_of(patterns_of(config.sections.pre_tokenizer)).tests == config.transitions.tests


def test_gpt2s_pattern_stands_for_byte_level_with_its_own_regex() -> None:
    assert patterns_of([{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]) == [GPT2_PATTERN]
    assert patterns_of([{"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]) == []
