"""`delta demo`: run a session through Delta Tokenizer and through the reference, and show both, turn by turn.

`measure` times and compares, `summarise` condenses, the rest prints. Every number is of one call, in one process, with
the two sides interleaved, a few turns at a time; the reference is a tokenizer object of its own, so neither warms the
other's caches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from tokenizers import Tokenizer

from ...admission.frozen import Frozen
from . import templates
from .embedded import embedded_config, embedded_tokenizer
from .session import Message, SessionError, Turn, generate, load, spread, turns_of

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_MODEL = "qwen3"
_MOST_ROWS = 60
_WINDOW = 5  # ids shown on either side of a difference


class Admission(Protocol):
    """What the demo reads of `DeltaTokenizer.admission`."""

    @property
    def admitted(self) -> bool: ...
    @property
    def config(self) -> str | None: ...
    @property
    def reason(self) -> object: ...
    @property
    def encoder(self) -> str: ...
    @property
    def note(self) -> str | None: ...


class Encodes(Protocol):
    """What the demo needs of a `DeltaTokenizer`."""

    @property
    def admission(self) -> Admission: ...
    def encode(self, text: str, *, session: str | None = None) -> list[int]: ...
    def stats(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One turn, measured; times in seconds.

    `new_chars` counts the messages that the session's previous turn did not have, and of a changed message the part
    between its common ends: what any method must read, independent of what Delta Tokenizer did.
    """

    session: int
    turn: int
    kind: str
    chars: int
    new_chars: int
    tokens: int
    reused_tokens: int
    reference_s: float
    delta_s: float
    reference_cpu_s: float
    delta_cpu_s: float
    identical: bool

    @property
    def reused(self) -> float:
        """Share of this turn's tokens taken from the session's state."""
        return self.reused_tokens / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a turn's ids first differ, with the ids around it. Ids only: a prompt's text is nobody's business."""

    session: int
    turn: int
    position: int
    expected: tuple[int, ...]
    got: tuple[int, ...]
    expected_length: int
    got_length: int


@dataclass(frozen=True, slots=True)
class AdmissionReport:
    """How the tokenizer was admitted; `reason` says why not, `note` why the encoder isn't the one asked for."""

    admitted: bool
    config: str | None
    encoder: str
    reason: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """All turns of a run, in order, and the state at its end."""

    turns: tuple[TurnResult, ...]
    differences: tuple[Difference, ...]
    admission: AdmissionReport
    state_bytes: int
    by_path: dict[str, int]
    fallbacks: dict[str, int]
    interrupted: bool


