"""Chunks of a long text: where it is divided, and what encoding one of them gives.

A chunk is what one worker does at a time. Its ends are locally safe cuts, so its IDs are those of the same characters
in the whole text, and every cut found inside it is a cut of the whole text, too.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from ..cuts import Cut, CutRules
from ..ids import Ids, Kind
from ..splice import Checkpoints

CHUNK = 65536  # characters; long enough that handing it over costs nothing beside encoding it
DIVIDE_FROM = 2 * CHUNK  # characters; below, one worker takes the whole
MOST_CHUNKS = 16
# How far before its target a cut is looked for (characters). Bounds the work on the caller's thread, an event loop,
# to MOST_CHUNKS * BACK looks, about 2 ms, in text without any cut; there the chunk just gets longer.
BACK = 1024

# An encoder's `encode_flat`.
Encode = Callable[[list[str], Kind], tuple[Ids, list[int]]]


class Stretch(NamedTuple):
    """text[start:end] as work for one worker; both are locally safe cuts or ends of the text.

    tail: distances from `end`, descending, at which checkpoints are wanted beside the regular ones.
    kind: what the IDs are wanted as, list or array.
    cut: the cut at `start`, where a longer stretch was divided.
    """

    text: str
    start: int
    end: int
    tail: tuple[int, ...] = ()
    kind: Kind = list
    cut: Cut | None = None


class Encoded(NamedTuple):
    """What encoding a stretch gives: its IDs, and checkpoints at its inner cuts, counted from the stretch's start."""

    ids: Ids
    checkpoints: Checkpoints


def divide(rules: CutRules, text: str, start: int, end: int, most: int) -> list[Cut]:
    """Cuts that divide text[start:end] evenly into at most `most` chunks of CHUNK characters or more.

    None below DIVIDE_FROM. A target without a cut shortly before it is passed over. O(chunks * BACK).
    """
    length = end - start
    count = min(most, MOST_CHUNKS, length // CHUNK)
    if length < DIVIDE_FROM or count < 2:
        return []
    found: list[Cut] = []
    for i in range(1, count):
        target = start + length * i // count
        cut = rules.last_cut(text, target - BACK, target)
        if cut is not None:
            found.append(cut)
    return found


def encode_stretch(rules: CutRules, encode: Encode, stretch: Stretch, segment: int) -> Encoded:
    """Cut one stretch into segments of about `segment` characters and encode it. Raises what `encode` raises.

    Of 64K characters that a fast encoder does in 1 ms, the interpreter is held for another 1 ms.
    """
    text, start, end = stretch.text, stretch.start, stretch.end
    checkpoints = Checkpoints()
    cuts = rules.cuts(text, start, end, segment, stretch.tail)
    edges = [start, *[cut.position for cut in cuts], end]
    ids, ends = encode([text[a:b] for a, b in pairwise(edges)], stretch.kind)
    for cut, tokens in zip(cuts, ends, strict=False):  # the last segment ends at no inner cut
        checkpoints.append(Cut(cut.position - start, cut.left, cut.right), tokens)
    return Encoded(ids, checkpoints)
