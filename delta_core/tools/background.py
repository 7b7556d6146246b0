"""The other end of `delta_core.background`: one job, read from standard input, its result written to the cache.

job "derive": pre_tokenizer (canonical). Writes its table, or why it has none.
job "certify": config (a frozen config's text), tokenizer (its state), encoder. Writes the record, or that it has none.
name: what the job is about, for the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..admission.frozen import METHOD, REFUSED, Certification, Frozen
from ..admission.tables import DERIVATION, Table, cache_folder, cached_path, records_of, records_path, refused_path
from ..encoders import EncoderUnavailable, version_of
from ..reference import Reference
from .certify.certify import certify
from .certify.truth import Truth
from .freezing.derive import TransitionError, derive
from .freezing.pattern import UnsupportedPattern

_MEMORY = 8 << 30  # bytes of address space; tables and contexts take a tenth of it


def main(argv: list[str] | None = None) -> int:
    """Entry point. Exit code 0: the result is in the cache."""
    (parent,) = map(int, sys.argv[1:] if argv is None else argv)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _step_back()
    job = json.load(sys.stdin)
    {"derive": _derive, "certify": _certify}[job["job"]](job)
    return 0


def _end_with(parent: int) -> None:
    """Exit when the server is gone: whoever adopts us is not it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _step_back() -> None:
    """Lowest priority, one core, bounded memory: as far as the system lets us."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of one result: others wait, and find it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as file:
        with contextlib.suppress(ImportError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _derive(job: dict[str, Any]) -> None:
    pre_tokenizer = job["pre_tokenizer"]
    path, refused = cached_path(pre_tokenizer), refused_path(pre_tokenizer)
    with _alone(path):
        if path.is_file():
            return
        try:
            transitions = derive(pre_tokenizer, workers=1, log=lambda line: None)
        except (UnsupportedPattern, TransitionError) as error:
            write(refused, f"{DERIVATION}\n{error}")
            return
        Table(path.stem, pre_tokenizer, transitions).write(path)


def _certify(job: dict[str, Any]) -> None:
    frozen, encoder = Frozen.from_json(job["config"]), job["encoder"]
    path = records_path(frozen.sections)
    with _alone(path):
        reference = Reference(Tokenizer.from_str(job["tokenizer"]))
        key = (encoder, version_of(encoder), reference.version)
        records = {c.key: c for c in records_of(frozen.sections)}
        if key in records and records[key].method in (METHOD, REFUSED):
            return
        try:
            found = certify(Truth(reference), frozen, encoder, log=lambda line: None).certification
        except EncoderUnavailable as error:
            raise SystemExit(str(error)) from error
        records[key] = found or Certification(*key, (), 0, REFUSED)
        write(path, json.dumps([asdict(c) for c in records.values()], indent=1))


def write(path: Path, text: str) -> None:
    """Write a file of the cache, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


if __name__ == "__main__":
    # What a job writes lies below one folder: to be named when that one can't be written.
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(f"{cache_folder()}: {error}")
