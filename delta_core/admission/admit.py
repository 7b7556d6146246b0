"""Admission: whether the live tokenizer is the same as a frozen one, section by section."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import Reason
from ..reference import CopyDiffers, Reference
from .frozen import Frozen, load_all
from .sections import Mismatch, Sections, differences, not_covered, sections_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """What admission found.

    frozen: the config that fits, None when refused.
    nearest: the config that comes closest, for the message; None when none shares the vocabulary.
    mismatches: what stands against it; empty when admitted.
    """

    frozen: Frozen | None
    nearest: str | None
    mismatches: tuple[Mismatch, ...]
    sections: Sections

    @property
    def reason(self) -> Reason | None:
        """The first reason, None when admitted."""
        return self.mismatches[0].reason if self.mismatches else None


@dataclass(frozen=True, slots=True)
class Admission:
    """What was decided for a live tokenizer, for those who run it.

    admitted: False means that every request takes the stock path.
    config: the frozen config that fits; when refused, the one that comes closest, or None.
    mismatches: what stands against it, by section.
    reason: the first of them as a reason, None when admitted.
    encoder: who encodes new text: "reference", "fastokens" or "gigatoken".
    note: why the encoder is not the one asked for, None when it is.
    """

    admitted: bool
    config: str | None
    mismatches: tuple[Mismatch, ...]
    reason: Reason | None
    encoder: str
    note: str | None

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


def admit(reference: Reference, configs: Iterable[Frozen] | None = None) -> Verdict:
    """Compare the live tokenizer with the frozen configs (the user's and the bundled ones by default).

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
    nearest: tuple[int, str, list[Mismatch]] | None = None
    for frozen in load_all() if configs is None else configs:
        found = differences(frozen.sections, live)
        if not found and not uncovered and reference.affixes() is not None:
            refused = copy_refused(reference)
            return Verdict(None if refused else frozen, frozen.name, refused, live)
        same_vocabulary = frozen.sections.vocab_digest == live.vocab_digest
        if same_vocabulary and (nearest is None or len(found) < nearest[0]):
            nearest = (len(found), frozen.name, found)
    if uncovered:
        return Verdict(None, nearest[1] if nearest else None, tuple(uncovered), live)
    if nearest is None:
        unknown = Mismatch(
            "vocab",
            f"no frozen config has this vocabulary (digest {live.vocab_digest[:12]}); run `delta freeze`",
            Reason.UNKNOWN_TOKENIZER,
        )
        return Verdict(None, None, (unknown,), live)
    if not nearest[2]:
        affixes = Mismatch(
            "post_processor", "does not behave as a fixed prefix and suffix", Reason.UNSUPPORTED_POST_PROCESSOR
        )
        return Verdict(None, nearest[1], (affixes,), live)
    return Verdict(None, nearest[1], tuple(nearest[2]), live)


def copy_refused(reference: Reference) -> tuple[Mismatch, ...]:
    """Why no copy of the live tokenizer may encode: empty when the reference's copy is shown to be the same one."""
    try:
        reference.copy()
    except CopyDiffers as error:
        return (Mismatch("copy", str(error), Reason.COPY_DIFFERS),)
    except RuntimeError as error:
        return (Mismatch("tokenizer", str(error), Reason.LIVE_CHANGED),)
    return ()
