"""Admission: whether the cut rules hold for the live tokenizer, and what is known of it.

They rest on its structure: added tokens, normalizer, pre-tokenizer, post-processor and the model's kind, of which the
pre-tokenizer needs a table. They do not rest on the vocabulary. So a tokenizer of covered structure with a known table
is admitted; a frozen config says more: that it is the tokenizer of that name, whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import Reason
from ..reference import CopyDiffers, Reference
from .frozen import Frozen, load_all
from .sections import Mismatch, Sections, differences, not_covered, sections_of
from .tables import records_of, refused_table, table_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """What admission found.

    frozen: the config that fits, or one made of the live structure and a known table; None when refused.
    nearest: the config that comes closest, for the message; None when none shares the vocabulary.
    mismatches: what stands against admission; empty when admitted.
    drift: where an admitted tokenizer differs from the nearest config.
    """

    frozen: Frozen | None
    nearest: str | None
    mismatches: tuple[Mismatch, ...]
    sections: Sections
    drift: tuple[Mismatch, ...] = ()

    @property
    def reason(self) -> Reason | None:
        """The first reason, None when admitted."""
        return self.mismatches[0].reason if self.mismatches else None


@dataclass(frozen=True, slots=True)
class Admission:
    """What was decided for a live tokenizer, for those who run it.

    admitted: False means that every request takes the stock path.
    config: the frozen config that fits, or "structure of NAME" after the table that it has; when refused, the config
        that comes closest, or None.
    mismatches: what stands against it, by section.
    reason: the first of them as a reason, None when admitted.
    encoder: who encodes new text: "reference", "fastokens" or "gigatoken".
    note: why the encoder is not the one asked for, None when it is.
    drift: where an admitted tokenizer differs from the config that comes closest, in one line; else empty.
    """

    admitted: bool
    config: str | None
    mismatches: tuple[Mismatch, ...]
    reason: Reason | None
    encoder: str
    note: str | None
    drift: str = ""

    @property
    def why_not(self) -> str:
        """The mismatches in one line, empty when admitted."""
        return "; ".join(map(str, self.mismatches))

    @staticmethod
    def refused(verdict: Verdict) -> Admission:
        """That of a tokenizer which is not served."""
        return Admission(False, verdict.nearest, verdict.mismatches, verdict.reason, "reference", None)

    @staticmethod
    def no_tokenizer(why: str) -> Admission:
        """That of an object with no tokenizer behind it."""
        mismatch = Mismatch("tokenizer", why, Reason.NOT_FAST)
        return Admission(False, None, (mismatch,), mismatch.reason, "reference", None)

    @staticmethod
    def no_adapter(why: str) -> Admission:
        """That of a tokenizer which would be served, but not by this engine's adapter."""
        mismatch = Mismatch("adapter", why, Reason.ADAPTER_FAILED)
        return Admission(False, None, (mismatch,), mismatch.reason, "reference", None)


def admit(reference: Reference, configs: Iterable[Frozen] | None = None, *, structure: bool = True) -> Verdict:
    """Compare the live tokenizer with the frozen configs (by default all, the user's first), then by structure.

    structure: False admits only what a config knows whole.
    What fits is admitted only when the copy that will encode is shown to be the same tokenizer. Costs about a second
    for 150K tokens: the live state is written out, parsed, and made into that copy once.
    """
    live = sections_of(reference.parsed())
    uncovered = not_covered(live)
    if reference.backend.encode_special_tokens:
        uncovered.append(
            Mismatch(
                "added_tokens",
                "encode_special_tokens is set: special tokens are read as text",
                Reason.UNSUPPORTED_ADDED_TOKEN,
            )
        )
    known = tuple(load_all() if configs is None else configs)
    alike = [(differences(frozen.sections, live), frozen) for frozen in known]
    alike = [(found, frozen) for found, frozen in alike if frozen.sections.vocab_digest == live.vocab_digest]
    found, nearest = min(alike, key=lambda pair: (len(pair[0]), _distance(pair[1].sections, live)), default=([], None))
    name = None if nearest is None else nearest.name
    if uncovered:
        return Verdict(None, name, tuple(uncovered), live)
    if reference.affixes() is None:
        mismatch = Mismatch(
            "post_processor", "does not behave as a fixed prefix and suffix", Reason.UNSUPPORTED_POST_PROCESSOR
        )
        return Verdict(None, name, (mismatch,), live)
    admitted = nearest if nearest is not None and not found else None
    if admitted is None and structure:
        table = table_of(live.pre_tokenizer, known)
        if table is None:
            return Verdict(None, name, (_without_table(live),), live)
        admitted = Frozen(f"structure of {table.name}", None, live, table.transitions)
    if admitted is None:
        unknown = Mismatch(
            "vocab",
            f"no frozen config has this vocabulary (digest {live.vocab_digest[:12]}); run `delta freeze`",
            Reason.UNKNOWN_TOKENIZER,
        )
        return Verdict(None, name, tuple(found) or (unknown,), live)
    admitted = replace(admitted, certified=records_of(live, known))
    refused = copy_refused(reference)
    return Verdict(None if refused else admitted, name, refused, live, tuple(found))


def _distance(a: Sections, b: Sections) -> int:
    return len({*a.added_tokens} ^ {*b.added_tokens})


def _without_table(live: Sections) -> Mismatch:
    refused = refused_table(live.pre_tokenizer)
    if refused is not None:
        return Mismatch("pre_tokenizer", refused, Reason.UNSUPPORTED_PRE_TOKENIZER)
    return Mismatch("pre_tokenizer", "no table of safe transitions is known for it yet", Reason.UNKNOWN_PRE_TOKENIZER)


def copy_refused(reference: Reference) -> tuple[Mismatch, ...]:
    """Why no copy of the live tokenizer may encode: empty when the reference's copy is shown to be the same one."""
    try:
        reference.copy()
    except CopyDiffers as error:
        return (Mismatch("copy", str(error), Reason.COPY_DIFFERS),)
    except RuntimeError as error:
        return (Mismatch("tokenizer", str(error), Reason.LIVE_CHANGED),)
    return ()
