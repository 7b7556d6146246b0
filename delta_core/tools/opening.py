"""Opens the tokenizer that a person named: a name `delta fetch` knows, a tokenizer.json, or the folder it lies in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from ..errors import DeltaError
from . import fetch


def open_tokenizer(
    name_or_path: str, refuse: type[DeltaError], log: Callable[[str], None] = lambda line: None
) -> tuple[Path, Tokenizer]:
    """The file and the live tokenizer; a file that exists comes before a name, a cached file before fetching it.

    refuse: the caller's own error, raised for what is no file, no name, or no tokenizer. FetchError passes through.
    """
    path = Path(name_or_path)
    if not path.exists() and name_or_path in fetch.NAMES:
        path = fetch.cached(name_or_path) or fetch.fetch(name_or_path, log=log)
    elif path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise refuse(f"{name_or_path}: no such file, and no name `delta fetch` knows")
    try:
        return path, Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a file it can't read
        raise refuse(f"{path}: not a tokenizer.json: {error}") from error
