"""Opens the tokenizer that a person named: a name `delta fetch` knows, a tokenizer.json, or the folder it lies in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from ..errors import DeltaError
from . import fetch


class OpenError(DeltaError):
    """What a person named can't be opened, or is not what the command takes; the message says why."""


def file_of(name_or_path: str, log: Callable[[str], None] = lambda line: None) -> Path:
    """The tokenizer.json. A file that exists comes before a name, a cached file before fetching it.

    Raises OpenError for what is no file and no name, FetchError when no source has it.
    """
    path = Path(name_or_path)
    if not path.exists() and name_or_path in fetch.NAMES:
        return fetch.cached(name_or_path) or fetch.fetch(name_or_path, log=log)
    if path.is_dir():
        path /= "tokenizer.json"
    if not path.is_file():
        raise OpenError(f"{name_or_path}: no such file, and no name `delta fetch` knows")
    return path


def tokenizer_of(path: Path) -> Tokenizer:
    """The tokenizer of a file. Raises OpenError."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a file it can't read
        raise OpenError(f"{path}: not a tokenizer.json: {error}") from error


def open_tokenizer(name_or_path: str, log: Callable[[str], None] = lambda line: None) -> tuple[Path, Tokenizer]:
    """The file and the tokenizer in it. Raises OpenError, FetchError."""
    path = file_of(name_or_path, log)
    return path, tokenizer_of(path)
