"""The exactness campaign under both references: `delta verify` once in a venv for each, and one report of all counts.

    python -m bench.campaign --cuts 100000000                   # all fetched tokenizers, certified encoders
    python -m bench.campaign --python OLD/bin/python --python NEW/bin/python --cuts 100000000

The venvs are made in the report's folder and used again. A campaign that was stopped goes on where it was; one that has
its cuts already is only reported. Options that are not listed go to `delta verify` as they are.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from delta_core.tools.verify.pages import write_report
from delta_core.tools.verify.report import State, summarise

REFERENCES = ("tokenizers==0.22.2", "tokenizers>=0.23,<0.24")
ROOT = Path(__file__).resolve().parent.parent


def interpreter(requirement: str, folder: Path) -> Path:
    """The Python of a venv with this checkout, the fast encoders and one reference. A minute to make. Raises OSError,
    CalledProcessError.
    """
    python = folder / "bin" / "python"
    ready = folder / "ready"  # written last: a venv that was given up half-made is made again
    if not ready.exists():
        print(f"making {folder} with {requirement}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        packages = ["-e", f"{ROOT}[fast,gigatoken]", requirement]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        ready.touch()
    return python


def reference_of(python: Path) -> str:
    """The version of `tokenizers` that an interpreter has. Raises OSError, CalledProcessError."""
    code = "from importlib.metadata import version; print(version('tokenizers'))"
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def verify(python: Path, options: Sequence[str]) -> int:
    """`delta verify` of this checkout under another interpreter; its exit code."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [str(python), "-m", "delta_core.tools.cli", "verify", *options]
    # Ctrl-C reaches the child as well; it stops and reports, and we wait for that.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def states(folder: Path) -> list[State]:
    """The campaigns in the folders of a report, one per reference."""
    return [State.load(path.parent) for path in sorted(folder.glob("*/state.jsonl"))]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes are those of `delta verify`; the gravest of them."""
    parser = argparse.ArgumentParser(description="`delta verify` under both references, one report.")
    parser.add_argument("--cuts", type=int, default=100_000_000, metavar="N", help="in all; half per reference")
    parser.add_argument("--python", type=Path, action="append", metavar="PATH", help="ready; once for each reference")
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "campaign", metavar="DIR")
    parser.add_argument("--tokenizer", action="append", metavar="NAME", help="default: all that are fetched")
    args, options = parser.parse_known_args(argv)
    report = args.report.resolve()
    report.mkdir(parents=True, exist_ok=True)
    try:
        pythons = args.python or [interpreter(r, report / f"venv-{n}") for n, r in enumerate(REFERENCES)]
        folders = {python: report / reference_of(python) for python in pythons}
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"bench.campaign: {error}", file=sys.stderr)
        return 2
    share = args.cuts // len(folders)
    codes = []
    for python, folder in folders.items():
        limits = ["--cuts", str(share), "--report", str(folder)]
        codes.append(verify(python, [*(args.tokenizer or ["all"]), *limits, *options]))
        if codes[-1] in (2, 130):
            break
    found = states(report)
    if found:
        written = write_report(found, report)
        s = summarise(found)
        print(f"{s.cuts:,} safe cuts, {s.seconds / 3600:.2f} worker hours, {s.differences} differences")
        print(f"wrote {', '.join(map(str, written))}")
    return next((code for code in (2, 1, 130) if code in codes), 0)


if __name__ == "__main__":
    raise SystemExit(main())
