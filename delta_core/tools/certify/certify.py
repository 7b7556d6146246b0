"""Certification: whether a fast encoder gives the reference's IDs for a config, under exactly these two versions.

Nothing can be proved about foreign code from outside, so it is compared with the reference where tokenizers are known
to differ: at every code point in contexts that follow from the pattern (see `contexts`: Unicode tables are older or
newer), in canonical order and composition, where the pattern's classes meet, around added tokens, in long runs and
in random text with a fresh seed. What serves is compared: `encode_flat` in the sizes that serve, as list and as array,
every batch twice, a part of it from several threads. Differences that hang on single rare code points become *guards*:
segments with such a character go to the reference. With the guards in place everything is run again and must give no
difference. Anything else refuses, with a minimal example.

The reference is by far the slower side. A hash of each of its answers is kept, so that a second encoder, and the
second run behind guards, cost the encoder's own time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ... import encoders
from ...admission.frozen import METHOD, Certification, Frozen
from .batches import all_batches, joiner_of
from .calls import Difference, Refused, line_of
from .search import Search
from .truth import Truth

_ROUNDS = 5  # runs of everything: guards found late may uncover others


@dataclass(frozen=True, slots=True)
class Result:
    """What certification found.

    certification: the record, None when refused.
    cases: comparisons made with the encoder, all runs together.
    differences: what stands against it; empty when certified.
    """

    certification: Certification | None
    cases: int
    differences: tuple[Difference, ...]
    seconds: float


def certify(
    truth: Truth,
    frozen: Frozen,
    name: str,
    *,
    quick: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Result:
    """Compare the installed encoder of one name with the reference, whose sections must be those of `frozen`.

    40 million comparisons and more, in 2 to 5 minutes on two cores; with `quick` some 500,000 in seconds, in which code
    points from U+3000 on are sampled unless a difference turns up. Memory: 16 bytes per string, some 100 MB. Changes
    neither the tokenizer nor the config.
    truth: the reference; shared by the encoders of one tokenizer, it is asked once.
    Raises EncoderUnavailable when the encoder is not installed or does not take the tokenizer, ValueError for an
    unknown name.
    """
    began = time.perf_counter()
    reference = truth.reference
    encoder = encoders.build(name, reference)
    version = encoders.version_of(name)
    log(f"{frozen.name}: {name} {version} against tokenizers {reference.version}, seed {truth.seed}")
    search = Search(truth, encoder, log)
    record: Certification | None = None
    sample = quick
    try:
        for _ in range(_ROUNDS):
            contexts = truth.contexts(frozen, sample)
            batches = all_batches(reference, frozen, contexts, truth.seed, quick, sample)
            clean = search.sweep(contexts, batches, record, joiner_of(frozen), quick)
            guards = search.guards.ranges()
            if clean and guards == (record.guards if record else ()):
                break
            if record is not None and guards == record.guards:
                raise AssertionError("a difference behind guards was neither pinned nor refused")
            if sample:  # the tables differ, and a sample can't tell where else; bare, as guards would hide it
                sample = False
                log("  again with every code point")
                continue
            log(f"  again behind {len(guards)} guard ranges")
            record = Certification(name, version, reference.version, guards, search.cases, METHOD)
        else:
            raise Refused([Difference("", None, None, "guards")])
    except Refused as refused:
        seconds = time.perf_counter() - began
        against = "; ".join(map(line_of, refused.differences))
        log(f"  refused after {search.cases} comparisons, {seconds:.0f} s: {against}")
        return Result(None, search.cases, refused.differences, seconds)
    seconds = time.perf_counter() - began
    log(f"  certified: {search.cases} comparisons, {len(guards)} guard ranges, {seconds:.0f} s")
    record = Certification(name, version, reference.version, guards, search.cases, METHOD)
    return Result(record, search.cases, (), seconds)
