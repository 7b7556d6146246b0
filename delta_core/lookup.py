"""PrefixIndex: proposes stored texts that begin like a new one. It only proposes; characters decide.

Digests are taken of short windows at fixed positions of a text, not of whole prefixes: a window costs 1 us wherever it
stands, hashing a prefix of 400K characters 430 us. A window proposes as well as a prefix does, since every proposal is
compared character by character anyway, and it still proposes when something before it changed without moving it.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b

_WINDOW = 128  # characters per digest
_FIRST = 1024  # position of the first window's end, in characters
_GROWTH = 5  # positions grow by 1/5 each: the part of a text behind its last window is at most a sixth of it
_PER_WINDOW = 32  # proposals kept per digest, newest last

_LIMIT = 1 << 32


def _positions() -> tuple[int, ...]:
    positions, at = [], _FIRST
    while at < _LIMIT:
        positions.append(at)
        at += at // _GROWTH
    return tuple(positions)


_POSITIONS = _positions()


class PrefixIndex:
    """Maps window digests to the branches whose text holds that window. Not thread-safe: the store locks it.

    Digests are keyed with a random key per process, so that nobody outside can aim texts at one bucket; buckets are
    bounded all the same.
    """

    ENTRY_BYTES = 260  # measured: dictionary slot, digest, bucket

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._buckets: dict[bytes, deque[Hashable]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def _digest(self, namespace: bytes, text: str, position: int) -> bytes:
        window = text[position - _WINDOW : position].encode("utf-8", "surrogatepass")
        return blake2b(
            window, digest_size=16, key=self._key, salt=namespace[:16], person=position.to_bytes(8, "little")
        ).digest()

    def digests(
        self,
        namespace: bytes,
        text: str,
        known: tuple[bytes, ...] = (),
        same: Sequence[tuple[int, int]] = (),
    ) -> tuple[bytes, ...]:
        """The digests of a text by position.

        known: those of a text that has the characters `same` (start, end; ascending) at the same place.
        """
        result: list[bytes] = []
        held = bisect_right(_POSITIONS, len(text))
        for start, end in same:
            first = bisect_left(_POSITIONS, start + _WINDOW)
            stop = min(bisect_right(_POSITIONS, end), len(known), held)
            if first < stop:
                result += [self._digest(namespace, text, p) for p in _POSITIONS[len(result) : first]]
                result += known[first:stop]
        result += [self._digest(namespace, text, p) for p in _POSITIONS[len(result) : held]]
        return tuple(result)

    def add(self, branch: Hashable, digests: Iterable[bytes]) -> None:
        for digest in digests:
            bucket = self._buckets.get(digest)
            if bucket is None:
                self._buckets[digest] = deque((branch,), _PER_WINDOW)
            else:
                bucket.append(branch)

    def remove(self, branch: Hashable, digests: Iterable[bytes]) -> None:
        for digest in digests:
            bucket = self._buckets.get(digest)
            if bucket is not None:
                with suppress(ValueError):  # pushed out of a full bucket by newer ones
                    bucket.remove(branch)
                if not bucket:
                    del self._buckets[digest]

    def propose(self, namespace: bytes, text: str) -> Iterator[Hashable]:
        """Branches that share a window with `text`, those with the furthest window first, newest first.

        Lazy: a digest is computed only when the proposals before it were not enough.
        """
        if not self._buckets:
            return
        for position in reversed(_POSITIONS[: bisect_right(_POSITIONS, len(text))]):
            bucket = self._buckets.get(self._digest(namespace, text, position))
            if bucket:
                yield from reversed(bucket)

    def _check(self, branches: dict[Hashable, tuple[bytes, ...]]) -> None:
        for digest, bucket in self._buckets.items():
            assert bucket
            assert len(bucket) <= _PER_WINDOW
            for branch in bucket:
                assert digest in branches[branch]
