"""Encoders that are wrong on purpose, or count what they are asked: written segment by segment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

from ...encoders import Encoder
from ...ids import Ids, Kind, container


class PlantedEncoder(Encoder):
    """An encoder that is given by the IDs of each segment."""

    name = "planted"

    def each(self, segments: Sequence[str]) -> list[list[int]]:
        """The IDs of each segment."""
        raise NotImplementedError

    def encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        """See Encoder."""
        parts = self.each(segments)
        return container(list(chain.from_iterable(parts)), kind), list(accumulate(map(len, parts)))
