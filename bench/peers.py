"""The other exact tokenizers as contestants: in this process, or in a worker with an environment of its own.

toktier brings its own pins and tiktoken isn't needed by anything else, so both live in a venv that is made on first use
(`python -m bench.peers` is the worker). Times are taken inside the worker; only IDs and seconds cross the pipe.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from .measure import Case, Contestant, Timed, packed

ROOT = Path(__file__).resolve().parent.parent
APART = ("toktier==0.3.0", "tiktoken==0.14.0")


class Plain(Contestant):
    """A stateless tokenizer: one function of the text. again: whether it reads the text before, to be warm."""

    def __init__(self, name: str, encode: Callable[[str], Any], *, again: bool = True) -> None:
        self.name, self._encode, self._again = name, encode, again

    def prepare(self, case: Case) -> None:
        if self._again:
            super().prepare(case)

    def encode(self, case: Case) -> Any:
        return self._encode(case.text)


class Fresh(Contestant):
    """A contestant built anew, untimed, before every call: what a process pays for its first text."""

    def __init__(self, name: str, build: Callable[[], Contestant]) -> None:
        self.name, self._build = name, build
        self._built = build()
        self.exact = self._built.exact

    def prepare(self, case: Case) -> None:
        self._built = self._build()

    def encode(self, case: Case) -> Any:
        return self._built.encode(case)


def hf(path: Path) -> list[Contestant]:
    from tokenizers import Tokenizer

    live = Tokenizer.from_file(str(path))
    # Its time is no matter of warm caches, and a second encode of everything is a matter of minutes.
    return [
        Plain("HF encode", lambda text: live.encode(text, add_special_tokens=False).ids, again=False),
        Plain(
            "HF encode_batch_fast",
            lambda text: live.encode_batch_fast([text], add_special_tokens=False)[0].ids,
            again=False,
        ),
    ]


def fastokens(path: Path, cache: int = 0) -> Contestant:
    """cache: bytes for its segment cache, 0 for none."""
    import fastokens

    tokenizer = fastokens.Tokenizer.from_json_str(path.read_text(encoding="utf-8"))
    if cache:
        tokenizer.enable_segment_cache(cache)
    name = "fastokens, segment cache" if cache else "fastokens"
    return Plain(name, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)


def gigatoken(path: Path, form: str) -> Contestant:
    import gigatoken
    from tokenizers import Tokenizer

    tokenizer = gigatoken.Tokenizer(Tokenizer.from_file(str(path)))
    encode = tokenizer.encode
    return Plain(f"gigatoken, {form}", encode if form == "array" else lambda text: encode(text).tolist())


def tiktoken(path: Path) -> Contestant:
    """Tiktoken with the ranks, pattern and special tokens of a tokenizer.json. Raises ValueError where it can't be."""
    import tiktoken

    spec = json.loads(path.read_text(encoding="utf-8"))
    pre = spec["pre_tokenizer"]
    leaves = pre["pretokenizers"] if pre["type"] == "Sequence" else [pre]
    patterns = [leaf["pattern"]["Regex"] for leaf in leaves if leaf["type"] == "Split"]
    if len(patterns) != 1:
        raise ValueError(f"tiktoken takes one pattern, this tokenizer has {len(patterns)}")
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    byte_of = {chr(b): b for b in visible} | {chr(256 + n): b for n, b in enumerate(hidden)}
    added = {row["content"]: row["id"] for row in spec["added_tokens"]}
    ranks = {
        bytes(byte_of[c] for c in token): rank
        for token, rank in spec["model"]["vocab"].items()
        if token not in added and all(c in byte_of for c in token)
    }
    encode = tiktoken.Encoding(
        path.parent.name, pat_str=patterns[0], mergeable_ranks=ranks, special_tokens=added
    ).encode
    return Plain("tiktoken", lambda text: encode(text, allowed_special="all"))


class Toktier(Contestant):
    """mode: session (a name per conversation), lookup (found by content), stateless, or chunked (on all cores)."""

    FAMILIES = {  # noqa: RUF012
        "qwen3": "qwen3_8b",
        "llama3_1": "llama_3_1_8b",
        "gpt_oss": "gpt_oss_120b",
        "deepseek_v3": "deepseek_v3",
    }

    def __init__(self, tokenizer: Any, mode: str) -> None:
        self.name, self._tokenizer, self._mode = f"toktier, {mode}", tokenizer, mode
        self._epoch = 0  # it has no call that forgets: a new name is a new session

    def prepare(self, case: Case) -> None:
        if case.anew:
            self._epoch += 1
        if self._mode in ("stateless", "chunked"):
            return
        for session, text in case.before:
            self.encode(Case(session, text))

    def encode(self, case: Case) -> Any:
        if self._mode == "session":
            return self._tokenizer.encode(case.text, session=f"{self._epoch} {case.session}").ids
        if self._mode == "chunked":
            return self._tokenizer.encode(case.text, parallel="auto").ids
        return self._tokenizer.encode(case.text, lookup="auto" if self._mode == "lookup" else "off").ids


