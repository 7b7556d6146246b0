"""Everything at a small scale, so that a wrong cut is met at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from ... import lookup, splice, store, tokenizer


@contextmanager
def dense() -> Iterator[None]:
    """A checkpoint at every safe position, short texts remembered and indexed. For the whole process.

    As shipped, checkpoints stand 256 characters apart and more; a wrong one is met seldom. Here each position that the
    rules call safe is one, and the text between two of them is encoded on its own.
    """
    with ExitStack() as stack:
        for module, values in (
            (tokenizer, {"SEGMENT": 1, "SPARSE": {}, "TAIL": (), "MIN_REMEMBERED": 1}),
            (store, {"MIN_REMEMBERED": 1}),
            (splice, {"_REALIGN_FROM": 12, "_ANCHOR": 4, "_ANCHOR_STEPS": (0, 3, 11)}),
            (lookup, {"_WINDOW": 8, "_POSITIONS": tuple(range(8, 4096, 24))}),
        ):
            stack.enter_context(mock.patch.multiple(module, **values))
        yield
