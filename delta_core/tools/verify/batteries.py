"""The batteries: what is compared with the reference, in numbered units that depend on a seed alone.

A safe cut is checked by encoding a text in pieces: n of them that have the IDs of the whole check n - 1 cuts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise

from tokenizers import normalizers

from ...encoders import encode_each
from ...scale import scale
from . import outside, variants
from .cases import Call, shrink
from .dense import dense
from .generators import TextMaker
from .tally import Subject, Tally, reference_ids

_PER_UNIT = 48  # texts of a random unit
_BLOCK = 256  # code points of one unit


def _in_pieces(subject: Subject, text: str, cuts: Iterable[int]) -> list[int]:
    edges = [0, *cuts, len(text)]
    return list(chain.from_iterable(subject.encode_segments([text[a:b] for a, b in pairwise(edges)])))


def check_cuts(subject: Subject, texts: Iterable[str], tally: Tally, sizes: Sequence[int] = (1,)) -> None:
    """Each text cut at every allowed position (size 1) or every `size` characters, against the whole."""
    texts = [text for text in texts if text]
    for text, answer in zip(texts, subject.answers_to(texts), strict=True):
        want = answer.ids.tolist()
        for size in sizes:
            if size == 1:
                cuts = answer.cuts.tolist()
            else:
                tail = scale().tail if size > 64 else ()
                cuts = [cut.position for cut in subject.rules.cuts(text, 0, len(text), size, tail)]
            tally.cases += 1
            tally.cuts += len(cuts)
            if _in_pieces(subject, text, cuts) != want:
                tally.fail([Call(text)])
                break


# -- whole: each encoder on whole texts --


def whole(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """Random texts, given to the encoder as they are."""
    maker = subject.maker(seed)
    texts = [maker.text(maker.rng.choice((3, 20, 120, 400))) for _ in range(_PER_UNIT)]
    for text, got, want in zip(texts, encode_each(subject.encoder, texts), reference_ids(subject, texts), strict=True):
        tally.cases += 1
        if got != want:
            tally.fail([Call(text)])


# -- segments: of every length --


def segments(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """Random texts, cut into segments of all lengths that serve, and shorter and longer ones."""
    maker = subject.maker(seed)
    texts = [maker.text(maker.rng.choice((60, 300, 900))) for _ in range(_PER_UNIT // 4)]
    check_cuts(subject, texts, tally, (1, 16, 64, 256, 1024, 4096))


# -- cuts: as many as possible --


def cuts(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """Random texts, cut wherever the rules allow it."""
    # Making a piece costs more than checking it: a few hundred are drawn from again and again, in ever new order.
    maker = subject.maker(seed)
    pool = [maker.piece() for _ in range(800)]
    check_cuts(subject, ["".join(maker.rng.choices(pool, k=1500)) for _ in range(_PER_UNIT)], tally)


# -- sessions: whatever may happen between two calls --


def _session(maker: TextMaker) -> list[Call]:
    rng = maker.rng
    keys = rng.choice(((None,), ("a",), ("a", "b", None)))
    texts = maker.session(rng.randrange(2, 10), rng.choice((5, 40, 150)))
    if rng.random() < 0.3:  # a fork: the conversation goes on from an earlier turn
        texts += [maker.edited(rng.choice(texts)) for _ in range(3)]
    space = rng.choice((None, None, "n"))
    arrays = rng.choice((0.0, 0.4, 1.0))  # lists and arrays are kept apart; either kind must go on from its own
    return [Call(text, rng.choice(keys), space, rng.random() < 0.3, rng.random() < arrays) for text in texts]


def run_calls(subject: Subject, calls: Sequence[Call], *, scale_dense: bool) -> tuple[list[int], list[int]]:
    """The last call's IDs and the reference's, after all calls on an empty store."""
    subject.tok.clear()
    got: list[int] = []
    with dense() if scale_dense else nullcontext():
        for call in calls:
            got = call.of(subject.tok)
    last = calls[-1]
    return got, reference_ids(subject, [last.text], last.add_special_tokens)[0]


def _sessions(subject: Subject, seed: str, tally: Tally, *, scale_dense: bool) -> None:
    maker = subject.maker(seed)
    with dense() if scale_dense else nullcontext():
        for _ in range(_PER_UNIT // 4):
            calls = _session(maker)
            subject.tok.clear()
            for n, call in enumerate(calls):
                want = reference_ids(subject, [call.text], call.add_special_tokens)[0]
                got = call.of(subject.tok)
                tally.cases += 1
                if got != want:
                    tally.fail(calls[: n + 1])
                    break
            subject.tok._store._check()


def sessions(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """Conversations at the scale that serves."""
    _sessions(subject, seed, tally, scale_dense=False)


def dense_sessions(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """Conversations with a checkpoint at every allowed position."""
    _sessions(subject, seed, tally, scale_dense=True)


def threads(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """Several threads on the same keys, with a budget that keeps evicting."""
    maker = subject.maker(seed)
    calls = [call for _ in range(4) for call in _session(maker)]
    wanted = [reference_ids(subject, [c.text], c.add_special_tokens)[0] for c in calls]
    subject.tok.clear()
    budget, subject.tok._store.budget = subject.tok._store.budget, 60_000

    def work(n: int) -> list[int]:
        order = [*range(n * 3 % len(calls), len(calls)), *range(n * 3 % len(calls))]
        mine = [replace(call, session="shared") if n % 2 else call for call in calls]
        return [i for i in order if mine[i].of(subject.tok) != wanted[i]]

    try:
        with ThreadPoolExecutor(4) as pool:
            wrong = [i for result in pool.map(work, range(4)) for i in result]
    finally:
        subject.tok._store.budget = budget
    tally.cases += 4 * len(calls)
    for i in wrong:
        tally.fail([calls[i]])
    subject.tok._store._check()


# -- code points: each one in several contexts and beside added tokens --

_CONTEXTS = (
    "a{}b", "1{}2", " {}", ".{} a", "{}'t", "{}{}", "\n{}\n", "{}\u0301", "a\u0301{}", "/{}A", "中{}か", "\t{} ",
)  # fmt: skip


def code_points(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """A block of code points, each in every context."""
    characters = [chr(c) for c in range(unit * _BLOCK, (unit + 1) * _BLOCK) if not 0xD800 <= c < 0xE000]
    contents = [t.content for t in subject.frozen.sections.added_tokens][:64]
    rng = random.Random(seed)
    token = rng.choice(contents) if contents else ""
    beside = (token + "{}", "{}" + token, token[:-1] + "{}" + token[-1:]) if token else ()
    texts = [
        "".join(context.format(*[c] * context.count("{}")) for c in part)
        for context in (*_CONTEXTS, *beside)
        for part in (characters[:128], characters[128:])
    ]
    check_cuts(subject, texts, tally)


# -- normal forms --


@lru_cache(maxsize=1)
def _canonical() -> tuple[list[str], list[str]]:
    """Characters that decompose, and the marks in their decompositions, as the reference has them."""
    nfd = normalizers.NFD()
    composites = [
        chr(c) for c in (*range(0xC0, 0xD800), *range(0xF900, 0x30000)) if nfd.normalize_str(chr(c)) != chr(c)
    ]
    marks = sorted({p for c in composites for p in nfd.normalize_str(c)[1:]})
    return composites, [*marks, "\u0335", "\u0345", "\u0897", "\u1acf", "\u0591", "\u3099"]


def normal_forms(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """Compositions, reorderings and singletons on both sides of every kind of cut."""
    composites, marks = _canonical()
    nfd = normalizers.NFD()
    rng = random.Random(seed)
    around = "".join(subject.frozen.transitions.samples)
    texts = []
    for _ in range(_PER_UNIT):
        parts = []
        for _ in range(120):
            c = rng.choice(composites)
            form = rng.choice((c, nfd.normalize_str(c), nfd.normalize_str(c)[::-1], nfd.normalize_str(c)[0]))
            parts += [form, "".join(rng.choices(marks, k=rng.choice((0, 0, 1, 2, 3)))), rng.choice(around)]
        texts.append("".join(parts))
    check_cuts(subject, texts, tally)


# -- added tokens --


def added_tokens(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """One token a unit, with all its proper prefixes and suffixes, beside the others and beside every class."""
    contents = [t.content for t in subject.frozen.sections.added_tokens]
    rng = random.Random(seed)
    token = contents[unit % len(contents)]
    inner = range(1, len(token))
    parts = [token, token + token, *(token[:i] for i in inner), *(token[i:] for i in inner)]
    around = ["", *(c for sample in subject.frozen.transitions.samples for c in sample)]
    texts = []
    for part in parts:
        other = rng.choice(contents)
        joined = [part + a + part for a in around]
        texts.append("".join(joined) + part + other + part + other[: len(other) // 2] + part)
    check_cuts(subject, texts, tally)


# -- user: the user's own text --


def user(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """One text of the user's: cold, cut at every setting, grown turn by turn, and edited."""
    text = subject.texts[unit % len(subject.texts)]
    rng = random.Random(seed)
    check_cuts(subject, [text], tally, (1, 256, 4096))
    at = 0
    turns: list[str] = []
    while at < len(text) and len(turns) < 40:
        at = min(len(text), at + rng.randrange(1, 2 + len(text) // 12))
        turns.append(text[:at])
    for _ in range(6):
        a = rng.randrange(len(text) + 1)
        turns.append(text[:a] + rng.choice(("x", "\n", " 12", "é")) + text[a + rng.randrange(40) :])
    calls = [Call(turn, "user", None, rng.random() < 0.3, rng.random() < 0.3) for turn in turns]
    subject.tok.clear()
    for n, call in enumerate(calls):
        tally.cases += 1
        if call.of(subject.tok) != reference_ids(subject, [call.text], call.add_special_tokens)[0]:
            tally.fail(calls[: n + 1])
            break


@dataclass(frozen=True, slots=True)
class Battery:
    """One way to look for differences.

    run: makes the unit of a number, from a seed of its own, and counts in a tally.
    units: how many make it complete for a subject; None for no end.
    replay: what a found difference is shrunk with, one of REPLAYS.
    long: its units are tasks of their own, each worth the trip to a worker.
    """

    run: Callable[[Subject, int, str, Tally], None]
    units: Callable[[Subject], int | None]
    replay: str
    long: bool = False


REPLAYS = {
    "shipped": "",
    "dense": "a checkpoint at every allowed position",
    "cuts": "cut at every allowed position",
    "whole": "the encoder alone",
}
"""How the calls of a difference are made again, as the report says it."""


def _endless(subject: Subject) -> None:
    return None


# What the encoders and the copy are comes first; then where a text is cut.
BATTERIES: dict[str, Battery] = {
    "unicode": Battery(outside.unicode, _endless, "shipped"),
    "variants": Battery(variants.variants, lambda subject: len(variants.VARIANTS), "shipped", long=True),
    "realtext": Battery(outside.realtext, _endless, "shipped"),
    "whole": Battery(whole, _endless, "whole"),
    "segments": Battery(segments, _endless, "cuts"),
    "cuts": Battery(cuts, _endless, "cuts"),
    "sessions": Battery(sessions, _endless, "shipped"),
    "dense_sessions": Battery(dense_sessions, _endless, "dense"),
    "threads": Battery(threads, _endless, "dense"),
    "code_points": Battery(code_points, lambda subject: 0x110000 // _BLOCK, "cuts"),
    "normal_forms": Battery(normal_forms, _endless, "cuts"),
    "added_tokens": Battery(added_tokens, lambda subject: len(subject.frozen.sections.added_tokens), "cuts"),
    "user": Battery(user, lambda subject: len(subject.texts), "cuts"),
}


def outcome(subject: Subject, replay: str, calls: Sequence[Call]) -> tuple[list[int], list[int]]:
    """What the last call gives, and what the reference gives: to see whether a shrunk case still differs."""
    text = calls[-1].text
    if replay in ("shipped", "dense"):
        return run_calls(subject, calls, scale_dense=replay == "dense")
    want = reference_ids(subject, [text])[0]
    if replay == "whole":
        return encode_each(subject.encoder, [text])[0], want
    return (_in_pieces(subject, text, subject.every_cut(text)) if text else []), want


def shrunk(subject: Subject, replay: str, calls: Sequence[Call], *, budget: int = 1500) -> list[Call]:
    """The calls as few and short as still give a difference; as they were when a replay gives none (threads)."""

    def fails(candidate: Sequence[Call]) -> bool:
        got, want = outcome(subject, replay, candidate)
        return got != want

    return shrink(calls, fails, budget=budget) if fails(calls) else list(calls)
