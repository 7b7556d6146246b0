"""The `delta` command. Each subcommand lives in the room it belongs to; here are the small ones and the dispatch.

Exit codes: 0 done, 1 the answer is no (refused, differs, not certified), 2 wrong use or something missing, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import sys
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer

from .. import __version__
from ..admission.admit import admit
from ..admission.freeze import freeze
from ..admission.frozen import load_all, user_folder
from ..encoders import NAMES, EncoderUnavailable, choose, version_of
from ..errors import DeltaError
from ..reference import Reference
from . import fetch
from .certify import certify
from .demo import run as demo
from .opening import open_tokenizer
from .verify import campaign as verify


class UsageError(DeltaError):
    """The command can't do what was asked; its message is all the user needs to see."""


def _open(name_or_path: str) -> tuple[Path, Tokenizer]:
    try:
        return open_tokenizer(name_or_path, UsageError, lambda line: print(line, file=sys.stderr))
    except fetch.FetchError as error:
        raise UsageError(str(error)) from error


def _doctor(args: argparse.Namespace) -> int:
    path, live = _open(args.tokenizer)
    reference = Reference(live)
    verdict = admit(reference)
    named = {m.section: m.difference for m in verdict.mismatches}
    sections = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
    rows = [(s, named.pop(s, None)) for s in (*sections, "model", "vocab", "merges")]
    rows += named.items()
    encoders: list[dict[str, object]] = []
    if verdict.frozen is not None:
        for name in NAMES:
            try:
                installed: str | None = version_of(name)
            except EncoderUnavailable:
                installed = None
            note = choose(name, verdict.frozen, reference).note if installed else f"{name} is not installed"
            encoders.append({"encoder": name, "version": installed, "serves": note is None, "note": note})
    if args.json:
        report = {
            "file": str(path),
            "admitted": verdict.frozen is not None,
            "config": verdict.nearest,
            "reason": None if verdict.reason is None else str(verdict.reason),
            "reference_version": reference.version,
            "sections": {section: difference or "same" for section, difference in rows},
            "encoders": encoders,
        }
        print(json.dumps(report, indent=2))
    else:
        state = f"admitted as {verdict.nearest}" if verdict.frozen else f"not admitted ({verdict.reason})"
        print(f"{path}: {state}, tokenizers {reference.version}")
        if verdict.frozen is None and verdict.nearest:
            print(f"compared with {verdict.nearest}, which comes closest; `delta freeze {path}` may cover it")
        for section, difference in rows:
            print(f"  {'ok  ' if difference is None else 'DIFF'} {section:15}{difference or ''}")
        for e in encoders:
            mark = "ok  " if e["serves"] else "-   "
            print(f"  {mark} encoder {e['encoder']} {e['version'] or ''} {e['note'] or ''}")
    return 0 if verdict.frozen is not None else 1


def _freeze(args: argparse.Namespace) -> int:
    path, live = _open(args.tokenizer)
    name = args.name or (path.parent.name if path.name == "tokenizer.json" else path.stem)
    known = list(load_all())
    reference = Reference(live)
    folder = args.into or user_folder()

    def log(line: str) -> None:
        print(line, file=sys.stderr)

    frozen = freeze(
        reference,
        name,
        file_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        known=known,
        workers=args.workers,
        log=log,
    )
    if not args.no_certify:
        for encoder in NAMES[1:]:
            try:
                version_of(encoder)
            except EncoderUnavailable as error:
                log(f"{encoder}: {error}; left out")
                continue
            try:
                result = certify.certify(reference, frozen, encoder, quick=args.quick, log=log)
            except EncoderUnavailable as error:  # installed, but it does not take this tokenizer
                log(f"{encoder}: {error}; left out")
                continue
            if result.certification is None:
                log(f"{encoder}: not certified, {len(result.differences)} differences; the reference serves instead")
            else:
                frozen = frozen.with_certification(result.certification)
                log(f"{encoder}: certified with {result.cases} comparisons")
    print(frozen.write(folder))
    return 0


def _version(args: argparse.Namespace) -> int:
    versions: dict[str, str | None] = {"delta-tokenizer": __version__, "python": platform.python_version()}
    versions["tokenizers"] = tokenizers.__version__
    for name in NAMES[1:]:
        try:
            versions[name] = version_of(name)
        except EncoderUnavailable:
            versions[name] = None
    if args.json:
        print(json.dumps(versions))
    else:
        for name, version in versions.items():
            print(f"{name} {version or 'not installed'}")
    return 0


def _bench(args: argparse.Namespace) -> int:
    # The benchmark brings peers and peers' environments; it is no part of the installed package.
    if not Path("bench", "__main__.py").is_file():
        raise UsageError("to be run in a checkout of the repository, where the folder bench/ is")
    return subprocess.call([sys.executable, "-m", "bench", *args.arguments])


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="delta", description="Exact, incremental prompt tokenization.")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    p = commands.add_parser("demo", help="run an agent session turn by turn against the reference")
    demo.add_arguments(p)
    p.set_defaults(run=demo.run)

    p = commands.add_parser("fetch", help="bring real tokenizer files and check their digests")
    fetch.add_arguments(p)
    p.set_defaults(run=fetch.run)

    p = commands.add_parser("doctor", help="say whether a tokenizer is admitted, section by section")
    p.add_argument("tokenizer", metavar="NAME|PATH")
    p.add_argument("--json", action="store_true")
    p.set_defaults(run=_doctor)

    p = commands.add_parser("freeze", help="make a config for a tokenizer of your own")
    p.add_argument("tokenizer", metavar="NAME|PATH")
    p.add_argument("--name", help="the config's name (default: the file's or its folder's)")
    p.add_argument("--into", type=Path, metavar="DIR", help="where to write it (default: DELTA_CONFIGS)")
    p.add_argument("--no-certify", action="store_true", help="leave the encoders uncertified; the reference serves")
    p.add_argument("--quick", action="store_true", help="certify with a smaller battery")
    p.add_argument("--workers", type=int, default=1, help="processes for a derivation that no config has yet")
    p.set_defaults(run=_freeze)

    p = commands.add_parser("certify", help="certify a fast encoder against the installed reference")
    certify.add_arguments(p)
    p.set_defaults(run=certify.run)

    p = commands.add_parser("verify", help="an exactness campaign on your own tokenizer and text, with controls")
    verify.add_arguments(p)
    p.set_defaults(run=verify.run)

    p = commands.add_parser("bench", help="side by side with every exact peer (in a checkout)", add_help=False)
    p.set_defaults(run=_bench)

    p = commands.add_parser("version", help="versions of this package, the reference and the encoders")
    p.add_argument("--json", action="store_true")
    p.set_defaults(run=_version)
    return root


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console script."""
    root = parser()
    args, rest = root.parse_known_args(argv)
    if args.command == "bench":
        args.arguments = rest  # its own parser's affair, --help included
    elif rest:
        root.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return int(args.run(args))
    except DeltaError as error:
        print(f"delta {args.command}: {error}", file=sys.stderr)
        return 1 if not isinstance(error, UsageError) else 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
