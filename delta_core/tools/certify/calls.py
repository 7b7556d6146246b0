"""How an encoder is asked: by the call that serves, in all the ways it may be made, beside the reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal, NoReturn

from ...encoders import Encoder
from ...ids import Kind
from ...reference import Reference

Ids = Sequence[int]  # list or array
Fault = Literal["ids", "raises", "accepts", "unstable", "guards"]
Way = Literal["batch", "few", "alone", "threads"]

_TRIED = (1, 5, 20)  # how often a text stands in a batch when it is tried again
_SIZES = {"batch": 512, "few": 9, "alone": 1}


def encode(encoder: Encoder, strings: Sequence[str], way: Way = "batch", kind: Kind = list) -> list[Ids | None]:
    """The encoder's IDs by the call that serves; None for a string for which it raises. A Rust panic counts, too.

    way: "batch" many segments a call, "few" as many as one turn has, "alone" one, "threads" calls of all sizes from
        several threads at once. They are different code in an encoder.
    kind: as list or as array.
    """
    if way == "threads":
        sizes = (1, 3, 20, 9, 64)
        parts: list[Sequence[str]] = []
        at = 0
        while at < len(strings):
            size = sizes[len(parts) % len(sizes)]
            parts.append(strings[at : at + size])
            at += size
        with ThreadPoolExecutor(8) as pool:
            return list(chain.from_iterable(pool.map(lambda part: _call(encoder, part, kind), parts)))
    size = _SIZES[way]
    calls = (_call(encoder, strings[i : i + size], kind) for i in range(0, len(strings), size))
    return list(chain.from_iterable(calls))


def _call(encoder: Encoder, strings: Sequence[str], kind: Kind) -> list[Ids | None]:
    try:
        ids, ends = encoder.encode_flat(list(strings), kind)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - a panic in Rust is no Exception
        if len(strings) == 1:
            return [None]
        return [_call(encoder, [string], kind)[0] for string in strings]
    if len(ends) != len(strings) or ends[-1] != len(ids):
        return [None] * len(strings)  # not even the right number of answers
    return [ids[a:b] for a, b in pairwise([0, *ends])]


@dataclass(frozen=True, slots=True)
class Difference:
    """One text for which the encoder is not the reference, as short as could be found.

    expected, got: IDs of the reference and of the encoder; None where it raised.
    kind: "ids" they differ; "raises" only the encoder raises; "accepts" only the reference raises; "unstable" the
        encoder differed once and then did not again; "guards" it would need guards it may not have (too many).
    """

    text: str
    expected: tuple[int, ...] | None
    got: tuple[int, ...] | None
    kind: Fault


class Refused(Exception):
    """The encoder can't be certified."""

    def __init__(self, differences: Sequence[Difference]) -> None:
        super().__init__(f"{len(differences)} differences")
        self.differences = tuple(differences)


class Pair:
    """A bare encoder beside the reference."""

    def __init__(self, reference: Reference, encoder: Encoder) -> None:
        self.reference = reference
        self.encoder = encoder

    def wrong(self, texts: Iterable[str], encoder: Encoder | None = None) -> dict[str, None]:
        """Those of the strings for which an encoder (the bare one by default) is wrong, in their order."""
        strings = list(texts)
        if not strings:
            return {}
        expected = self.reference.encode_each(strings)
        got = encode(encoder or self.encoder, strings)
        return {s: None for s, a, b in zip(strings, expected, got, strict=True) if b is None or a != list(b)}

    def differs(self, text: str) -> bool:
        """Whether the bare encoder is wrong on one text, alone or in a batch (encoders take different ways)."""
        expected = self.reference.encode_each([text])[0]
        answers = (ids for n in _TRIED for ids in encode(self.encoder, [text] * n))
        return any(ids is None or list(ids) != expected for ids in answers)

    def refuse(self, text: str, kind: Fault | None = None) -> NoReturn:
        """Raise Refused with this text as the example. kind: None to tell it by the answer."""
        expected = self.reference.encode_each([text])[0]
        answers = (g for n in _TRIED for g in encode(self.encoder, [text] * n))
        got = next((g for g in answers if g is None or list(g) != expected), expected)
        if kind is None:
            kind = "raises" if got is None else "ids"
        raise Refused([Difference(text, tuple(expected), None if got is None else tuple(got), kind)])


def line_of(d: Difference) -> str:
    """A difference for a person."""
    return f"{d.kind} {short(d.text)}: {_few(d.expected)} expected, got {_few(d.got)}"


def short(text: str) -> str:
    """A text as ASCII, its beginning where it is long."""
    shown = ascii(text)
    return shown if len(shown) <= 120 else f"{shown[:100]}... ({len(text)} characters)"


def _few(ids: tuple[int, ...] | None) -> str:
    if ids is None:
        return "an error"
    return str(list(ids)) if len(ids) <= 12 else f"{list(ids[:12])} and {len(ids) - 12} more"
