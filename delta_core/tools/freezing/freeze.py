"""Freezing: make a config for a user's own tokenizer, when the cut rules cover its pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...admission.admit import copy_refused
from ...admission.frozen import Frozen
from ...admission.sections import not_covered, sections_of
from ...admission.transitions import Transitions
from ...errors import FreezeError, Reason
from ...reference import Reference
from .derive import TransitionError, derive
from .pattern import UnsupportedPattern


def freeze(
    reference: Reference,
    name: str,
    *,
    file_sha256: str | None = None,
    known: Iterable[Frozen] = (),
    workers: int = 1,
    log: Callable[[str], None] = lambda line: None,
) -> Frozen:
    """A frozen config of the live tokenizer.

    known: configs whose table is taken over when their pre-tokenizer is the same one: the table depends on nothing
        else, and deriving it takes minutes (a fine-tune with more added tokens is the common case).
    Raises FreezeError with every section that is not covered.
    """
    sections = sections_of(reference.parsed())
    uncovered = not_covered(sections)
    if uncovered:
        raise FreezeError("; ".join(map(str, uncovered)), uncovered[0].reason)
    if reference.affixes() is None:
        raise FreezeError(
            "post_processor: does not behave as a fixed prefix and suffix", Reason.UNSUPPORTED_POST_PROCESSOR
        )
    if refused := copy_refused(reference):
        raise FreezeError("; ".join(map(str, refused)), refused[0].reason)
    transitions: Transitions | None = next(
        (f.transitions for f in known if f.sections.pre_tokenizer == sections.pre_tokenizer), None
    )
    if transitions is None:
        log("deriving the safe transitions of this pre-tokenizer (minutes)")
        try:
            transitions = derive(sections.pre_tokenizer, workers=workers, log=log)
        except (UnsupportedPattern, TransitionError) as error:
            raise FreezeError(f"pre_tokenizer: {error}", Reason.UNSUPPORTED_PRE_TOKENIZER) from error
    return Frozen(name, file_sha256, sections, transitions)
