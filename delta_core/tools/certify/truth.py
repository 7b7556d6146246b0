"""What the reference says, kept for all that is compared with it."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence

from ...admission.frozen import Frozen
from ...reference import Reference
from .batches import Batch, code_points
from .contexts import Contexts


class Truth:
    """The reference's answers: one hash per string is kept, so that a string is encoded by it once.

    seed: of everything drawn at random, so that the second encoder and the second run meet the same strings.
    """

    def __init__(self, reference: Reference, seed: int | None = None) -> None:
        self.reference = reference
        self.seed = secrets.randbits(32) if seed is None else seed
        self._hashes: dict[str, array[int]] = {}
        self._contexts: dict[bool, Contexts] = {}

    def hashes(self, batch: Batch) -> array[int]:
        """A 64-bit hash of the IDs of each string. Asks the reference the first time: 1 to 2 us per token."""
        known = self._hashes.get(batch.key)
        if known is None:
            known = self._hashes[batch.key] = array("q", map(hash_of, self.reference.encode_each(batch.strings)))
        return known

    def contexts(self, frozen: Frozen, sample: bool) -> Contexts:
        """The contexts of this one tokenizer, over all code points or a sample of them."""
        if sample not in self._contexts:
            codes, other = code_points(sample), self._contexts.get(not sample)
            self._contexts[sample] = other.over(codes) if other else Contexts(self.reference, frozen, codes)
        return self._contexts[sample]


def hash_of(ids: Sequence[int]) -> int:
    """A 64-bit hash of IDs."""
    return hash(tuple(ids))  # the same in every process: Python salts the hashes of text only
