"""`delta freeze`: makes a config for a tokenizer of one's own, and certifies the installed encoders for it."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from ..admission.frozen import Frozen, load_all, user_folder
from ..encoders import FAST, EncoderUnavailable
from ..reference import Reference
from .certify.certify import certify
from .certify.truth import Truth
from .console import positive, tell
from .freezing.freeze import freeze
from .opening import open_tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `delta freeze`."""
    parser.add_argument("tokenizer", metavar="NAME|PATH")
    parser.add_argument("--name", help="the config's name (default: the file's or its folder's)")
    parser.add_argument("--into", type=Path, metavar="DIR", help="where to write it (default: DELTA_CONFIGS)")
    parser.add_argument(
        "--no-certify", action="store_true", help="leave the encoders uncertified; the reference serves"
    )
    parser.add_argument("--quick", action="store_true", help="certify with a smaller battery")
    parser.add_argument("--workers", type=positive, default=1, help="processes for a derivation that no config has yet")


def run(args: argparse.Namespace) -> int:
    """Write the config and print where it is. Raises FreezeError, OpenError, FetchError."""
    path, live = open_tokenizer(args.tokenizer, tell)
    reference = Reference(live)
    frozen = freeze(
        reference,
        args.name or (path.parent.name if path.name == "tokenizer.json" else path.stem),
        file_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        known=list(load_all()),
        workers=args.workers,
        log=tell,
    )
    truth = Truth(reference)
    for encoder in () if args.no_certify else FAST:
        frozen = _certified(truth, frozen, encoder, quick=args.quick)
    print(frozen.write(args.into or user_folder()))
    return 0


def _certified(truth: Truth, frozen: Frozen, encoder: str, *, quick: bool) -> Frozen:
    """With the record of an encoder that is installed, takes the tokenizer and is the reference; else as it was."""
    try:
        result = certify(truth, frozen, encoder, quick=quick, log=tell)
    except EncoderUnavailable as error:
        tell(f"{encoder}: {error}; left out")
        return frozen
    if result.certification is None:
        tell(f"{encoder}: not certified, {len(result.differences)} differences; the reference serves instead")
        return frozen
    tell(f"{encoder}: certified with {result.cases} comparisons")
    return frozen.with_certification(result.certification)
