"""Proof that the battery bites: every condition that exactness rests on is switched off once, and must be missed.

A battery that finds nothing proves nothing until it is seen to find something. Each control removes one condition by
monkeypatching, runs the same battery that passes without it, and demands a difference within a bounded number of cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from conftest import Subject
from oracle import Finding, assert_same, battery

from delta_core import DeltaTokenizer, cuts
from delta_core.characters import NfcStability
from delta_core.cuts import Cut, CutRules
from delta_core.splice import Checkpoints
from delta_core.store import SessionStore
from delta_core.tools.verify.dense import dense
from delta_core.tools.verify.generators import TextMaker

Patch = pytest.MonkeyPatch


def r1_without_overlap_check(patch: Patch) -> None:
    """R1 at every added token, also where another one can overlap, contain or extend it."""
    patch.setattr(cuts, "_isolated", lambda tokens, contents: [t.content for t in tokens if not t.normalized])


def r2_without_table(patch: Patch) -> None:
    """R2 at every transition between known classes."""
    patch.setattr(CutRules, "transition", lambda self, before, after: True)


def r2_without_added_token_pairs(patch: Patch) -> None:
    """R2 inside of added tokens, too."""
    patch.setattr(CutRules, "spanned", lambda self, pair: False)


def r2_without_stability(patch: Patch) -> None:
    """R2 beside characters that the normalizer joins or moves."""
    patch.setattr(CutRules, "stable", lambda self, left, right: True)


def r2_without_outcomes(patch: Patch) -> None:
    """R2 by the class of the raw character, whatever it composes to."""
    patch.setattr(NfcStability, "outcomes", lambda self, character: (character,))


def checkpoints_without_right_hand(patch: Patch) -> None:
    """Checkpoints that forget how many characters after them decide."""
    append = Checkpoints.append
    patch.setattr(Checkpoints, "append", lambda self, cut, token: append(self, Cut(cut.position, cut.left, 0), token))


def checkpoints_without_left_hand(patch: Patch) -> None:
    """Checkpoints that forget how many characters before them decide."""
    append = Checkpoints.append
    patch.setattr(Checkpoints, "append", lambda self, cut, token: append(self, Cut(cut.position, 0, cut.right), token))


# Control, pipeline, whether the added tokens nest and overlap, and within how many cases the battery must notice.
CONTROLS = [
    (r1_without_overlap_check, "llama3_1", True, 1000),
    (r2_without_table, "qwen3", False, 50),
    (r2_without_table, "llama3_1", False, 50),
    (r2_without_table, "gpt_oss", False, 50),
    (r2_without_table, "deepseek_v3", False, 50),
    (r2_without_table, "gpt2", False, 50),
    (r2_without_table, "kimi_k3", False, 50),
    (r2_without_added_token_pairs, "llama3_1", True, 300),
    (r2_without_added_token_pairs, "qwen3", False, 600),
    (r2_without_stability, "qwen3", False, 600),
    (checkpoints_without_right_hand, "llama3_1", False, 1000),
    (checkpoints_without_left_hand, "llama3_1", False, 1000),
]


@contextmanager
def switched_off(control: Callable[[Patch], None]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        control(patch)
        yield


def fresh(subject: Subject) -> DeltaTokenizer:
    """A DeltaTokenizer whose rules are made now, under whatever is switched off, with empty memos."""
    return DeltaTokenizer(subject.live, config=subject.frozen, encoder="reference")


def run(subject: Subject, cases: int, seed: int = 3) -> Finding | None:
    with dense():
        return battery(fresh(subject), subject.live, subject.maker(seed), cases)


@pytest.mark.parametrize(("control", "name", "nasty", "bound"), CONTROLS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_the_battery_misses_each_condition(
    control: Callable[[Patch], None], name: str, nasty: bool, bound: int, synthetic: Callable[..., Subject],
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    subject = synthetic(name, nasty)
    with switched_off(control):
        finding = run(subject, bound)
    assert finding is not None, f"{bound} cases without {control.__name__}, and no difference"
    record_property("cases", finding.cases)
    print(f"{control.__name__} on {name}: difference after {finding.cases} cases")


@pytest.mark.parametrize(("name", "nasty"), sorted({(name, nasty) for _, name, nasty, _ in CONTROLS}))
def test_with_nothing_switched_off_the_same_battery_finds_nothing(
    name: str, nasty: bool, synthetic: Callable[..., Subject]
) -> None:
    finding = run(synthetic(name, nasty), 1000)
    assert finding is None, finding.what


def test_without_outcomes_a_composition_that_changes_class_is_missed(synthetic: Callable[..., Subject]) -> None:
    """`outcomes` guards against compositions that change the class of a cut's right character.

    In today's Unicode no composition moves a character to a class for which a bundled table differs, so no text can
    show it; what can be shown is that the rule would be asked: with a table that tells `e` from `é`, the transition to
    `e` alone is not enough.
    """
    subject = synthetic("qwen3")
    rules = cuts.CutRules(subject.frozen.sections.added_tokens, subject.frozen.transitions, normalizes=True)
    assert rules.at_transition("\ne")
    of = rules._classes.of
    rules._classes.of = lambda character: 254 if character == "é" else of(character)  # type: ignore[method-assign]
    rules._memo.clear()
    assert not rules.at_transition("\ne"), "é may be what the reference sees"
    with switched_off(r2_without_outcomes):
        rules._memo.clear()
        assert rules.at_transition("\ne")


def namespaces_share_nothing(subject: Subject) -> None:
    """Whether a namespace is told what another one sent: what was reused tells it."""
    tok = fresh(subject)
    text = subject.maker(1).text(300)
    for namespace in (None, "a", "b", ""):
        before = tok.stats()
        assert_same(tok, subject.live, text, session="same key", namespace=namespace)
        assert_same(tok, subject.live, text + " more", namespace=namespace)
        assert tok.stats().by_path["cold"] == before.by_path.get("cold", 0) + 1, f"{namespace!r} saw another's text"


def test_without_namespace_separation_one_tenant_learns_of_another(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("llama3_1")
    namespaces_share_nothing(subject)
    named = SessionStore.name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionStore, "name", lambda self, namespace, *rest: named(self, None, *rest))
        with pytest.raises(AssertionError, match="saw another's text"):
            namespaces_share_nothing(subject)


def test_controls_bite_at_the_distances_as_shipped(synthetic: Callable[..., Subject]) -> None:
    """With checkpoints 256 characters apart a wrong table is still met, only later."""
    subject = synthetic("qwen3")
    maker: TextMaker = subject.maker(3)
    with switched_off(r2_without_table):
        finding = battery(fresh(subject), subject.live, maker, 300, pieces=300)
    assert finding is not None
    print(f"as shipped, r2_without_table: difference after {finding.cases} cases")
