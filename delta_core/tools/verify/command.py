"""`delta verify`: an exactness campaign on the user's own tokenizer and text, with controls that must fail."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
from dataclasses import asdict
from pathlib import Path

from ...encoders import NAMES
from ...reference import Reference
from .. import fetch
from ..console import positive, tell
from ..version import installed
from .batteries import BATTERIES
from .campaign import Campaign, Plan
from .pages import write_report
from .report import State, summarise
from .subjects import read_texts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `delta verify`."""
    parser.add_argument("tokenizers", nargs="*", metavar="NAME|PATH", help="default: qwen3; `all` for every name")
    parser.add_argument("--text", type=Path, action="append", default=[], metavar="PATH", help="text or .jsonl")
    parser.add_argument("--minutes", type=float, help="how long, after the controls; default: a fixed amount of work")
    parser.add_argument("--cuts", type=positive, metavar="N", help="how many to check, with those of a resumed report")
    parser.add_argument("--workers", type=positive, default=multiprocessing.cpu_count())
    parser.add_argument("--seed", help="default: a fresh one, printed; a resumed report keeps its own")
    parser.add_argument("--encoder", action="append", choices=[*NAMES, "certified"], help="default: certified")
    parser.add_argument("--battery", action="append", choices=list(BATTERIES), help="default: all")
    parser.add_argument("--report", type=Path, default=Path("delta-verify"), metavar="DIR", help="also resumes from it")
    parser.add_argument("--no-controls", action="store_true", help="leave the controls out")
    parser.add_argument("--json", action="store_true", help="print the report's JSON")


def run(args: argparse.Namespace) -> int:
    """Returns 0 for no difference, 1 for a difference or a control that found none, 130 when interrupted.

    Raises OpenError, StateError, OSError.
    """
    names = tuple(args.tokenizers) or ("qwen3",)
    if names == ("all",):
        names = tuple(n for n in fetch.NAMES if fetch.cached(n) or n != "kimi_k3")  # no registry ships that one
    for path in args.text:
        read_texts(path)  # raises now, and not in a worker
    seed = args.seed or State.seed_of(args.report) or f"{random.SystemRandom().randrange(1 << 32):08x}"
    asked = args.encoder or ["certified"]
    encoders = [name for name in NAMES if installed(name)] if "certified" in asked else []
    batteries = tuple(b for b in args.battery or BATTERIES if b != "user" or args.text)
    tell(f"seed {seed}, tokenizers {Reference.version}, report {args.report}")
    plan = Plan(
        tokenizers=names,
        encoders=tuple(dict.fromkeys([*encoders, *(name for name in asked if name != "certified")])),
        batteries=batteries,
        minutes=args.minutes,
        cuts=args.cuts,
        workers=args.workers,
        seed=seed,
        text_paths=tuple(map(str, args.text)),
        controls=not args.no_controls,
    )
    campaign = Campaign(plan, args.report)
    campaign.run()
    summary = summarise([campaign.state])
    written = write_report([campaign.state], args.report)
    if args.json:
        print(json.dumps(asdict(summary), indent=2))
    tell(f"wrote {', '.join(map(str, written))}")
    if summary.never_served:
        tell(f"never served, so not compared: {', '.join(summary.never_served)}")
    for what, why in campaign.state.skipped.items():
        tell(f"left out: {what}: {why}")
    if summary.differences or summary.dull_controls or summary.refusals_missed:
        return 1
    return 130 if campaign.interrupted else 0
