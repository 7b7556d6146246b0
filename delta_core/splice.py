"""Transcript (text, IDs, checkpoints), the plan of one splice, and how its gaps are encoded and put together.

Why a splice is exact. Let c1 < c2 be two locally safe cuts of an old text, and let the new text hold the same
characters from c1's deciding characters to c2's. Then both positions are cuts of the new text, too, and
units(new) = units(before) + units(between) + units(after), where `between` is the same text as in the old one: its IDs
are the old IDs between the two checkpoints. Nothing else is assumed: not where the block stands, nor what surrounds it.
The start of a text stands for a cut when the block is a common prefix; the end, when it is a common suffix.

So one plan serves an append, a replaced tail, an edit in the middle, a trimmed head, and several of them at once. What
it leaves is encoded gap by gap. A long gap is divided into chunks at safe cuts: the IDs of a chunk are those of the
same characters in the whole text, and every cut found inside it is a cut of the whole text, too.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .cuts import Cut, CutRules
from .ids import IdList, Ids, Kind, Part
from .scale import scale

_NEAR = 2048  # how far an anchor is looked for at first (characters)
_FAR = 16  # and then: this many times the shorter one of the two gaps
_MAX_BLOCKS = 8  # common blocks in one plan
_COMPARED = 1 << 14  # characters compared in one step, unless a guess says more
_LOOK = 64  # characters of one look at where texts part
_GUESS_FROM = 1024  # characters they share before looking is worth while
_MOST_DECIDING = 0xFFFF
_OVERHEAD = 400  # bytes of a transcript beside its text, IDs and checkpoints

CHUNK = 65536  # characters; long enough that handing it over costs nothing beside encoding it
DIVIDE_FROM = 2 * CHUNK  # characters; a shorter gap stays whole
MOST_CHUNKS = 16
# How far before its target a cut is looked for (characters). Bounds the work on the caller's thread, an event loop,
# to MOST_CHUNKS * _BACK looks, about 2 ms, in text without any cut; there the chunk just gets longer.
_BACK = 1024

# An encoder's `encode_flat`.
Encode = Callable[[Sequence[str], Kind], tuple[Ids, list[int]]]


class Checkpoints:
    """Locally safe cuts of one text with their token index, ascending. 12 bytes each. Immutable after building."""

    __slots__ = ("extents", "positions", "tokens")

    def __init__(self) -> None:
        self.positions = array("I")  # characters
        self.tokens = array("I")  # IDs before the cut
        self.extents = array("I")  # deciding characters: left << 16 | right, each _MOST_DECIDING at most

    def __len__(self) -> int:
        return len(self.positions)

    def append(self, cut: Cut, token: int) -> None:
        """Take a cut, unless more characters decide it than the extents can say: a checkpoint fewer is exact, too."""
        if max(cut.left, cut.right) > _MOST_DECIDING:
            return
        self.positions.append(cut.position)
        self.tokens.append(token)
        self.extents.append(cut.left << 16 | cut.right)

    def extend_from(self, other: Checkpoints, first: int, last: int, shift: int, token_shift: int) -> None:
        """Take over other[first:last+1], moved by `shift` characters and `token_shift` tokens."""
        self.positions += _moved(other.positions[first : last + 1], shift)
        self.tokens += _moved(other.tokens[first : last + 1], token_shift)
        self.extents += other.extents[first : last + 1]

    def first_inside(self, start: int) -> int:
        """The first checkpoint whose deciding characters begin at or after `start`. O(log n)."""
        index = bisect_left(self.positions, start)
        while index < len(self.positions) and self.positions[index] - (self.extents[index] >> 16) < start:
            index += 1
        return index

    def last_inside(self, end: int) -> int:
        """The last checkpoint whose deciding characters end at or before `end`, or -1. O(log n)."""
        index = bisect_right(self.positions, end) - 1
        while index >= 0 and self.positions[index] + (self.extents[index] & 0xFFFF) > end:
            index -= 1
        return index

    def bytes(self) -> int:
        """The memory it takes."""
        return sys.getsizeof(self.positions) + sys.getsizeof(self.tokens) + sys.getsizeof(self.extents)


def _moved(numbers: array[int], shift: int) -> array[int]:
    """The numbers, all of them `shift` larger. The array is the caller's own: it may be changed, and returned."""
    if shift:
        if len(numbers) < 256:
            return array("I", [n + shift for n in numbers])
        view = np.frombuffer(numbers, np.uint32)
        view += np.uint32(shift & 0xFFFFFFFF)  # modulo 2**32, as is the sum
    return numbers


