"""Shows a run: a table of its turns, the totals, a figure. rich and matplotlib are imported where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...admission.admit import Admission
from .measure import Difference, Report, Summary, TurnResult, ratio
from .session import spread

if TYPE_CHECKING:
    from rich.console import Console

_MOST_ROWS = 60
_MOST_DIFFERENCES = 10


def select_rows(turns: Sequence[TurnResult], most: int = _MOST_ROWS) -> list[TurnResult]:
    """About `most` turns that tell the run: the first, the last, all that aren't appends, any that differ, a spread."""
    if len(turns) <= most:
        return list(turns)
    telling = sorted({i for i, t in enumerate(turns) if not t.identical or t.kind != "append"} | {0, len(turns) - 1})
    # Of very many sessions not even the telling turns fit; those that differ are printed in full below the table.
    keep = {telling[i] for i in spread(len(telling), most)}
    rest = [i for i in range(len(turns)) if i not in set(telling)]
    keep |= {rest[i] for i in spread(len(rest), most - len(keep))}
    return [turns[i] for i in sorted(keep)]


def show(console: Console, report: Report, summary: Summary, *, all_rows: bool) -> None:
    """The tables, the totals, and what differed."""
    from rich.table import Table

    rows = list(report.turns) if all_rows else select_rows(report.turns)
    several = len({t.session for t in report.turns}) > 1
    table = Table(title="Turn by turn", title_justify="left", header_style="bold")
    if several:
        table.add_column("session", justify="right")
    table.add_column("turn", justify="right")
    table.add_column("kind")
    for name in ("characters", "new", "tokens", "reused", "reference ms", "delta ms", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("identical", justify="center")
    for t in rows:
        table.add_row(
            *([str(t.session)] if several else []),
            str(t.turn),
            t.kind,
            f"{t.chars:,}",
            f"{t.new_chars:,}",
            f"{t.tokens:,}",
            f"{t.reused:.1%}",
            *_times(t.reference_s * 1e3, t.delta_s * 1e3),
            "[green]✓[/]" if t.identical else "[bold red]✗[/]",
            style=None if t.kind == "append" else "cyan",
        )
    console.print(table)
    if len(rows) < len(report.turns):
        console.print(f"{len(report.turns) - len(rows)} of {len(report.turns)} turns left out; --all-rows prints all")

    kinds = Table(title="\nMedians by kind", title_justify="left", header_style="bold")
    kinds.add_column("kind")
    for name in ("turns", "new characters", "reused", "reference ms", "delta ms", "ratio"):
        kinds.add_column(name, justify="right", no_wrap=True)
    for k in summary.kinds:
        times = _times(k.reference_ms, k.delta_ms)
        kinds.add_row(k.kind, str(k.turns), f"{k.new_chars:,.0f}", f"{k.reused:.1%}", *times)
    console.print(kinds)
    for line in summary_lines(report, summary):
        console.print(line, soft_wrap=True, markup=False)
    for d in report.differences[:_MOST_DIFFERENCES]:
        console.print(difference_line(d), soft_wrap=True, markup=False, style="red")
    if summary.identical == summary.turns:
        console.print(f"\n[bold green]✓[/] all {summary.turns} turns identical to the reference")
    else:
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
        f"ratio        {times(s.ratio)} (of the medians)",
        f"reused       {s.reused:.1%} of all tokens",
        f"state        {s.state_bytes / 2**20:.2f} MiB",
        f"admission    {admission_line(report.admission)}",
    ]
    if report.stats.fallbacks:
        lines.append("fallbacks    " + ", ".join(f"{k} {v}" for k, v in sorted(report.stats.fallbacks.items())))
    return lines


def admission_line(admission: Admission) -> str:
    """Config and encoder, or why the tokenizer wasn't admitted; and why a fast encoder doesn't serve."""
    if not admission.admitted:
        return f"not admitted ({admission.reason}): every turn went to the reference"
    note = f" ({admission.note})" if admission.note else ""
    return f"config {admission.config}, encoder {admission.encoder}{note}"


def difference_line(d: Difference) -> str:
    """Session, turn, first differing token and the IDs around it; no text."""
    return (
        f"session {d.session} turn {d.turn}: token {d.position} differs; expected {list(d.expected)} "
        f"({d.expected_length} in all), got {list(d.got)} ({d.got_length} in all)"
    )


def _times(reference_ms: float, delta_ms: float) -> tuple[str, str, str]:
    return _ms(reference_ms), _ms(delta_ms), times(ratio(reference_ms, delta_ms))


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def times(value: float) -> str:
    """A ratio as people read it."""
    return f"{value:,.0f}×" if value >= 10 else f"{value:.1f}×"


def plot(report: Report, path: Path, title: str) -> None:
    """Write a figure: both times turn by turn, and how many of the tokens were reused."""
    from matplotlib.figure import Figure  # the figure alone: no pyplot, so no GUI backend is looked for

    turns = report.turns
    x = list(range(len(turns)))
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    top.plot(x, [t.reference_s * 1e3 for t in turns], color="#b3541e", lw=1.4, label="reference, whole text")
    top.plot(x, [t.delta_s * 1e3 for t in turns], color="#1f5fa8", lw=1.4, label="Delta Tokenizer")
    for kind, mark in {"start": "s", "think": "o", "edit": "D", "trim": "v"}.items():
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
