"""What is known by structure, whatever the tokenizer's name: tables of safe transitions, certifications of encoders.

A table depends on the pre-tokenizer alone. A certification also depends on normalizer, model and vocabulary; that an
encoder finds the added tokens is shown anew at every start (`identity.battery`). Both are bundled, in frozen configs,
or made on this machine once and kept in the cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import ConfigError
from .frozen import METHOD, Certification, Frozen, bundled_folder, load_path
from .sections import Json, Sections, differences
from .transitions import Transitions

log = logging.getLogger("delta_core")

FORMAT = 1
DERIVATION = "runs of classes, 2"
"""How tables are derived: one that was refused is tried again when this changes."""


@dataclass(frozen=True, slots=True)
class Table:
    """The safe transitions of one canonical pre-tokenizer. name: of the family that has it."""

    name: str
    pre_tokenizer: Json
    transitions: Transitions

    @property
    def digest(self) -> str:
        """Names the pre-tokenizer, and the table's file in a cache."""
        return digest_of(self.pre_tokenizer)

    def to_json(self) -> str:
        """The text of its file: stable, one class a line."""
        head = {"format": FORMAT, "name": self.name, "pre_tokenizer": self.pre_tokenizer}
        text = json.dumps(head, indent=1, ensure_ascii=True)[:-2]
        return f'{text},\n "transitions": {self.transitions.to_json()}\n}}\n'

    @staticmethod
    def from_json(text: str) -> Table:
        """Raises ConfigError."""
        try:
            raw = json.loads(text)
            if raw["format"] != FORMAT:
                raise ConfigError(f"format {raw['format']} is not {FORMAT}")
            if not (isinstance(raw["name"], str) and isinstance(raw["pre_tokenizer"], list)):
                raise TypeError("no name, or no pre-tokenizer")
            return Table(raw["name"], raw["pre_tokenizer"], Transitions.from_json(raw["transitions"]))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
            raise ConfigError(f"not a table: {type(error).__name__}: {error}") from error

    def write(self, path: Path) -> Path:
        """Write the file, atomically, and return its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(self.to_json())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        return path


def digest_of(pre_tokenizer: Json) -> str:
    """A name for a canonical pre-tokenizer: 16 hex digits of the SHA-256 of its JSON."""
    text = json.dumps(pre_tokenizer, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def cache_folder() -> Path:
    """Where derived tables, records and admissions are kept: $DELTA_CACHE, else the XDG cache home."""
    configured = os.environ.get("DELTA_CACHE")
    if configured:
        return Path(configured)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "delta-tokenizer"


def cached_path(pre_tokenizer: Json) -> Path:
    """Where the table of a pre-tokenizer is kept once it was derived on this machine."""
    return cache_folder() / "tables" / f"{digest_of(pre_tokenizer)}.json"


def bundled() -> Iterator[Table]:
    """The tables of this package. Raises ConfigError: a broken one is a broken installation."""
    for path in sorted((bundled_folder() / "tables").glob("*.json")):
        yield load_table(path)


def load_table(path: Path) -> Table:
    """Raises ConfigError with the path in it."""
    try:
        return Table.from_json(path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error


def table_of(pre_tokenizer: Json, configs: Iterable[Frozen] = ()) -> Table | None:
    """The table of a canonical pre-tokenizer: of a config that has it, bundled, or derived here before; else None.

    A cached file that can't be read, or is about another pre-tokenizer, is named in the log and left out.
    """
    for frozen in configs:
        if frozen.sections.pre_tokenizer == pre_tokenizer:
            return Table(frozen.name, pre_tokenizer, frozen.transitions)
    for table in bundled():
        if table.pre_tokenizer == pre_tokenizer:
            return table
    path = cached_path(pre_tokenizer)
    if not path.is_file():
        return None
    try:
        table = load_table(path)
    except ConfigError as error:
        log.warning("table left out: %s", error)
        return None
    if table.pre_tokenizer != pre_tokenizer:
        log.warning("table left out: %s is about another pre-tokenizer", path)
        return None
    return table


def refused_path(pre_tokenizer: Json) -> Path:
    """Where it is kept that a pre-tokenizer has no table, and why."""
    return cached_path(pre_tokenizer).with_suffix(".refused")


def refused_table(pre_tokenizer: Json) -> str | None:
    """Why this version of the package can't derive a table for a pre-tokenizer, if it has been tried here."""
    with suppress(OSError, ValueError):
        version, _, why = refused_path(pre_tokenizer).read_text(encoding="utf-8").partition("\n")
        if version == DERIVATION and why:
            return why
    return None


def structure_of(sections: Sections) -> str:
    """Names what a certification is about: all sections that decide IDs, but for the added tokens."""
    parts = (
        sections.normalizer, sections.pre_tokenizer, sections.model, sections.vocab_digest, sections.merges_digest
    )  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode("ascii")).hexdigest()[:32]


def records_path(sections: Sections) -> Path:
    """Where the certifications of a structure are kept that were made on this machine."""
    return cache_folder() / "records" / f"{structure_of(sections)}.json"


def records_of(sections: Sections, configs: Iterable[Frozen] = ()) -> tuple[Certification, ...]:
    """The certifications of fast encoders for a structure: of configs that have it, and those made on this machine."""
    structure = structure_of(sections)
    found = [c for frozen in configs if structure_of(frozen.sections) == structure for c in frozen.certified]
    path = records_path(sections)
    if path.is_file():
        try:
            found += map(Certification.from_json, json.loads(path.read_text(encoding="ascii")))
        except (OSError, UnicodeDecodeError, ValueError, TypeError, KeyError) as error:
            log.warning("records left out: %s: %s", path, type(error).__name__)
    # One that lets an encoder serve goes before one of the same key that does not.
    return tuple({c.key: c for c in sorted(found, key=lambda c: c.method == METHOD)}.values())


def note_admission(name: str | None, frozen: Frozen) -> str:
    """Write down what was admitted by structure under a name, and say where it differs from what was before.

    name: of the model, as the live object has it; nothing is noted without one. Empty when nothing differs.
    """
    if not name:
        return ""
    key = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    folder = cache_folder() / "admitted"
    said = ""
    with suppress(OSError, ConfigError):
        before = load_path(folder / f"{key}.json")
        found = differences(before.sections, frozen.sections)
        if not found:
            return ""
        said = f"not as at an earlier start: {'; '.join(map(str, found))}"
    with suppress(OSError):  # a cache that can't be written: nothing to compare with next time
        replace(frozen, name=key, certified=()).write(folder)
    return said
