"""CutRules: R1 and R2, and what they promise about every text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from conftest import NASTY_TOKENS, Subject
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle import ids_of

from delta_core import DeltaTokenizer
from delta_core.admission.sections import AddedToken
from delta_core.characters import UNKNOWN, NfcStability
from delta_core.cuts import Cut, CutRules, _isolated
from delta_core.tools.verify.generators import PIPELINES, TextMaker, frozen_config, frozen_from, live_from, spec, token

FLAGS = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}


def tokens(*contents: str, **flags: bool) -> list[AddedToken]:
    return [AddedToken(i, content, **{**FLAGS, **flags}) for i, content in enumerate(contents)]


def isolated(*contents: str) -> set[str]:
    return set(_isolated(tokens(*contents), contents))


def rules(name: str, added: Sequence[AddedToken] | None = None, normalized: Sequence[str] = ()) -> CutRules:
    config = frozen_config(name)
    return CutRules(
        config.sections.added_tokens if added is None else added,
        config.transitions,
        normalizes=bool(config.sections.normalizer),
        normalized_contents=normalized,
    )


def every_cut(r: CutRules, text: str) -> list[Cut]:
    return [cut for position in range(1, len(text)) if (cut := r.at(text, position))]


# -- R1: which tokens are isolated --


def test_a_token_that_nothing_touches_is_isolated() -> None:
    assert isolated("<|im_start|>", "<|im_end|>", "<think>") == {"<|im_start|>", "<|im_end|>", "<think>"}


@pytest.mark.parametrize(
    ("contents", "left_over"),
    [
        (("<|", "|>", "<|EOS|>"), set()),  # nested at both ends
        (("ab", "bc"), set()),  # one may begin inside the other
        (("ab", "abc"), set()),  # one extends the other
        (("bc", "abc"), set()),  # one ends in the other
        (("b", "abc"), set()),  # one contains the other
        (("aa",), set()),  # overlaps itself: where it matches in "aaa" depends on what stands before
        (("aba",), set()),
        (("a",), {"a"}),
        (("<a>", "<a><b>", "<c>"), {"<c>"}),
        (("ab", "cd", "bx"), {"cd"}),
    ],
)
def test_a_token_that_another_can_overlap_contain_or_extend_is_not(
    contents: tuple[str, ...], left_over: set[str]
) -> None:
    assert isolated(*contents) == left_over


@pytest.mark.parametrize("flag", ["normalized", "lstrip", "rstrip", "single_word"])
def test_a_token_with_a_flag_that_looks_around_is_not_isolated(flag: str) -> None:
    assert _isolated(tokens("<x>", **{flag: True}), ["<x>"]) == []


def test_a_normalized_form_counts_as_a_token_when_looking_for_overlaps() -> None:
    assert _isolated(tokens("<x>"), ["<x>", "y<"]) == []


@given(st.lists(st.text("ab<é", min_size=1, max_size=7), max_size=7))
@settings(max_examples=500)
def test_isolated_is_what_the_definition_says(contents: list[str]) -> None:
    """Compared in every alignment with every token, itself included, where they have a character in common."""
    whole = set(contents)

    def touches(a: str, b: str) -> bool:
        shifts = range(1 - len(b), len(a))
        return any(
            all(a[i] == b[i - s] for i in range(max(0, s), min(len(a), s + len(b)))) for s in shifts if a != b or s != 0
        )

    assert isolated(*contents) == {c for c in whole if not any(touches(c, other) for other in whole)}


VERY_LONG = {
    "one character": "x" * 70_000,
    "no character twice": "".join(map(chr, range(0x3400, 0x3400 + 20_000))) + "<|end",
    "a period": "<|" + "ab" * 35_000,
    "what begins like another": "|>" + "y" * 70_000,
}


@pytest.mark.parametrize("content", VERY_LONG.values(), ids=VERY_LONG)
@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
def test_an_added_token_of_any_length_takes_linear_time_and_has_no_r1(name: str, content: str) -> None:
    others = ["<|a|>", "<|b|>", "ab<", "xx", "|>"]
    began = time.monotonic()
    r = rules(name, tokens(*others, content))
    assert time.monotonic() - began < 20, "a second, where quadratic time takes minutes and gigabytes"
    assert content not in r._isolated
    # What it does to the others is what its neighbourhood does: every overlap shows in the first and last characters,
    # and what it contains is looked for by itself.
    nearby = isolated(*others, content[:50], content[-50:])
    assert r._isolated == {c for c in nearby if c in others and c not in content}


def test_a_token_just_short_enough_is_isolated_and_one_too_long_is_not() -> None:
    for length, expected in ((1024, True), (1025, False)):
        content = "<" + "x" * (length - 2) + ">"
        assert isolated(content, "<|y|>") == ({content, "<|y|>"} if expected else {"<|y|>"})


def test_ids_are_exact_with_an_added_token_longer_than_a_checkpoint_can_say() -> None:
    content = "<long>" + "x" * 70_000 + "</long>"
    live = live_from(spec("llama3_1", (token(content, 0), "<|mark|>")))
    tok = DeltaTokenizer(live, config=frozen_from(live), encoder="reference")
    text = "some words here, and more of them. " * 20
    for turn in (
        text + content + text,
        text + content + text + "<|mark|>" + text,
        text + content[:-1] + text + "<|mark|>" + text,
        text * 2 + content + text + "<|mark|>" + text,
        content + content[3:] + text + "<|mark|>",
    ):
        assert tok.encode(turn, session="s", add_special_tokens=False) == ids_of(live, turn)
    tok._store._check()


def test_r1_cuts_at_both_edges_of_an_occurrence_and_says_what_decides() -> None:
    r = rules("llama3_1", tokens("<|x|>"))
    assert r.at_added_token("ab<|x|>cd", 2) == Cut(2, 0, 5)
    assert r.at_added_token("ab<|x|>cd", 7) == Cut(7, 5, 0)
    assert r.at_added_token("ab<|x|>cd", 4) is None
    assert r.at_added_token("ab<|x|", 2) is None, "an unfinished token is text"


def test_between_two_tokens_there_is_a_cut() -> None:
    r = rules("llama3_1", tokens("<|x|>", "<|y|>"))
    assert r.at_added_token("<|x|><|y|>", 5) is not None


def test_no_r1_in_nested_sets() -> None:
    r = rules("llama3_1", tokens("<|", "|>", "<|EOS|>"))
    text = "a<|EOS|>b<|c|>d"
    assert all(r.at_added_token(text, p) is None for p in range(1, len(text)))


# -- R2 --


@pytest.mark.parametrize(
    ("name", "safe", "unsafe"),
    [
        (
            "qwen3",
            ["a1", "a.", "a ", "a\n", "11", "1a", ". ", "\na", "\n."],
            ["aa", " a", ".a", "\n\n", "\n ", "'s", "  "],
        ),
        ("llama3_1", ["a1", "1a", "\na", ". "], ["11", "aa", " a", "\n\n"]),
        ("gpt_oss", ["aA", "a1", "\na"], ["Aa", "AA", "a'", "11", ".\n", "./"]),
        ("gpt2", [".a", "a.", "a ", "1a"], ["'s", "11", "  ", " a"]),
        ("deepseek_v3", ["a中", "中a", "1中", "a1"], ["中文", "11", ".a", "aa"]),
        ("kimi_k3", ["中a", "1a"], ["aa", "11"]),
    ],
)
def test_r2_holds_and_fails_where_the_pattern_says(name: str, safe: list[str], unsafe: list[str]) -> None:
    r = rules(name)
    assert [pair for pair in safe if not r.at_transition(pair)] == []
    assert [pair for pair in unsafe if r.at_transition(pair)] == []


def test_no_r2_where_an_added_token_has_the_two_characters_side_by_side() -> None:
    assert rules("llama3_1", []).at_transition("a1")
    assert not rules("llama3_1", tokens("xa1x")).at_transition("a1")


def test_no_r2_beside_characters_that_the_normalizer_joins_or_moves() -> None:
    r = rules("qwen3")
    assert r.at_transition("a\n")
    assert not r.at_transition("\n\u0301")
    assert not r.at_transition("1\u0958")
    assert not r.at_transition("\u0958/")
    assert not r.at_transition("1\u11ab")


def test_no_r2_beside_a_lone_surrogate() -> None:
    for name in ("qwen3", "llama3_1"):
        assert not rules(name).at_transition("\n\ud800")
        assert not rules(name).at_transition("\udfff\n")


def test_pairs_of_a_normalized_token_are_found_in_raw_text_that_becomes_them() -> None:
    """A token matched after NFC is met in raw text that only composes to it."""
    composed = tokens("\né", normalized=True)
    r = rules("qwen3", composed, ["\né"])
    assert not r.at_transition("\né")
    assert not r.at_transition("\ne"), "raw e and U+0301 become é"


def test_no_composition_moves_a_character_to_a_class_with_fewer_safe_transitions() -> None:
    """What `outcomes` guards against does not occur under the bundled tables; if it ever does, make it a control."""
    config = frozen_config("qwen3")
    r, nfc = rules("qwen3"), NfcStability()
    safe = set(config.transitions.safe)
    weaker = [
        (base, composite)
        for base, composites in nfc._composites.items()
        for composite in composites
        for p in range(len(config.transitions.signatures))
        if nfc.right(base) and (p, r._classes.of(base)) in safe and (p, r._classes.of(composite)) not in safe
    ]
    assert weaker == []


def test_the_memo_of_pairs_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delta_core.cuts._MEMO", 100)
    r = rules("llama3_1")
    for code in range(0x4E00, 0x4E00 + 1000):
        r.at_transition("\n" + chr(code))
        assert len(r._memo) <= 100
    assert r.at_transition("\na")


# -- searching --


def test_cuts_are_ascending_inside_the_range_and_about_a_segment_apart() -> None:
    r = rules("llama3_1")
    text = "some words here\n" * 300
    found = r.cuts(text, 0, len(text), 256, (64, 16))
    positions = [cut.position for cut in found]
    assert positions == sorted(set(positions))
    assert positions[0] > 0
    assert positions[-1] < len(text)
    assert max(b - a for a, b in pairwise(positions)) <= 256 * 3 // 2 + 16, "what is left over joins its neighbour"
    assert len(text) - positions[-1] <= 16 + 16, "the next turn begins at the end: there is a cut near it"


def test_a_text_without_any_cut_is_one_segment_and_costs_one_look_a_position() -> None:
    r = rules("llama3_1")
    looked = 0
    at = r.at

    def counting(text: str, position: int) -> Cut | None:
        nonlocal looked
        looked += 1
        return at(text, position)

    r.at = counting  # type: ignore[method-assign]
    assert r.cuts("a" * 50_000, 0, 50_000, 256, (64, 16)) == []
    assert looked <= 50_000


@given(st.integers(0, 400), st.integers(0, 400), st.integers(1, 300), st.sampled_from([(), (64, 16), (3,)]))
@settings(max_examples=150)
def test_a_search_returns_only_cuts_that_the_rules_confirm(a: int, b: int, size: int, tail: tuple[int, ...]) -> None:
    r = _SEARCHED
    text = TextMaker(a * 401 + b, ("<|im_end|>",)).text(150)
    start, end = sorted((min(a, len(text)), min(b, len(text))))
    for cut in r.cuts(text, start, end, size, tail):
        assert start < cut.position < max(end, start + 1)
        assert cut == r.at(text, cut.position)


_SEARCHED = rules("llama3_1")


# -- the promise: ids(x) == ids(x[:b]) + ids(x[b:]), decided by the characters beside b alone --


def assert_cut_holds(subject: Subject, text: str, cut: Cut) -> None:
    left, right = ids_of(subject.live, text[: cut.position]), ids_of(subject.live, text[cut.position :])
    assert ids_of(subject.live, text) == left + right, (cut, text)


@pytest.mark.parametrize("nasty", [False, True], ids=["own tokens", "nested and overlapping tokens"])
@pytest.mark.parametrize("name", PIPELINES)
def test_every_cut_found_holds_and_depends_on_its_deciding_characters_alone(
    name: str, nasty: bool, synthetic: Callable[..., Subject], run_slow: bool
) -> None:
    subject = synthetic(name, nasty)
    r = CutRules.of(subject.frozen, subject.tok._reference)
    maker = subject.maker(11)
    found = 0
    for _ in range(4000 if run_slow else 300):
        text = maker.text(maker.rng.randrange(2, 24))
        for cut in every_cut(r, text):
            found += 1
            assert_cut_holds(subject, text, cut)
            core = text[cut.position - cut.left : cut.position + cut.right]
            for _ in range(2):
                before, after = maker.text(maker.rng.randrange(4)), maker.text(maker.rng.randrange(4))
                moved = Cut(len(before) + cut.left, cut.left, cut.right)
                if 0 < moved.position < len(before + core + after):
                    assert_cut_holds(subject, before + core + after, moved)
    assert found > 100


@pytest.mark.parametrize("name", PIPELINES)
def test_every_transition_holds_between_random_surroundings(name: str, synthetic: Callable[..., Subject]) -> None:
    """Each pair of sample characters that R2 allows, in texts made of sample characters only."""
    subject = synthetic(name)
    r = CutRules.of(subject.frozen, subject.tok._reference)
    maker = subject.maker(5)
    alphabet = maker.alphabet
    for p in alphabet:
        for q in alphabet:
            if r.at_transition(p + q):
                before = "".join(maker.rng.choices(alphabet, k=maker.rng.randrange(5)))
                after = "".join(maker.rng.choices(alphabet, k=maker.rng.randrange(5)))
                assert_cut_holds(subject, before + p + q + after, Cut(len(before) + 1, 1, 1))


FRAGMENT = st.one_of(
    st.sampled_from(
        [*NASTY_TOKENS, "<|im_end|>", "\n", " ", "a", "'", "s", "1", ".", "\u0301", "é", "\u0958", "中", "A"]
    ),
    st.characters(exclude_categories=("Cs",)),
)


@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
def test_every_cut_holds_in_texts_that_hypothesis_invents(name: str, synthetic: Callable[..., Subject]) -> None:
    subject = synthetic(name, True)
    r = CutRules.of(subject.frozen, subject.tok._reference)

    @given(st.lists(FRAGMENT, min_size=1, max_size=12).map("".join))
    @settings(max_examples=250)
    @example("〈|EOS|〉<|EOS|><|<|EOS|>")
    @example("e\u0301\n\u0301e")
    @example("\u1112\u1161\u11ab1\u11ab")
    def holds(text: str) -> None:
        for cut in every_cut(r, text):
            assert_cut_holds(subject, text, cut)

    holds()


def test_classes_outside_the_table_never_make_a_cut() -> None:
    """A newer library may tell characters apart that the table was not derived over: no cut beside them."""
    r = rules("llama3_1")
    assert r.at_transition("\na")
    r._classes.of = lambda character: UNKNOWN  # type: ignore[method-assign]
    r._memo.clear()
    assert not r.at_transition("\na")


def test_a_normalized_token_is_matched_after_nfc_and_cuts_respect_it() -> None:
    live = live_from(spec("qwen3", [token("\né>", 0, special=False, normalized=True), token("1é", 0, normalized=True)]))
    frozen = frozen_from(live)
    subject = Subject(live, frozen, DeltaTokenizer(live, config=frozen))
    r = CutRules.of(frozen, subject.tok._reference)
    for text in ("a\ne\u0301> b", "x1e\u0301y", "a\n\u00e9>b", "1\u00e9\n", "\ne\u0301>\ne\u0301>"):
        assert ids_of(live, text) != ids_of(live, text.replace(">", "}").replace("1", "2")), "the token is matched"
        for cut in every_cut(r, text):
            assert_cut_holds(subject, text, cut)
