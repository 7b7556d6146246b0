"""Records as JSON, Markdown tables and plots. The page in docs/ is made in `page.py`."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .measure import TIGHT, Check, Churn, Record, Result, State
from .ours import FLOOR, FLOOR_ARRAY

ORDER = ("turn", "edit", "lookup", "cold", "sessions", "memory")
TITLES = {
    "turn": "One more turn of a conversation",
    "edit": "A conversation that was changed, and beginnings that are known",
    "lookup": "One of many stored conversations, with and without its key",
    "cold": "Text that nobody has seen",
    "sessions": "Whole sessions: CPU time of all turns",
    "memory": "Memory",
}
_COLORS = ("#0b3a6b", "#1f5fa8", "#4a90d9", "#7fb2e5")


def write(record: Record, folder: Path) -> None:
    """FOLDER/COMMAND.json, .md, and plots as .svg and .png where matplotlib is there."""
    plot(record, folder)
    record.save(folder)
    (folder / f"{record.command}.md").write_text(markdown(record), encoding="utf-8")


def plot(record: Record, folder: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        record.note("no plots: pip install 'delta-tokenizer[demo]'")
        return
    figure = Figure(figsize=(10, 6), layout="constrained")
    if _draw(record, figure.subplots()):
        for suffix in ("svg", "png"):
            figure.savefig(folder / f"{record.command}.{suffix}", dpi=130)


# -- tables --


def markdown(record: Record) -> str:
    """Everything of a record that a person wants to read."""
    said = (
        f"{machine_line(record)} Medians in ms (99th percentile), interleaved; all IDs compared with the reference's."
    )
    parts = [f"## {TITLES[record.command]}", said, *tables(record)]
    if record.checks:
        parts.append(check_table(record.checks))
    if record.notes:
        parts.append("\n".join(f"- {note}" for note in record.notes))
    return "\n\n".join(parts) + "\n"


def machine_line(record: Record) -> str:
    m = record.machine
    versions = {**m["versions"], **{k: v for k, v in (m["apart"] or {}).items() if k != "tokenizers"}}
    return (
        f"{m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB; load at the start {m['load_average'][0]}; "
        f"Python {m['python']}, " + ", ".join(f"{k} {v}" for k, v in versions.items() if v) + f"; {m['date']}."
    )


def tables(record: Record) -> list[str]:
    groups: dict[str, list[Result]] = {}
    for r in record.results:
        # A sweep is one table, whatever its lengths; other kinds of scenes are one table for a tokenizer and a text.
        title = r.tokenizer if record.command == "sessions" else f"{r.tokenizer}, {r.kind}, {r.mode}"
        groups.setdefault(title, []).append(r)
    found = []
    for title, results in groups.items():
        found.append(f"**{title}**")
        found.append(pivot(results, column_of(record.command), cpu if record.command == "sessions" else median))
    if record.fits:
        found.append(fit_table(record))
    if record.states:
        found.append(state_table(record.states))
    if record.churns:
        found.append(churn_table(record.churns))
    return found


def column_of(command: str) -> Callable[[Result], str]:
    return {
        "turn": lambda r: f"{_size(r.chars)} + {_size(r.new_chars)}" + (f", {r.scene}" if r.scene != "append" else ""),
        "cold": lambda r: f"{_size(r.new_chars)}, {r.scene}",
        "lookup": lambda r: f"{r.stored:,} stored",
    }.get(command, lambda r: r.scene)


def pivot(results: Sequence[Result], column: Callable[[Result], str], cell: Callable[[Result], str]) -> str:
    """Contestants down, scenes across; rows that were wrong anywhere in the table are left out unless they are ours."""
    wrong = {r.row for r in results if r.wrong and not r.ours}
    columns = list(dict.fromkeys(map(column, results)))
    rows = list(dict.fromkeys(r.row for r in results if r.row not in wrong))
    by_place = {(r.row, column(r)): r for r in results}
    return table(
        ["", *columns],
        [[row, *(cell(by_place[row, c]) if (row, c) in by_place else "" for c in columns)] for row in rows],
    )


def median(r: Result) -> str:
    return f"{number(r.median_ms)} ({number(r.p99_ms)})" + (" WRONG" if r.wrong else "")


def cpu(r: Result) -> str:
    return f"{number(r.cpu_s)} s" + (" WRONG" if r.wrong else "")


def fit_table(record: Record) -> str:
    """What grows with the history and what doesn't: t = constant + slope x length."""
    rows = []
    for f in record.fits:
        floor = next(x for x in record.fits if x.row == (FLOOR_ARRAY if "array" in f.row else FLOOR))
        for r in record.results:
            if (r.row, r.tokenizer, r.new_chars, r.scene) == (f.row, f.tokenizer, 400, "append") and r.chars == 400_000:
                share = f"{f.constant_us / r.median_ms / 10:.0f}%"
                break
        else:
            share = ""
        above = "" if f is floor else f"{f.constant_us - floor.constant_us:+.0f} µs"
        constant, slope = (f"{us:.0f} µs" for us in (f.constant_us, f.slope_us))
        rows.append([f.row, constant, above, share, slope, f"{f.slope_us / floor.slope_us:.2f}", f"{f.worst:.0%}"])
    head = ["time = constant + slope × history", "constant", "above the floor's", "share of a turn of 400K characters",
            "slope per 1M characters", "slope / floor's", "worst deviation"]  # fmt: skip
    return table(head, rows)


