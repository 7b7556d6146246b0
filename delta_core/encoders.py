"""Encoders: who turns a segment into IDs. The reference always can; a faster one serves only where it is certified."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from importlib import metadata
from itertools import accumulate, chain, pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .admission.frozen import Certification, Frozen
from .errors import Reason
from .forks import in_forked_child
from .identity import answers_differ, bytes_of
from .ids import Ids, Kind, container, from_numbers
from .reference import Reference

log = logging.getLogger("delta_core")

NAMES = ("reference", "fastokens", "gigatoken")
# So many segments fastokens encodes one by one, in the calling thread; a batch may wait in the library's own threads.
_FEW = 16
_DISTRIBUTION = {"fastokens": "fastokens", "gigatoken": "gigatoken"}


class EncoderUnavailable(RuntimeError):
    """The encoder is not installed, or does not take this tokenizer; the message says which."""


class EncoderDiffers(EncoderUnavailable):
    """What the encoder makes of this tokenizer is another tokenizer; the message says where."""


# The libraries' threads do not survive a fork, and their locks may be held for ever in the child: a library that the
# parent used can't be used there.
_used: set[str] = set()
_left: set[str] = set()
in_forked_child(lambda: _left.update(_used))


class Encoder(Protocol):
    """Turns segments into IDs, each on its own, without the post-processor's tokens. Thread-safe."""

    name: str

    def encode_segments(self, segments: Sequence[str]) -> list[list[int]]:
        """IDs of each segment. Raises what it raises: the caller then asks the reference."""

    def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        """The same IDs in one list or array, and how many there are up to the end of each segment.

        For many segments: a fast encoder's numbers become IDs without a list for each of them.
        """


def _flat(parts: Sequence[list[int]], kind: Kind) -> tuple[Ids, list[int]]:
    return container(list(chain.from_iterable(parts)), kind), list(accumulate(map(len, parts)))


class ReferenceEncoder:
    """The reference's own code on a copy of the live state. Releases the GIL.

    Segment by segment: a batch of one releases the GIL as any other, but is encoded by the calling thread. A longer one
    is spread over the library's own threads, and there it waits until these are done with whatever came before: a turn
    of 1 ms on an event loop, behind a document of 1M characters, up to a second. Parallel work is the pool's affair.

    A copy, because engines set truncation and padding on the shared object for one request, while another one encodes:
    that must not reach our segments. It is the reference's one copy, shown to be the same tokenizer: all reference
    encoders of a process share it, and admission has made it, so that no request waits for it.
    """

    name = "reference"

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._copy: Tokenizer | None = None

    def prepare(self) -> ReferenceEncoder:
        if self._copy is None:
            self._copy = self._reference.copy()
        return self

    def encode_segments(self, segments: Sequence[str]) -> list[list[int]]:
        copy = self._copy or self.prepare()._copy
        assert copy is not None
        encode = copy.encode_batch_fast
        return [encode([segment], add_special_tokens=False)[0].ids for segment in segments]

    def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        return _flat(self.encode_segments(segments), kind)


class FastokensEncoder:
    """fastokens, built from the live tokenizer's own state. Releases the GIL. Building takes about 1 s."""

    name = "fastokens"

    def __init__(self, tokenizer_json: str) -> None:
        try:
            import fastokens
        except ImportError as error:
            raise EncoderUnavailable("fastokens is not installed: pip install 'delta-tokenizer[fast]'") from error
        try:
            self._tokenizer = fastokens.Tokenizer.from_json_str(tokenizer_json)
        except Exception as error:
            raise EncoderUnavailable(f"fastokens does not take this tokenizer: {error}") from error

    def differs_from(self, live: Tokenizer) -> str | None:
        ours = self._tokenizer
        for token, i in live.get_vocab(with_added_tokens=True).items():
            if ours.token_to_id(token) != i or ours.id_to_token(i) != live.id_to_token(i):
                return f"it has {token!r} as {ours.token_to_id(token)} and {i} as {ours.id_to_token(i)!r}"
        return None

    def encode_segments(self, segments: Sequence[str]) -> list[list[int]]:
        if len(segments) <= _FEW:
            encode = self._tokenizer.encode
            return [encode(segment, add_special_tokens=False).ids for segment in segments]
        # The flat form makes no Python object per token on the Rust side, and spreads over cores.
        flat, offsets = self._tokenizer.encode_batch_flat(list(segments), add_special_tokens=False)
        ids: list[int] = np.frombuffer(flat, "<u4").tolist()
        ends: list[int] = np.frombuffer(offsets, "<u8").tolist()
        return [ids[a:b] for a, b in pairwise(ends)]

    def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        if len(segments) <= _FEW:
            return _flat(self.encode_segments(segments), kind)
        flat, offsets = self._tokenizer.encode_batch_flat(list(segments), add_special_tokens=False)
        return from_numbers(np.frombuffer(flat, "<u4"), kind), np.frombuffer(offsets, "<u8")[1:].tolist()


