"""docs/benchmarks.md, made of what was measured."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from . import parallel
from .measure import Record
from .report import ORDER, TITLES, brief, machine_line, tables, target_table

_HEAD = """\
# Benchmarks

`python -m bench docs --write` makes this page from what was measured; it is not written by hand. To repeat it, in an
environment with the `test` extra, on an idle machine:

```sh
{repeat}
```

- **Figures** are medians in milliseconds, with the 99th percentile in parentheses. Compare figures of one table: its
  rows made the same calls in turn, interleaved. Ratios say more about another machine than absolute times do.
- **Processes.** All rows of a table run in one process, but for peers that need an environment of their own (toktier,
  tiktoken): these run in a second one, which takes the times itself.
- **Exact.** Every answer that was timed was compared with the reference's. A peer that gave a wrong ID is in no table;
  the notes name it.
- **Tight loop**: the call follows its preparation at once, caches are warm. **Server mode**: between the two, another
  request's JSON is parsed and 8 MB of memory are written, as other requests would do.
- The **floor** compares the old text, encodes what follows its last safe cut, and copies the old IDs: what no exact
  tokenizer that returns a list can do without. It knows beforehand where to look.
- **Targets** are the project's own. Those that are missed are shown as well.
- `python -m bench.compare OLD` puts another checkout beside this one: what a change has cost.

{machine} {conditions}"""

_PARALLEL = """\
## Cold text on one core and on two

Each encoder alone and inside Delta Tokenizer; the factor says how many times faster Delta Tokenizer is. What a fast
encoder loses here, once a conversation, pays for checkpoints: they make the later turns cheap. LoPT encodes overlapping
chunks in parallel and joins them, as its paper describes it; where its IDs differed, the cell says so."""


def page(folder: Path) -> str:
    """The first tokenizer's tables, the fit and what became of the targets. Empty when nothing was measured."""
    records = [Record.load(path) for path in (folder / f"{command}.json" for command in ORDER) if path.exists()]
    if not records:
        return ""
    first = records[0]
    quick = " --quick" if first.machine.get("quick") else ""
    commands = ["all"] if len(records) == len(ORDER) else [record.command for record in records]
    repeat = [f"python -m bench {command}{quick}" for command in commands]
    parts: list[str] = []
    for record in records:
        shown = replace(
            record,
            results=[r for r in record.results if brief(r, record)],
            states=[s for s in record.states if s.form == "list" and s.kind == record.states[0].kind],
        )
        parts += filter(None, (f"## {TITLES[record.command]}", *tables(shown), target_table(record.checks)))
    by_cores = parallel.load(folder)
    if by_cores:
        repeat.append("python -m bench.parallel" + (" --chars 1000000 --rounds 3" if quick else ""))
        parts += [_PARALLEL, parallel.markdown(by_cores)]
    notes = dict.fromkeys(note for record in records for note in record.notes)
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    repeat.append("python -m bench docs --write")
    head = _HEAD.format(repeat="\n".join(repeat), machine=machine_line(first), conditions=conditions(first))
    return "\n\n".join((head.strip(), *map(str.strip, parts))) + "\n"


def conditions(record: Record) -> str:
    m = record.machine
    said = []
    if m.get("quick"):
        said.append("This is the quick set: one tokenizer and few rounds; the 99th percentile is the slowest call.")
    if m["load_average"][0] > m["cores"] / 2:
        said.append("The machine was shared and busy: ratios within a table say something, percentiles little.")
    return " ".join(said)


def docs(folder: Path, target: Path | None) -> int:
    """Print the page, or write it to a file. Exit code 2 when nothing was measured."""
    text = page(folder)
    if not text:
        print(f"bench docs: no records in {folder}", file=sys.stderr)
        return 2
    if target is None:
        print(text)
    else:
        target.write_text(text, encoding="utf-8")
    return 0
