"""`delta doctor`: whether a tokenizer is admitted, section by section, and which encoders serve it."""

from __future__ import annotations

import argparse
import json

from ..admission.admit import admit
from ..admission.frozen import Frozen
from ..encoders import NAMES, choose
from ..reference import Reference
from .console import tell
from .opening import open_tokenizer
from .version import installed

_SECTIONS = (
    "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding", "model",
    "vocab", "merges",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `delta doctor`."""
    parser.add_argument("tokenizer", metavar="NAME|PATH")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when the tokenizer is admitted, 1 when not. Raises OpenError, FetchError."""
    path, live = open_tokenizer(args.tokenizer, tell)
    reference = Reference(live)
    verdict = admit(reference)
    admitted = verdict.frozen is not None
    config = verdict.nearest if verdict.frozen is None else verdict.frozen.name
    differing = verdict.mismatches or verdict.drift
    sections = dict.fromkeys(_SECTIONS, "same") | {m.section: m.difference for m in differing}
    encoders = [] if verdict.frozen is None else [_encoder(name, verdict.frozen, reference) for name in NAMES]
    if args.json:
        report = {
            "file": str(path),
            "admitted": admitted,
            "config": config,
            "nearest": verdict.nearest,
            "reason": None if verdict.reason is None else str(verdict.reason),
            "reference_version": reference.version,
            "sections": sections,
            "encoders": encoders,
        }
        print(json.dumps(report, indent=2))
        return 0 if admitted else 1
    state = f"admitted as {config}" if admitted else f"not admitted ({verdict.reason})"
    print(f"{path}: {state}, tokenizers {reference.version}")
    if differing and verdict.nearest:
        what = "the cut rules do not need what differs" if admitted else f"`delta freeze {path}` may cover it"
        print(f"compared with {verdict.nearest}, which comes closest; {what}")
    for section, difference in sections.items():
        same = difference == "same"
        print(f"  {'ok  ' if same else '-   ' if admitted else 'DIFF'} {section:15}{'' if same else difference}")
    for e in encoders:
        print(f"  {'ok  ' if e['serves'] else '-   '} encoder {e['encoder']} {e['version'] or ''} {e['note'] or ''}")
    return 0 if admitted else 1


def _encoder(name: str, frozen: Frozen, reference: Reference) -> dict[str, object]:
    version = installed(name)
    note = choose(name, frozen, reference).note if version else f"{name} is not installed"
    return {"encoder": name, "version": version, "serves": note is None, "note": note}
