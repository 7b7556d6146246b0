"""Controls: every condition that exactness rests on, switched off once. A battery that then finds nothing is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from unittest import mock

from .. import cuts
from ..cuts import Cut, CutRules
from ..splice import Checkpoints
from ..store import SessionStore
from ..tokenizer import DeltaTokenizer
from .batteries import BATTERIES, Tally, reference_ids, shrunk
from .cases import Call
from .subjects import SYNTHETIC, open_subject

_MOST_UNITS = 60  # within so many units of dense sessions (about 60 encodes each) a control must bite
_SHRINK_BUDGET = 600  # replays spent on the shown example of one


@dataclass(frozen=True, slots=True)
class Control:
    """One condition. off: patches it away. config: whose small tokenizer shows it."""

    name: str
    off: Callable[[], AbstractContextManager[object]]
    config: str


def _append_without(side: str) -> Callable[[Checkpoints, Cut, int], None]:
    append = Checkpoints.append

    def forgetful(self: Checkpoints, cut: Cut, token: int) -> None:
        left, right = (0, cut.right) if side == "left" else (cut.left, 0)
        append(self, Cut(cut.position, left, right), token)

    return forgetful


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
    """Dense sessions and dense cuts under CONTROLS[index] until a difference, within a bound."""
    control = CONTROLS[index]
    tally = Tally()
    with control.off():
        subject = open_subject(SYNTHETIC + control.config, "reference")
        for unit in range(_MOST_UNITS):
            for battery in ("dense_sessions", "seams"):
                kind = BATTERIES[battery]
                kind.run(subject, unit, f"{seed}/{battery}/{unit}", tally)
                if tally.failed:
                    calls = shrunk(subject, kind.replay, min(tally.failed, key=_size), budget=_SHRINK_BUDGET)
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
        tok.encode(text, session="k", namespace="a")
        before = tok.stats().reused_tokens
        got = tok.encode(text, session="k", namespace="b")
        assert got == reference_ids(subject, [text])[0]
        return tok.stats().reused_tokens != before

    named = SessionStore.name
    with mock.patch.object(SessionStore, "name", lambda self, namespace, *rest: named(self, None, *rest)):
        without = leaks()
    example = ("a text of namespace 'a' was reused for namespace 'b'",)
    return ControlResult("store without namespaces", "llama3_1", 2, without and not leaks(), example)
