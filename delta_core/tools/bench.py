"""`delta bench`: runs the benchmark of a checkout, which is no part of the installed package."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from .console import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All that follows is the benchmark's own affair."""
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="see `python -m bench --help`")


def run(args: argparse.Namespace) -> int:
    """The benchmark's exit code; 2 where there is no checkout."""
    if not Path("bench", "__main__.py").is_file():
        tell("delta bench: to be run in a checkout of the repository, where the folder bench/ is")
        return 2
    return subprocess.call([sys.executable, "-m", "bench", *args.arguments])
