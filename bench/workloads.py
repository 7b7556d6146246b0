"""What is measured: turns, edits, cold text, look-up by content, whole sessions. Memory has a file of its own."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from delta_core import DeltaTokenizer
from delta_core.errors import DeltaError
from delta_core.tools.console import tell
from delta_core.tools.demo.session import Turn, generate, load, turns_of
from delta_core.tools.demo.templates import family_of, render_turn
from delta_core.tools.opening import open_tokenizer

from . import peers
from .measure import SERVER, TIGHT, Case, Check, Contestant, Record, Result, Scene, fit, replay, run
from .ours import ARRAY, FLOOR, FLOOR_ARRAY, KEYED, REFERENCE, UNKEYED, Delta, Floor
from .texts import KINDS, TooShort, transcript, turns

SEGMENT_CACHE = 256 << 20
# Odd characters that must not make a text dear.
SPOILS = {"clean": "", "decomposed accent": "e\u0301", "unassigned": "\u0378", "newer Unicode": "\ua7d2"}
MAIN = "english"  # the kind of the sweeps over lengths


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    sizes: characters of history in the sweep, size: elsewhere. new: characters appended. kinds, edited: of text, in
    general and in edits. stored: among how many sessions one is looked up. variants: different new texts. rounds: of
    timed calls. seconds: for one contestant in one scene. replayed: characters in all turns of one real session, at
    most. churned: conversations that come and go.
    """

    sizes: tuple[int, ...]
    new: tuple[int, ...]
    kinds: tuple[str, ...]
    edited: tuple[str, ...]
    stored: tuple[int, ...]
    size: int
    variants: int
    rounds: int
    seconds: float
    replayed: int
    churned: int


FULL = Plan(
    sizes=(16_000, 64_000, 250_000, 400_000, 1_000_000, 4_000_000),
    new=(100, 400, 1_300, 40_000),
    kinds=KINDS,
    edited=("english", "mixed"),
    stored=(1, 10, 100, 1000),
    size=400_000,
    variants=6,
    rounds=100,
    seconds=2.0,
    replayed=8_000_000,
    churned=10_000,
)
QUICK = Plan(
    sizes=(16_000, 100_000, 400_000),
    new=(100, 400),
    kinds=("english", "mixed"),
    edited=("english",),
    stored=(1, 100),
    size=100_000,
    variants=2,
    rounds=9,
    seconds=0.15,
    replayed=1_500_000,
    churned=1_000,
)


class BenchError(DeltaError):
    """A tokenizer that can't be measured; the message says why."""


class Bench:
    """One tokenizer with everything that competes on it. Contestants are built when a workload asks for them."""

    def __init__(self, name: str, worker: peers.Worker | None, record: Record, plan: Plan) -> None:
        self.path, self.live = open_tokenizer(name, tell)
        self.name, self.record, self.plan = name, record, plan
        self._note = record.note  # what concerns every subcommand
        self._worker = worker
        self.tok = DeltaTokenizer(self.live)
        if not self.tok.admission.admitted:
            raise BenchError(f"{name}: {self.tok.describe()}")
        self.family = family_of(self.tok.admission.config)

    def reference(self, text: str) -> list[int]:
        ids: list[int] = self.live.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    @cached_property
    def second(self) -> DeltaTokenizer:
        """One more with a store of its own, for workloads in which two of ours remember."""
        return DeltaTokenizer(self.live)

    @cached_property
    def by_reference(self) -> DeltaTokenizer:
        return DeltaTokenizer(self.live, encoder="reference")

    @cached_property
    def _peers(self) -> list[Contestant]:
        builders: list[Callable[[], list[Contestant]]] = [
            lambda: peers.hf(self.path),
            lambda: [peers.fastokens(self.path), peers.fastokens(self.path, SEGMENT_CACHE)],
            lambda: [peers.gigatoken(self.path, "array"), peers.gigatoken(self.path, "list")],
        ]
        found: list[Contestant] = []
        for build in builders:
            try:
                found += build()
            except Exception as error:  # noqa: BLE001 - not installed, or not for this tokenizer: said, and left out
                self._note(f"a peer was left out for {self.name}: {type(error).__name__}: {error}")
        if self._worker is not None:
            apart, notes = self._worker.open(self.name, self.path)
            found += apart
            for note in notes:
                self._note(note)
        return found

    def peers(self, *but: str) -> list[Contestant]:
        """All of them, without those whose names contain one of `but`."""
        return [c for c in self._peers if not any(word in c.name for word in but)]

    def ours(self) -> list[Contestant]:
        return [
            Delta(KEYED, self.tok),
            Delta(UNKEYED, self.tok, keyed=False),
            Delta(ARRAY, self.tok, form="array"),
        ]

    def measure(self, pairs: Sequence[tuple[Scene, Contestant]], *, share: float = 1.0) -> list[Result]:
        """Measure and keep; a peer that gave a wrong ID is named."""
        results = run(pairs, self.reference, rounds=self.plan.rounds, seconds=self.plan.seconds * share)
        return self.keep(results)

    def keep(self, results: list[Result]) -> list[Result]:
        for r in results:
            self.record.results.append(r)
            if r.wrong:
                who = "FAILED" if r.ours else "not exact, left out of tables and checks"
                self.record.note(f"{r.row}: {who} ({r.tokenizer}, {r.kind}, {r.scene}: {r.wrong} calls)")
            print(
                f"{r.tokenizer:12} {r.kind:8} {r.scene:28} {r.mode:11} {r.chars:9,} +{r.new_chars:<6,} {r.row:32} "
                f"{r.median_ms:10.3f} ms  p99 {r.p99_ms:10.3f}  n {r.calls:4}{'  WRONG' if r.wrong else ''}",
                file=sys.stderr,
            )
        return results

    def scenes(self, made: Iterator[Scene]) -> Iterator[Scene]:
        """The scenes up to the first for which a given text is too short."""
        try:
            yield from made
        except TooShort as error:
            self.record.note(f"scenes left out: {error}")


