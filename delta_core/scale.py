"""The distances at which texts are cut, remembered and compared: one record, so that tests can shrink all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


def _positions() -> tuple[int, ...]:
    positions, at = [], 1024
    while at < 1 << 32:
        positions.append(at)
        at += at // 5
    return tuple(positions)


@dataclass(frozen=True, slots=True)
class Scale:
    """All lengths are characters.

    segment: between checkpoints; None for what pays for the encoder that serves (`Encoder.segment`).
    tail: distances from the end of a text, descending, at which it is cut as well: the next turn begins there. The
        nearer one leaves least to encode after an append, the further one when a generation prompt is replaced.
    remembered_from: shorter texts cost less to encode than to look up, and are mostly auxiliary: a stop string, a
        template probe.
    realign_from: a gap of the old text may be realigned when it and the new one are at least this long; below,
        encoding anew is cheaper than looking.
    anchor, anchor_steps: how much is searched for to realign, and how far into a gap such anchors are taken.
    window: how much one fingerprint of the content index is made of.
    positions: where such windows end. They grow by a fifth each: what stands behind the last window of a text is at
        most a sixth of it.
    """

    segment: int | None = None
    tail: tuple[int, ...] = (128, 32)
    remembered_from: int = 256
    realign_from: int = 512
    anchor: int = 48
    anchor_steps: tuple[int, ...] = (0, 64, 512, 4096, 32768)
    window: int = 128
    positions: tuple[int, ...] = _positions()


SERVING = Scale()
_used = SERVING


def scale() -> Scale:
    """The scale of this process."""
    return _used


@contextmanager
def scaled(to: Scale) -> Iterator[None]:
    """Use another scale within the block, in the whole process. For tests: what is stored must be of one scale."""
    global _used
    before, _used = _used, to
    try:
        yield
    finally:
        _used = before
