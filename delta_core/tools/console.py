"""What the commands of `delta` do alike."""

from __future__ import annotations

import argparse
import sys


def tell(line: str) -> None:
    """A line for the user on standard error; standard output is the command's result alone."""
    print(line, file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """The type of an argument that is a whole number from 1 on."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