def exact_peer(results: Sequence[Result]) -> Result | None:
    """The fastest peer without a wrong ID in this scene."""
    return min((r for r in results if not r.ours and not r.wrong), key=lambda r: r.median_ms, default=None)


def by_mode(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    return [(mode, [r for r in results if r.mode == mode]) for mode in (TIGHT, SERVER)]


def of(results: Sequence[Result], row: str, scene: str | None = None) -> Result:
    return next(r for r in results if r.row == row and scene in (None, r.scene))


# -- turns --


def append(b: Bench, kind: str, chars: int, new: int, name: str = "append", spoil: str = "") -> Scene:
    """The conversation grows by a turn; two turns before it have been served. spoil: put into mid-history."""
    base = transcript(kind, b.family, chars)
    base = base[: chars // 2] + spoil + base[chars // 2 :]
    news = turns(kind, b.family, new, b.plan.variants)
    return Scene(name, b.name, kind, chars, new, [Case("s", base + n, _before(base)) for n in news])


def _before(base: str) -> tuple[tuple[str, str], ...]:
    step = min(400, len(base) // 8)
    return tuple(("s", base[: len(base) - n * step]) for n in (2, 1, 0))


def turn(b: Bench, *, sweep: bool) -> None:
    """Appends. sweep: over all lengths with one kind of text; else, and then as well, all kinds at one length."""
    plan = b.plan
    everyone = [
        Floor(FLOOR, b.live, b.tok),
        Floor(FLOOR_ARRAY, b.live, b.tok, form="array"),
        *b.ours(),
        Delta(REFERENCE, b.by_reference),
        *b.peers("chunked"),
    ]
    if sweep:
        points = [(n, 400) for n in plan.sizes] + [(plan.size, new) for new in plan.new if new != 400]
        found = []
        for scene in b.scenes(append(b, MAIN, *point) for point in points):
            found += _turn(b, scene, everyone)
        for row in (FLOOR, KEYED, FLOOR_ARRAY, ARRAY):
            grown = [r for r in found if r.row == row and r.new_chars == 400 and r.mode == TIGHT]
            if len(grown) > 1:
                b.record.fits.append(fit(grown))
    kinds = [kind for kind in plan.kinds if not (sweep and kind == MAIN)]
    for scene in b.scenes(append(b, kind, plan.size, 400) for kind in kinds):
        _turn(b, scene, everyone, share=0.5)
    for kind in plan.kinds:
        _spoiled(b, kind)


def _turn(b: Bench, scene: Scene, everyone: Sequence[Contestant], share: float = 1.0) -> list[Result]:
    both = [(s, c) for s in scene.in_both_modes() for c in everyone]
    measured = b.measure(both, share=max(share, scene.chars / 1e6))
    where = f"{scene.tokenizer}, {scene.kind}, {scene.chars:,} + {scene.new_chars:,} characters"
    for mode, results in by_mode(measured):
        if scene.chars >= b.plan.size and scene.new_chars == 400:
            delta, floor, peer = of(results, KEYED), of(results, FLOOR), exact_peer(results)
            name = f"keyed turn, {mode}, against the floor ({where})"
            b.record.checks.append(Check(name, delta.median_ms / floor.median_ms, 1.6))
            if peer is not None:
                name = f"keyed turn, {mode}, against the fastest exact peer, {peer.row} ({where})"
                b.record.checks.append(Check(name, peer.median_ms / delta.median_ms, 5.0, at_most=False))
    return measured


def _spoiled(b: Bench, kind: str) -> None:
    """One decomposed accent, one unassigned character, one of a newer Unicode version in mid-history."""
    scenes = list(b.scenes(append(b, kind, b.plan.size, 400, *spoil) for spoil in SPOILS.items()))
    results = b.measure([(scene, c) for scene in scenes for c in b.ours()[:2]], share=0.5)
    for scene, row in itertools.product(scenes[1:], (KEYED, UNKEYED)):
        value = of(results, row, scene.name).median_ms / of(results, row, "clean").median_ms
        name = f"{scene.name} in history against clean ({b.name}, {kind}, {row})"
        b.record.checks.append(Check(name, value, 1.1))


# -- edits --

_STAMP = re.compile(r"(?<=Current time: )\S+")


def edits(b: Bench, kind: str, chars: int) -> Iterator[Scene]:
    """What a harness may do to a conversation before it sends it again, and beginnings that others have sent."""
    base = transcript(kind, b.family, chars)
    system = base.index("# Conventions")  # the last section of the system prompt
    news = turns(kind, b.family, 400, b.plan.variants)
    longer = turns(kind, b.family, 4_000, b.plan.variants)

    def put(share: float, new: str) -> Callable[[str], str]:
        return lambda text: text[: int(len(text) * share)] + new + text[int(len(text) * share) + 40 :]

    def scene(name: str, changed: Callable[[str], str], new: int, session: str = "s", by: list[str] = news) -> Scene:
        cases = [Case(session, changed(v), _before(base)) for v in by]
        return Scene(name, b.name, kind, chars, new, cases)

    yield scene("append", lambda v: base + v, 400)
    yield scene("tail replaced", lambda v: base[:-400] + v, 400)
    yield scene("edit at 99%", lambda v: put(0.99, v[:40])(base), 40)
    yield scene("edit at 50%", lambda v: put(0.5, v[:40])(base), 40)
    yield scene("head trimmed", lambda v: base[:system] + base[system + chars // 10 + news.index(v) :], 0)
    yield scene(
        "timestamp in system prompt", lambda v: _STAMP.sub(f"2033-03-03T03:03:{news.index(v):02}Z", base, count=1), 20
    )
    yield scene("two edits", lambda v: put(0.7, v[40:80])(put(0.3, v[:40])(base)), 80)
    yield scene("head trimmed, 400 appended", lambda v: base[:system] + base[system + chars // 10 :] + v, 400)
    yield scene("fork at 60%", lambda v: base[: chars * 6 // 10] + v, 400, "fork")
    yield scene("new session, shared prompt", lambda v: base[:system] + v, 4_000, "new", longer)


SINGLE = ("tail replaced", "edit at 99%", "edit at 50%", "head trimmed", "timestamp in system prompt")


def edit(b: Bench) -> None:
    for kind in b.plan.edited:
        scenes = [s for scene in b.scenes(edits(b, kind, b.plan.size)) for s in scene.in_both_modes()]
        everyone = [*b.ours(), *b.peers("chunked", "stateless", "tiktoken", "gigatoken, array", "HF encode_b")]
        results = b.measure([(scene, c) for scene in scenes for c in everyone], share=0.5)
        limits = {**dict.fromkeys(SINGLE, 1.5), "two edits": 3.0, "head trimmed, 400 appended": 3.0}
        for name, (mode, found) in itertools.product(limits, by_mode(results)):
            value = of(found, KEYED, name).median_ms / of(found, KEYED, "append").median_ms
            check = Check(f"{name}, {mode}, against an append ({b.name}, {kind})", value, limits[name])
            b.record.checks.append(check)


# -- cold text --


def cold(b: Bench, *, fresh: bool) -> None:
    """Text that nobody has seen. fresh: also the first call of a new object."""
    everyone = [
        Delta("Delta, cold", b.tok),
        Delta("Delta, cold, encode_async", b.second, form="async"),
        Delta("Delta, cold, reference encoder", b.by_reference),
        *b.peers("segment cache", "session", "lookup"),
    ]
    sizes = [n for n in b.plan.sizes if n >= b.plan.size] if fresh else [max(b.plan.size, 100_000)]
    points = list(itertools.product(b.plan.kinds if fresh else (MAIN,), sizes))
    for scene in b.scenes(unseen(b, "cold text, warm object", *point) for point in points):
        b.measure([(s, c) for s in scene.in_both_modes() for c in everyone], share=0.5)
    # Some peers have a fast way for text without markers only.
    for scene in b.scenes(unseen(b, "cold text without markers", MAIN, n, "plain") for n in sizes):
        b.measure([(scene, c) for c in everyone], share=0.5)
    if fresh and 1_000_000 in b.plan.sizes:
        new: list[Contestant] = [
            peers.Fresh("Delta, cold", lambda: Delta("", DeltaTokenizer(b.live))),
            peers.Fresh("HF encode_batch_fast", lambda: peers.hf(b.path)[1]),
            peers.Fresh("fastokens", lambda: peers.fastokens(b.path)),
            peers.Fresh("gigatoken, list", lambda: peers.gigatoken(b.path, "list")),
        ]
        for scene in b.scenes(unseen(b, "first call of a new object", MAIN, n) for n in (b.plan.size, 1_000_000)):
            b.keep(run([(scene, c) for c in new], b.reference, rounds=5, seconds=60))


def unseen(b: Bench, name: str, kind: str, chars: int, family: str = "") -> Scene:
    cases = [Case("s", transcript(kind, family or b.family, chars, seed)) for seed in (0, 1)]
    return Scene(name, b.name, kind, 0, chars, cases)


# -- look-up --


def lookup(b: Bench) -> None:
    """One of many stored conversations goes on, with and without its key. All begin with the same system prompt."""
    plan, kind = b.plan, MAIN
    everyone: list[Contestant] = [Delta(KEYED, b.tok), Delta(UNKEYED, b.second, keyed=False)]
    everyone += [c for c in b.peers() if c.name in ("toktier, session", "toktier, lookup", "fastokens")]
    for count in plan.stored:
        long = [transcript(kind, b.family, plan.size, seed) for seed in range(min(count, 12))]
        head, source = long[0][:6_000], transcript(kind, b.family, 100_000 + 1_000 * count, seed=77)
        sessions = [head + text[6_000:] for text in long]
        short = [head + source[n * 1_000 :][:18_000] for n in range(count - len(long))]
        stored = tuple((f"s{n}", text) for n, text in enumerate([*sessions, *short]))
        news = turns(kind, b.family, 400, plan.variants)
        cases = []
        for n in range(plan.rounds + 1):
            at = n % len(sessions)
            sessions[at] += news[n % len(news)]
            cases.append(Case(f"s{at}", sessions[at], anew=False))
        scene = Scene("look-up", b.name, kind, plan.size, 400, cases, stored=count)
        for contestant in everyone:
            contestant.prepare(Case("", "", stored))
        results = b.measure([(scene, c) for c in everyone])
        value = of(results, UNKEYED).median_ms / of(results, KEYED).median_ms
        b.record.checks.append(Check(f"unkeyed against keyed, {count:,} sessions stored ({b.name})", value, 1.25))
    b.tok.clear()
    b.second.clear()


# -- whole sessions --


def real_sessions() -> Iterator[tuple[str, list[list[Turn]]]]:
    """The recorded sessions in $DELTA_SHARED/data/sessions, by file."""
    folder = os.environ.get("DELTA_SHARED")
    for path in sorted(Path(folder, "data", "sessions").glob("*.jsonl*")) if folder else ():
        yield path.name.partition(".")[0], [list(turns_of(messages)) for messages in load(path)]


def sessions(b: Bench) -> None:
    """All turns of a session, one after the other: the CPU time of a conversation."""
    chosen: list[tuple[str, list[str]]] = []
    for name, found in real_sessions():
        rendered = ([render_turn(b.family, t) for t in s] for s in sorted(found, key=len, reverse=True)[:6])
        fitting = [texts for texts in rendered if len(texts) >= 2 and sum(map(len, texts)) <= b.plan.replayed]
        if fitting:
            chosen.append((name, max(fitting, key=lambda texts: sum(map(len, texts)))))
    if not chosen:
        b.record.note("DELTA_SHARED is not set: a generated session instead of real ones")
    made = [render_turn(b.family, t) for t in generate(target_chars=b.plan.size // 2)]
    for name, texts in [*chosen, ("generated", made)]:
        cases = [Case(name, text, anew=n == 0) for n, text in enumerate(texts)]
        scene = Scene(f"{name}, {len(texts)} turns", b.name, name, max(map(len, texts)), sum(map(len, texts)), cases)
        everyone = [
            Delta(KEYED, b.tok),
            Delta(UNKEYED, b.second, keyed=False),
            Delta(REFERENCE, b.by_reference),
            *b.peers("chunked", "array", "encode_batch", "stateless"),
        ]
        b.keep(replay(scene, everyone, b.reference))
