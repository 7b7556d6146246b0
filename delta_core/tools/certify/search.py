"""Compares an encoder with the reference everywhere, and has what differs pinned to characters."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np

from ...admission.frozen import Certification
from ...encoders import Encoder, Guarded
from .batches import Batch, joined
from .calls import Difference, Pair, Refused, Way, encode
from .contexts import CODE_POINTS, Context, Contexts, Mask, Numbers
from .guards import Guards
from .truth import Truth, hash_of

_FURTHER = 20  # contexts drawn at random in which the dense planes are tried, beside those derived for them
_SEGMENT = 1024  # characters of a segment, as they serve

_Step = tuple[str, Callable[[], list[str]]]  # a stage's name, and what finds its wrong texts


class Search:
    """One bare encoder and the reference, compared again and again until guards cover what differs.

    guards: the characters found so far. cases: comparisons made.
    """

    def __init__(self, truth: Truth, encoder: Encoder, log: Callable[[str], None]) -> None:
        self._truth = truth
        self._pair = Pair(truth.reference, encoder)
        self._log = log
        self.guards = Guards(self._pair, log)
        self.cases = 0

    def sweep(
        self, contexts: Contexts, batches: Iterable[Batch], record: Certification | None, joiner: str, quick: bool
    ) -> bool:
        """Run everything, pinning what differs; True when nothing differed. Raises Refused.

        record: the guards to serve behind; None for the bare encoder.
        """
        encoder = self._pair.encoder if record is None else Guarded(self._pair.encoder, record, self._pair.reference)
        self._surrogates(encoder)
        clean = True
        stage, cases, began = "", self.cases, time.perf_counter()
        steps: Iterator[_Step] = ((batch.key, partial(self._differing, batch, encoder)) for batch in batches)
        for key, find in chain(self.code_points(contexts, encoder, joiner, quick), steps):
            if (name := key.split("/")[0]) != stage:
                if stage:
                    self._log(f"  {stage}: {self.cases - cases} comparisons, {time.perf_counter() - began:.1f} s")
                stage, cases, began = name, self.cases, time.perf_counter()
            if found := find():
                clean = False
                self.guards.pin(found)
        return clean

    def code_points(self, contexts: Contexts, encoder: Encoder, joiner: str, quick: bool) -> Iterator[_Step]:
        """All code points in the contexts that tell classes apart, the dense planes in some more.

        Where the reference's answer is known from the class, the numbers are compared; for the others it is asked.
        """
        rng = random.Random(self._truth.seed)
        codes = contexts.codes
        dense = codes[np.isin(codes >> 16, (0, 1, 2, 3, 14))]
        further = [*contexts.one_sided(), *rng.sample(list(contexts.complete()), 2 if quick else _FURTHER)]
        seen = {(c.left, c.right) for c in contexts.separating}
        further = [c for c in further if (c.left, c.right) not in seen]
        for n, context in enumerate((*contexts.separating, *further)):
            chosen = codes if n < len(contexts.separating) else dense
            asked = contexts.asked(context)
            guarded = np.zeros(CODE_POINTS, bool)
            guarded[[ord(c) for c in self.guards.found]] = True
            for first in range(0, len(chosen), 65536):
                part = chosen[first : first + 65536]
                # Behind guards, segments without a guarded character reach the encoder as they are.
                if encoder is self._pair.encoder:
                    todo = part[~asked[part] & ~guarded[part]]
                    way: Way = "batch" if n % 2 else "few"
                    yield "code points", partial(self._compare, contexts, context, todo, joiner, way)
                probes = [context.left + chr(c) + context.right for c in part[asked[part]].tolist()]
                if probes:
                    batch = joined(f"code points/{n} {first} of {len(codes)}", probes, joiner)
                    yield batch.key, partial(self._differing, batch, encoder)

    def _compare(self, contexts: Contexts, context: Context, codes: Numbers, joiner: str, way: Way) -> list[str]:
        """The texts "left, c, right" for which the bare encoder does not give what the reference is known to give."""
        self.cases += len(codes)
        if not len(codes):
            return []
        template = f"{context.left}.{context.right}{joiner}"
        cells = np.array([[ord(c) for c in template]], np.uint32).repeat(len(codes), 0)
        cells[:, len(context.left)] = codes
        rows = max(1, _SEGMENT // cells.shape[1])
        segments = [cells[i : i + rows].tobytes().decode("utf-32-le") for i in range(0, len(cells), rows)]
        numbers, starts, lengths = self._located(segments, np.arange(len(codes)), rows, joiner, way)
        good = lengths >= 0
        kinds = contexts.classes[codes]
        for kind in np.unique(kinds).tolist():
            members = np.flatnonzero(kinds == kind)
            known = contexts.predicted(context, kind)
            own, own_lengths = contexts.own[codes[members]], contexts.own_lengths[codes[members]]
            start, before, after = starts[members], len(known.before), len(known.after)
            same: Mask = lengths[members] == before + own_lengths + after

            def narrow(same: Mask, places: Numbers, values: Numbers | int) -> Mask:
                """Those that also have these numbers at these places."""
                result: Mask = same & (numbers[np.where(same, places, 0)] == values)
                return result

            for i, value in enumerate(known.before):
                same = narrow(same, start + i, value)
            for i in range(own.shape[1]):
                same &= (i >= own_lengths) | narrow(same & (i < own_lengths), start + before + i, own[:, i])
            for i, value in enumerate(known.after):
                same = narrow(same, start + before + own_lengths + i, value)
            good[members] &= same
        places = np.flatnonzero(~good).tolist()
        texts = [context.left + chr(codes[i]) + context.right for i in places]
        found = self._pair.wrong(texts)
        shown = {i // rows for i, text in zip(places, texts, strict=True) if text in found}
        missed = [segments[i] for i in dict.fromkeys(i // rows for i in places) if i not in shown]
        return [*found, *(self._unstable(missed) if missed else ())]

    def _located(
        self, segments: Sequence[str], row: Numbers, rows: int, joiner: str, way: Way
    ) -> tuple[Numbers, Numbers, Numbers]:
        """The bare encoder's IDs, where those of each text begin, and how many they are.

        row: the numbers of the texts; `rows` of them, each with its joiner behind it, make a segment. A segment that
        does not end with its joiner, or has not one for each text, is wrong as a whole: its texts have -1 IDs.
        """
        numbers, ends = self._numbers(segments, way)
        between = self._pair.reference.encode_each([joiner])[0]
        segment = row // rows
        begins = np.concatenate(([0], ends[:-1]))
        at = np.flatnonzero(numbers == between[0])
        of = np.searchsorted(ends, at, side="right")
        whole = np.bincount(of, minlength=len(segments))[: len(segments)] == np.bincount(segment)
        whole &= (ends > begins) & (numbers[ends - 1] == between[0])
        whole &= len(between) == 1
        right = np.flatnonzero(whole[segment])
        at = at[whole[of]] if len(at) else at
        starts, lengths = np.zeros(len(row), np.int64), np.full(len(row), -1)
        starts[right] = np.where(right % rows == 0, begins[segment[right]], np.concatenate(([0], at[:-1] + 1)))
        lengths[right] = at - starts[right]
        return numbers, starts, lengths

    def _numbers(self, segments: Sequence[str], way: Way) -> tuple[Numbers, Numbers]:
        """The bare encoder's IDs of all segments, and where each ends. A segment for which it raises has none."""
        found = encode(self._pair.encoder, segments, way, array)
        ends = np.cumsum([len(ids or ()) for ids in found], dtype=np.int64)
        numbers = [np.array(ids, np.int64) for ids in found if ids]
        return np.concatenate([*numbers, np.full(1, -1)]), ends  # one more, so that every place exists

    def _unstable(self, segments: Sequence[str]) -> list[str]:
        """The segments that are wrong as a whole although their parts are right alone. Raises Refused for none."""
        found = self._pair.wrong(dict.fromkeys(segments))
        if not found:
            self._pair.refuse(segments[0], "unstable")
        return list(found)

    def _differing(self, batch: Batch, encoder: Encoder) -> list[str]:
        """The strings (probes, where they were joined) for which the encoder is wrong: as array, then again as list."""
        self.cases += batch.cases * 2
        wrong: dict[int, None] = {}
        truth = self._truth.hashes(batch)
        for kind in (array, list):
            got = encode(encoder, batch.strings, batch.way, kind)
            pairs = enumerate(zip(truth, got, strict=True))
            wrong.update({i: None for i, (known, ids) in pairs if ids is None or hash_of(ids) != known})
        if batch.probes is None:
            return [batch.strings[i] for i in wrong]
        found = self._pair.wrong([p for i in wrong for p in batch.probes[i]], encoder) if wrong else {}
        # A joined string whose parts are right on their own is a finding itself.
        missed = [i for i in wrong if not any(p in found for p in batch.probes[i])]
        return [*found, *(batch.strings[i] for i in missed)]

    def _surrogates(self, encoder: Encoder) -> None:
        """Lone surrogates are no text: the reference raises, and an encoder that answers would hide it."""
        texts = ["\ud800", "a\udfffb", "\udc00\ud800", "x" * 100 + "\ud83d", *(["ok\udead"] * 8)]
        self.cases += len(texts)
        for text in texts:
            got = encode(encoder, [text])[0]
            if got is not None:
                raise Refused([Difference(text, None, tuple(got), "accepts")])
