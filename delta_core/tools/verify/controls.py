"""Controls: every condition that exactness rests on, switched off once. A battery that then finds nothing is broken.

The one list of them: `delta verify` runs it before its batteries, and the tests run it with their own battery, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any
from unittest import mock

from ... import cuts
from ...admission.frozen import Certification
from ...characters import NfcStability
from ...cuts import Cut, CutRules
from ...encoders import Encoder, Guarded, encode_each
from ...reference import Reference
from ...splice import Checkpoints
from ...store import SessionStore
from ...tokenizer import DeltaTokenizer
from .batteries import BATTERIES, Battery, shrunk
from .cases import Call
from .dense import dense
from .planted import PlantedEncoder
from .subjects import SYNTHETIC, open_subject
from .tally import Subject, Tally, reference_ids

_MOST_UNITS = 60  # within so many units of dense sessions (about 60 encodes each) a control must bite
_SHRINK_BUDGET = 600  # replays spent on the shown example of one


@dataclass(frozen=True, slots=True)
class Control:
    """One condition.

    name: what is missing, in words. why: what the condition is for. off: patches it away. config: whose small tokenizer
    shows it. batteries: which must find it, of BATTERIES or of OWN.
    """

    name: str
    why: str
    off: Callable[[], AbstractContextManager[object]]
    config: str
    batteries: tuple[str, ...] = ("dense_sessions", "cuts")


def _append_without(side: str) -> Callable[[Checkpoints, Cut, int], None]:
    append = Checkpoints.append

    def forgetful(self: Checkpoints, cut: Cut, token: int) -> None:
        left, right = (0, cut.right) if side == "left" else (cut.left, 0)
        append(self, Cut(cut.position, left, right), token)

    return forgetful


def _served_by(plant: Callable[[Encoder, Reference], Encoder]) -> Callable[[], AbstractContextManager[object]]:
    """Every DeltaTokenizer gets a planted encoder once it is admitted, behind all that would refuse it."""
    made = DeltaTokenizer.__init__

    def init(self: DeltaTokenizer, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        if self.admission.admitted:
            assert self._reference is not None
            self._encoder = plant(self._encoder, self._reference)

    return lambda: mock.patch.object(DeltaTokenizer, "__init__", init)


class _Swapped(PlantedEncoder):
    """An encoder whose tokenizer has two added tokens' IDs the other way round."""

    def __init__(self, encoder: Encoder, reference: Reference) -> None:
        self.name = encoder.name
        self._encoder = encoder
        one, other = sorted(reference.backend.get_added_tokens_decoder())[-2:]
        self._of = {one: other, other: one}

    def each(self, segments: Sequence[str]) -> list[list[int]]:
        """See PlantedEncoder."""
        return [[self._of.get(i, i) for i in ids] for ids in encode_each(self._encoder, segments)]


# A digit that came with Unicode 15: no table of this is older than the reference's, and some are older.
_DIGIT = 0x1E4F0
_GROUPS = re.compile(chr(_DIGIT) + r"[0-9]{2}(?=[0-9])")


class _Digits(PlantedEncoder):
    """An encoder of other Unicode tables: it counts digits from another one on, which shows behind a group of them."""

    def __init__(self, encoder: Encoder) -> None:
        self.name = encoder.name
        self._encoder = encoder

    def each(self, segments: Sequence[str]) -> list[list[int]]:
        """See PlantedEncoder."""
        return [self._one(segment) for segment in segments]

    def _one(self, segment: str) -> list[int]:
        edges = [0, *(match.end() - 1 for match in _GROUPS.finditer(segment)), len(segment)]
        parts = [segment[a:b] for a, b in pairwise(edges)]
        return list(chain.from_iterable(encode_each(self._encoder, parts)))


def _behind(*guards: tuple[int, int]) -> Callable[[], AbstractContextManager[object]]:
    record = Certification("reference", Reference.version, Reference.version, guards, 1)
    return _served_by(lambda encoder, reference: Guarded(_Digits(encoder), record, reference))


# -- what no difference of IDs shows --


