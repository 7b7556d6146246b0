"""`delta version`: what is installed, as far as it decides which IDs are made and how fast."""

from __future__ import annotations

import argparse
import json
import platform

from .. import __version__
from ..encoders import FAST, EncoderUnavailable, version_of
from ..reference import Reference


def installed(encoder: str) -> str | None:
    """The version of an encoder's package, None where it is not installed."""
    try:
        return version_of(encoder)
    except EncoderUnavailable:
        return None


def installed_fast() -> dict[str, str]:
    """The fast encoders that are installed, with their versions."""
    return {name: version for name in FAST if (version := installed(name)) is not None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `delta version`."""
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """One line a package, or JSON."""
    versions: dict[str, str | None] = {"delta-tokenizer": __version__, "python": platform.python_version()}
    versions |= {"tokenizers": Reference.version, **{name: installed(name) for name in FAST}}
    if args.json:
        print(json.dumps(versions))
    else:
        for name, version in versions.items():
            print(f"{name} {version or 'not installed'}")
    return 0
