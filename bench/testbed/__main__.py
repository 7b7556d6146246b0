"""What front ends hold: the highest rate at a bound on P99, what bursts do to turns, and how many threads a pool needs.

    python -m bench.testbed --quick             # minutes: whether it all works, and roughly where things stand
    python -m bench.testbed                     # 64 sessions of 100K characters, both encoders, 1 thread and one a core

Requests are turns of 1,300 characters of sessions that grow, now and then a text without a session, on one event loop.
They come when they are due, whether or not the front end keeps up (Poisson arrivals, an open loop). One whose answers
are two seconds behind when the arrivals end did not keep up, whatever its P99.

- *appends*: the rate is doubled until P99 is over the bound (--limit), then the interval is halved a few times.
- *bursts*: a fixed rate, and four documents of 1M characters at once, again and again.
- *starts*: a fixed rate, and a new session of 1M characters every second.

Of every run a sample is encoded again by the reference; the exit code is 1 if any ID differs. Writes testbed.json and
testbed.md. Measure on an idle machine. On one with many cores give more sessions and a higher --most-rate, so that
neither runs out first, and --seconds 30, so that P99 rests on enough requests.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from delta_core.pool import cores
from delta_core.tools.demo.templates import family_of
from delta_core.tools.fetch import fetch

from ..measure import machine
from ..report import number, table
from .designs import Bench, Design
from .drive import Run, drive, highest_rate
from .load import Arrival, Burst, Fleet, schedule

APPENDS = "appends"
BURSTS = {
    "bursts": (4, 0.5),
    "starts": (1, None),
}  # how many at once, and how often: a share of the run, or each second
KINDS = {"append": "turns", "stateless": "stateless", "document": "documents", "start": "starts"}


@dataclass(slots=True)
class Record:
    """One invocation. machine: facts and settings. runs: with the encoder of ours. highest: (encoder, design, rate)."""

    machine: dict[str, Any]
    runs: list[tuple[str, Run]] = field(default_factory=list)
    highest: list[tuple[str, str, float]] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        return sum(run.wrong for _, run in self.runs)

    def write(self, folder: Path) -> str:
        """FOLDER/testbed.json and testbed.md; the text of the latter."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "testbed.json").write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        text = self.markdown()
        (folder / "testbed.md").write_text(text, encoding="utf-8")
        return text

    def markdown(self) -> str:
        m = self.machine
        parts = [f"{m['line']} {m['cpu']}, {m['cores']} cores; {m['date']}. Times in ms."]
        if self.highest:
            rows = [[e, d, f"{rate:.0f}" if rate else "none"] for e, d, rate in self.highest]
            head = ["encoder", "design", f"highest rate with P99 ≤ {m['limit_ms']:g} ms, requests a second"]
            parts += ["### Rates", table(head, rows)]
        for scenario in BURSTS:
            rows = [_row(encoder, run) for encoder, run in self.runs if run.scenario == scenario]
            if rows:
                head = ["encoder", "design", *(f"{name}, P50 / P99" for name in KINDS.values())]
                parts += [f"### {scenario.capitalize()}", table([*head, "longest stall", "of an idle loop"], rows)]
        checked = sum(run.checked for _, run in self.runs)
        parts.append(f"{checked} answers were encoded again by the reference: {self.wrong} differ.")
        return "\n\n".join(parts) + "\n"


def _row(encoder: str, run: Run) -> list[str]:
    late = "" if run.kept_up else f" (behind by {run.unfinished})"
    found = [run.kinds.get(kind) for kind in KINDS]
    cells = ["" if k is None else f"{number(k.median_ms)} / {number(k.p99_ms)}" for k in found]
    return [encoder, run.design + late, *cells, number(run.stall_ms), number(run.idle_stall_ms)]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m bench.testbed", description=__doc__.partition("\n")[0])
    p.add_argument("--quick", action="store_true", help="few sessions, short runs, one encoder")
    p.add_argument("--model", default="qwen3", help="a name or a tokenizer.json")
    p.add_argument("--encoder", action="append", choices=("reference", "fastokens", "gigatoken"), help="default: two")
    p.add_argument("--threads", type=int, nargs="+", default=sorted({1, cores()}), help="sizes of the pool")
    p.add_argument("--scenario", action="append", choices=(APPENDS, *BURSTS))
    p.add_argument("--sessions", type=int, metavar="N")
    p.add_argument(
        "--base", type=int, default=100_000, metavar="CHARS", help="of a session before its first timed turn"
    )
    p.add_argument("--document", type=int, default=1_000_000, metavar="CHARS", help="of a document, and of a start")
    p.add_argument("--seconds", type=float, help="of one run")
    p.add_argument("--rate", type=float, default=20.0, help="of turns in bursts and starts; where the search begins")
    p.add_argument("--most-rate", type=float, default=4096.0)
    p.add_argument("--limit", type=float, default=50.0, metavar="MS")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", type=Path, default=Path("build/testbed"))
    return p


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    quick = args.quick
    args.seconds = args.seconds or (2.0 if quick else 15.0)
    sessions = args.sessions or (4 if quick else 64)
    named = not Path(args.model).is_file()
    path = str(fetch(args.model)) if named else args.model
    family = family_of(args.model if named else None)
    fleet = Fleet.generated(family, sessions, args.base, 8 if quick else 20, args.document * (2 if quick else 4))
    line = (
        f"{args.model if named else Path(path).parent.name}, {sessions} sessions of {args.base:,} characters, turns of "
        f"1,300, {args.seconds:g} s a run, {args.rate:g} requests a second beside bursts and starts."
    )
    record = Record(machine(limit_ms=args.limit, line=line, seed=args.seed))
    for encoder in args.encoder or (["fastokens"] if quick else ["fastokens", "reference"]):
        for make in Bench(path, encoder, tuple(args.threads)).makers():
            design = make()
            try:
                _measure(args, design, encoder, fleet, record)
            finally:
                design.close()
            record.write(args.out)
    print(record.write(args.out))
    return 1 if record.wrong else 0


def _measure(args: argparse.Namespace, design: Design, encoder: str, fleet: Fleet, record: Record) -> None:
    def run(scenario: str, rate: float) -> Run:
        bursts: list[Burst] = []
        if scenario in BURSTS:
            count, share = BURSTS[scenario]
            every = args.seconds * share if share else 1.0
            bursts = [Burst("document" if share else "start", every, count, args.document)]
        arrivals: list[Arrival] = schedule(fleet, rate, args.seconds, args.seed, bursts=bursts)
        return drive(design, scenario, rate, args.seconds, arrivals, args.seconds / 5, 6 if args.quick else 24)

    def note(done: Run) -> None:
        record.runs.append((encoder, done))
        state = f"P99 {done.p99_ms:9.1f} ms" if done.kept_up else f"behind by {done.unfinished}"
        print(f"{encoder:10} {done.design:28} {done.scenario:8} {done.rate:7.1f}/s  {state}", file=sys.stderr)

    warm = drive(design, "warm", 0.0, 0.0, list(fleet.warming()), 0.0, 2)
    assert not warm.wrong, "the first texts already differ"
    for scenario in args.scenario or (APPENDS, *BURSTS):
        if scenario == APPENDS:
            steps = 0 if args.quick else 3
            rate = highest_rate(lambda rate: run(APPENDS, rate), args.limit, args.rate, steps, args.most_rate, note)
            record.highest.append((encoder, design.name, rate))
        else:
            note(run(scenario, args.rate))


if __name__ == "__main__":
    raise SystemExit(main())