def _two_namespaces(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """The same text under the same key in one namespace after the other: none may be told that another sent it."""
    tok = subject.tok
    tok.clear()
    text = subject.maker(seed).text(8)
    calls = [Call(text, "key", namespace) for namespace in (None, "a", "b", "")]
    with dense():
        for n, call in enumerate(calls):
            before = tok.stats().reused_tokens
            got = call.of(tok)
            tally.cases += 1
            if tok.stats().reused_tokens != before or got != reference_ids(subject, [text])[0]:
                tally.fail(calls[: n + 1])
                return
            replace(call, text=text + " more", session=None).of(tok)  # by content alone, too


def _changed_class(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """A cut before a character that composes to one of another class.

    In today's Unicode no composition moves a character to a class for which a bundled table differs, so no text can
    show it. What can be shown is that the rule is asked: with a table that tells `e` from `é`, the transition to `e`
    alone is not enough.
    """
    rules = CutRules(subject.frozen.sections.added_tokens, subject.frozen.transitions, normalizes=True)
    of = rules._classes.of
    with mock.patch.object(rules._classes, "of", lambda character: 254 if character == "é" else of(character)):
        tally.cases += 1
        if rules.at_transition("\ne"):
            tally.fail([Call("\ne\u0301")])


OWN = {
    "two namespaces": Battery(_two_namespaces, lambda subject: 1, "shipped"),
    "a class that changes": Battery(_changed_class, lambda subject: 1, "cuts"),
}
"""Batteries for conditions that no difference of IDs shows: they ask for what would lead to one, or to a leak."""


def _always(*_: object) -> bool:
    return True


def _never(*_: object) -> bool:
    return False


def _without_table() -> AbstractContextManager[object]:
    return mock.patch.object(CutRules, "transition", _always)


def _without_spanned() -> AbstractContextManager[object]:
    return mock.patch.object(CutRules, "spanned", _never)


def _without_namespaces() -> AbstractContextManager[object]:
    named = SessionStore.name
    return mock.patch.object(SessionStore, "name", lambda self, namespace, *rest: named(self, None, *rest))


_TABLE = "a transition is safe by the derived table, not everywhere"
_SPANNED = "no added token may span the pair of a transition"
_RIGHT = "a checkpoint is used only where the characters after it that decide are the same"
_LEFT = "a checkpoint is used only where the characters before it that decide are the same"
_GUARDED = "a guard stands on the very character that the encoder takes for another"

CONTROLS = (
    Control(
        "R1 without the overlap check",
        "every text is cut at an added token only when no other can overlap, contain or extend it",
        lambda: mock.patch.object(cuts, "_isolated", lambda tokens, _: [t.content for t in tokens if not t.normalized]),
        "llama3_1",
    ),
    *(
        Control("R2 without the table", _TABLE, _without_table, name)
        for name in ("qwen3", "llama3_1", "gpt_oss", "deepseek_v3", "gpt2", "kimi_k3")
    ),
    Control("R2 without the table, cut as shipped", _TABLE, _without_table, "qwen3", ("sessions",)),
    *(Control("R2 without the added-token pairs", _SPANNED, _without_spanned, name) for name in ("llama3_1", "qwen3")),
    Control(
        "R2 without stability",
        "the normalizer must split between the pair of a transition",
        lambda: mock.patch.object(CutRules, "stable", _always),
        "qwen3",
    ),
    Control(
        "R2 without what a character composes to",
        "whatever the right character composes to must make a safe transition, too",
        lambda: mock.patch.object(NfcStability, "outcomes", lambda self, character: (character,)),
        "qwen3",
        ("a class that changes",),
    ),
    *(
        Control(
            f"checkpoints without their {side}-hand characters",
            why,
            lambda side=side: mock.patch.object(Checkpoints, "append", _append_without(side)),  # type: ignore[misc]
            "llama3_1",
        )
        for side, why in (("right", _RIGHT), ("left", _LEFT))
    ),
    Control(
        "a copy with two IDs swapped",
        "a copy that encodes has been compared with the live tokenizer",
        _served_by(_Swapped),
        "llama3_1",
        ("variants",),
    ),
    Control(
        "an encoder without one of its guards", _GUARDED, _behind((_DIGIT + 1, _DIGIT + 9)), "llama3_1", ("unicode",)
    ),
    Control("a guard beside the character", _GUARDED, _behind((_DIGIT - 1, _DIGIT - 1)), "deepseek_v3", ("unicode",)),
    Control(
        "store without namespaces",
        "nothing is shared across namespaces",
        _without_namespaces,
        "llama3_1",
        ("two namespaces",),
    ),
)


@dataclass(frozen=True, slots=True)
class ControlResult:
    """cases: comparisons until the first difference, or all of them when none was found. example: it, shrunk.

    reference: its version, filled in by the report.
    """

    name: str
    config: str
    cases: int
    found: bool
    example: tuple[str, ...] = ()
    reference: str = ""


def run_control(index: int, seed: str) -> ControlResult:
    """The batteries of CONTROLS[index], with that condition switched off, until a difference, within a bound.

    A battery of OWN must find nothing before; those of BATTERIES show that in the campaign.
    """
    control = CONTROLS[index]
    batteries = {name: OWN.get(name) or BATTERIES[name] for name in control.batteries}
    own = {name: kind for name, kind in batteries.items() if name in OWN}
    on, tally = Tally(), Tally()
    if _first_difference(control.config, own, seed, on):
        return ControlResult(control.name, control.config, on.cases, False)
    with control.off():
        calls = _first_difference(control.config, batteries, seed, tally)
    return ControlResult(control.name, control.config, tally.cases, bool(calls), tuple(c.source() for c in calls))


def _first_difference(config: str, batteries: Mapping[str, Battery], seed: str, tally: Tally) -> Sequence[Call]:
    """The shortest of the first unit that has one, shrunk; none within the bound."""
    if not batteries:
        return ()
    subject = open_subject(SYNTHETIC + config, "reference")
    for unit in range(_MOST_UNITS):
        for name, kind in batteries.items():
            if kind.units(subject) in range(unit + 1):
                continue  # it is complete
            kind.run(subject, unit, f"{seed}/{name}/{unit}", tally)
            if failed := [calls for calls in tally.failed or () if calls]:
                return shrunk(tally.subject or subject, kind.replay, min(failed, key=_size), budget=_SHRINK_BUDGET)
    return ()


def _size(calls: Sequence[Call]) -> int:
    return sum(len(call.text) for call in calls)
