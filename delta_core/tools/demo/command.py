"""`delta demo`: runs a session through Delta Tokenizer and through the reference, and shows both, turn by turn."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from tokenizers import Tokenizer

from ...admission.frozen import Frozen
from ...arguments import ENCODERS
from ...errors import DeltaError
from ...tokenizer import DeltaTokenizer
from .. import fetch
from ..console import positive, tell
from ..opening import OpenError, file_of, tokenizer_of
from . import templates
from .embedded import embedded_config, embedded_tokenizer
from .measure import Report, TurnResult, measure, summarise
from .session import Turn, generate, load, turns_of
from .show import plot, show, times

DEFAULT_MODEL = "qwen3"


class DemoError(DeltaError):
    """The demo can't start; the message says what is missing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `delta demo`."""
    parser.add_argument(
        "--model",
        metavar="NAME|PATH",
        help=f"a name `delta fetch` knows, or a tokenizer.json (default: {DEFAULT_MODEL})",
    )
    parser.add_argument("--encoder", choices=ENCODERS, default="auto", help="for the new text")
    parser.add_argument("--session", metavar="FILE", type=Path, help="replay your own JSONL of messages or sessions")
    parser.add_argument(
        "--turns",
        metavar="N",
        type=positive,
        help="at most N turns: the first N of the generated session, N spread over each session of a file",
    )
    parser.add_argument(
        "--target-chars", metavar="N", type=positive, default=400_000, help="length of the generated session"
    )
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="of the generated session")
    parser.add_argument(
        "--interleave",
        metavar="N",
        type=positive,
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


def run(args: argparse.Namespace) -> int:
    """Returns 0 if all turns are identical, 1 if any differs, 130 after Ctrl-C. Raises DeltaError, OSError."""
    json_alone = args.json == "-"
    _check_extras(args, json_alone)
    sessions = _sessions(args)
    model, live, reference, config = _open(args)
    tok = DeltaTokenizer(live, encoder=args.encoder, config=config)
    family = templates.family_of(tok.admission.config)
    if family == "plain":
        family = templates.family_by_markers(lambda token: live.token_to_id(token) is not None)
    total = sum(map(len, sessions))
    tell(f"{model}: {total} turns in {len(sessions)} session{'s'[: len(sessions) != 1]}, template {family}")

    if json_alone:
        report = measure(tok, reference, sessions, family=family, block=args.interleave)
    else:
        report = _measure_and_show(args, tok, reference, sessions, family, total)
    if args.json:
        text = _as_json(args, report, model, family)
        print(text) if json_alone else Path(args.json).write_text(text + "\n", encoding="utf-8")
    if args.plot and report.turns:
        ratio = times(summarise(report).ratio)
        plot(report, args.plot, f"{model}, encoder {report.admission.encoder}: {ratio} at the median")
        tell(f"wrote {args.plot}")
    if report.interrupted:
        tell(f"interrupted after {len(report.turns)} of {total} turns")
        return 130
    return 1 if report.differences else 0


def _check_extras(args: argparse.Namespace, json_alone: bool) -> None:
    wanted = [*([] if json_alone else ["rich"]), *(["matplotlib"] if args.plot else [])]
    missing = [name for name in wanted if find_spec(name) is None]
    if missing:
        raise DemoError(f"{' and '.join(missing)} missing; to install: pip install {' '.join(missing)}")
    if args.plot and args.plot.suffix not in (".png", ".svg"):
        raise DemoError(f"--plot {args.plot}: the name must end in .png or .svg")


def _sessions(args: argparse.Namespace) -> list[list[Turn]]:
    if args.session is None:
        return [list(generate(seed=args.seed, target_chars=args.target_chars))[: args.turns]]
    sessions = [list(turns_of(messages, limit=args.turns)) for messages in load(args.session)]
    sessions = [turns for turns in sessions if turns]
    if not sessions:
        raise DemoError(f"{args.session}: no turn in it, the assistant is never to speak")
    return sessions


def _open(args: argparse.Namespace) -> tuple[str, Tokenizer, Tokenizer, Frozen | None]:
    """What to call the model, its tokenizer, another object of it as the reference, and a config made on the spot."""
    model = args.model or DEFAULT_MODEL
    try:
        if args.offline and model in fetch.NAMES and not (Path(model).exists() or fetch.cached(model)):
            raise OpenError(f"no cached copy of {model}")
        path = file_of(model, tell)
    except (OpenError, fetch.FetchError) as error:
        if args.model:  # numbers for another tokenizer than the one asked for would only mislead
            raise
        tell(f"{str(error).partition(chr(10))[0]}; using the small embedded tokenizer instead")
        live = embedded_tokenizer()
        return "embedded", live, Tokenizer.from_str(live.to_str()), embedded_config(live)
    return model, tokenizer_of(path), tokenizer_of(path), None


def _measure_and_show(
    args: argparse.Namespace,
    tok: DeltaTokenizer,
    reference: Tokenizer,
    sessions: list[list[Turn]],
    family: str,
    total: int,
) -> Report:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(no_color=args.no_color, highlight=False)
    if not console.is_terminal:
        console.width = 120  # a pipe has no width; the default would break the table's lines
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Redrawn by hand after each turn: a refresh thread would run inside the calls being timed.
    with Progress(
        *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("encoding", total=total)

        def on_turn(result: TurnResult) -> None:
            bar.update(task, advance=1, description=f"{result.tokens:,} tokens", refresh=True)

        report = measure(tok, reference, sessions, family=family, block=args.interleave, on_turn=on_turn)
    show(console, report, summarise(report), all_rows=args.all_rows)
    return report


def _as_json(args: argparse.Namespace, report: Report, model: str, family: str) -> str:
    """The run for a machine: setup, summary, all turns, differences. Times: `_s` seconds, `_ms` milliseconds."""
    generated = f"generated, seed {args.seed}, {args.target_chars} characters"
    setup = {
        "model": model,
        "template": family,
        "encoder_asked": args.encoder,
        "interleave": args.interleave,
        "session": str(args.session) if args.session else generated,
    }
    whole = {"setup": setup, "summary": asdict(summarise(report)), **asdict(report)}
    return json.dumps(whole, indent=2, ensure_ascii=False)
