"""Encoders: who turns a segment into IDs. The reference always can; a faster one serves only where it is certified.

What the rest of the runtime must know of an encoder (how far apart checkpoints pay, what may run on an event loop, how
many threads help) is an attribute of its class.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from importlib import metadata
from itertools import accumulate, chain, pairwise
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .admission.frozen import REFUSED, Certification, Frozen
from .errors import Reason, panics_are_errors
from .forks import in_forked_child
from .identity import Known, answers_differ, bytes_of
from .ids import Ids, Kind, container, from_numbers
from .reference import Reference

log = logging.getLogger("delta_core")

# So many segments fastokens encodes one by one, in the calling thread; a batch may wait in the library's own threads.
_FEW = 16


class EncoderUnavailable(RuntimeError):
    """The encoder is not installed, or does not take this tokenizer; the message says which."""

    reason: Reason | None = None


class EncoderUncertified(EncoderUnavailable):
    """There is no record that it gives this tokenizer's IDs under these versions; the message says which."""


class EncoderDiffers(EncoderUnavailable):
    """What the encoder makes of this tokenizer is another tokenizer; the message says where."""

    reason = Reason.ENCODER_DIFFERS


# The libraries' threads do not survive a fork, and their locks may be held for ever in the child: a library that the
# parent used can't be used there.
_used: set[str] = set()
_left: set[str] = set()
in_forked_child(lambda: _left.update(_used))


class Encoder:
    """Turns segments into IDs, each on its own, without the post-processor's tokens. Thread-safe.

    segment: characters between checkpoints. Smaller means less to encode again around an edit, larger means less work
        on new text; at 256 the checkpoints cost 2% of the IDs' memory.
    inline: characters that may be encoded on an event loop: about 2 ms.
    cost: milliseconds a character, cutting and building lists included; a first guess, which the pool corrects.
    threads: how many of the pool's threads help; None for one a core.
    """

    name: str
    segment: int = 256
    inline: int = 4096
    cost: float = 1e-3
    threads: int | None = None

    def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        """The IDs of all segments in one list or array, and how many there are up to the end of each segment.

        Raises what it raises, but no panic: the caller then asks the reference.
        """
        raise NotImplementedError


def encode_each(encoder: Encoder, segments: Sequence[str]) -> list[list[int]]:
    """The IDs of each segment in a list of its own."""
    ids, ends = encoder.encode_flat(segments, list)
    return [ids[a:b] for a, b in pairwise((0, *ends))]


def warm(encoder: Encoder) -> None:
    """Have an encoder make its caches in this thread, by few segments and by many. 5 to 40 ms."""
    encoder.encode_flat(["a b"], list)
    encoder.encode_flat([f"a b {n}" for n in range(64)], list)


def _flat(parts: Sequence[Sequence[int]], kind: Kind) -> tuple[Ids, list[int]]:
    return container(list(chain.from_iterable(parts)), kind), list(accumulate(map(len, parts)))


class ReferenceEncoder(Encoder):
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
        self._copy = reference.copy()

    @panics_are_errors
    def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        """See Encoder."""
        encode = self._copy.encode_batch_fast
        return _flat([encode([segment], add_special_tokens=False)[0].ids for segment in segments], kind)


class FastEncoder(Encoder):
    """An encoder that another library made of the live tokenizer. Its guards and its record make it exact, not itself.

    Checkpoints stand farther apart: finding cuts would cost more than encoding again. Of what a text costs, the
    interpreter takes half, and it lets one thread run at a time; the encoder's half is spread over the cores by its
    library. In chunks, with a thread a core, four documents of 1M characters took a sixth longer than whole in one.

    automatic: whether `auto` takes it.
    """

    segment = 1024
    threads = 1
    automatic: ClassVar[bool] = True

    def __init__(self, reference: Reference) -> None:
        """Made of the reference's copy or its state, never of the live object. Raises EncoderUnavailable."""
        raise NotImplementedError

    def differs_from(self, known: Known) -> str | None:
        """An ID that is another token to it than to the live tokenizer, or the other way round; None when all agree."""
        raise NotImplementedError


