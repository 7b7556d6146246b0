"""Token IDs as they are kept: shared integers in shared lists, so that a turn costs its new IDs and one copy."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAX_PARTS = 24  # parts of an IdList before it is written anew

# IDs are handed out as `list`, or as `array("q")` to callers that make one of the list anyway.
Kind = type[Any]
Ids = Any  # list[int] or array("q")
Part = tuple[Ids, int, int]  # IDs start .. stop of one of them


class _Shared(dict[int, int]):
    """Every integer, as the object that was first seen for it."""

    def __missing__(self, number: int) -> int:
        self[number] = number
        return number


_shared = _Shared()


def shared_ids(ids: Iterable[int]) -> list[int]:
    """The same IDs as integer objects shared by the whole process, so that a stored ID costs 8 bytes, not 40.

    About 30 ns per ID. Two threads that meet a number at once may each keep an object of it: a little memory, no more.
    """
    return list(map(_shared.__getitem__, ids))


_MOST_IDS = 1 << 21  # no vocabulary is larger; a table for such an ID would be
_table = np.empty(0, object)  # _table[i] is the shared object for i


def from_numbers(numbers: NDArray[np.unsignedinteger[Any]], kind: Kind) -> Ids:
    """IDs that an encoder gives as numbers, as a fresh list of shared integers or as an array.

    A list costs 25 ns per ID, a quarter of making integers and looking them up; an array 1 ns. The table of shared
    integers reaches to the largest ID seen: 6 MB for a vocabulary of 150,000.
    """
    global _table
    if kind is not list:
        return array("q", numbers.astype("<i8").tobytes())
    table = _table
    if len(numbers) and (largest := int(numbers.max())) >= len(table):
        if largest >= _MOST_IDS:
            return shared_ids(numbers.tolist())
        grown = np.empty(largest + 1, object)
        grown[:] = [_shared[i] for i in range(largest + 1)]
        table = _table = grown  # two threads may grow it at once: each goes on with its own, the objects are the same
    return table[numbers].tolist()


class IdList:
    """An immutable sequence of token IDs made of slices of shared lists, or of shared arrays (a piece table).

    A turn shares the IDs of the turn before it; only the new ones are stored. One list, the base, holds nearly all of
    them, so that `copy` is one copy of it and a few small patches: 1 to 2 us per 1,000 IDs, as an array 0.3 us.

    kind: list or array; all parts are of it.
    """

    __slots__ = ("_parts", "kind", "length")

    def __init__(self, parts: Iterable[Part], kind: Kind = list) -> None:
        self.kind = kind
        self._parts = [part for part in parts if part[2] > part[1]]
        self.length = 0
        for _, start, stop in self._parts:
            self.length += stop - start

    @classmethod
    def of(cls, parts: Iterable[Part], kind: Kind = list) -> IdList:
        """An IdList of these slices, written as one new list when it is a poor table.

        That is: one of many parts, or with many IDs outside the base, or that keeps much alive which it doesn't use.
        """
        result = cls(parts, kind)
        base = result._base()
        inside = sum(stop - start for ids, start, stop in result._parts if ids is base)
        spare = result.length // 8 + 64
        if result.length - inside > spare or len(base) - inside > spare or len(result._parts) > _MAX_PARTS:
            whole = result.copy()
            return cls([(whole, 0, len(whole))], kind)
        return result

    def own(self, tokens: int) -> IdList:
        """The same IDs in lists that nothing else holds: one of the first `tokens` IDs, which can grow, and the rest.

        O(length).
        """
        ids = self.copy()
        rest = ids[tokens:]
        del ids[tokens:]
        return IdList([(ids, 0, len(ids)), (rest, 0, len(rest))], self.kind)

    def _base(self) -> Ids:
        longest, base = 0, container((), self.kind)
        for ids, start, stop in self._parts:
            if stop - start > longest:
                longest, base = stop - start, ids
        return base

    def slice(self, start: int, stop: int) -> list[Part]:
        """The parts that hold IDs start .. stop. O(parts)."""
        result = []
        at = 0
        for ids, low, high in self._parts:
            a, b = low if start <= at else low + start - at, high
            at += high - low
            if at > stop:
                b -= at - stop
            if a < b:
                result.append((ids, a, b))
        return result

    def settle(self, tokens: int) -> None:
        """Move the first `tokens` IDs to where they will stay: parts behind a list's own end are appended to it.

        Called when a stored transcript is replaced by the one that continues it: what the old one holds of the list
        stays as it is. The few IDs behind `tokens` change with the next turn and stay apart. O(IDs moved).
        """
        parts: list[Part] = []
        at = 0
        for ids, start, stop in self._parts:
            settled = min(stop, start + tokens - at)
            at += stop - start
            if parts and start < settled:
                into, low, end = parts[-1]
                # Never the longer one into the shorter one: an edit in mid-history stands before most of the base.
                if end == len(into) and settled - start <= end:
                    into += ids[start:settled]
                    parts[-1] = (into, low, len(into))
                    ids, start, stop = ids[settled:stop], 0, stop - settled
            if start < stop:
                parts.append((ids, start, stop))
        self._parts = parts

    def copy(self) -> Ids:
        """A fresh list, or array. O(length)."""
        kind = self.kind
        base = self._base()
        slices = [i for i, part in enumerate(self._parts) if part[0] is base]
        if not slices:
            return container((), kind)
        # A slice that is joined to a list is copied twice. So the base is copied once, from its first slice to its
        # last one, and what stands between two slices is put in place of what the base has there.
        first, last = slices[0], slices[-1]
        origin = self._parts[first][1]
        result = base[origin : self._parts[last][2]]
        for i, j in reversed(list(pairwise(slices))):
            low, high = self._parts[i][2] - origin, self._parts[j][1] - origin
            if high < low:  # the base's slices are not in order: text was moved
                return _joined(self._parts, kind)
            result[low:high] = _joined(self._parts[i + 1 : j], kind)
        if first:
            result[:0] = _joined(self._parts[:first], kind)
        for ids, start, stop in self._parts[last + 1 :]:
            result += ids[start:stop]
        return result

    def bytes(self) -> int:
        """The memory of the lists it holds on to; the integers themselves are shared by all."""
        held = {id(ids): len(ids) for ids, _, _ in self._parts}
        return 9 * sum(held.values()) + 120 * len(held)  # 8 bytes an ID, and what a list grown by += keeps in hand

    def lists(self) -> list[Ids]:
        """The lists it holds on to."""
        return list({id(ids): ids for ids, _, _ in self._parts}.values())


def container(ids: Iterable[int], kind: Kind) -> Ids:
    """These IDs as a fresh list of shared integers, or as an array."""
    return shared_ids(ids) if kind is list else array("q", ids)


def _joined(parts: Sequence[Part], kind: Kind) -> Ids:
    result = container((), kind)
    for ids, start, stop in parts:
        result += ids[start:stop]
    return result
