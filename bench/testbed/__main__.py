"""The scheduling testbed.

    python -m bench.testbed --quick             # two minutes: whether it all works, and roughly where things stand
    python -m bench.testbed                     # 64 sessions of 100K characters, all designs, both encoders
    python -m bench.testbed --base 250000       # the same with longer sessions
    python -m bench.testbed --workers 32        # on a larger machine, see below

On 16 to 128 cores: --workers cores - 1, one core is the loop's; --sessions 256 and --most-rate 20000, so that neither
runs out first; --seconds 30, so that P99 rests on enough requests. Memory: 0.4 MB for each 100K characters of a session
and design, 0.3 GB for each worker process.

Scenarios: *appends* searches the highest rate a design holds; *bursts* adds four documents of 1M characters at once,
again and again; *starts* adds sessions that begin with 1M characters. A run whose answers are a second behind when the
arrivals end did not keep up (the backlog rule), whatever its P99. Of every run a sample is encoded again by the
reference; the exit code is 1 if any ID differs. Measure on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from delta_core.pool.workers import cores
from delta_core.tools.demo.templates import family_of
from delta_core.tools.fetch import fetch

from ..measure import machine, p99
from . import report, simulate
from .designs import FRONT_ENDS, NAMES, OURS, QUEUES, Bench
from .drive import Run, drive, highest_rate
from .load import Arrival, Burst, Fleet, schedule

SCENARIOS = ("appends", "bursts", "starts", "simulation")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m bench.testbed", description=__doc__.partition("\n")[0])
    p.add_argument("--quick", action="store_true", help="few sessions, short runs, fewer designs")
    p.add_argument("--model", default="qwen3", help="a name or a tokenizer.json")
    p.add_argument("--encoder", action="append", choices=("reference", "fastokens", "gigatoken"), help="default: two")
    p.add_argument("--design", action="append", choices=NAMES)
    p.add_argument("--scenario", action="append", choices=SCENARIOS)
    p.add_argument("--session", action="append", type=Path, metavar="FILE.jsonl", help="replay sessions from files")
    p.add_argument("--sessions", type=int, metavar="N")
    p.add_argument("--base", type=int, metavar="CHARS", help="of a session before its first timed turn")
    p.add_argument("--document", type=int, default=1_000_000, metavar="CHARS")
    p.add_argument("--stateless", type=int, default=32_000, metavar="CHARS")
    p.add_argument("--seconds", type=float, help="of one run")
    p.add_argument("--rate", type=float, default=20.0, help="of appends in bursts; where the search begins")
    p.add_argument("--most-rate", type=float, default=4096.0)
    p.add_argument("--limit", type=float, default=50.0, metavar="MS")
    p.add_argument("--workers", type=int, default=cores())
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", type=Path, default=Path("build/testbed"))
    return p


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    quick = args.quick
    args.seconds = args.seconds or (2.0 if quick else 15.0)
    base = args.base or 100_000
    sessions = args.sessions or (4 if quick else 64)
    encoders = args.encoder or (["fastokens"] if quick else ["fastokens", "reference"])
    scenarios = args.scenario or SCENARIOS
    path = args.model if Path(args.model).is_file() else str(fetch(args.model))
    family = family_of(None if Path(args.model).is_file() else args.model)
    corpus = args.document * (2 if quick else 4)
    fleet = (
        Fleet.replayed(args.session, family, base, corpus)
        if args.session
        else Fleet.generated(family, sessions, base, 8 if quick else 20, corpus)
    )
    line = (
        f"{args.model}, {len(fleet.sources)} sessions of {base:,} characters, turns of 1,300, {args.workers} workers, "
        f"{args.seconds:g} s a run, seed {args.seed}."
    )
    record = report.Record(machine(limit_ms=args.limit, line=line, seed=args.seed, workers=args.workers))
    for encoder in encoders:
        _measure(args, Bench(path, encoder, args.workers), fleet, scenarios, record)
        report.write(record, args.out)
    print(report.write(record, args.out))
    return 1 if record.wrong else 0


def _measure(
    args: argparse.Namespace, bench: Bench, fleet: Fleet, scenarios: Sequence[str], record: report.Record
) -> None:
    bursts = {
        "bursts": [Burst("document", args.seconds / 2, 4, args.document)],
        "starts": [Burst("start", 1.0, 1, args.document)],
    }
    sample = 6 if args.quick else 24
    designs = {
        "appends": FRONT_ENDS,
        "bursts": (*OURS, *(() if args.quick else QUEUES)),
        "starts": ("delta as shipped", "whole documents", "delta threads", "delta processes"),
    }

    def arrivals(scenario: str, rate: float, seconds: float = args.seconds) -> list[Arrival]:
        extra = bursts.get(scenario, ())
        return schedule(fleet, rate, seconds, args.seed, stateless=args.stateless, bursts=extra)

    def note(run: Run) -> None:
        record.runs.append((bench.encoder, run))
        state = f"P99 {run.p99_ms:9.1f} ms" if run.kept_up else f"behind by {run.unfinished}"
        print(f"{bench.encoder:10} {run.design:24} {run.scenario:8} {run.rate:7.1f}/s  {state}", file=sys.stderr)

    wanted = [s for s in scenarios if s in designs]
    for name in args.design or dict.fromkeys(name for s in wanted for name in designs[s]):
        design = bench.make(name)
        try:
            warm = drive(design, "warm", 0.0, 0.0, list(fleet.warming()), 0.0, 2)
            assert not warm.wrong, "the first texts already differ"

            def run(scenario: str, rate: float) -> Run:
                warm_up = args.seconds / 5
                return drive(design, scenario, rate, args.seconds, arrivals(scenario, rate), warm_up, sample)  # noqa: B023

            for scenario in wanted:
                if name not in (args.design or designs[scenario]):
                    continue
                if scenario == "appends":
                    steps = 0 if args.quick else 3
                    rate = highest_rate(partial(run, scenario), args.limit, args.rate, steps, args.most_rate, note)
                    record.highest.append((bench.encoder, name, rate))
                else:
                    note(run(scenario, args.rate))
        finally:
            design.close()
    if "simulation" in scenarios:
        _simulate(args, bench, fleet, arrivals, record)


def _simulate(
    args: argparse.Namespace,
    bench: Bench,
    fleet: Fleet,
    arrivals: Callable[..., list[Arrival]],
    record: report.Record,
) -> None:
    costs = record.costs[bench.encoder] = simulate.measure(bench, fleet)
    seconds = 2.0 if args.quick else 10.0

    def at(rate: float, with_bursts: bool) -> list[Arrival]:
        return arrivals("bursts" if with_bursts else "appends", rate, seconds)

    def documents_ms(run: Run, costs: simulate.Costs) -> float:
        processes = run.design == "delta processes"
        due = arrivals("bursts", run.rate)
        return p99(
            simulate.simulate(due, costs, args.workers, processes=processes, chunked=True, aging=1.0)["document"]
        )

    runs = [
        run
        for encoder, run in record.runs
        if encoder == bench.encoder and run.scenario == "bursts" and "document" in run.kinds
        and run.design in ("delta threads", "delta processes")
    ]  # fmt: skip
    if runs:
        measured = [run.kinds["document"].p99_ms for run in runs]
        simulated = [documents_ms(run, costs) for run in runs]
        off = statistics.geometric_mean(m / s for m, s in zip(measured, simulated, strict=True))
        calibrated = costs.dearer(off)
        for run, m, s in zip(runs, measured, simulated, strict=True):
            name = f"{run.design} ({bench.encoder}, cold text {off:.2f} times as dear)"
            record.calibration.append((name, m, s, documents_ms(run, calibrated)))
        costs = calibrated
    for row in simulate.sweep(at, costs, (args.workers, 16, 32, 64), args.limit):
        record.simulated.append((bench.encoder, row))


if __name__ == "__main__":
    raise SystemExit(main())
