"""Who is compared with whom: one tokenizer under one encoder, what its reference says, and the count of comparisons."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

from tokenizers import Tokenizer

from ...admission.frozen import Frozen
from ...cuts import CutRules
from ...encoders import Encoder, encode_each
from ...reference import Reference
from ...tokenizer import DeltaTokenizer
from .cases import Call
from .generators import TextMaker

SERVED = "served"  # the outcome of a variant whose IDs were compared, under the encoder that was asked for

_MOST_KNOWN = 200_000  # segments remembered per worker
_MOST_ANSWERS = 4000  # texts whose reference IDs are remembered per worker: about 80 MB of the longest


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tokenizer's encoders are compared with for one text: the reference's IDs, and every allowed cut."""

    ids: array[int]
    cuts: array[int]


@dataclass(frozen=True, slots=True)
class Subject:
    """One tokenizer under one encoder, ready to be asked.

    tok: its store is cleared by whoever uses it. encoder: the one that serves, guards included. texts: the user's.
    known: segments that the encoder was asked already. answers: by digest of the text; the encoders of one tokenizer
    meet the same texts, and the reference costs more than all else.
    """

    name: str
    live: Tokenizer
    reference: Reference
    frozen: Frozen
    rules: CutRules
    tok: DeltaTokenizer
    encoder: Encoder
    texts: tuple[str, ...] = ()
    answers: dict[bytes, Answer] = field(default_factory=dict)
    known: dict[str, list[int]] = field(default_factory=dict)
    _token_edges: tuple[frozenset[str], frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        contents = [t.content for t in self.frozen.sections.added_tokens if t.content]
        edges = frozenset(c[0] for c in contents), frozenset(c[-1] for c in contents)
        object.__setattr__(self, "_token_edges", edges)

    def encode_segments(self, segments: Sequence[str]) -> list[list[int]]:
        """The encoder's IDs of each segment, asked once per segment: cut everywhere, texts are made of few of them."""
        if len(self.known) > _MOST_KNOWN:
            self.known.clear()
        missing = [s for s in dict.fromkeys(segments) if s not in self.known]
        if missing:
            self.known.update(zip(missing, encode_each(self.encoder, missing), strict=True))
        return [self.known[s] for s in segments]

    def answers_to(self, texts: Sequence[str]) -> list[Answer]:
        """The reference's side of each text, asked once per text."""
        keys = [blake2b(text.encode(), digest_size=16).digest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.answers}
        if len(self.answers) + len(missing) > _MOST_ANSWERS:
            self.answers.clear()
            missing = dict(zip(keys, texts, strict=True))
        for (key, text), ids in zip(missing.items(), reference_ids(self, list(missing.values())), strict=True):
            self.answers[key] = Answer(array("I", ids), array("I", self.every_cut(text)))
        return [self.answers[key] for key in keys]

    def every_cut(self, text: str) -> list[int]:
        """Every position that the rules allow. Added tokens are looked for only where one may begin or end."""
        at_transition, at_added_token = self.rules.at_transition, self.rules.at_added_token
        first, last = self._token_edges
        return [
            p
            for p, (a, b) in enumerate(pairwise(text), 1)
            if at_transition(a + b) or ((b in first or a in last) and at_added_token(text, p) is not None)
        ]

    def maker(self, seed: str) -> TextMaker:
        """A maker of texts with the tokenizer's added tokens and classes."""
        contents = [t.content for t in self.frozen.sections.added_tokens]
        return TextMaker(random.Random(seed).randrange(1 << 62), contents, self.frozen.transitions.samples)


@dataclass(slots=True)
class Tally:
    """What one unit did. cases: comparisons of IDs; cuts: safe cuts checked; failed: the calls of a difference.

    subject: who gave the difference, where the unit asked a tokenizer of its own. variant, outcome: which tokenizer
    that was, and what became of it: SERVED, or why it was refused.
    """

    cases: int = 0
    cuts: int = 0
    failed: list[list[Call]] | None = None
    subject: Subject | None = None
    variant: str = ""
    outcome: str = ""

    def fail(self, calls: Sequence[Call]) -> None:
        """Note the calls of a difference; none where what is wrong is no ID."""
        self.failed = [*(self.failed or []), list(calls)]


def reference_ids(subject: Subject, texts: Sequence[str], add_special_tokens: bool = False) -> list[list[int]]:
    """What the live tokenizer gives for whole texts: right by definition."""
    encodings = subject.live.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
    return [e.ids for e in encodings]
