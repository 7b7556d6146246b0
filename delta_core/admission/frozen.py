"""Frozen configs: what was admitted, what was derived for it, and which fast encoders are certified for it."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from ..errors import ConfigError
from .sections import AddedToken, Json, Sections
from .transitions import Transitions, expect, rows

log = logging.getLogger("delta_core")

FORMAT = 1
METHOD = "contexts of the pattern, 1"
"""How an encoder is certified. A record made in another way does not count."""
REFUSED = "refused"
"""The method of a record that says: tried on this machine, and not certified."""


@dataclass(frozen=True, slots=True)
class Certification:
    """One (encoder, encoder version, reference version) that was shown to give the reference's IDs for a config.

    guards: inclusive code point ranges at which the encoder differs; a segment with one of them goes to the reference.
    cases: how many comparisons stand behind it.
    method: how they were chosen; only a record with today's METHOD lets an encoder serve.
    """

    encoder: str
    encoder_version: str
    reference_version: str
    guards: tuple[tuple[int, int], ...]
    cases: int
    method: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is about; a config holds one of each."""
        return self.encoder, self.encoder_version, self.reference_version

    @staticmethod
    def from_json(raw: Json) -> Certification:
        """Of a parsed row. Raises KeyError or TypeError for anything else."""
        known = {f.name: raw[f.name] for f in fields(Certification) if f.name in raw}
        return Certification(**{**known, "guards": tuple((low, high) for low, high in raw["guards"])})


@dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen copy of one tokenizer: sections and digests, never its vocabulary.

    file_sha256: the digest of the tokenizer.json it was taken from, None when it was taken from a live object.
    """

    name: str
    file_sha256: str | None
    sections: Sections
    transitions: Transitions
    certified: tuple[Certification, ...] = ()

    def added_tokens_section(self) -> list[dict[str, Json]]:
        """The added_tokens section in the form of a tokenizer.json."""
        return [token.to_json() for token in self.sections.added_tokens]

    def certification(self, encoder: str, encoder_version: str, reference_version: str) -> Certification | None:
        """The record that lets an encoder serve this config under this reference, or None.

        One that was made in another way than today's METHOD is none.
        """
        key = (encoder, encoder_version, reference_version)
        return next((c for c in self.certified if c.key == key and c.method == METHOD), None)

    def with_certification(self, new: Certification) -> Frozen:
        """A copy in which `new` replaces an older record of the same triple."""
        kept = [c for c in self.certified if c.key != new.key]
        return replace(self, certified=tuple(sorted([*kept, new], key=lambda c: c.key)))

    def to_json(self) -> str:
        """The text of the config file: stable, one added token and one class a line."""
        s = self.sections
        small = {
            name: getattr(s, name)
            for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding", "model")
        }
        head = {
            "format": FORMAT,
            "name": self.name,
            "file_sha256": self.file_sha256,
            "sections": small,
            "digests": {"vocab": s.vocab_digest, "merges": s.merges_digest},
        }
        text = json.dumps(head, indent=1, ensure_ascii=True)[:-2]
        return (
            f'{text},\n "certified": {rows([asdict(c) for c in self.certified])},\n'
            f' "added_tokens": {rows([token.to_row() for token in s.added_tokens])},\n'
            f' "transitions": {self.transitions.to_json()}\n}}\n'
        )

    @staticmethod
    def from_json(text: str) -> Frozen:
        """Raises ConfigError."""
        try:
            raw = json.loads(text)
            if raw["format"] != FORMAT:
                raise ConfigError(f"format {raw['format']} is not {FORMAT}")
            expect(str, raw["name"], *raw["digests"].values())
            return Frozen(
                name=raw["name"],
                file_sha256=raw["file_sha256"],
                sections=Sections(
                    added_tokens=tuple(AddedToken.from_row(row) for row in raw["added_tokens"]),
                    vocab_digest=raw["digests"]["vocab"],
                    merges_digest=raw["digests"]["merges"],
                    **raw["sections"],
                ),
                transitions=Transitions.from_json(raw["transitions"]),
                certified=tuple(map(Certification.from_json, raw["certified"])),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
            raise ConfigError(f"not a frozen config: {type(error).__name__}: {error}") from error

    def write(self, folder: Path) -> Path:
        """Write NAME.json into a folder, atomically, and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{self.name}.json"
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(self.to_json())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
        return target


def user_folder() -> Path:
    """Where `delta freeze` and `delta certify` write: $DELTA_CONFIGS, else the XDG config home."""
    configured = os.environ.get("DELTA_CONFIGS")
    if configured:
        return Path(configured)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "delta-tokenizer" / "configs"


def bundled_folder() -> Path:
    """Where the configs of this package lie: beside the code when installed, at the top level in a checkout."""
    here = Path(__file__).resolve().parent.parent
    installed = here / "configs"
    return installed if installed.is_dir() else here.parent / "configs"


def load_all() -> Iterator[Frozen]:
    """All frozen configs that can be read, the user's first.

    What can't is named in the log, once a path, and left out: another program's file in the user's folder must not
    decide whether any tokenizer is served. Whoever asks for one config by name is told what is wrong with it.
    """
    for folder in (user_folder(), bundled_folder()):
        try:
            paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
        except OSError as error:
            _leave_out(folder, f"{folder}: {error}")
            continue
        for path in paths:
            try:
                frozen = load_path(path)
            except ConfigError as error:
                _leave_out(path, str(error))
            else:
                yield frozen


_left_out: set[Path] = set()


def _leave_out(path: Path, why: str) -> None:
    if path not in _left_out:
        _left_out.add(path)
        log.warning("config left out: %s", why)


def load_path(path: Path) -> Frozen:
    """Raises ConfigError with the path in it."""
    try:
        return Frozen.from_json(path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error


def load_frozen(name: str) -> Frozen:
    """The config of one name, the user's first. Raises ConfigError when there is none."""
    for folder in (user_folder(), bundled_folder()):
        path = folder / f"{name}.json"
        if path.is_file():
            return load_path(path)
    raise ConfigError(f"no frozen config named {name!r}")