class GigatokenEncoder:
    """gigatoken, built from the reference's copy. Holds the GIL.

    One call at a time: the library lends its object to one thread, and raises for a second one. A lock, for an object a
    thread costs 0.9 s and 100 MB each, and eight threads encode no faster with them: the GIL is held for most of it.
    """

    name = "gigatoken"

    def __init__(self, reference: Reference) -> None:
        try:
            import gigatoken
        except ImportError as error:
            raise EncoderUnavailable("gigatoken is not installed: pip install 'delta-tokenizer[gigatoken]'") from error
        copy = reference.copy()
        try:
            self._tokenizer = gigatoken.Tokenizer(copy)
        except Exception as error:
            raise EncoderUnavailable(f"gigatoken does not take this tokenizer: {error}") from error
        self._lock = threading.Lock()

    def _encode(self, segments: Sequence[str]) -> list[NDArray[np.uint32]]:
        with self._lock:
            return [self._tokenizer.encode(segment) for segment in segments]

    def differs_from(self, live: Tokenizer) -> str | None:
        ours: dict[int, bytes] = dict(self._tokenizer.vocab)
        added = {i: token.content for i, token in live.get_added_tokens_decoder().items()}
        theirs = {i: token for token, i in live.get_vocab(with_added_tokens=True).items()} | added
        for i in {*ours, *theirs}:
            token = theirs.get(i)
            raw = None if token is None else token.encode() if i in added else bytes_of(token)
            if ours.get(i) != raw:
                return f"it has {ours.get(i)!r} as {i}, the live tokenizer {token!r}"
        return None

    def encode_segments(self, segments: Sequence[str]) -> list[list[int]]:
        return [part.tolist() for part in self._encode(segments)]

    def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        parts = self._encode(segments)
        ids = from_numbers(np.concatenate(parts), kind) if parts else container((), kind)
        return ids, list(accumulate(map(len, parts)))


class Fast(Encoder, Protocol):
    """An encoder that another library made of the live tokenizer."""

    def differs_from(self, live: Tokenizer) -> str | None:
        """An ID that is another token to it than to the live tokenizer, or the other way round; None when all agree."""