class FastokensEncoder(FastEncoder):
    """fastokens, built from the live tokenizer's own state. Releases the GIL. Building takes about 1 s."""

    name = "fastokens"
    inline = 65536
    cost = 5e-5

    @panics_are_errors
    def __init__(self, reference: Reference) -> None:
        try:
            import fastokens
        except ImportError as error:
            raise EncoderUnavailable("fastokens is not installed: pip install 'delta-tokenizer[fast]'") from error
        reference.copy()  # shows how the state must be written for the same IDs
        try:
            self._tokenizer = fastokens.Tokenizer.from_json_str(reference.serialized(dense=True))
        except Exception as error:
            raise EncoderUnavailable(f"fastokens does not take this tokenizer: {error}") from error

    def differs_from(self, known: Known) -> str | None:
        """See FastEncoder."""
        ours = self._tokenizer
        for token, i in known.vocabulary.items():
            if ours.token_to_id(token) != i:
                return f"it has {token!r} as {ours.token_to_id(token)}, the live tokenizer as {i}"
        largest = max(known.vocabulary.values(), default=-1)
        return None if ours.vocab_size == largest + 1 else f"it has {ours.vocab_size} tokens up to the ID {largest}"

    @panics_are_errors
    def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        """See Encoder."""
        if len(segments) <= _FEW:
            encode = self._tokenizer.encode
            return _flat([encode(segment, add_special_tokens=False).ids for segment in segments], kind)
        # The flat form makes no Python object per token on the Rust side, and spreads over cores.
        flat, offsets = self._tokenizer.encode_batch_flat(list(segments), add_special_tokens=False)
        return from_numbers(np.frombuffer(flat, "<u4"), kind), np.frombuffer(offsets, "<u8")[1:].tolist()


class GigatokenEncoder(FastEncoder):
    """gigatoken, built from the reference's copy. Holds the GIL, and so would stall an event loop: `auto` leaves it.

    One call at a time: the library lends its object to one thread, and raises for a second one. A lock, for an object a
    thread costs 0.9 s and 100 MB each, and eight threads encode no faster with them: the GIL is held for most of it.
    """

    name = "gigatoken"
    cost = 1e-4
    automatic = False

    @panics_are_errors
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

    def differs_from(self, known: Known) -> str | None:
        """See FastEncoder."""
        ours: dict[int, bytes] = dict(self._tokenizer.vocab)
        added = {i: token.content for i, token in known.added.items()}
        theirs = {i: token for token, i in known.vocabulary.items()} | added
        for i in {*ours, *theirs}:
            token = theirs.get(i)
            raw = None if token is None else token.encode() if i in added else bytes_of(token)
            if ours.get(i) != raw:
                return f"it has {ours.get(i)!r} as {i}, the live tokenizer {token!r}"
        return None

    @panics_are_errors
    def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        """See Encoder."""
        with self._lock:
            parts: list[NDArray[np.uint32]] = [self._tokenizer.encode(segment) for segment in segments]
        ids = from_numbers(np.concatenate(parts), kind) if parts else container((), kind)
        return ids, list(accumulate(map(len, parts)))


FAST: dict[str, type[FastEncoder]] = {kind.name: kind for kind in (FastokensEncoder, GigatokenEncoder)}
NAMES = (ReferenceEncoder.name, *FAST)