@dataclass(frozen=True, slots=True)
class KindSummary:
    """Medians over the turns of one kind; times in milliseconds."""

    kind: str
    turns: int
    new_chars: float
    reused: float
    reference_ms: float
    delta_ms: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in a few numbers. Warm turns are all but the first of each session; times in milliseconds."""

    turns: int
    identical: int
    warm_turns: int
    tokens: int
    last_tokens: int
    reused: float
    reference_median_ms: float
    reference_p99_ms: float
    delta_median_ms: float
    delta_p99_ms: float
    ratio: float
    reference_cpu_s: float
    delta_cpu_s: float
    state_bytes: int
    kinds: tuple[KindSummary, ...]


# ----------------------------------------------------------------------------------------------------------------
# Measuring
# ----------------------------------------------------------------------------------------------------------------


def measure(
    tok: Encodes,
    reference: Tokenizer,
    sessions: Sequence[Sequence[Turn]],
    *,
    family: str,
    block: int = 1,
    on_turn: Callable[[TurnResult], None] = lambda _: None,
) -> Report:
    """Encode every turn with both, compare the ids, and report; a KeyboardInterrupt ends it with what was done.

    block: how many turns one side does before the other does the same ones. With 1, each of ours follows an encode of
    the whole text by the reference, which has emptied the processor's caches: no server does that between two turns.
    """
    results: list[TurnResult] = []
    differences: list[Difference] = []
    interrupted = False
    blocks = 0
    try:
        for number, turns in enumerate(sessions):
            previous: Sequence[Message] = ()
            for start in range(0, len(turns), block):
                part = turns[start : start + block]
                texts = [templates.render_turn(family, turn) for turn in part]
                # Whoever goes second finds the texts in the processor's caches, so the two take turns at it.
                measured = _measure_block(tok, reference, texts, number, ours_first=blocks % 2 == 0)
                blocks += 1
                for turn, text, (ours, theirs, reused) in zip(part, texts, measured, strict=True):
                    same = ours.ids == theirs.ids
                    result = TurnResult(
                        session=number,
                        turn=turn.index,
                        kind=turn.kind,
                        chars=len(text),
                        new_chars=_new_chars(previous, turn.messages),
                        tokens=len(theirs.ids),
                        reused_tokens=reused,
                        reference_s=theirs.seconds,
                        delta_s=ours.seconds,
                        reference_cpu_s=theirs.cpu,
                        delta_cpu_s=ours.cpu,
                        identical=same,
                    )
                    previous = turn.messages
                    results.append(result)
                    if not same:
                        differences.append(_difference(number, turn.index, theirs.ids, ours.ids))
                    on_turn(result)
    except KeyboardInterrupt:
        interrupted = True
    stats, admission = tok.stats(), tok.admission
    return Report(
        turns=tuple(results),
        differences=tuple(differences),
        admission=AdmissionReport(
            admitted=admission.admitted,
            config=admission.config,
            encoder=str(admission.encoder),
            reason=None if admission.reason is None else str(admission.reason),
            note=admission.note,
        ),
        state_bytes=int(stats.bytes),
        by_path={str(k): int(v) for k, v in stats.by_path.items()},
        fallbacks={str(k): int(v) for k, v in stats.fallbacks.items()},
        interrupted=interrupted,
    )


@dataclass(frozen=True, slots=True)
class _Timed:
    """One call: its ids, and its wall and CPU time in seconds."""

    ids: list[int]
    seconds: float
    cpu: float


def _measure_block(
    tok: Encodes, reference: Tokenizer, texts: Sequence[str], session: int, *, ours_first: bool
) -> list[tuple[_Timed, _Timed, int]]:
    """Per text our call, the reference's, and how many ids were reused."""
    key = f"demo-{session}"

    def ours() -> list[tuple[_Timed, int]]:
        made = []
        for text in texts:
            reused = int(tok.stats().reused_tokens)
            timed = _timed(lambda text=text: tok.encode(text, session=key, add_special_tokens=False))  # type: ignore[misc]
            made.append((timed, int(tok.stats().reused_tokens) - reused))
        return made

    def stock() -> list[_Timed]:
        # The stock path at its best: the batch call is faster than `encode`, and releases the GIL.
        return [
            _timed(lambda text=text: reference.encode_batch_fast([text], add_special_tokens=False)[0].ids)  # type: ignore[misc]
            for text in texts
        ]

    if ours_first:
        mine = ours()
        theirs = stock()
    else:
        theirs = stock()
        mine = ours()
    return [(timed, other, reused) for (timed, reused), other in zip(mine, theirs, strict=True)]


def _timed(call: Callable[[], list[int]]) -> _Timed:
    cpu = time.process_time()
    start = time.perf_counter()
    ids = call()
    end = time.perf_counter()
    return _Timed(ids, end - start, time.process_time() - cpu)


def _difference(session: int, turn: int, expected: list[int], got: list[int]) -> Difference:
    pairs = zip(expected, got, strict=False)
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(got)))
    around = slice(max(0, position - _WINDOW), position + _WINDOW + 1)
    return Difference(session, turn, position, tuple(expected[around]), tuple(got[around]), len(expected), len(got))


def _new_chars(old: Sequence[Message], new: Sequence[Message]) -> int:
    # The turns of a session share their message objects, so identity tells what is new, at no cost in the text.
    before, after = {id(m) for m in old}, {id(m) for m in new}
    gone = {(m.role, m.tool_call_id): m for m in old if id(m) not in after and m.role in ("system", "tool")}
    total = 0
    for m in new:
        if id(m) in before:
            continue
        was = gone.get((m.role, m.tool_call_id))
        total += m.size if was is None else _changed_chars(was.content or "", m.content or "")
    return total


def _changed_chars(old: str, new: str) -> int:
    shorter = min(len(old), len(new))
    head = _longest(shorter, lambda n: old.startswith(new[:n]))
    tail = _longest(shorter - head, lambda n: old.endswith(new[len(new) - n :]))
    return len(new) - head - tail