class Guarded:
    """A certified encoder with its guards: segments that hold a guarded character go to the reference, they alone."""

    def __init__(self, encoder: Encoder, certification: Certification, reference: Reference) -> None:
        self.name = encoder.name
        self._encoder = encoder
        self._reference = ReferenceEncoder(reference)
        ranges = "".join(
            re.escape(chr(low)) if low == high else f"{re.escape(chr(low))}-{re.escape(chr(high))}"
            for low, high in certification.guards
        )
        self._guard = re.compile(f"[{ranges}]") if ranges else None
        if ranges:
            self._reference.prepare()
        # Certification guards no ASCII, so most segments need no search; a config may have been written by hand.
        self._ascii = any(low < 128 for low, _ in certification.guards)

    def _held(self, segments: Sequence[str]) -> list[int]:
        """The segments that hold a guarded character."""
        guard = self._guard
        if guard is None:
            return []
        return [i for i, s in enumerate(segments) if (self._ascii or not s.isascii()) and guard.search(s)]

    def _apart(self, segments: Sequence[str], held: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """The segments with those held emptied, and the reference's IDs of these."""
        rest = list(segments)
        for i in held:
            rest[i] = ""
        return rest, self._reference.encode_segments([segments[i] for i in held])

    def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        held = self._held(segments)
        if not held:
            return self._encoder.encode_flat(segments, kind)
        rest, theirs = self._apart(segments, held)
        ids, ends = self._encoder.encode_flat(rest, kind)
        result, at = container((), kind), 0
        more = [0] * len(segments)
        for i, found in zip(held, theirs, strict=True):
            start = ends[i - 1] if i else 0
            result += ids[at:start]
            result += container(found, kind)
            at = ends[i]
            more[i] = len(found) - (at - start)
        result += ids[at:]
        return result, [end + extra for end, extra in zip(ends, accumulate(more), strict=True)]

    def encode_segments(self, segments: Sequence[str]) -> list[list[int]]:
        held = self._held(segments)
        if not held:
            return self._encoder.encode_segments(segments)
        rest, theirs = self._apart(segments, held)
        result = self._encoder.encode_segments(rest)
        for i, found in zip(held, theirs, strict=True):
            result[i] = found
        return result


def version_of(name: str) -> str:
    """The installed version of an encoder's distribution. Raises EncoderUnavailable."""
    if name == "reference":
        return Reference.version
    try:
        return metadata.version(_DISTRIBUTION[name])
    except metadata.PackageNotFoundError as error:
        raise EncoderUnavailable(f"{name} is not installed") from error


def build(name: str, reference: Reference) -> Fast:
    """The bare fast encoder of one name, certified or not.

    Made of the reference's copy or its state, never of the live object. Raises EncoderUnavailable, ValueError for an
    unknown name.
    """
    if name in _left:
        raise EncoderUnavailable(f"{name} was in use in the process this one was forked from, where its threads are")
    _used.add(name)
    if name == "fastokens":
        reference.copy()  # shows how the state must be written for the same IDs
        return FastokensEncoder(reference.serialized(dense=True))
    if name == "gigatoken":
        return GigatokenEncoder(reference)
    raise ValueError(f"unknown fast encoder {name!r}: one of {', '.join(NAMES[1:])}")


class Choice(NamedTuple):
    """The encoder that serves. note: why it is not the one asked for; reason: what is counted of that."""

    encoder: Encoder
    note: str | None = None
    reason: Reason | None = None


def choose(name: str, frozen: Frozen, reference: Reference) -> Choice:
    """The encoder that may serve, and why it is not the one asked for.

    name: one of NAMES, or "auto" for the fastest certified one. "auto" does not look at gigatoken, which holds the
    GIL and so would stall an event loop; it serves when it is asked for by name.
    """
    if name == "auto":
        name, asked = "fastokens", False
    else:
        asked = True
    if name not in NAMES:
        raise ValueError(f"unknown encoder {name!r}: one of auto, {', '.join(NAMES)}")
    safe = ReferenceEncoder(reference).prepare()
    if name == "reference":
        return Choice(safe)
    try:
        version = version_of(name)
    except EncoderUnavailable as error:
        return Choice(safe, str(error))
    certification = frozen.certification(name, version, reference.version)
    if certification is None:
        note = (
            f"{name} {version} is not certified for {frozen.name} with tokenizers {reference.version}; "
            "run `delta certify` to certify it"
        )
        (log.warning if asked else log.info)("%s", note)
        return Choice(safe, note)
    try:
        return Choice(_shown(build(name, reference), certification, reference))
    except EncoderUnavailable as error:
        log.warning("%s", error)
        return Choice(safe, str(error), Reason.ENCODER_DIFFERS if isinstance(error, EncoderDiffers) else None)


def _shown(encoder: Fast, certification: Certification, reference: Reference) -> Guarded:
    """The encoder behind its guards, shown to be the live tokenizer: certification was about a file like it.

    Its own vocabulary, both ways, and a battery with every added token. 0.3 to 0.6 s. Raises EncoderDiffers.
    """
    guarded = Guarded(encoder, certification, reference)
    live = reference.backend
    difference = encoder.differs_from(live) or answers_differ(live, guarded.encode_segments)
    if difference is not None:
        raise EncoderDiffers(f"{encoder.name} makes another tokenizer of this one: {difference}")
    return guarded