class Transcript(NamedTuple):
    """One text with its IDs (no special tokens of the post-processor) and its checkpoints. Immutable once stored."""

    text: str
    ids: IdList
    checkpoints: Checkpoints

    @property
    def settled(self) -> int:
        """IDs before the text's end, where the next turn begins: they stay as they are."""
        tail = scale().tail
        last = bisect_right(self.checkpoints.positions, len(self.text) - (tail[0] if tail else 0)) - 1
        return self.checkpoints.tokens[last] if last >= 0 else self.ids.length

    def bytes(self) -> int:
        """What it holds on to, text included."""
        return sys.getsizeof(self.text) + self.ids.bytes() + self.checkpoints.bytes() + _OVERHEAD

    def _check(self) -> None:
        c = self.checkpoints
        assert len(c.positions) == len(c.tokens) == len(c.extents)
        assert all(a < b for a, b in pairwise(c.positions))
        assert all(a <= b for a, b in pairwise(c.tokens))
        # A text that was trimmed at an added token's edge begins or ends at a checkpoint: the deciding characters are
        # all on the other side, so it stays true in every text that has them.
        assert all(p >= e >> 16 for p, e in zip(c.positions, c.extents, strict=True))
        assert all(p + (e & 0xFFFF) <= len(self.text) for p, e in zip(c.positions, c.extents, strict=True))
        assert not len(c) or c.tokens[-1] <= self.ids.length
        assert self.ids.length == len(self.ids.copy())


class Block(NamedTuple):
    """Characters old[start:end] that stand in the new text `shift` further on."""

    start: int
    end: int
    shift: int


class Reuse(NamedTuple):
    """What a splice takes over: old checkpoints first .. last, in new positions start .. end, and their tokens.

    first is -1 for the start of the text; last is len(checkpoints) for its end.
    """

    first: int
    last: int
    start: int
    end: int
    token_start: int
    token_end: int
    shift: int


def common_prefix(a: str, b: str, a_start: int = 0, b_start: int = 0, limit: int | None = None) -> int:
    """How many characters a[a_start:] and b[b_start:] share at their beginning, at most `limit`.

    Cost: one comparison of what they share (a copy of it, too, unless that is all of `a`), and about 30 short ones.
    """
    most = min(len(a) - a_start, len(b) - b_start)

    def same(low: int, high: int) -> bool:
        return b.startswith(a[a_start + low : a_start + high], b_start + low)

    return _shared(same, most if limit is None else min(limit, most))


def common_suffix(a: str, b: str, limit: int, a_end: int | None = None, b_end: int | None = None) -> int:
    """How many characters a[:a_end] and b[:b_end] share at their end, at most `limit`. Cost as common_prefix."""
    a_end = len(a) if a_end is None else a_end
    b_end = len(b) if b_end is None else b_end

    def same(low: int, high: int) -> bool:
        return b.startswith(a[a_end - high : a_end - low], b_end - high)

    return _shared(same, min(limit, a_end, b_end))


