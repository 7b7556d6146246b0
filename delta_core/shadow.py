"""Shadow checks: a sample of the requests is encoded again by the live tokenizer, in the background, and compared.

Reuse is exact by proof; this is the operator's own look at it, on the operator's own traffic. The first difference
opens the circuit: from then on the stock path serves everything, until the process is started again. It can only be
seen after the IDs have been served, since waiting for the reference would give up what Delta Tokenizer is for.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from queue import Empty, Full, Queue

from .forks import renewed_after_fork
from .ids import IdList
from .metrics import Counters
from .reference import Reference

log = logging.getLogger("delta_core")

# Requests that wait for their check, each with its text. A check takes as long as the stock path does: when they come
# faster, the sample gets smaller, not the queue longer.
_WAITING = 8
_IDLE = 10.0  # seconds without a check after which the thread ends


class Shadow:
    """Checks a share of the requests in one background thread.

    rate: the share, 0 to 1. on_difference: called once, in that thread, when a difference was found.
    """

    def __init__(
        self, reference: Reference, rate: float, counters: Counters, on_difference: Callable[[], None]
    ) -> None:
        self.open = False  # a difference was found
        self._reference = reference
        self._rate = rate
        self._counters = counters
        self._on_difference = on_difference
        self._begin()
        renewed_after_fork(self)

    def _begin(self) -> None:
        self._waiting: Queue[tuple[str, IdList]] = Queue(_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def _after_fork(self) -> None:
        """In the child there is no thread of ours; what waited is checked by the parent."""
        self._begin()

    def offer(self, text: str, ids: IdList) -> None:
        """Perhaps check that these are the text's IDs. Under a microsecond for a request that isn't drawn."""
        if random.random() >= self._rate or self.open:
            return
        try:
            self._waiting.put_nowait((text, ids))
        except Full:
            self._counters.shadow("skipped")
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="delta-shadow", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                text, ids = self._waiting.get(timeout=_IDLE)
            except Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._thread = None
                        return
                continue
            self._check(text, ids)
            self._waiting.task_done()

    def _check(self, text: str, ids: IdList) -> None:
        try:
            expected = self._reference.encode_each([text])[0]
            changed = self._reference.changed() is not None
        except BaseException:  # noqa: BLE001 - a panic in Rust, too: the check can't be made, nothing more
            changed = True
        if changed:  # another tokenizer by now, or truncated for one request of the engine's
            self._counters.shadow("skipped")
        elif expected == list(ids.copy()):
            self._counters.shadow("same")
        else:
            self._counters.shadow("different")
            if not self.open:
                self.open = True
                log.error(
                    "shadow check: the IDs of a text of %d characters differ from the live tokenizer's; "
                    "the stock path serves from now on",
                    len(text),
                )
                self._on_difference()

    def drain(self) -> None:
        """Wait until every check taken so far has been made."""
        self._waiting.join()
