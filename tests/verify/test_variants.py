"""Tokenizers with tokens added: what serves is the tokenizer that is live, or was refused, and the report says so."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from tokenizers import Tokenizer

from delta_core.encoders import Encoder, ReferenceEncoder
from delta_core.errors import Reason
from delta_core.reference import Reference
from delta_core.tokenizer import DeltaTokenizer
from delta_core.tools.verify import campaign, variants
from delta_core.tools.verify.campaign import Campaign, Plan, Task, run_task
from delta_core.tools.verify.controls import _served_by
from delta_core.tools.verify.pages import write_report
from delta_core.tools.verify.report import State, UnitRecord, summarise
from delta_core.tools.verify.subjects import SYNTHETIC, left_out, open_subject
from delta_core.tools.verify.tally import SERVED, Subject, Tally
from delta_core.tools.verify.variants import VARIANTS, Workshop

KINDS = list(VARIANTS)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return open_subject(f"{SYNTHETIC}llama3_1", "reference")


@pytest.fixture(autouse=True)
def _a_small_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens' own texts are what is looked for here."""
    monkeypatch.setattr(variants, "_SHARE", 60)


def run(subject: Subject, kind: str, seed: str = "seed") -> Tally:
    tally = Tally()
    variants.variants(subject, KINDS.index(kind), seed, tally)
    return tally


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_changed_in_any_way_is_served_right_or_refused_with_a_counted_reason(
    kind: str, subject: Subject
) -> None:
    tally = run(subject, kind)
    assert tally.variant == kind
    assert tally.cases, tally.outcome
    assert not tally.failed, tally.outcome
    assert tally.outcome == SERVED or tally.outcome in list(Reason)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_changes_the_added_tokens_and_never_the_tokenizer_that_is_asked(kind: str, subject: Subject) -> None:
    before = subject.live.to_str()
    live = VARIANTS[kind](Workshop(subject.name, subject.live, random.Random(1)))
    assert variants._added_since(subject.live, live)
    assert subject.live.to_str() == before


def naive(encoder: Encoder, reference: Reference) -> Encoder:
    """What the library makes of the live object when it is written out and read again."""
    result = ReferenceEncoder(reference)
    result._copy = Tokenizer.from_str(reference.backend.to_str())
    return result


@pytest.mark.parametrize("kind", ["holes"])
def test_a_copy_that_gives_added_tokens_other_ids_is_found(kind: str, subject: Subject) -> None:
    with _served_by(naive)():
        tally = run(subject, kind)
    assert tally.failed
    assert tally.subject is not None
    assert tally.subject.name == f"{subject.name}+{kind}"


