"""Proof that the batteries bite: every condition that exactness rests on is switched off once, and must be missed.

A battery that finds nothing proves nothing until it is seen to find something. The conditions are the one list in
`tools/verify/controls.py`; both the campaign's batteries and the tests' own must find a difference for each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Subject
from oracle import Finding, battery

from delta_core import DeltaTokenizer
from delta_core.tools.verify import controls
from delta_core.tools.verify.controls import CONTROLS, OWN, Control
from delta_core.tools.verify.dense import dense

# Those that a random session shows, which is what the tests' own battery is made of.
SHOWN_BY_SESSIONS = [c for c in CONTROLS if "dense_sessions" in c.batteries]

# Within so many cases that battery must find one; the others take up to 1000.
SOON = {"R2 without the table": 50, "R2 without the added-token pairs": 600, "R2 without stability": 600}


def named(control: Control) -> str:
    return f"{control.name} ({control.config})"


def run(subject: Subject, cases: int) -> Finding | None:
    """The tests' battery on a DeltaTokenizer made now: its rules are made under whatever is switched off."""
    tok = DeltaTokenizer(subject.live, config=subject.frozen, encoder="reference")
    with dense():
        return battery(tok, subject.live, subject.maker(3), cases)


def test_every_control_has_a_name_of_its_own_and_says_what_the_condition_is_for() -> None:
    assert len({named(control) for control in CONTROLS}) == len(CONTROLS)
    for control in CONTROLS:
        assert control.why, control.name
        assert control.batteries, control.name


@pytest.mark.parametrize("index", range(len(CONTROLS)), ids=lambda i: named(CONTROLS[i]))
def test_the_batteries_of_the_campaign_find_each_condition_missing(index: int) -> None:
    result = controls.run_control(index, "seed")
    assert result.found, f"{result.cases} comparisons, and nothing found, without: {CONTROLS[index].why}"
    assert result.example
    assert all(line.startswith("tok.encode(") for line in result.example)
    assert len("".join(result.example)) < 1000, "shrunk"


@pytest.mark.parametrize("control", SHOWN_BY_SESSIONS, ids=named)
def test_the_battery_of_the_tests_finds_each_condition_missing(
    control: Control, synthetic: Callable[..., Subject]
) -> None:
    cases = SOON.get(control.name, 1000)
    # On the tokens that a model has, and on those that nest in, overlap and prefix each other.
    found = []
    for nasty in (False, True):
        subject = synthetic(control.config, nasty)
        with control.off():
            found.append(run(subject, cases))
    assert any(found), f"{cases} cases, and no difference, without: {control.why}"
    if not control.name.startswith("R1"):  # the tokens of a model do not overlap
        assert all(found), (control.name, found)


@pytest.mark.parametrize("name", sorted({control.config for control in SHOWN_BY_SESSIONS}))
def test_with_nothing_switched_off_the_same_battery_finds_nothing(name: str, synthetic: Callable[..., Subject]) -> None:
    for nasty in (False, True):
        finding = run(synthetic(name, nasty), 500)
        assert finding is None, finding.what


def test_a_control_that_finds_something_with_nothing_switched_off_has_found_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its battery, not the missing condition, is what it found."""
    index = next(i for i, control in enumerate(CONTROLS) if control.batteries == ("two namespaces",))
    assert controls.run_control(index, "seed").found
    with CONTROLS[index].off():
        assert not controls.run_control(index, "seed").found
    assert set(OWN) == {name for control in CONTROLS for name in control.batteries} & set(OWN), "each is used"