class Guarded(Encoder):
    """A certified encoder with its guards: segments that hold a guarded character go to the reference, they alone."""

    def __init__(self, encoder: Encoder, certification: Certification, reference: Reference) -> None:
        self.name = encoder.name
        self.segment, self.inline, self.cost = encoder.segment, encoder.inline, encoder.cost
        self.threads = encoder.threads
        self._encoder = encoder
        self._reference = ReferenceEncoder(reference)
        ranges = "".join(
            re.escape(chr(low)) if low == high else f"{re.escape(chr(low))}-{re.escape(chr(high))}"
            for low, high in certification.guards
        )
        self._guard = re.compile(f"[{ranges}]") if ranges else None
        # Certification guards no ASCII, so most segments need no search; a config may have been written by hand.
        self._ascii = any(low < 128 for low, _ in certification.guards)

    def _held(self, segments: Sequence[str]) -> list[int]:
        """The segments that hold a guarded character."""
        guard = self._guard
        if guard is None:
            return []
        return [i for i, s in enumerate(segments) if (self._ascii or not s.isascii()) and guard.search(s)]

    def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        """See Encoder."""
        held = self._held(segments)
        if not held:
            return self._encoder.encode_flat(segments, kind)
        rest = list(segments)
        for i in held:
            rest[i] = ""
        theirs = encode_each(self._reference, [segments[i] for i in held])
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


def version_of(name: str) -> str:
    """The installed version of an encoder's distribution. Raises EncoderUnavailable."""
    if name == ReferenceEncoder.name:
        return Reference.version
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError as error:
        raise EncoderUnavailable(f"{name} is not installed") from error


def build(name: str, reference: Reference) -> FastEncoder:
    """The bare fast encoder of a name, certified or not. Raises EncoderUnavailable, ValueError for an unknown name."""
    if name not in FAST:
        raise ValueError(f"unknown fast encoder {name!r}: one of {', '.join(FAST)}")
    if name in _left:
        raise EncoderUnavailable(f"{name} was in use in the process this one was forked from, where its threads are")
    _used.add(name)
    return FAST[name](reference)


class Choice(NamedTuple):
    """The encoder that serves. note: why it is not the one asked for; reason: what is counted of that.

    uncertified: the fast encoder that would serve if it were certified.
    """

    encoder: Encoder
    note: str | None = None
    reason: Reason | None = None
    uncertified: str | None = None


def choose(name: str, frozen: Frozen, reference: Reference) -> Choice:
    """The encoder that may serve, and why it is not the one asked for. Raises ValueError for an unknown name.

    name: one of NAMES, or "auto" for the fastest certified one that leaves an event loop free.
    """
    asked = name != "auto"
    wanted = name if asked else next(kind.name for kind in FAST.values() if kind.automatic)
    if wanted not in NAMES:
        raise ValueError(f"unknown encoder {name!r}: one of auto, {', '.join(NAMES)}")
    if wanted == ReferenceEncoder.name:
        return Choice(ReferenceEncoder(reference))
    try:
        return Choice(_certified(wanted, frozen, reference))
    except EncoderUnavailable as error:
        (log.warning if asked or error.reason else log.info)("%s", error)
        uncertified = wanted if isinstance(error, EncoderUncertified) else None
        return Choice(ReferenceEncoder(reference), str(error), error.reason, uncertified)


def _certified(name: str, frozen: Frozen, reference: Reference) -> Guarded:
    """The encoder behind its guards, shown to be the live tokenizer: certification was about a file like it.

    Its own vocabulary, both ways, and a battery with every added token. 0.3 to 0.6 s. Raises EncoderUnavailable.
    """
    version = version_of(name)
    certification = frozen.certification(name, version, reference.version)
    if certification is None:
        if any(c.key == (name, version, reference.version) and c.method == REFUSED for c in frozen.certified):
            raise EncoderUnavailable(f"{name} {version} gives other IDs than tokenizers {reference.version} here")
        raise EncoderUncertified(
            f"{name} {version} is not certified for {frozen.name} with tokenizers {reference.version}; "
            "run `delta certify` to certify it"
        )
    encoder = build(name, reference)
    guarded = Guarded(encoder, certification, reference)
    known = reference.known
    difference = encoder.differs_from(known) or answers_differ(known, lambda texts: encode_each(guarded, texts))
    if difference is not None:
        raise EncoderDiffers(f"{name} makes another tokenizer of this one: {difference}")
    return guarded
