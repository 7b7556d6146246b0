"""Opens the tokenizers of a campaign: real ones by name or path, small trained ones with nasty added tokens."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from .. import fetch
from ..admission.admit import admit
from ..admission.frozen import Frozen
from ..errors import DeltaError
from ..files import open_tokenizer
from ..reference import Reference
from ..tokenizer import DeltaTokenizer
from .batteries import Subject
from .generators import NASTY_TOKENS, frozen_from, live_from, spec

SYNTHETIC = "synthetic/"


class SubjectError(DeltaError):
    """A tokenizer that can't be verified; the message says why."""


def locate(name: str) -> tuple[Tokenizer, Frozen | None]:
    """The live tokenizer of a name, a path or `synthetic/CONFIG`; its config when it was made on the spot."""
    if name.startswith(SYNTHETIC):
        live = live_from(spec(name.removeprefix(SYNTHETIC), NASTY_TOKENS))
        return live, frozen_from(live)
    try:
        return open_tokenizer(name, SubjectError)[1], None
    except fetch.FetchError as error:
        raise SubjectError(str(error)) from error


def open_subject(name: str, encoder: str, texts: tuple[str, ...] = ()) -> Subject:
    """Load, admit, build the encoder. Raises SubjectError when it isn't admitted or the encoder may not serve."""
    live, config = locate(name)
    reference = Reference(live)
    frozen = config or admit(reference).frozen
    tok = DeltaTokenizer(live, encoder=encoder, config=frozen)
    if frozen is None or not tok.admission.admitted:
        raise SubjectError(f"{name}: not admitted: {'; '.join(map(str, tok.admission.mismatches))}")
    if tok.admission.encoder != encoder:
        raise SubjectError(f"{name}: {tok.admission.note}")
    return Subject(name, live, reference, frozen, tok._rules, tok, tok._encoder, texts)


def read_texts(path: Path) -> list[str]:
    """A user's file: a JSONL of sessions or messages gives one text a session, anything else is one text."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return [text]
    texts = []
    for line in text.splitlines():
        record = json.loads(line)
        messages = record.get("messages", [record]) if isinstance(record, dict) else record
        texts.append("\n".join(str(m.get("content") or "") for m in messages if isinstance(m, dict)))
    return texts
