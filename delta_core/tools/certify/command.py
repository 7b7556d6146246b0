"""`delta certify`: certifies the installed fast encoders for tokenizers, and writes the records into their configs."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

from ... import encoders
from ...admission.admit import admit
from ...admission.frozen import Certification, Frozen, load_frozen, load_path, user_folder
from ...encoders import EncoderUnavailable
from ...errors import ConfigError, DeltaError
from ...reference import Reference
from .. import fetch
from ..console import tell
from ..opening import OpenError, open_tokenizer
from .calls import line_of
from .certify import Result, certify
from .truth import Truth


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the outcome. error: why it could not be run; recorded: the config file that holds the record."""

    config: str
    encoder: str
    encoder_version: str | None
    reference_version: str
    result: Result | None
    recorded: Path | None
    error: str | None

    def to_json(self) -> dict[str, object]:
        """As `--json` has it."""
        r = self.result
        record = r.certification if r else None
        return {
            "config": self.config,
            "encoder": self.encoder,
            "encoder_version": self.encoder_version,
            "reference_version": self.reference_version,
            "certified": record is not None,
            "guards": [list(g) for g in record.guards] if record else [],
            "cases": r.cases if r else 0,
            "seconds": round(r.seconds, 1) if r else 0.0,
            "differences": [
                {"text": ascii(d.text), "expected": d.expected, "got": d.got, "kind": d.kind}
                for d in (r.differences if r else ())
            ],
            "recorded": str(self.recorded) if self.recorded else None,
            "error": self.error,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `delta certify`."""
    parser.add_argument(
        "tokenizers",
        nargs="*",
        metavar="NAME|PATH",
        help="names, or tokenizer.json files (default: every name in the cache)",
    )
    parser.add_argument("--encoder", choices=(*encoders.FAST, "all"), default="all")
    parser.add_argument("--into", type=Path, metavar="DIR", help="where the records go (default: DELTA_CONFIGS)")
    parser.add_argument("--quick", action="store_true", help="a smaller battery: seconds; most code points sampled")
    parser.add_argument("--seed", type=int, help="of what is drawn at random (default: a fresh one, which is told)")
    parser.add_argument("--json", action="store_true", help="write the result as JSON on standard output")


def run(args: argparse.Namespace) -> int:
    """The outcome on standard output, progress on standard error.

    Returns 0 when all are certified, 1 when one is not, 2 when one could not be tried (no such tokenizer, not
    admitted, encoder not installed). An older record of a triple that is refused now is taken out.
    """
    names = args.tokenizers or [name for name in fetch.NAMES if fetch.cached(name) is not None]
    if not names:
        tell("delta certify: no tokenizer is in the cache; give a NAME or a PATH, or run `delta fetch`")
        return 2
    chosen = tuple(encoders.FAST) if args.encoder == "all" else (args.encoder,)
    rows: list[_Row] = []
    for name in names:
        try:
            reference, frozen = _open(name)
        except (DeltaError, OSError) as error:
            rows += [_Row(name, encoder, None, Reference.version, None, None, str(error)) for encoder in chosen]
            tell(f"delta certify: {error}")
            continue
        truth = Truth(reference, args.seed)
        for encoder in chosen:
            rows.append(_one(truth, frozen, encoder, args.into or user_folder(), args.quick))
            if not args.json:
                print(_outcome(rows[-1]), flush=True)
    if args.json:
        print(json.dumps([row.to_json() for row in rows], indent=2))
    if any(row.error for row in rows):
        return 2
    return 0 if all(row.result and row.result.certification for row in rows) else 1


def _one(truth: Truth, frozen: Frozen, name: str, folder: Path, quick: bool) -> _Row:
    version: str | None = None
    result: Result | None = None
    try:
        version = encoders.version_of(name)
        result = certify(truth, frozen, name, quick=quick, log=tell)
        recorded = _record(frozen, (name, version, Reference.version), result.certification, folder)
        return _Row(frozen.name, name, version, Reference.version, result, recorded, None)
    except (EncoderUnavailable, DeltaError, OSError) as error:
        tell(f"delta certify: {frozen.name}: {error}")
        return _Row(frozen.name, name, version, Reference.version, result, None, str(error))


def _open(name_or_path: str) -> tuple[Reference, Frozen]:
    """The live tokenizer and the config that knows it whole. Raises OpenError, ConfigError, FetchError."""
    known = not Path(name_or_path).exists() and name_or_path in fetch.NAMES
    _, live = open_tokenizer(name_or_path, tell)
    reference = Reference(live)
    # Two names may be one tokenizer; the record is then to go to the one that was asked for.
    verdict = admit(reference, [load_frozen(name_or_path)] if known else None, structure=False)
    if verdict.frozen is None:
        raise OpenError(f"{name_or_path}: not admitted: {'; '.join(map(str, verdict.mismatches))}")
    return reference, verdict.frozen


def _record(
    frozen: Frozen, key: tuple[str, str, str], certification: Certification | None, folder: Path
) -> Path | None:
    """Write the record into the folder's copy of the config, or take an older one out. None when nothing is written."""
    path = folder / f"{frozen.name}.json"
    held = load_path(path) if path.is_file() else None  # read now: another certification may have written meanwhile
    if held is not None and held.sections != frozen.sections:
        raise ConfigError(f"{path}: is the config of another tokenizer")
    base = held or frozen
    if certification is not None:
        return base.with_certification(certification).write(folder)
    if all(c.key != key for c in base.certified):
        return None
    replace(base, certified=tuple(c for c in base.certified if c.key != key)).write(folder)
    return None


def _outcome(row: _Row) -> str:
    title = f"{row.config}: {row.encoder} {row.encoder_version or ''} with tokenizers {row.reference_version}"
    if row.error or row.result is None:
        return f"{title}: not tried: {row.error}"
    cost = f"{row.result.cases} comparisons, {row.result.seconds:.0f} s"
    record = row.result.certification
    if record is None:
        return "\n  ".join([f"{title}: NOT certified ({cost})", *map(line_of, row.result.differences)])
    count = sum(high - low + 1 for low, high in record.guards)
    guards = f"{count} guarded code points in {len(record.guards)} ranges" if count else "no guards"
    return f"{title}: certified, {guards} ({cost})"
