"""Who serves: decided at the start, again when something was derived or certified beside it, and after a fork."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from . import background
from .admission.admit import Admission, admit
from .admission.frozen import Frozen
from .admission.tables import note_admission, records_of
from .cuts import CutRules
from .encoders import Encoder, ReferenceEncoder, choose, warm
from .errors import Reason, where
from .library import Library
from .metrics import Prometheus
from .pool import WorkerPool
from .reference import Affixes, Reference, UnsupportedTokenizer
from .shadow import Shadow

log = logging.getLogger("delta_core")

# What a request of the engine's may have set while a tokenizer is admitted later; and how often to look again, in s.
_FOR_THE_MOMENT = (Reason.TRUNCATION_SET, Reason.PADDING_SET, Reason.LIVE_CHANGED)
_PAUSES = (0.1, 0.3, 1.0, 3.0, 10.0)


class Serving(Library):
    """A tokenizer's admission, and what follows from it: cut rules, affixes, encoders."""

    _reference: Reference | None = None
    _shadow: Shadow | None = None
    _rules: CutRules
    _affixes: Affixes
    _encoder: Encoder
    _reference_encoder: ReferenceEncoder
    _executor: ThreadPoolExecutor | None = None
    _pool: WorkerPool | None = None
    _pool_lock: threading.Lock
    _when_admitted: tuple[Callable[[], object], ...] = ()
    _unsaid: str | None = None  # a note that the next request logs
    _exported: tuple[str, str, str] | None = None  # the labels under which the metrics name who serves

    def prepare(self) -> None:
        """See DeltaTokenizer."""
        raise NotImplementedError

    def export(self, prometheus: Prometheus) -> None:
        """See DeltaTokenizer."""
        raise NotImplementedError

    def _admit(self) -> Admission:
        """Decide whether the live tokenizer is served, and by whom."""
        config, strict = self._options["config"], self._options["admit"] == "frozen"
        try:
            reference = self._reference = Reference(self.live)
        except UnsupportedTokenizer as error:
            return Admission.no_tokenizer(str(error))
        verdict = admit(reference, None if config is None else [config], structure=config is None and not strict)
        frozen = verdict.frozen
        if frozen is None:
            if verdict.reason is Reason.UNKNOWN_PRE_TOKENIZER:
                self._in_background("derive", self._admit_later, pre_tokenizer=verdict.sections.pre_tokenizer)
            reference.settle()
            return Admission.refused(verdict)
        affixes = reference.affixes()
        assert affixes is not None  # admission asked for it
        self._rules, self._affixes = CutRules.of(frozen, reference), affixes
        self._reference_encoder = ReferenceEncoder(reference)
        self._encoder, note, reason, uncertified = choose(self._options["encoder"], frozen, reference)
        if reason is not None:
            self._counters.fallback(reason)  # `choose` has said it
        if uncertified is not None:
            later = partial(self._choose_later, frozen)
            state = reference.copy().to_str()
            self._in_background("certify", later, encoder=uncertified, config=frozen.to_json(), tokenizer=state)
        reference.settle()
        rate = self._options["shadow_rate"]
        if rate > 0 and self._shadow is None:
            self._shadow = Shadow(reference, rate, self._counters, self._store.clear)
        drift = f"as {verdict.nearest}, but {'; '.join(map(str, verdict.drift))}" if verdict.drift else ""
        if self._options["background"] and frozen.file_sha256 is None:
            noted = note_admission(getattr(self.live, "name_or_path", None), frozen)
            drift = "; ".join(filter(None, (drift, noted)))
        return Admission(True, frozen.name, (), None, self._encoder.name, note, drift)

    def when_admitted(self, do: Callable[[], object]) -> None:
        """Have something done before the tokenizer serves: now if it is admitted, else once its table is derived.

        If it raises then, the tokenizer stays refused (`adapter_failed`); now, the caller gets it.

        >>> tok.when_admitted(lambda: print("it serves"))
        it serves
        """
        with self._pool_lock:
            waits = not self.admission.admitted
            if waits:
                self._when_admitted += (do,)
        if not waits:
            do()

    def _in_background(self, job: str, done: Callable[[], object], **arguments: Any) -> None:
        if self._options["background"]:
            name = str(getattr(self.live, "name_or_path", "") or type(self.live).__name__)
            background.start({"job": job, "name": name, **arguments}, done)

    def _admit_later(self) -> None:
        """The table is derived: serve from now on. Nothing is remembered yet that could be of another tokenizer."""
        admission = self._admit()
        for pause_s in _PAUSES:
            if admission.reason not in _FOR_THE_MOMENT:
                break
            time.sleep(pause_s)
            admission = self._admit()
        done = 0
        while True:
            with self._pool_lock:
                todo = self._when_admitted[done:] if admission.admitted else ()
                if not todo:
                    self.admission = admission
                    break
            try:
                for do in todo:
                    do()
            except Exception as error:  # noqa: BLE001 - whoever serves with it can't: refused, and that is said
                admission = Admission.no_adapter(f"{where(error)}: {error}")
            done += len(todo)
        self.prepare()
        self._say()

    def _choose_later(self, frozen: Frozen) -> None:
        """The fast encoder is certified: it encodes from now on. What is remembered stays: its IDs are the same."""
        reference = self._reference
        if reference is None or reference.changed() is not None:
            return
        frozen = replace(frozen, certified=records_of(frozen.sections, [frozen]))
        encoder, note, reason, _ = choose(self._options["encoder"], frozen, reference)
        if reason is not None:
            self._counters.fallback(reason)
        reference.settle()
        warm(encoder)
        with self._pool_lock:
            self._encoder, self._pool = encoder, None
        self.admission = replace(self.admission, encoder=encoder.name, note=note)
        self._say()

    def _say(self) -> None:
        """Who serves from now on: in the metrics and in the log."""
        self._counters.tell(self.export)
        log.warning("Delta Tokenizer: %s", self.describe())

    def _after_fork(self) -> None:
        """In a forked child: none of the parent's threads, and the reference in place of a fast encoder.

        Fast encoders have threads, locks and borrowed objects of their own, which do not survive a fork: where the
        parent was encoding batches, fastokens waited for ever in one child of twenty. The reference, segment by
        segment, needs no other thread, and of its locks it takes only those that are free.
        """
        self._executor, self._pool, self._pool_lock = None, None, threading.Lock()
        # Without an admission it was still being made at the fork, by a thread that is not here.
        admission: Admission | None = getattr(self, "admission", None)
        if admission is None or not admission.admitted or self._encoder.name == ReferenceEncoder.name:
            return
        self._unsaid = f"{self._encoder.name} stays with the process this one was forked from; the reference encodes"
        self._encoder = self._reference_encoder
        self.admission = replace(admission, encoder=self._encoder.name, note=self._unsaid)
