"""DeltaTokenizer, the path of one request: admitted, looked up, planned, its gaps encoded, put together, remembered."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

from .admission.frozen import Frozen
from .arguments import check_arguments, size_in_bytes
from .context import current
from .encoders import warm
from .errors import Reason, where
from .forks import renewed_after_fork
from .ids import Ids, Kind, container
from .metrics import Counters, Path, Prometheus
from .pool import PoolError, PoolFull, Request, WorkerPool
from .reference import Reference, backend_of
from .scale import scale
from .serving import Serving
from .splice import (
    DIVIDE_FROM,
    Encoded,
    Gap,
    Reuse,
    Transcript,
    assemble,
    common_blocks,
    common_prefix,
    divided,
    encode_gap,
    reusable,
)
from .store import DEFAULT_BUDGET, Branch, Origin, SessionStore

log = logging.getLogger("delta_core")

# A stored text that leaves no more than this to encode (characters) is taken without looking for a better one.
_CLOSE = 4096


@dataclass(slots=True)
class _Job:
    """One request after the look-up. plan: what covers its text, in order; pending: characters of the gaps in it.

    origin, reused: from where how many IDs are reused; None and 0 when nothing is.
    namespace, key: the store's names for where it belongs. kind: what the caller wants, list or array.
    """

    text: str
    kind: Kind
    namespace: bytes
    key: bytes | None
    origin: Origin | None
    plan: list[Reuse | Gap]
    pending: int
    reused: int = 0

    @property
    def gaps(self) -> list[Gap]:
        return [item for item in self.plan if isinstance(item, Gap)]


class DeltaTokenizer(Serving):
    """Encodes prompts at the cost of their new text, with exactly the IDs of the live tokenizer.

    live: a `tokenizers.Tokenizer` or a transformers fast tokenizer; it is read, never changed. Any other object is
        accepted, too, and never admitted.
    encoder: "auto" (the fastest certified one), "reference", "fastokens" or "gigatoken".
    budget: bytes for everything that is remembered, or a size such as "512M" or "2G".
    config: a frozen config to compare with instead of all known ones.
    policy: "content" (a text is looked up by its session, then by content) or "keyed" (by its session alone).
    shadow_rate: the share of requests that the live tokenizer encodes again in the background, see `shadow.Shadow`.
    admit: "structure" (whatever the cut rules hold for) or "frozen" (only what a config knows whole).
    background: whether a process of low priority may derive the table of an unknown pre-tokenizer, or certify the fast
        encoder for this tokenizer; until it is done the stock path serves, or the reference encodes.

    >>> tok = DeltaTokenizer(live)
    >>> tok.encode(prompt, session="conversation-7") == live.encode(prompt).ids
    True

    Construction takes 2 to 4 s for 150K tokens: the live state is compared with the frozen configs, a copy and a fast
    encoder are made of it and shown to be the same tokenizer. Raises TypeError or ValueError for an argument that can't
    be meant.

    A forked child may go on using it. What threads of the parent's were changing at the fork is forgotten there, and
    the reference encodes in place of a fast encoder, see `_after_fork`; spawned processes lose nothing. Pickled and
    copied, it is the live object and the options: admitted anew, with nothing remembered.
    """

    def __init__(
        self,
        live: Any,
        *,
        encoder: str = "auto",
        budget: int | str = DEFAULT_BUDGET,
        config: Frozen | None = None,
        policy: str = "content",
        shadow_rate: float = 0.0,
        admit: str = "structure",
        background: bool = False,
    ) -> None:
        check_arguments(live, encoder, config, policy, shadow_rate, admit)
        self.live = live
        self._options = {
            "encoder": encoder, "budget": budget, "config": config, "policy": policy, "shadow_rate": shadow_rate,
            "admit": admit, "background": background,
        }  # fmt: skip
        self._policy = policy
        self._pool_lock = threading.Lock()
        self._counters = Counters()
        self._store = SessionStore(size_in_bytes(budget))
        renewed_after_fork(self)
        self.admission = self._admit()

    def prepare(self) -> None:
        """Do now what the first requests would wait for. 0.4 to 0.9 s; for serving processes.

        The usual characters are classified (1 to 4 ms for each 256 of them), the encoder makes its tables (fastokens:
        0.2 s for the first text) and its caches in this thread and in the pool's (5 to 40 ms each).

        >>> tok.prepare()
        """
        if self.admission.admitted:
            self._rules.prepare()
            warm(self._encoder)
            self._workers()

    # -- the path of one request --

    def _encode(self, text: Any, kind: Kind, session: str | None, namespace: str | None, special: bool) -> Any:
        reason, detail = self.refusal(text), ""
        if reason is None:
            try:
                job = self._look_up(text, kind, session, namespace)
                encoded = None
                if job.pending >= DIVIDE_FROM and self._workers().most_chunks > 1:
                    try:
                        encoded = self._submit(job).result()
                    except PoolError as error:
                        self._without_pool(error)
                return self._finish(job, special, encoded)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the request; counted, logged once
                reason, detail = _explained(error, text)
        return self._stock(text, kind, special, reason, detail)

    async def _encode_async(
        self, text: Any, kind: Kind, session: str | None, namespace: str | None, special: bool
    ) -> Any:
        reason, detail = self.refusal(text), ""
        loop = asyncio.get_running_loop()
        if reason is None:
            try:
                job = self._look_up(text, kind, session, namespace)
                if job.pending <= self._encoder.inline:
                    return self._finish(job, special)
                encoded = None
                try:
                    encoded = await self._submit(job).wait()
                except PoolError as error:
                    self._without_pool(error)
                return await loop.run_in_executor(self._threads(), self._finish, job, special, encoded)
            except Exception as error:  # noqa: BLE001 - as in _encode
                reason, detail = _explained(error, text)
        return await loop.run_in_executor(self._threads(), self._stock, text, kind, special, reason, detail)

    def refusal(self, text: Any) -> Reason | None:
        """Why a request for this text would take the stock path from the start, or None. About 10 us.

        For adapters whose stock path is the engine's own call, not the live tokenizer's `encode`.

        >>> str(tok.refusal(b"no text"))
        'not_text'
        """
        if not self.admission.admitted:
            return self.admission.reason
        if not isinstance(text, str):
            return Reason.NOT_TEXT
        if self._shadow is not None and self._shadow.open:
            return Reason.SHADOW_DIFFERS
        assert self._reference is not None
        return self._reference.changed()

    def _look_up(self, text: str, kind: Kind, session: str | None, namespace: str | None) -> _Job:
        """What can be reused for a text, and what is left to encode."""
        if self._unsaid is not None:
            log.warning("%s", self._unsaid)
            self._unsaid = None
        if type(text) is not str:
            text = str.__str__(text)[:]  # a subclass may compare and slice as it likes; it is not kept
        size = len(text)
        if size < scale().remembered_from:
            return _Job(text, kind, b"", None, None, [Gap(text, 0, size, (), kind)], size)
        here, salt = current()
        space, key = self._store.name(
            salt if namespace is None else namespace, here if session is None else session, kind
        )
        tail = scale().tail
        found = self._find(space, key, text)
        if found is None:
            return _Job(text, kind, space, key, None, [Gap(text, 0, size, tail, kind)], size)
        branch, old, prefix = found
        plan: list[Reuse | Gap] = []
        at = kept = tokens = 0
        blocks = common_blocks(old.text, text, prefix)
        for reuse in reusable(old, text, blocks):
            if reuse.start > at:
                plan.append(Gap(text, at, reuse.start, (), kind))
            plan.append(reuse)
            at = reuse.end
            kept += reuse.end - reuse.start
            tokens += reuse.token_end - reuse.token_start
        if at < size:
            plan.append(Gap(text, at, size, tail, kind))
        origin = Origin(
            branch,
            old,
            same=[(start, end) for start, end, shift in blocks if shift == 0],
            lost=len(old.text) - sum(end - start for start, end, _ in blocks),
        )
        return _Job(text, kind, space, key, origin if kept else None, plan, size - kept, tokens)

    def _find(self, namespace: bytes, key: bytes | None, text: str) -> tuple[Branch, Transcript, int] | None:
        """The stored transcript that shares the longest prefix with the text: of the key's own, else by content."""
        best: tuple[Branch, Transcript, int] | None = None
        by_content: Iterator[Branch] = iter(())
        if self._policy == "content":
            by_content = self._store.by_content(namespace, text)
        seen: set[Branch] = set()
        for branch in chain(self._store.of_key(key), by_content):
            if branch in seen:  # the key's own is mostly found by content, too
                continue
            seen.add(branch)
            transcript = branch.transcript  # another thread may put the next one in its place
            prefix = common_prefix(transcript.text, text)
            if best is None or prefix > best[2]:
                best = branch, transcript, prefix
            if len(text) - prefix <= _CLOSE:
                break
        return best

    def _submit(self, job: _Job) -> Request:
        """Give the gaps to the pool, long ones in chunks. Raises PoolError."""
        pool = self._workers()
        plan: list[Reuse | Gap] = []
        for item in job.plan:
            plan += divided(self._rules, item, pool.most_chunks) if isinstance(item, Gap) else [item]
        job.plan = plan
        return pool.submit(job.gaps)

    def _without_pool(self, error: PoolError) -> None:
        """The pool did not serve a request: its caller does. Counted; a bad text is found out there."""
        reason = Reason.POOL_FULL if isinstance(error, PoolFull) else Reason.POOL_FAILED
        if self._counters.fallback(reason):
            log.warning("%s: %s: %s; the caller encodes", reason, type(error).__name__, error)

    def _finish(self, job: _Job, special: bool, encoded: Sequence[Encoded] | None = None) -> Ids:
        """Encode the gaps, unless the pool did, put the IDs together, remember the text."""
        if encoded is None:
            # Of a text that is not remembered no checkpoint is wanted.
            segment = self._segment() if len(job.text) >= scale().remembered_from else len(job.text) + 1
            encoded = [encode_gap(self._rules, self._encode_flat, gap, segment) for gap in job.gaps]
        old = None if job.origin is None else job.origin.transcript
        ids = self._remember(job, assemble(job.text, job.kind, job.plan, encoded, old))
        if special:
            ids += container(self._affixes.suffix, job.kind)
            ids[:0] = container(self._affixes.prefix, job.kind)
        return ids

    def _segment(self) -> int:
        return scale().segment or self._encoder.segment

    def _encode_flat(self, segments: Sequence[str], kind: Kind) -> tuple[Ids, list[int]]:
        try:
            return self._encoder.encode_flat(segments, kind)
        except Exception as error:  # noqa: BLE001 - no reason to fail a request that the reference can serve
            result = self._reference_encoder.encode_flat(segments, kind)
            if self._counters.fallback(Reason.ENCODER_FAILED):
                log.warning("%s failed (%s): reference instead", self._encoder.name, type(error).__name__)
            return result

    def _remember(self, job: _Job, transcript: Transcript) -> Ids:
        """Put the new transcript into the store and count the request. Its IDs, as a fresh list."""
        ids, origin = transcript.ids, job.origin
        if len(job.text) < scale().remembered_from:
            self._counters.request("short", 0, job.pending)
        else:
            path: Path = "cold"
            if origin is not None:
                path = "append" if origin.prefix == len(origin.transcript.text) else "splice"
            unchanged = origin is not None and origin.lost == 0 and job.pending == 0 and origin.prefix == len(job.text)
            if origin is not None and unchanged and origin.branch.key == job.key:
                self._store.touch(origin.branch)
            else:
                ids = self._store.remember(job.namespace, job.key, transcript, origin)
            self._counters.request(path, job.reused, job.pending, self._store.held)
        if self._shadow is not None:
            self._shadow.offer(job.text, ids)
        return ids.copy()

    # -- the stock path --

    def _stock(self, text: Any, kind: Kind, special: bool, reason: Reason | None, detail: str) -> Ids:
        assert reason is not None
        if self.fallback(reason):
            if reason is self.admission.reason and not detail:
                detail = self.admission.why_not
            log.warning("stock path: %s%s", reason, f" ({detail})" if detail else "")
        reference = self._reference
        if reference is None:
            ids = list(self.live.encode(text, add_special_tokens=special))
        else:
            if backend_of(self.live) is not reference.backend:
                reference = Reference(self.live)  # the backend was replaced: the live one is the reference
            ids = reference.encode(text, special)
        return ids if kind is list else array("q", ids)

    def _threads(self) -> ThreadPoolExecutor:
        """For what is done in one go off the event loop."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="delta")
        return self._executor

    def _workers(self) -> WorkerPool:
        """For what is encoded in chunks, or off the event loop."""
        with self._pool_lock:
            if self._pool is None:
                # The pool's threads must not keep this object.
                rules, encoder, segment = self._rules, self._encoder, self._segment()
                self._pool = WorkerPool(
                    lambda gap: encode_gap(rules, encoder.encode_flat, gap, segment),
                    encoder.cost,
                    warm=lambda: warm(encoder),
                    threads=encoder.threads,
                )
            return self._pool

    # -- state --

    def fallback(self, reason: Reason, *, stock: bool = True) -> bool:
        """Count a fallback; True the first time for this reason, when it is worth a log line. Adapters count theirs.

        stock: the stock path serves the request, which is counted, too.
        """
        if stock:
            self._counters.request("stock")
        return self._counters.fallback(reason)

    def export(self, prometheus: Prometheus) -> None:
        """Count into Prometheus metrics from now on; again, when something else serves."""
        admission = self.admission
        section = admission.mismatches[0].section if admission.mismatches else ""
        labels = (admission.config or "", admission.encoder, section)
        if self._exported is not None:
            prometheus.admitted.labels(*self._exported).set(0)
        prometheus.admitted.labels(*labels).set(admission.admitted)
        self._exported, self._counters.prometheus = labels, prometheus


def _explained(error: Exception, text: str) -> tuple[Reason, str]:
    """Why our own way failed, and where: never the message, which may quote the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return Reason.BAD_TEXT, ""
    return Reason.INTERNAL, where(error)