def state_table(states: Sequence[State]) -> str:
    return table(
        ["tokenizer", "text", "characters", "tokens", "text, KB", "state beside it, KB", "bytes per token", "form"],
        [
            [s.tokenizer, s.kind, f"{s.chars:,}", f"{s.tokens:,}", f"{s.text_bytes / 1e3:,.0f}",
             f"{s.state_bytes / 1e3:,.0f}", f"{s.state_bytes / s.tokens:.1f}", s.form]
            for s in states
        ],
    )  # fmt: skip


def churn_table(churns: Sequence[Churn]) -> str:
    rows = []
    for c in churns:
        start, last = c.samples[0][1], len(c.samples) - 1
        at = (c.samples[last * i // 4] for i in (1, 2, 3, 4))
        budget = f"{c.budget / 1e6:,.0f}" if c.budget else ""
        grown = (f"{(rss - start) / 1e6:,.1f} ({n:,})" for n, rss, _, _ in at)
        rows.append([c.row, budget, *grown, f"{c.samples[-1][3]:,}"])
    head = ["resident MB above the start (after conversations)", "budget, MB", "", "", "", "at the end", "evictions"]
    return table(head, rows)


def check_table(checks: Iterable[Check]) -> str:
    return table(
        ["target", "measured", "limit", ""],
        [[c.name, f"{c.value:.2f}", _limit(c), "holds" if c.holds else "**misses**"] for c in checks],
    )


def _limit(check: Check) -> str:
    return f"{'≤' if check.at_most else '≥'} {check.limit:g}"


def target_table(checks: Sequence[Check]) -> str:
    """All checks of a run, one row for each target: of which tokenizers, kinds of text and lengths is in the record."""
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault(re.sub(r"(?<=exact peer), .*| \(.*", "", check.name), []).append(check)
    rows = []
    for name, group in groups.items():
        values = [c.value for c in group]
        held = sum(c.holds for c in group)
        spread = f"{min(values):.2f} to {max(values):.2f}"
        rows.append([name, _limit(group[0]), f"{statistics.median(values):.2f}", spread, f"{held} of {len(group)}"])
    head = ["target, over all tokenizers and kinds of text", "limit", "median", "least to most", "held"]
    return table(head, rows) if rows else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def number(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def _size(chars: int) -> str:
    return f"{chars / 1e6:g}M" if chars >= 1_000_000 else f"{chars / 1e3:g}K" if chars >= 1_000 else str(chars)


def brief(r: Result, record: Record) -> bool:
    """Whether a result is of the first tokenizer, of the first kind of text, and in a turn table of the sweep."""
    if record.command == "turn" and (r.scene, r.new_chars) != ("append", 400):
        return False
    first = record.results[0]
    return r.tokenizer == first.tokenizer and (r.kind == first.kind or record.command == "sessions")


# -- plots --


def _draw(record: Record, axes: Any) -> bool:
    """Draws the record; False when there is nothing to draw. Of the first tokenizer only: one plot says one thing."""
    if record.churns:
        for n, churn in enumerate(record.churns):
            x, y = [s[0] for s in churn.samples], [(s[1] - churn.samples[0][1]) / 1e6 for s in churn.samples]
            axes.plot(x, y, label=churn.row, color=_color(churn.row, n), lw=1.6)
        axes.set(xlabel="conversations served, two turns each", ylabel="resident MB above the start")
    elif record.results:
        shown = [r for r in record.results if r.mode == TIGHT and brief(r, record)]
        wrong = {r.row for r in shown if r.wrong}
        (_lines if record.command in ("turn", "lookup") else _bars)(
            [r for r in shown if r.row not in wrong], axes, record.command
        )
    else:
        return False
    axes.set_title(TITLES[record.command], loc="left", fontsize=11)
    axes.grid(True, which="major", alpha=0.3)
    axes.figure.legend(fontsize=8, ncols=4, loc="outside lower center")
    return True


def _color(row: str, number: int) -> str:
    return _COLORS[number % len(_COLORS)] if "Delta" in row else "#000000" if "floor" in row else f"C{1 + number % 9}"


def _lines(results: Sequence[Result], axes: Any, command: str) -> None:
    place: Callable[[Result], int] = (lambda r: r.stored) if command == "lookup" else (lambda r: r.chars)
    for n, row in enumerate(dict.fromkeys(r.row for r in results)):
        points = sorted((place(r), r.median_ms) for r in results if r.row == row)
        style = (":" if "array" in row else "--") if "floor" in row else "-"
        axes.plot(*zip(*points, strict=True), style, marker="o", ms=3, lw=1.5, label=row, color=_color(row, n))
    axes.set(xscale="log", yscale="log", ylabel="ms per turn (median)")
    axes.set_xlabel("conversations stored" if command == "lookup" else "characters of history")


def _bars(results: Sequence[Result], axes: Any, command: str) -> None:
    column = column_of(command)
    value: Callable[[Result], float] = (lambda r: r.cpu_s) if command == "sessions" else (lambda r: r.median_ms)
    scenes, rows = (list(dict.fromkeys(map(f, results))) for f in (column, lambda r: r.row))
    for n, row in enumerate(rows):
        at = {scenes.index(column(r)) + 0.8 * n / len(rows): value(r) for r in results if r.row == row}
        axes.barh(list(at), list(at.values()), 0.8 / len(rows), label=row, color=_color(row, n))
    axes.set_yticks([i + 0.4 for i in range(len(scenes))], scenes, fontsize=8)
    axes.set(xscale="log", xlabel="s of CPU" if command == "sessions" else "ms (median)")
    axes.invert_yaxis()
