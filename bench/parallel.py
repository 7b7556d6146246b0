"""Cold text on one core and on two: Delta Tokenizer with each encoder beside that encoder alone, and beside LoPT.

    python -m bench.parallel [--model NAME] [--chars 1000000 4000000] [--kinds english ...] [--cores 1 2] [--out DIR]

For each number of cores a process is started that may use so many, its libraries' threads included. *Alone* is the
encoder on the whole text, without guards, checkpoints or a second look: what the text costs at least on one thread.
LoPT needs the character offsets of tokens, which only the reference gives, so it is measured with that encoder.

Then one odd character is put into the middle of a document: what it costs must stay with the segment it stands in.

Every answer is compared with the reference's. Writes parallel.json and parallel.md. About half an hour; 7 minutes with
--chars 1000000 and --rounds 3.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tokenizers import Tokenizer

from delta_core import DeltaTokenizer
from delta_core.encoders import NAMES, EncoderUnavailable, version_of

from . import peers
from .lopt import longest_run, lopt
from .measure import Case, Contestant, Record, Result, Scene, machine, run
from .ours import Delta
from .report import number, table
from .texts import KINDS, session, transcript
from .workloads import FULL, SPOILS, Bench, of

CHAT = "chat"  # a tool-using session
LOPT = "LoPT"
ODD_CHARS = 1_000_000


def text_of(kind: str, family: str, chars: int, seed: int) -> str:
    """Exactly so many characters that nobody has seen."""
    if kind != CHAT:
        return transcript(kind, family, chars, seed)
    return session(family, chars, seed)[:chars]


def bare(name: str, path: Path) -> Contestant:
    """An encoder on its own."""
    if name == "reference":
        return peers.hf(path)[1]
    return peers.fastokens(path) if name == "fastokens" else peers.gigatoken(path, "list")


def contestants(path: Path, live: Tokenizer, note: Callable[[str], None]) -> Iterator[tuple[Contestant, Contestant]]:
    """Each encoder that serves this tokenizer here: alone, and in a DeltaTokenizer."""
    for name in NAMES:
        try:
            version = version_of(name)
        except EncoderUnavailable as error:
            note(str(error))
            continue
        tok = DeltaTokenizer(live, encoder=name)
        if tok.admission.encoder != name:
            note(f"{name} {version}: {tok.admission.note}")
            continue
        tok.prepare()
        alone = bare(name, path)
        alone.name = name
        yield alone, Delta(f"Delta, {name}", tok)


def measure(model: str, sizes: Sequence[int], kinds: Sequence[str], rounds: int) -> Record:
    """All texts with the cores that this process may use. Raises BenchError, FetchError."""
    record = Record("parallel", machine(apart=None))
    bench = Bench(model, None, record, FULL)
    path, live, family = bench.path, bench.live, bench.family
    pairs = list(contestants(path, live, record.note))
    everyone = [c for pair in pairs for c in pair]
    by_lopt = peers.Plain(LOPT, lambda text: lopt(live, text, longest_run).ids, again=False)

    for kind in kinds:
        for chars in sizes:
            cases = [Case("s", text_of(kind, family, chars, seed)) for seed in (0, 1)]
            scene = Scene("cold", path.parent.name, kind, 0, chars, cases)
            all_ = [(scene, c) for c in (*everyone, by_lopt)]
            record.results += run(all_, bench.reference, rounds=rounds, seconds=chars / 1e5)
            print(f"{kind}, {chars:,} characters", file=sys.stderr)
    # fastokens has one guard at most, in the tokenizers whose pattern ignores case; gigatoken has it, too.
    odd = {**SPOILS, "U+017F": "\u017f"}
    text = text_of(kinds[0], family, ODD_CHARS, 2)
    half = len(text) // 2
    scenes = [
        Scene(name, path.parent.name, kinds[0], 0, len(text), [Case("s", text[:half] + put + text[half:])])
        for name, put in odd.items()
    ]
    record.results += run([(s, d) for s in scenes for _, d in pairs], bench.reference, rounds=3 * rounds, seconds=10)
    return record


# -- tables --


def load(folder: Path) -> dict[int, Record]:
    """What was measured, by the number of cores; nothing where nothing was."""
    path = folder / "parallel.json"
    raw = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {int(cores): Record.of(record) for cores, record in raw.items()}


def _wrong(r: Result) -> str:
    return " WRONG" if r.wrong else ""


def markdown(records: dict[int, Record]) -> str:
    """Both tables; ratios above 1 are in this project's favour."""
    first = next(iter(records.values()))
    lines = []
    keys = list(dict.fromkeys((r.kind, r.new_chars) for r in first.results if r.scene == "cold"))
    names = [r.row for r in first.results if r.scene == "cold" and (r.kind, r.new_chars) == keys[0] and not r.ours]
    for kind, chars in keys:
        for cores, record in records.items():
            here = [r for r in record.results if r.scene == "cold" and (r.kind, r.new_chars) == (kind, chars)]
            cells = [f"{kind}, {chars / 1e6:g}M", str(cores)]
            by_lopt = of(here, LOPT)
            for name in names:
                if name == LOPT:
                    cells.append("differs" if by_lopt.wrong else number(by_lopt.median_ms))
                    continue
                alone, ours = of(here, name), of(here, f"Delta, {name}")
                cells.append("differs" if alone.wrong else number(alone.median_ms))
                cells.append(f"{number(ours.median_ms)} ({alone.median_ms / ours.median_ms:.2f}×)" + _wrong(ours))
            lines.append(cells)
    head = ["text", "cores"]
    for name in names:
        head += [LOPT + " with the reference"] if name == LOPT else [f"{name} alone", "Delta with it"]
    odd = []
    for cores, record in records.items():
        rows = [r for r in record.results if r.scene != "cold"]
        for row in dict.fromkeys(r.row for r in rows):
            clean = of(rows, row, "clean")
            others = [of(rows, row, s) for s in dict.fromkeys(r.scene for r in rows) if s != "clean"]
            odd.append(
                [row, str(cores), number(clean.median_ms)]
                + [f"{number(r.median_ms)} ({r.median_ms / clean.median_ms:.2f}×)" + _wrong(r) for r in others]
            )
    spoiled = list(dict.fromkeys(r.scene for r in first.results if r.scene not in ("cold", "clean")))
    notes = "\n".join(f"- {note}" for note in first.notes)
    return "\n\n".join(
        (
            f"{first.machine['cpu']}; {first.results[0].tokenizer}; medians in ms; "
            + ", ".join(f"{k} {v}" for k, v in first.machine["versions"].items() if v),
            table(head, lines),
            f"One odd character in the middle of {ODD_CHARS:,} characters:",
            table(["", "cores", "clean", *spoiled], odd),
            notes,
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="qwen3", help="a name or a file")
    parser.add_argument("--chars", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--kinds", nargs="+", default=[*KINDS, CHAT], choices=[*KINDS, CHAT])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=peers.ROOT / "build" / "bench")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # what it starts itself
    args = parser.parse_args()
    if args.inside:
        record = measure(args.model, args.chars, args.kinds, args.rounds)
        print(json.dumps(asdict(record)))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    usable = sorted(os.sched_getaffinity(0))
    records: dict[int, Record] = {}
    for cores in args.cores:
        if cores > len(usable):
            print(f"{cores} cores: this process may use {len(usable)}", file=sys.stderr)
            continue
        done = subprocess.run(
            [sys.executable, "-m", "bench.parallel", "--inside", *sys.argv[1:]],
            cwd=peers.ROOT,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda n=cores: os.sched_setaffinity(0, usable[:n]),
        )
        if done.returncode:
            return done.returncode
        records[cores] = Record.of(json.loads(done.stdout))
    path = args.out / "parallel.json"
    path.write_text(json.dumps({n: asdict(r) for n, r in records.items()}, indent=1, ensure_ascii=False) + "\n")
    text = markdown(records)
    (args.out / "parallel.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 1 if any(r.failed for r in records.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
