"""Delta Tokenizer side by side with every exact peer, and with the floor.

    python -m bench turn|edit|cold|lookup|memory|sessions|all [--quick] [--tokenizers qwen3,...] [--out DIR]
    python -m bench docs [--from DIR] [--write [FILE]]   # docs/benchmarks.md, made of what was measured

Every answer that was timed is compared with the reference's; the exit code is 1 if one of this project's differs, and
a peer that differs is named and left out. Measure on an idle machine: contestants share the cores with whoever runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from delta_core.errors import DeltaError

from . import memory, page, peers, report, texts, workloads
from .measure import Record, machine
from .workloads import FULL, QUICK, Bench

COMMANDS: dict[str, Callable[[Bench, bool], None]] = {
    "turn": lambda b, first: workloads.turn(b, sweep=first),
    "edit": lambda b, first: workloads.edit(b),
    "cold": lambda b, first: workloads.cold(b, fresh=first),
    "lookup": lambda b, first: workloads.lookup(b),
    "sessions": lambda b, first: workloads.sessions(b),
    "memory": lambda b, first: memory.measure(b, churn=first),
}
TOKENIZERS = "qwen3,llama3_1,gpt_oss,deepseek_v3"


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition("\n")[0])
    commands = root.add_subparsers(dest="command", required=True, metavar="|".join((*COMMANDS, "all", "docs")))
    for name in (*COMMANDS, "all"):
        p = commands.add_parser(name)
        p.add_argument("--quick", action="store_true", help="fewer lengths, kinds and rounds, qwen3 alone")
        p.add_argument("--tokenizers", metavar="NAME,...", help=f"names or files (default: {TOKENIZERS})")
        p.add_argument("--out", type=Path, default=peers.ROOT / "build" / "bench", metavar="DIR")
        p.add_argument("--text", action="append", default=[], metavar="KIND=PATH", help="real text for a kind")
        p.add_argument(
            "--peers",
            metavar="PYTHON|none",
            help=f"an interpreter that has {', '.join(peers.APART)} (default: a venv in the output folder)",
        )
    p = commands.add_parser("churn")  # what `memory` starts in a process of its own
    p.add_argument("row", choices=memory.ROWS)
    p.add_argument("tokenizer")
    p.add_argument("sessions", type=int)
    p = commands.add_parser("docs")
    p.add_argument("--from", dest="folder", type=Path, default=peers.ROOT / "build" / "bench", metavar="DIR")
    target = peers.ROOT / "docs" / "benchmarks.md"
    p.add_argument("--write", type=Path, nargs="?", const=target, metavar="FILE", help=f"default: docs/{target.name}")
    return root


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.command == "churn":
        return memory.churn(args.row, args.tokenizer, args.sessions)
    if args.command == "docs":
        return page.docs(args.folder, args.write)
    try:
        return measure(args)
    except (DeltaError, OSError, EOFError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def measure(args: argparse.Namespace) -> int:
    names = (args.tokenizers or ("qwen3" if args.quick else TOKENIZERS)).split(",")
    plan = QUICK if args.quick else FULL
    for given in args.text:
        kind, _, path = given.partition("=")
        texts.give(kind, Path(path))
        kinds, edited = (tuple(dict.fromkeys((*kinds, kind))) for kinds in (plan.kinds, plan.edited))
        plan = replace(plan, kinds=kinds, edited=edited)
    args.out.mkdir(parents=True, exist_ok=True)
    record = Record("", {})
    worker = peers.start(args.peers, args.out, record.note)
    settings = {"quick": args.quick, "tokenizers": names, "text": args.text}
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)) / 2:
        record.note("the machine was busy when this began: read ratios only, if anything")
    commands = list(COMMANDS) if args.command == "all" else [args.command]
    records = {c: Record(c, machine(apart=worker.versions if worker else None, **settings)) for c in commands}
    try:
        for number, name in enumerate(names):
            bench = Bench(name, worker, record, plan)
            for command in commands:
                bench.record = records[command]
                try:
                    COMMANDS[command](bench, number == 0)
                except texts.TooShort as error:
                    bench.record.note(f"{command} is incomplete for {name}: {error}")
                for line in record.notes:
                    bench.record.note(line)
                report.write(bench.record, args.out)
    finally:
        if worker is not None:
            worker.close()
    for command in commands:
        print(report.markdown(records[command]))
    return 1 if any(r.failed for r in records.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