def _shared(same: Callable[[int, int], bool], limit: int) -> int:
    """The largest n up to `limit` with same(0, n), where same(low, high) compares the characters low .. high.

    Where the texts part is guessed from looks at single places, then everything before it is compared at once: in a
    text with a few wide characters (one emoji is enough) most short slices have none, are narrower than the text, and
    take ten times as long to compare with it. Where the guess is wrong, and where texts of which only the middle
    differs give nothing to guess from, growing comparisons find the place. No step is per character in Python.
    """
    guess = not same(max(0, limit - _LOOK), limit)
    if not guess and same(0, limit):
        return limit
    low, high, step = 0, limit, _LOOK  # 0 .. low is the same, 0 .. high is not
    while low + step < high:
        if guess and low >= _GUESS_FROM:
            near, far = low, high
            while far - near > _LOOK:
                middle = (near + far) // 2
                if same(max(low, middle - _LOOK), middle):
                    near = middle
                else:
                    far = middle
            if same(low, near):
                low, high = near, far
                break
            guess = False
        if not same(low, low + step):
            high = low + step
            break
        low += step
        step = min(step * 4, _COMPARED)
    while high - low > 1:
        middle = (low + high) // 2
        if same(low, middle):
            low = middle
        else:
            high = middle
    return low


def common_blocks(old: str, new: str, prefix: int) -> list[Block]:
    """Ordered blocks that both texts share, given their common prefix. Characters are compared, never digests.

    Cost: that of comparing the shared characters, and a few searches for anchors when both texts have a long gap.
    """
    blocks = [Block(0, prefix, 0)]
    if prefix == len(old) or prefix == len(new):
        return blocks
    suffix = common_suffix(old, new, min(len(old), len(new)) - prefix)
    old_end, new_end = len(old) - suffix, len(new) - suffix
    a, b = prefix, prefix
    while len(blocks) < _MAX_BLOCKS and min(old_end - a, new_end - b) >= scale().realign_from:
        block = _realign(old, new, a, b, old_end, new_end)
        if block is None:
            break
        blocks.append(block)
        a, b = block.end, block.end + block.shift
    if suffix:
        blocks.append(Block(old_end, len(old), len(new) - len(old)))
    return blocks


def _realign(old: str, new: str, a: int, b: int, old_end: int, new_end: int) -> Block | None:
    """A block of old[a:old_end] and new[b:new_end] found by an anchor of either text in the other.

    An anchor that is only a phrase said twice is passed over: with it, what stands before it would be lost.
    """
    for i, j in _anchors(old, new, a, b, old_end, new_end):
        block = _grow(old, new, i, j, a, b, old_end, new_end)
        if block.end - block.start >= scale().realign_from:
            return block
    return None


def _anchors(old: str, new: str, a: int, b: int, old_end: int, new_end: int) -> Iterator[tuple[int, int]]:
    """Where the same few characters stand in both: first near by, where a small edit ends; then as far as it pays."""
    anchor = scale().anchor
    for reach in (_NEAR, _FAR * min(old_end - a, new_end - b)):
        for step in scale().anchor_steps:
            i, j = a + step, b + step
            if j + anchor <= new_end:
                found = old.find(new[j : j + anchor], a, min(old_end, i + reach))
                if found >= 0:
                    yield found, j
            if i + anchor <= old_end:
                found = new.find(old[i : i + anchor], b, min(new_end, j + reach))
                if found >= 0:
                    yield i, found


def _grow(old: str, new: str, i: int, j: int, a: int, b: int, old_end: int, new_end: int) -> Block:
    back = common_suffix(old, new, min(i - a, j - b), i, j)
    ahead = common_prefix(old, new, i, j, min(old_end - i, new_end - j))
    return Block(i - back, i + ahead, j - i)


def reusable(transcript: Transcript, new: str, blocks: Sequence[Block]) -> list[Reuse]:
    """What can be taken over from a transcript, in order of the new text. Exact by the argument above. O(log n)."""
    old, c = transcript.text, transcript.checkpoints
    result = []
    for start, end, shift in blocks:
        at_start = start == 0 and shift == 0
        at_end = end == len(old) and end + shift == len(new)
        first = -1 if at_start else c.first_inside(start)
        last = len(c) if at_end else c.last_inside(end)
        low = 0 if at_start else (c.positions[first] if first < len(c) else len(old) + 1)
        high = len(old) if at_end else (c.positions[last] if last >= 0 else -1)
        if low >= high:
            continue
        token_start = 0 if at_start else c.tokens[first]
        token_end = transcript.ids.length if at_end else c.tokens[last]
        result.append(Reuse(first, last, low + shift, high + shift, token_start, token_end, shift))
    return result


