"""`delta tables`: lists the pre-tokenizers whose safe transitions are known, and derives another one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from ...admission.frozen import load_all
from ...admission.sections import not_covered, patterns_of, sections_of
from ...admission.tables import Table, bundled, cache_folder, cached_path, load_table, table_of
from ...errors import ConfigError, FreezeError, Reason
from ...reference import Reference
from ..console import positive, tell
from ..opening import open_tokenizer
from .derive import TransitionError, derive
from .pattern import UnsupportedPattern


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `delta tables`."""
    parser.add_argument("tokenizer", nargs="?", metavar="NAME|PATH", help="derive for this one (default: list)")
    parser.add_argument("--name", help="the table's name (default: the file's or its folder's)")
    parser.add_argument("--into", type=Path, metavar="DIR", help="where to write it (default: where servers look)")
    parser.add_argument("--workers", type=positive, default=1, help="processes for the derivation")


def run(args: argparse.Namespace) -> int:
    """List what is known, or make a table and print where it is. Raises FreezeError, OpenError, FetchError."""
    if args.tokenizer is None:
        for where, table in known():
            patterns = " then ".join(map(ascii, patterns_of(table.pre_tokenizer)))
            print(f"{table.name:14} {table.digest} {where:8} {len(table.transitions.safe):4} transitions  {patterns}")
        return 0
    path, live = open_tokenizer(args.tokenizer, tell)
    name = args.name or (path.parent.name if path.name == "tokenizer.json" else path.stem)
    table = table_for(Reference(live), name, workers=args.workers)
    target = args.into / f"{name}.json" if args.into else cached_path(table.pre_tokenizer)
    print(table.write(target))
    return 0


def known() -> Iterator[tuple[str, Table]]:
    """All tables, each with where it is: one a pre-tokenizer, in the order in which admission looks."""
    seen: set[str] = set()
    for where, table in _all():
        if table.digest not in seen:
            seen.add(table.digest)
            yield where, table


def _all() -> Iterator[tuple[str, Table]]:
    for frozen in load_all():
        yield "config", Table(frozen.name, frozen.sections.pre_tokenizer, frozen.transitions)
    for table in bundled():
        yield "bundled", table
    for path in sorted((cache_folder() / "tables").glob("*.json")):
        try:
            yield "cache", load_table(path)
        except ConfigError as error:
            tell(f"left out: {error}")


def table_for(reference: Reference, name: str, *, workers: int = 1) -> Table:
    """The table of a live tokenizer's pre-tokenizer, under a name: the known one, else derived (minutes).

    Raises FreezeError when it is not covered; what else is not covered of the tokenizer doesn't matter here.
    """
    sections = sections_of(reference.parsed())
    uncovered = [m for m in not_covered(sections) if m.section == "pre_tokenizer"]
    if uncovered:
        raise FreezeError("; ".join(map(str, uncovered)), uncovered[0].reason)
    before = table_of(sections.pre_tokenizer, load_all())
    if before is not None:
        tell(f"known: that of {before.name}")
        return Table(name, sections.pre_tokenizer, before.transitions)
    try:
        return Table(name, sections.pre_tokenizer, derive(sections.pre_tokenizer, workers=workers, log=tell))
    except (UnsupportedPattern, TransitionError) as error:
        raise FreezeError(f"pre_tokenizer: {error}", Reason.UNSUPPORTED_PRE_TOKENIZER) from error
