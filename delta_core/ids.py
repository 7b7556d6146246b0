"""Token IDs as they are kept: shared integers in shared lists, so that a turn costs its new IDs and one copy."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .forks import in_forked_child

_MAX_PARTS = 24  # parts of an IdList before it is written anew

# IDs are handed out as `list`, or as `array("q")` to callers that make one of the list anyway.
Kind = type[Any]
Ids = Any  # list[int] or array("q")
Part = tuple[Ids, int, int]  # IDs start .. stop of one of them


# The integers that all stored IDs share: _table[i] is the object for the ID i, -1 as long as none is. For few IDs a
# list, for many an array of the same objects. Objects are made when an ID is first met, those of a text side by side:
# copying a list counts references in each of them, and takes half the time where frequent IDs lie close together.
_table: list[int] = []
_arrays = (np.empty(0, object), np.empty(0, bool))  # the objects, and which of them there are
_making = threading.Lock()
_STEP = 1 << 14
_MOST_IDS = 1 << 21  # no vocabulary is larger; a table for such an ID would be
_beyond: dict[int, int] = {}  # what stands in for it


def _make(ids: Sequence[int]) -> None:
    """Make the objects for IDs that have none yet. The table takes 17 bytes per ID up to the largest, an object 32.

    Whoever is stopped in here, by an exception or by a fork, leaves tables that are true: an ID counts as known only
    once both tables have its object, and the next call makes those that are not known.
    """
    global _arrays
    with _making:
        objects, known = _arrays
        size = max(len(objects), max(ids) // _STEP * _STEP + _STEP)
        if size > len(objects):
            more = size - len(objects)
            objects, known = np.append(objects, [None] * more), np.append(known, [False] * more)
            _arrays = objects, known
        _table.extend([-1] * (size - len(_table)))
        wanted = np.array(list(dict.fromkeys(ids)))
        new = wanted[~known[wanted]].tolist()
        # Made in one go, while `new` holds on to the memory of its own integers: they come to lie side by side.
        made = array("q", new).tolist()
        objects[new] = made
        for i, number in zip(new, made, strict=True):
            _table[i] = number
        known[new] = True  # last: another thread may look at once


def _after_fork() -> None:
    global _making
    _making = threading.Lock()


in_forked_child(_after_fork)


def shared_ids(ids: Sequence[int]) -> list[int]:
    """The same IDs, none negative, as integers shared by the whole process: a stored ID costs 8 bytes, not 40.

    50 to 150 ns per ID, most of it waiting for memory.
    """
    if len(ids) < 2:  # of a single one an itemgetter makes no tuple
        return [shared_ids((ids[0], 0))[0]] if ids else []
    try:
        found = list(itemgetter(*ids)(_table))
        if min(found) >= 0:
            return found
    except IndexError:
        if max(ids) >= _MOST_IDS:
            return list(map(_beyond.setdefault, ids, ids))
    _make(ids)
    return shared_ids(ids)


def from_numbers(numbers: NDArray[np.unsignedinteger[Any]], kind: Kind) -> Ids:
    """IDs that an encoder gives as numbers, as a fresh list of shared integers or as an array.

    A list costs 20 ns per ID, half of making integers and looking them up; an array 1 ns.
    """
    if kind is not list:
        return array("q", numbers.astype("<i8").tobytes())
    try:
        known = _arrays[1].take(numbers)
    except IndexError:  # above all IDs met so far
        return shared_ids(numbers.tolist())
    if not known.all():
        _make(numbers[~known].tolist())
    return _arrays[0].take(numbers).tolist()


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
        inside = 0
        for ids, start, stop in result._parts:
            if ids is base:
                inside += stop - start
        spare = result.length // 8 + 64
        if result.length - inside > spare or len(base) - inside > spare or len(result._parts) > _MAX_PARTS:
            whole = result.copy()
            return cls([(whole, 0, len(whole))], kind)
        return result

    def own(self, tokens: int, *, fresh: bool = False) -> IdList:
        """The same IDs in lists that nothing else holds: one of the first `tokens` IDs, which can grow, and the rest.

        fresh: nothing else holds its lists as it is; a single one is taken, not copied. O(length).
        """
        taken = fresh and len(self._parts) == 1 and len(self._parts[0][0]) == self.length
        ids = self._parts[0][0] if taken else self.copy()
        rest = ids[tokens:]
        ids += ids[:1]  # takes memory for an eighth more, which the next turns need
        del ids[tokens:]
        return IdList([(ids, 0, len(ids)), (rest, 0, len(rest))], self.kind)

    def _base(self) -> Ids:
        longest, base = 0, None
        for ids, start, stop in self._parts:
            if stop - start > longest:
                longest, base = stop - start, ids
        return container((), self.kind) if base is None else base

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
        origin, end = self._parts[first][1], self._parts[last][2]
        tail = _joined(self._parts[last + 1 :], kind)
        # A sum has its memory from the start; a list that grows takes it twice, a third of the time for 100K IDs.
        result = base + tail if origin == 0 and end == len(base) else None
        if result is None or len(result) != end + len(tail):  # another thread may have settled IDs meanwhile
            result = base[origin:end]
            result += tail
        for i, j in pairwise(reversed(slices)):
            low, high = self._parts[j][2] - origin, self._parts[i][1] - origin
            if high < low:  # the base's slices are not in order: text was moved
                return _joined(self._parts, kind)
            result[low:high] = _joined(self._parts[j + 1 : i], kind)
        if first:
            result[:0] = _joined(self._parts[:first], kind)
        return result

    def bytes(self) -> int:
        """The memory of the lists it holds on to; the integers themselves are shared by all."""
        held = {id(ids): len(ids) for ids, _, _ in self._parts}
        return 9 * sum(held.values()) + 120 * len(held)  # 8 bytes an ID, and what a list grown by += keeps in hand

    def lists(self) -> list[Ids]:
        """The lists it holds on to."""
        return list({id(ids): ids for ids, _, _ in self._parts}.values())


def container(ids: Sequence[int], kind: Kind) -> Ids:
    """These IDs as a fresh list of shared integers, or as an array."""
    return shared_ids(ids) if kind is list else array("q", ids)


def _joined(parts: Sequence[Part], kind: Kind) -> Ids:
    result = container((), kind)
    for ids, start, stop in parts:
        result += ids[start:stop]
    return result
