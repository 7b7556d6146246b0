"""Tables by pre-tokenizer: which transitions are safe depends on it alone, on no vocabulary and no added token."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .frozen import Frozen, bundled_folder
from .sections import Json
from .transitions import Transitions

log = logging.getLogger("delta_core")

FORMAT = 1


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
