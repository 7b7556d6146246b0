"""Everything at a small scale, so that a wrong cut is met at once."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ...scale import Scale, scaled

DENSE = Scale(
    segment=1,
    tail=(),
    remembered_from=1,
    realign_from=12,
    anchor=4,
    anchor_steps=(0, 3, 11),
    window=8,
    positions=tuple(range(8, 4096, 24)),
)


def dense() -> AbstractContextManager[None]:
    """A checkpoint at every safe position, short texts remembered and indexed. For the whole process.

    As shipped, checkpoints stand 256 characters apart and more; a wrong one is met seldom. Here each position that the
    rules call safe is one, and the text between two of them is encoded on its own.
    """
    return scaled(DENSE)