def _longest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest n up to `most` for which `holds`, which holds from 0 up to some point: bisection on memcmp."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


# ----------------------------------------------------------------------------------------------------------------
# Condensing
# ----------------------------------------------------------------------------------------------------------------


def summarise(report: Report) -> Summary:
    """The run in a few numbers. If there is no warm turn, the times are those of the cold ones."""
    turns = report.turns
    first = {t.session: t.turn for t in reversed(turns)}
    warm = [t for t in turns if t.turn != first[t.session]]
    timed = warm or turns
    reference = [t.reference_s * 1e3 for t in timed]
    delta = [t.delta_s * 1e3 for t in timed]
    kinds = dict.fromkeys(t.kind for t in turns)
    tokens = sum(t.tokens for t in turns)
    return Summary(
        turns=len(turns),
        identical=sum(t.identical for t in turns),
        warm_turns=len(warm),
        tokens=tokens,
        last_tokens=turns[-1].tokens if turns else 0,
        reused=sum(t.reused_tokens for t in turns) / tokens if tokens else 0.0,
        reference_median_ms=_median(reference),
        reference_p99_ms=_p99(reference),
        delta_median_ms=_median(delta),
        delta_p99_ms=_p99(delta),
        ratio=_ratio(_median(reference), _median(delta)),
        reference_cpu_s=sum(t.reference_cpu_s for t in turns),
        delta_cpu_s=sum(t.delta_cpu_s for t in turns),
        state_bytes=report.state_bytes,
        kinds=tuple(_kind_summary(kind, [t for t in turns if t.kind == kind]) for kind in kinds),
    )