def toktier(name: str, path: Path) -> list[Contestant]:
    """All modes of one loaded tokenizer. Its manifest is cut down to tokenizer.json, whose digest it checks itself."""
    import toktier
    from toktier.artifacts.manifest import ArtifactManifest
    from toktier.artifacts.store import ArtifactStore
    from toktier.artifacts.tables import ARTIFACT_MANIFEST

    family = Toktier.FAMILIES[name]
    entry = json.loads(Path(str(ARTIFACT_MANIFEST)).read_text(encoding="utf-8"))[family]
    entry["files"] = {"tokenizer.json": entry["files"]["tokenizer.json"]}
    manifest = ArtifactManifest.from_mapping({family: entry})
    config = toktier.Config(home=Path(tempfile.mkdtemp(prefix="bench-toktier-")), offline=True)
    atexit.register(shutil.rmtree, config.home, ignore_errors=True)
    folder = ArtifactStore(manifest, config=config).directory(family)
    folder.mkdir(parents=True)
    shutil.copy(path, folder / "tokenizer.json")
    loaded = toktier.load(family, config=config, manifest=manifest, device="cpu")
    return [Toktier(loaded, mode) for mode in ("session", "lookup", "stateless", "chunked")]


# -- the worker --


class Worker:
    """A process in another environment that has contestants; they answer here under their names."""

    def __init__(self, python: Path) -> None:
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [str(python), "-m", "bench.peers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self.versions: dict[str, str] = self.ask("versions")

    def ask(self, request: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((request, arguments), self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def open(self, name: str, path: Path) -> tuple[list[Contestant], list[str]]:
        """Its contestants for one tokenizer, and why others are left out."""
        names, notes = self.ask("open", name, path)
        return [Remote(self, n) for n in names], notes

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Remote(Contestant):
    def __init__(self, worker: Worker, name: str) -> None:
        self._worker, self.name = worker, name

    def prepare(self, case: Case) -> None:
        self._worker.ask("prepare", self.name, case)

    def interrupt(self) -> None:
        self._worker.ask("interrupt", self.name)

    def time(self, case: Case) -> Timed:
        ids, wall, cpu = self._worker.ask("time", self.name, case)
        return Timed(array("q", ids), wall, cpu)


def interpreter(folder: Path) -> Path:
    """The Python of a venv with the peers that live apart, and this process's `tokenizers`; minutes to make.

    Raises CalledProcessError when the index doesn't have them.
    """
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        print(f"making {folder} with {', '.join(APART)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        wanted = [*APART, f"tokenizers=={metadata.version('tokenizers')}"]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], check=True)
        ready.touch()  # written last: a venv that was given up half-made is made again
    return python


def start(python: str | None, folder: Path, note: Callable[[str], None]) -> Worker | None:
    """The worker with the peers that live apart; None, and a note why, when there is none. python: "none" for that."""
    if python == "none":
        note(f"left out as asked: {', '.join(APART)}")
        return None
    try:
        return Worker(Path(python) if python else interpreter(folder / "peers"))
    except (OSError, EOFError, subprocess.CalledProcessError) as error:
        note(f"left out, no environment for them: {', '.join(APART)} ({error})")
        return None


def _open(name: str, path: Path) -> tuple[list[Contestant], list[str]]:
    found: list[Contestant] = []
    notes = []
    builders: dict[str, Callable[[], list[Contestant]]] = {
        "toktier": lambda: toktier(name, path),
        "tiktoken": lambda: [tiktoken(path)],
    }
    for peer, build in builders.items():
        try:
            found += build()
        except Exception as error:  # noqa: BLE001 - whatever another package raises: its rows are left out, and it is said
            why = re.sub(r"\s+", " ", str(error))[:200]
            notes.append(f"{peer} left out for {name}: {type(error).__name__}: {why}")
    return found, notes


def serve() -> None:
    """Answer requests on stdin until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the peers print must not get between the answers
    contestants: dict[str, Contestant] = {}
    while True:
        try:
            request, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Any = None
            if request == "versions":
                answer = {d: metadata.version(d) for d in ("toktier", "tiktoken", "tokenizers") if _installed(d)}
            elif request == "open":
                found, notes = _open(*arguments)
                contestants = {c.name: c for c in found}
                answer = list(contestants), notes
            elif request == "prepare":
                contestants[arguments[0]].prepare(arguments[1])
            elif request == "interrupt":
                contestants[arguments[0]].interrupt()
            else:
                done = contestants[arguments[0]].time(arguments[1])
                answer = packed(done.ids), done.wall, done.cpu
        except Exception as error:  # noqa: BLE001 - raised again by whoever asked
            answer = RuntimeError(f"{request}: {type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()


def _installed(distribution: str) -> bool:
    try:
        return bool(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return False


if __name__ == "__main__":
    serve()
