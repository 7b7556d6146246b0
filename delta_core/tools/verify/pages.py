"""The report: JSON for machines; for people the same tables as Markdown, and as one HTML page on its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from .controls import ControlResult
from .report import Row, State, Summary, Variant, summarise

_TITLE = "Exactness campaign"
_CUT = "A safe cut is checked by encoding a text in pieces: n of them that have the IDs of the whole check n - 1 cuts."
_COUNTS = ("comparisons", "safe cuts", "differences", "hours")


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the report. words: how many columns at the left are text; the others are counts."""

    title: str
    note: str
    columns: tuple[str, ...]
    words: int
    rows: list[tuple[str, ...]]


def tables(s: Summary) -> list[Table]:
    """The counts from the coarse to the fine, then the controls."""
    found = [
        _grouped("Reference versions", ("tokenizers",), s.rows, lambda r: (r.reference,)),
        _grouped(
            "Tokenizers and encoders",
            ("tokenizer", "encoder", "tokenizers"),
            s.rows,
            lambda r: (r.tokenizer, r.encoder, r.reference),
        ),
        _grouped("Batteries", ("battery",), s.rows, lambda r: (r.battery,)),
        _grouped(
            "Every count",
            ("tokenizer", "encoder", "tokenizers", "battery"),
            s.rows,
            lambda r: (r.tokenizer, r.encoder, r.reference, r.battery),
        ),
        Table(
            "Controls",
            "Each condition that exactness rests on, switched off once: a difference must then be found. The calls are "
            "those of a text cut, or with a checkpoint, at every allowed position.",
            ("condition", "tokenizer", "tokenizers", "first difference", "comparisons until then"),
            4,
            [(c.name, f"synthetic/{c.config}", c.reference, _first(c), f"{c.cases:,}") for c in s.controls],
        ),
        Table(
            "Refusals",
            "Tokenizers that must not be admitted.",
            ("tried", "admitted all the same"),
            0,
            [(f"{s.refusals_tried:,}", ", ".join(s.refusals_missed) or "0")],
        ),
        Table(
            "Changed tokenizers",
            "Tokens added in the ways that users do it, frozen anew: served with the changed live tokenizer's IDs, or "
            "refused." + (f" Never served: {', '.join(s.never_served)}." if s.never_served else ""),
            ("change", "encoder", "tokenizers", "refused", "served"),
            4,
            [(v.kind, v.encoder, v.reference, _refused(v), f"{v.served:,}") for v in s.variants],
        ),
        Table("Left out", "", ("tokenizer and encoder", "why"), 2, list(s.skipped.items())),
    ]
    return [table for table in found if table.rows]


def _refused(variant: Variant) -> str:
    """Why, and how often."""
    return ", ".join(f"{count}x {why}" for why, count in variant.refused.items()) or "0"


def _first(control: ControlResult) -> str:
    return "; ".join(control.example) if control.found else "none"


def _grouped(title: str, names: tuple[str, ...], rows: Iterable[Row], key: Callable[[Row], tuple[str, ...]]) -> Table:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    counted = [
        (
            *group,
            f"{sum(r.cases for r in found):,}",
            f"{sum(r.cuts for r in found):,}",
            f"{sum(r.differences for r in found):,}",
            f"{sum(r.seconds for r in found) / 3600:.2f}",
        )
        for group, found in sorted(groups.items())
    ]
    return Table(title, "", (*names, *_COUNTS), len(names), counted)


def _what_ran(s: Summary) -> str:
    encoders = ", ".join(f"{k} {v}" for k, v in s.encoders.items()) or "none"
    return (
        f"tokenizers {', '.join(s.references)}; encoders installed: {encoders}; seeds {', '.join(s.seeds)}; "
        f"{s.seconds / 3600:.2f} worker hours on {s.machine}."
    )


def markdown(s: Summary) -> str:
    """The report as Markdown."""
    lines = [
        f"# {_TITLE}",
        "",
        f"{s.cases:,} comparisons of IDs with the reference, {s.cuts:,} safe cuts, **{s.differences} differences**.",
        _what_ran(s),
        "",
        _CUT,
    ]
    for table in tables(s):
        lines += ["", f"## {table.title}", ""]
        if table.note:
            lines += [table.note, ""]
        lines.append(_line(table.columns))
        lines.append("|" + "|".join("---" if i < table.words else "--:" for i in range(len(table.columns))) + "|")
        lines += map(_line, table.rows)
    if s.examples:
        lines += ["", "## Differences"]
        for example in s.examples:
            lines += ["", "```", *example, "```"]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff; max-width: 70rem; margin: 2rem auto; }
body { padding: 0 1rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; }
th, td { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td { overflow-wrap: anywhere; }
pre { background: #f4f4f4; padding: .6rem; overflow-x: auto; }
.ok { color: #176b2c; } .bad { color: #a40000; }
"""


def page(s: Summary) -> str:
    """The report as one HTML page. Everything that a tokenizer or a text brought in is escaped."""
    good = not (s.differences or s.dull_controls or s.refusals_missed)
    controls = "every control found a difference" if s.controls else "no control was run"
    verdict = controls if good else "see the differences, controls and refusals below"
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f"<title>{_TITLE}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{_TITLE}</h1>",
        f'<p class="{"ok" if good else "bad"}">{s.cases:,} comparisons of IDs with the reference, {s.cuts:,} safe '
        f"cuts, <strong>{s.differences:,} differences</strong>: {verdict}.</p>",
        f"<p>{escape(_what_ran(s))}</p>\n<p>{_CUT}</p>",
    ]
    for table in tables(s):
        parts.append(f"<h2>{table.title}</h2>")
        if table.note:
            parts.append(f"<p>{escape(table.note)}</p>")
        parts.append(f"<table>\n<thead>{_row('th', table.columns, table.words)}</thead>\n<tbody>")
        parts += [_row("td", row, table.words) for row in table.rows]
        parts.append("</tbody>\n</table>")
    if s.examples:
        parts.append("<h2>Differences</h2>")
        parts += [f"<pre>{escape(chr(10).join(example))}</pre>" for example in s.examples]
    return "\n".join(parts) + "\n</body>\n</html>\n"


def _row(tag: str, cells: Iterable[str], words: int) -> str:
    marked = (f"<{tag}{'' if i < words else ' class=n'}>{escape(cell)}</{tag}>" for i, cell in enumerate(cells))
    return f"<tr>{''.join(marked)}</tr>"


def write_report(states: list[State], folder: Path) -> list[Path]:
    """report.json, report.md and report.html; returns their paths."""
    summary = summarise(states)
    written = {
        "report.json": json.dumps(asdict(summary), indent=1) + "\n",
        "report.md": markdown(summary),
        "report.html": page(summary),
    }
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in written]