def swapped(state: str) -> str:
    parsed = json.loads(state)
    vocabulary = parsed["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    return json.dumps(parsed)


def test_a_copy_with_two_ids_swapped_is_refused_when_it_is_made(subject: Subject) -> None:
    state = Reference.serialized
    with mock.patch.object(Reference, "serialized", lambda self, **how: swapped(state(self, **how))):
        live, frozen = subject.live, subject.frozen
        tok = DeltaTokenizer(live, encoder="reference", config=frozen)
        assert tok.admission.reason is not None
        assert tok.admission.reason.value == "copy_differs"
        assert tok.encode("cab", add_special_tokens=False) == live.encode("cab", add_special_tokens=False).ids
        assert tok.stats().fallbacks == {tok.admission.reason: 1}


def test_a_copy_with_two_ids_swapped_is_found_where_nothing_refuses_it(subject: Subject) -> None:
    copy = Reference.copy
    with mock.patch.object(Reference, "copy", lambda self: Tokenizer.from_str(swapped(copy(self).to_str()))):
        assert run(subject, "special").failed


def test_a_refusal_that_is_not_counted_is_a_finding(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run(subject, "stripping").failed
    monkeypatch.setattr(DeltaTokenizer, "fallback", lambda *_, **__: False)
    tally = run(subject, "stripping")
    assert tally.outcome == "unsupported_added_token"
    assert tally.failed == [[]]


def test_a_constructor_that_raises_is_a_finding(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*_: object, **__: object) -> None:
        raise OverflowError

    monkeypatch.setattr(DeltaTokenizer, "__init__", init)
    tally = run(subject, "special")
    assert tally.outcome == "raised OverflowError"
    assert tally.failed == [[]]


def test_a_fault_that_the_stock_path_hides_is_a_finding(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr("delta_core.tokenizer.reusable", plan)
    tally = run(subject, "special")
    assert tally.outcome == SERVED
    assert tally.failed == [[]]


# -- in the campaign and its report --


def test_a_difference_names_the_changed_tokenizer_and_its_unit_what_became_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"{SYNTHETIC}llama3_1"
    campaign._subject.cache_clear()
    unit = KINDS.index("holes")
    with _served_by(naive)():
        (record,), found = run_task(Task(name, "reference", "variants", unit, 1, "seed", ()))
    assert (record.variant, record.outcome) == ("holes", SERVED)
    assert record.differences
    assert found
    assert {d.tokenizer for d in found} == {f"{name}+holes"}
    assert all(d.expected != d.got and len("".join(c.text for c in d.calls)) < 40 for d in found), "shrunk there"
    campaign._subject.cache_clear()


def test_the_report_counts_what_was_served_and_names_what_never_was(tmp_path: Path) -> None:
    state = State.open(tmp_path, "s")

    def unit(n: int, encoder: str, kind: str, outcome: str) -> UnitRecord:
        return UnitRecord("t", encoder, "variants", n, 9, 0, 0, 0.5, kind, outcome)

    state.add([unit(0, "reference", "special", SERVED), unit(1, "reference", "stripping", "copy_differs")], [])
    state.add([unit(0, "gigatoken", "special", "reference instead: x"), unit(2, "gigatoken", "special", SERVED)], [])
    summary = summarise([State.load(tmp_path)])
    assert summary.never_served == ["stripping"]
    counts = {(v.kind, v.encoder.split(" ")[0]): (v.served, v.refused) for v in summary.variants}
    assert counts == {
        ("special", "reference"): (1, {}),
        ("special", "gigatoken"): (1, {"reference instead: x": 1}),
        ("stripping", "reference"): (0, {"copy_differs": 1}),
    }
    _, text, page = write_report([state], tmp_path)
    for path in (text, page):
        written = path.read_text(encoding="utf-8")
        assert "Never served: stripping." in written
        assert "1x copy_differs" in written


def pairs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, minutes: float | None) -> list[tuple[str, str, float]]:
    monkeypatch.setattr(campaign, "_SYNTHETIC", ("gpt2",))
    not_certified = {("b", "fastokens"), ("synthetic/gpt2", "gigatoken")}
    monkeypatch.setattr(campaign, "left_out", lambda t, e: "not certified" if (t, e) in not_certified else None)
    encoders = ("reference", "fastokens", "gigatoken")
    plan = Plan(("a", "b"), encoders, ("unicode",), minutes, None, 1, "s", (), False)
    return Campaign(plan, tmp_path)._pairs()


def test_what_auto_serves_with_comes_first_and_has_half_of_a_short_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = pairs(monkeypatch, tmp_path, 1.0)
    assert [pair[:2] for pair in found[:2]] == [("a", "fastokens"), ("b", "reference")]
    assert sum(w for *_, w in found[:2]) == sum(w for *_, w in found[2:]) == 5


def test_without_a_time_each_tokenizers_encoders_follow_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = [pair[:2] for pair in pairs(monkeypatch, tmp_path, None)]
    assert found == [
        ("a", "fastokens"), ("a", "reference"), ("a", "gigatoken"), ("b", "reference"), ("b", "gigatoken"),
        ("synthetic/gpt2", "fastokens"), ("synthetic/gpt2", "reference"),
    ]  # fmt: skip


def test_auto_takes_what_the_campaign_takes_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is written down twice; here it is one."""
    subject = open_subject(f"{SYNTHETIC}qwen3", "reference")
    tok = DeltaTokenizer(subject.live, config=subject.frozen)
    first = next(e for e in campaign._AS_AUTO if left_out(f"{SYNTHETIC}qwen3", e) is None)
    assert tok.admission.encoder == first


def test_a_changed_tokenizer_is_a_task_of_its_own(tmp_path: Path) -> None:
    plan = Plan(("a",), ("reference",), ("unicode", "variants"), None, None, 1, "s", (), False)
    never: Callable[[], bool] = lambda: False  # noqa: E731
    tasks = campaign.tasks_for("a", "reference", plan, {"unicode": None, "variants": 6}, lambda *_: False, never)
    found = [(task.battery, task.first, task.count) for task in tasks]
    assert found[:6] == [("unicode", 0, 4), *(("variants", n, 1) for n in range(4)), ("unicode", 4, 4)]
    assert sum(count for battery, _, count in found if battery == "variants") == 6
