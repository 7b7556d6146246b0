"""Opens the tokenizers of a campaign: real ones by name or path, small trained ones with nasty added tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from ...admission.admit import admit
from ...admission.frozen import Frozen, load_frozen
from ...encoders import EncoderUnavailable, version_of
from ...reference import Reference
from ...tokenizer import DeltaTokenizer
from .. import fetch
from ..opening import OpenError, open_tokenizer
from .generators import NASTY_TOKENS, frozen_config, frozen_from, live_from, spec
from .tally import Answer, Subject

SYNTHETIC = "synthetic/"


def locate(name: str) -> tuple[Tokenizer, Frozen | None]:
    """The live tokenizer of a name, a path or `synthetic/CONFIG`; its config when it was made on the spot.

    Raises OpenError, FetchError.
    """
    if name.startswith(SYNTHETIC):
        base = name.removeprefix(SYNTHETIC)
        live = live_from(spec(base, NASTY_TOKENS))
        # With the records of the real one: an encoder that is certified there and takes the nested tokens for others is
        # to be refused.
        return live, replace(frozen_from(live, base), certified=frozen_config(base).certified)
    return open_tokenizer(name)[1], None


def left_out(name: str, encoder: str) -> str | None:
    """Why an encoder can't serve the tokenizer of a bundled name, told without loading it.

    None when it may, and when only opening the tokenizer can tell.
    """
    base = name.removeprefix(SYNTHETIC)
    if encoder == "reference" or Path(name).exists() or (name == base and name not in fetch.NAMES):
        return None
    try:
        version = version_of(encoder)
    except EncoderUnavailable as error:
        return str(error)
    if load_frozen(base).certification(encoder, version, Reference.version) is None:
        return f"{encoder} {version} is not certified for {base} with tokenizers {Reference.version}"
    return None


def open_subject(
    name: str, encoder: str, texts: tuple[str, ...] = (), answers: dict[bytes, Answer] | None = None
) -> Subject:
    """Load, admit, build the encoder. Raises OpenError when it isn't admitted or the encoder may not serve, FetchError.

    answers: those of a subject with another encoder of the same tokenizer.
    """
    live, config = locate(name)
    reference = Reference(live)
    frozen = config or admit(reference).frozen
    tok = DeltaTokenizer(live, encoder=encoder, config=frozen)
    if frozen is None or not tok.admission.admitted:
        raise OpenError(f"{name}: not admitted: {tok.admission.why_not}")
    if tok.admission.encoder != encoder:
        raise OpenError(f"{name}: {tok.admission.note}")
    return Subject(
        name, live, reference, frozen, tok._rules, tok, tok._encoder, texts, {} if answers is None else answers
    )


def read_texts(path: Path) -> list[str]:
    """A user's file: a JSONL of sessions or messages gives one text a session, anything else is one text.

    Raises OpenError for what is not there, no UTF-8 or no JSONL; OSError.
    """
    if not path.is_file():
        raise OpenError(f"{path}: no such file")
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".jsonl":
            return [text]
        return [_session_text(json.loads(line)) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise OpenError(f"{path}: {error}") from error


def _session_text(record: object) -> str:
    messages = record.get("messages", [record]) if isinstance(record, dict) else record
    if not isinstance(messages, list):
        raise ValueError(f"expected messages, found {type(messages).__name__}")
    return "\n".join(str(m.get("content") or "") for m in messages if isinstance(m, dict))
