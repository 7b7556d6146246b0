"""Controls: every condition that exactness rests on, switched off once. A battery that then finds nothing is broken."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any
from unittest import mock

from ... import cuts
from ...admission.frozen import Certification
from ...cuts import Cut, CutRules
from ...encoders import Encoder, Guarded, encode_each
from ...reference import Reference
from ...splice import Checkpoints
from ...store import SessionStore
from ...tokenizer import DeltaTokenizer
from .batteries import BATTERIES, shrunk
from .cases import Call
from .planted import PlantedEncoder
from .subjects import SYNTHETIC, open_subject
from .tally import Tally, reference_ids

_MOST_UNITS = 60  # within so many units of dense sessions (about 60 encodes each) a control must bite
_SHRINK_BUDGET = 600  # replays spent on the shown example of one


@dataclass(frozen=True, slots=True)
class Control:
    """One condition. off: patches it away. config: whose small tokenizer shows it. batteries: which must find it."""

    name: str
    off: Callable[[], AbstractContextManager[object]]
    config: str
    batteries: tuple[str, ...] = ("dense_sessions", "seams")


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


CONTROLS = (
    Control(
        "R1 without the overlap check",
        lambda: mock.patch.object(cuts, "_isolated", lambda tokens, _: [t.content for t in tokens if not t.normalized]),
        "llama3_1",
    ),
    Control("R2 without the table", lambda: mock.patch.object(CutRules, "transition", lambda *_: True), "qwen3"),
    Control("R2 without the table", lambda: mock.patch.object(CutRules, "transition", lambda *_: True), "gpt_oss"),
    Control("R2 without the table", lambda: mock.patch.object(CutRules, "transition", lambda *_: True), "deepseek_v3"),
    Control(
        "R2 without the added-token pairs", lambda: mock.patch.object(CutRules, "spanned", lambda *_: False), "llama3_1"
    ),
    Control("R2 without stability", lambda: mock.patch.object(CutRules, "stable", lambda *_: True), "qwen3"),
    Control(
        "checkpoints without their right-hand characters",
        lambda: mock.patch.object(Checkpoints, "append", _append_without("right")),
        "llama3_1",
    ),
    Control(
        "checkpoints without their left-hand characters",
        lambda: mock.patch.object(Checkpoints, "append", _append_without("left")),
        "llama3_1",
    ),
    Control("a copy with two IDs swapped", _served_by(_Swapped), "llama3_1", ("variants",)),
    Control("an encoder without one of its guards", _behind((_DIGIT + 1, _DIGIT + 9)), "llama3_1", ("unicode",)),
    Control("a guard beside the character", _behind((_DIGIT - 1, _DIGIT - 1)), "deepseek_v3", ("unicode",)),
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
    """The batteries of CONTROLS[index], with that condition switched off, until a difference, within a bound."""
    control = CONTROLS[index]
    tally = Tally()
    with control.off():
        subject = open_subject(SYNTHETIC + control.config, "reference")
        for unit in range(_MOST_UNITS):
            for battery in control.batteries:
                kind = BATTERIES[battery]
                kind.run(subject, unit, f"{seed}/{battery}/{unit}", tally)
                failed = [calls for calls in tally.failed or () if calls]
                if failed:
                    asked = tally.subject or subject
                    calls = shrunk(asked, kind.replay, min(failed, key=_size), budget=_SHRINK_BUDGET)
                    example = tuple(call.source() for call in calls)
                    return ControlResult(control.name, control.config, tally.cases, True, example)
    return ControlResult(control.name, control.config, tally.cases, False)


def _size(calls: Sequence[Call]) -> int:
    return sum(len(call.text) for call in calls)


def run_namespace_control(seed: str) -> ControlResult:
    """Without namespace separation a tenant's first text must be seen to reuse another tenant's; with it, never."""

    def leaks() -> bool:
        subject = open_subject(SYNTHETIC + "llama3_1", "reference")
        tok: DeltaTokenizer = subject.tok
        text = subject.maker(seed).text(300)
        tok.encode(text, session="k", namespace="a", add_special_tokens=False)
        before = tok.stats().reused_tokens
        got = tok.encode(text, session="k", namespace="b", add_special_tokens=False)
        assert got == reference_ids(subject, [text])[0]
        return tok.stats().reused_tokens != before

    named = SessionStore.name
    with mock.patch.object(SessionStore, "name", lambda self, namespace, *rest: named(self, None, *rest)):
        without = leaks()
    example = ("a text of namespace 'a' was reused for namespace 'b'",)
    return ControlResult("store without namespaces", "llama3_1", 2, without and not leaks(), example)