def _kind_summary(kind: str, turns: Sequence[TurnResult]) -> KindSummary:
    return KindSummary(
        kind=kind,
        turns=len(turns),
        new_chars=_median([t.new_chars for t in turns]),
        reused=_median([t.reused for t in turns]),
        reference_ms=_median([t.reference_s * 1e3 for t in turns]),
        delta_ms=_median([t.delta_s * 1e3 for t in turns]),
    )


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _p99(values: Sequence[float]) -> float:
    """The nearest-rank 99th percentile: of fewer than 100 values, the largest."""
    return sorted(values)[-1 - len(values) // 100] if values else 0.0


def _ratio(slow: float, fast: float) -> float:
    return slow / fast if fast > 0 else 0.0


def select_rows(turns: Sequence[TurnResult], most: int = _MOST_ROWS) -> list[TurnResult]:
    """About `most` turns that tell the run: the first, the last, all that aren't appends, any that differ, a spread."""
    if len(turns) <= most:
        return list(turns)
    telling = {i for i, t in enumerate(turns) if not t.identical or t.kind != "append"} | {0, len(turns) - 1}
    # Of very many sessions not even the telling turns fit; those that differ are printed in full below the table.
    keep = sorted(telling)
    keep = [keep[i] for i in spread(len(keep), most)]
    rest = [i for i in range(len(turns)) if i not in telling]
    keep += [rest[i] for i in spread(len(rest), most - len(keep))]
    return [turns[i] for i in sorted(keep)]


def as_json(report: Report, summary: Summary, setup: dict[str, object]) -> str:
    """The run for a machine: setup, summary, all turns, differences. Times: `_s` seconds, `_ms` milliseconds."""
    return json.dumps({"setup": setup, "summary": asdict(summary), **asdict(report)}, indent=2, ensure_ascii=False)


# ----------------------------------------------------------------------------------------------------------------
# Showing
# ----------------------------------------------------------------------------------------------------------------


def _show(console: Console, report: Report, summary: Summary, *, all_rows: bool) -> None:
    from rich.table import Table

    rows = list(report.turns) if all_rows else select_rows(report.turns)
    sessions = len({t.session for t in report.turns})
    table = Table(title="Turn by turn", title_justify="left", header_style="bold")
    if sessions > 1:
        table.add_column("session", justify="right")
    table.add_column("turn", justify="right")
    table.add_column("kind")
    for name in ("characters", "new", "tokens", "reused", "reference ms", "delta ms", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("identical", justify="center")
    for t in rows:
        cells = [str(t.session)] if sessions > 1 else []
        cells += [
            str(t.turn),
            t.kind,
            f"{t.chars:,}",
            f"{t.new_chars:,}",
            f"{t.tokens:,}",
            f"{t.reused:.1%}",
            _ms(t.reference_s * 1e3),
            _ms(t.delta_s * 1e3),
            _times(_ratio(t.reference_s, t.delta_s)),
            "[green]✓[/]" if t.identical else "[bold red]✗[/]",
        ]
        table.add_row(*cells, style=None if t.kind == "append" else "cyan")
    console.print(table)
    if len(rows) < len(report.turns):
        console.print(f"{len(report.turns) - len(rows)} of {len(report.turns)} turns left out; --all-rows prints all")

    kinds = Table(title="\nMedians by kind", title_justify="left", header_style="bold")
    kinds.add_column("kind")
    for name in ("turns", "new characters", "reused", "reference ms", "delta ms", "ratio"):
        kinds.add_column(name, justify="right", no_wrap=True)
    for k in summary.kinds:
        ratio = _times(_ratio(k.reference_ms, k.delta_ms))
        numbers = (f"{k.new_chars:,.0f}", f"{k.reused:.1%}", _ms(k.reference_ms), _ms(k.delta_ms), ratio)
        kinds.add_row(k.kind, str(k.turns), *numbers)
    console.print(kinds)
    for line in summary_lines(report, summary):
        console.print(line, soft_wrap=True, markup=False)
    if summary.identical == summary.turns:
        console.print(f"\n[bold green]✓[/] all {summary.turns} turns identical to the reference")
    for d in report.differences[:10]:
        console.print(difference_line(d), soft_wrap=True, markup=False, style="red")
    if summary.identical < summary.turns:
        console.print(f"\n[bold red]✗[/] {summary.turns - summary.identical} of {summary.turns} turns differ")


def summary_lines(report: Report, summary: Summary) -> list[str]:
    """The totals, a line each."""
    s, warm = summary, "warm" if summary.warm_turns else "cold"
    lines = [
        "",
        f"turns        {s.turns} ({s.warm_turns} warm), {s.tokens:,} tokens in all, the last turn {s.last_tokens:,}",
        f"reference    median {_ms(s.reference_median_ms)} ms, p99 {_ms(s.reference_p99_ms)} ms ({warm} turns); "
        f"CPU {s.reference_cpu_s:.2f} s in all",
        f"delta        median {_ms(s.delta_median_ms)} ms, p99 {_ms(s.delta_p99_ms)} ms ({warm} turns); "
        f"CPU {s.delta_cpu_s:.2f} s in all",
        f"ratio        {_times(s.ratio)} (of the medians)",
        f"reused       {s.reused:.1%} of all tokens",
        f"state        {s.state_bytes / 2**20:.2f} MiB",
        f"admission    {admission_line(report.admission)}",
    ]
    if report.fallbacks:
        lines.append("fallbacks    " + ", ".join(f"{k} {v}" for k, v in sorted(report.fallbacks.items())))
    return lines


def admission_line(admission: AdmissionReport) -> str:
    """Config and encoder, or why the tokenizer wasn't admitted; and why a fast encoder doesn't serve."""
    if not admission.admitted:
        return f"not admitted ({admission.reason}): every turn went to the reference"
    note = f" ({admission.note})" if admission.note else ""
    return f"config {admission.config}, encoder {admission.encoder}{note}"


def difference_line(d: Difference) -> str:
    """Session, turn, first differing token and the ids around it; no text."""
    return (
        f"session {d.session} turn {d.turn}: token {d.position} differs; expected {list(d.expected)} "
        f"({d.expected_length} in all), got {list(d.got)} ({d.got_length} in all)"
    )


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def _times(value: float) -> str:
    return f"{value:,.0f}×" if value >= 10 else f"{value:.1f}×"


def _plot(report: Report, path: Path, title: str) -> None:
    from matplotlib.figure import Figure  # the figure alone: no pyplot, so no GUI backend is looked for

    turns = report.turns
    x = list(range(len(turns)))
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    top.plot(x, [t.reference_s * 1e3 for t in turns], color="#b3541e", lw=1.4, label="reference, whole text")
    top.plot(x, [t.delta_s * 1e3 for t in turns], color="#1f5fa8", lw=1.4, label="Delta Tokenizer")
    marks = {"start": "s", "think": "o", "edit": "D", "trim": "v"}
    for kind, mark in marks.items():
        at = [i for i, t in enumerate(turns) if t.kind == kind]
        if at:
            y = [turns[i].delta_s * 1e3 for i in at]
            top.plot(at, y, mark, color="#1f5fa8", mfc="white", ms=6, label=kind)
    top.set_yscale("log")
    low, high = top.get_ylim()
    top.set_ylim(low, high * 4)  # room for the legend above the lines
    top.set_ylabel("ms per turn")
    top.set_title(title, loc="left", fontsize=11)
    top.grid(True, which="major", alpha=0.3)
    top.legend(ncols=6, fontsize=8, loc="upper center")
    bottom.fill_between(x, [t.tokens for t in turns], step="mid", color="#d9a07c", label="tokens")
    bottom.fill_between(x, [t.reused_tokens for t in turns], step="mid", color="#7fa8d6", label="of these reused")
    bottom.set_ylabel("tokens")
    bottom.set_xlabel("turn")
    bottom.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    bottom.grid(True, alpha=0.3)
    bottom.set_ylim(bottom=0)
    bottom.legend(fontsize=8, loc="lower right", framealpha=0.9)
    bottom.margins(x=0.01)
    figure.savefig(path, dpi=130)


# ----------------------------------------------------------------------------------------------------------------
# The command
# ----------------------------------------------------------------------------------------------------------------


class DemoError(Exception):
    """The demo can't start; the text is for the user."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `delta demo`."""
    parser.add_argument(
        "--model",
        metavar="NAME|PATH",
        help=f"a name `delta fetch` knows, or a tokenizer.json (default: {DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--encoder", choices=("auto", "reference", "fastokens", "gigatoken"), default="auto", help="for the new text"
    )
    parser.add_argument("--session", metavar="FILE", type=Path, help="replay your own JSONL of messages or sessions")
    parser.add_argument(
        "--turns",
        metavar="N",
        type=_positive,
        help="at most N turns: the first N of the generated session, N spread over each session of a file",
    )
    parser.add_argument(
        "--target-chars", metavar="N", type=_positive, default=400_000, help="length of the generated session"
    )
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="of the generated session")
    parser.add_argument(
        "--interleave",
        metavar="N",
        type=int,
        default=8,
        help="turns one side does before the other does the same ones (default 8; with 1 the reference's encode of the "
        "whole text empties the processor's caches before each of ours)",
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a figure (.png or .svg)")
    parser.add_argument(
        "--json", metavar="FILE", nargs="?", const="-", help="write the report as JSON; without FILE to stdout, alone"
    )
    parser.add_argument("--all-rows", action="store_true", help="print every turn")
    parser.add_argument("--no-color", action="store_true")
    parser.add_argument("--offline", action="store_true", help="never download a tokenizer")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def run(args: argparse.Namespace) -> int:
    """Run the demo: 0 if all turns are identical, 1 if any differs, 2 if it can't start, 130 after Ctrl-C."""
    try:
        _check_extras(args)
        sessions = _sessions(args)
        model, path = _find_model(args)
        live, reference = _two_tokenizers(path)
        tok = open_delta(live, args.encoder, embedded_config(live) if path is None else None)
    except (DemoError, SessionError) as error:
        _note(f"delta demo: {error}")
        return 2
    except KeyboardInterrupt:
        return 130

    family = templates.family_of(tok.admission.config)
    if family == "plain":
        family = templates.family_by_markers(lambda token: live.token_to_id(token) is not None)
    quiet = args.json == "-"
    total = sum(map(len, sessions))
    _note(f"{model}: {total} turns in {len(sessions)} session{'s'[: len(sessions) != 1]}, template {family}")

    if quiet:
        report = measure(tok, reference, sessions, family=family, block=args.interleave)
    else:
        console = _console(args, sys.stdout)
        report = _measure_with_progress(console, tok, reference, sessions, family, total, args.interleave)
    summary = summarise(report)
    setup: dict[str, object] = {
        "model": model,
        "template": family,
        "encoder_asked": args.encoder,
        "interleave": args.interleave,
        "session": str(args.session)
        if args.session
        else f"generated, seed {args.seed}, {args.target_chars} characters",
    }
    if not quiet:
        _show(console, report, summary, all_rows=args.all_rows)
    if quiet:
        print(as_json(report, summary, setup))
    try:
        if args.json not in (None, "-"):
            Path(args.json).write_text(as_json(report, summary, setup) + "\n", encoding="utf-8")
        if args.plot and report.turns:
            _plot(
                report, args.plot, f"{model}, encoder {report.admission.encoder}: {_times(summary.ratio)} at the median"
            )
            _note(f"wrote {args.plot}")
    except OSError as error:
        _note(f"delta demo: {error.filename}: {error.strerror}")
        return 2
    if report.interrupted:
        _note(f"interrupted after {len(report.turns)} of {total} turns")
        return 130
    return 1 if report.differences else 0


def open_delta(live: Tokenizer, encoder: str, config: Frozen | None) -> Encodes:
    """The tokenizer under measurement; a name of its own so that tests can put another one in its place."""
    from delta_core import DeltaTokenizer
    from delta_core.errors import DeltaError

    try:
        tok: Encodes = DeltaTokenizer(live, encoder=encoder, config=config)
    except (DeltaError, ImportError, ValueError) as error:
        raise DemoError(str(error)) from error
    return tok


def _check_extras(args: argparse.Namespace) -> None:
    wanted = ([] if args.json == "-" else ["rich"]) + (["matplotlib"] if args.plot else [])
    missing = [name for name in wanted if not _has(name)]
    if missing:
        raise DemoError(f"{' and '.join(missing)} missing; install with: pip install 'delta-tokenizer[demo]'")
    if args.plot and args.plot.suffix not in (".png", ".svg"):
        raise DemoError(f"--plot {args.plot}: the name must end in .png or .svg")


def _has(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def _sessions(args: argparse.Namespace) -> list[list[Turn]]:
    if args.session is None:
        return [list(generate(seed=args.seed, target_chars=args.target_chars))[: args.turns]]
    sessions = [list(turns_of(messages, limit=args.turns)) for messages in load(args.session)]
    sessions = [turns for turns in sessions if turns]
    if not sessions:
        raise DemoError(f"{args.session}: no turn in it, the assistant is never to speak")
    return sessions


def _find_model(args: argparse.Namespace) -> tuple[str, Path | None]:
    """What to call the model, and its file; None stands for the embedded tokenizer."""
    from delta_core.tools.fetch import FetchError, cached, fetch

    given = Path(args.model or "")
    if args.model and (given.suffix == ".json" or given.exists()):
        path = given / "tokenizer.json" if given.is_dir() else given
        if not path.is_file():
            raise DemoError(f"--model {args.model}: no such file")
        return str(path), path
    name = args.model or DEFAULT_MODEL
    try:
        path_or_none = cached(name) if args.offline else fetch(name, log=_note)
        why = f"no cached copy of {name}"
    except FetchError as error:
        path_or_none, why = None, str(error).partition("\n")[0]
    if path_or_none is not None:
        return name, path_or_none
    if args.model is not None:
        # Numbers for another tokenizer than the one asked for would only mislead.
        raise DemoError(f"--model {name}: {why}")
    _note(f"{why}; using the small embedded tokenizer instead")
    return "embedded", None


def _two_tokenizers(path: Path | None) -> tuple[Tokenizer, Tokenizer]:
    # Two objects, because a tokenizer caches words: the reference's run must not warm Delta Tokenizer's encoder.
    if path is None:
        live = embedded_tokenizer()
        return live, Tokenizer.from_str(live.to_str())
    try:
        return Tokenizer.from_file(str(path)), Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a file that it can't read
        raise DemoError(f"{path}: not a tokenizer.json ({error})") from error


def _console(args: argparse.Namespace, file: TextIO) -> Console:
    from rich.console import Console

    console = Console(file=file, no_color=args.no_color, highlight=False)
    if not console.is_terminal:
        console.width = 120  # a pipe has no width; the default would break the table's lines
    return console


def _measure_with_progress(
    console: Console,
    tok: Encodes,
    reference: Tokenizer,
    sessions: Sequence[Sequence[Turn]],
    family: str,
    total: int,
    block: int,
) -> Report:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Redrawn by hand after each turn: a refresh thread would run inside the calls being timed.
    with Progress(
        *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("encoding", total=total)

        def on_turn(result: TurnResult) -> None:
            bar.update(task, advance=1, description=f"{result.tokens:,} tokens", refresh=True)

        return measure(tok, reference, sessions, family=family, block=block, on_turn=on_turn)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