class Gap(NamedTuple):
    """text[start:end] that no stored IDs cover; both are safe cuts or ends of the text.

    tail: distances from `end`, descending, at which checkpoints are wanted beside the regular ones.
    kind: what the IDs are wanted as, list or array.
    cut: the cut at `start`, where a longer gap was divided.
    """

    text: str
    start: int
    end: int
    tail: tuple[int, ...] = ()
    kind: Kind = list
    cut: Cut | None = None


class Encoded(NamedTuple):
    """What encoding a gap gives: its IDs, and checkpoints at its inner cuts, counted from the gap's start."""

    ids: Ids
    checkpoints: Checkpoints


def divided(rules: CutRules, gap: Gap, most: int) -> list[Gap]:
    """The gap in at most `most` chunks of about the same length, CHUNK characters or more; itself below DIVIDE_FROM.

    A target without a cut shortly before it is passed over. O(chunks * 1024) characters looked at.
    """
    start, length = gap.start, gap.end - gap.start
    count = min(most, MOST_CHUNKS, length // CHUNK) if length >= DIVIDE_FROM else 1
    chunks: list[Gap] = []
    for i in range(1, count):
        target = start + length * i // count
        cut = rules.last_cut(gap.text, max(target - _BACK, gap.start + 1), target)
        if cut is not None:
            chunks.append(gap._replace(end=cut.position, tail=()))
            gap = gap._replace(start=cut.position, cut=cut)
    return [*chunks, gap]


def encode_gap(rules: CutRules, encode: Encode, gap: Gap, segment: int) -> Encoded:
    """Cut one gap into segments of about `segment` characters and encode it. Raises what `encode` raises.

    Of 64K characters that a fast encoder does in 1 ms, the interpreter is held for another 1 ms.
    """
    text, start, end = gap.text, gap.start, gap.end
    checkpoints = Checkpoints()
    cuts = rules.cuts(text, start, end, segment, gap.tail)
    edges = [start, *[cut.position for cut in cuts], end]
    ids, ends = encode([text[a:b] for a, b in pairwise(edges)], gap.kind)
    for cut, tokens in zip(cuts, ends, strict=False):  # the last segment ends at no inner cut
        checkpoints.append(Cut(cut.position - start, cut.left, cut.right), tokens)
    return Encoded(ids, checkpoints)


def assemble(
    text: str, kind: Kind, plan: Iterable[Reuse | Gap], encoded: Iterable[Encoded], old: Transcript | None
) -> Transcript:
    """The transcript of a text from its plan, what encoding its gaps gave (in order), and the transcript it reuses."""
    checkpoints = Checkpoints()
    parts: list[Part] = []
    tokens = 0
    gaps = iter(encoded)
    for item in plan:
        if isinstance(item, Gap):
            ids, inner = next(gaps)
            if item.cut is not None:
                checkpoints.append(item.cut, tokens)
            checkpoints.extend_from(inner, 0, len(inner) - 1, item.start, tokens)
            parts.append((ids, 0, len(ids)))
            tokens += len(ids)
            continue
        assert old is not None
        first = max(item.first, 0)
        if len(checkpoints) and first <= item.last and item.first >= 0:
            # Two blocks that meet without a gap share their cut.
            first += checkpoints.positions[-1] == old.checkpoints.positions[first] + item.shift
        checkpoints.extend_from(old.checkpoints, first, item.last, item.shift, tokens - item.token_start)
        parts += old.ids.slice(item.token_start, item.token_end)
        tokens += item.token_end - item.token_start
    return Transcript(text, IdList.of(parts, kind), checkpoints)
