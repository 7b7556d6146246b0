"""DeltaTokenizer, the router: admitted? -> store -> splice -> encode -> remember."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import traceback
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from numbers import Real
from types import NoneType
from typing import Any

from tokenizers import Tokenizer

from .admission.admit import admit
from .admission.frozen import Frozen
from .admission.sections import Mismatch
from .context import current
from .cuts import CutRules
from .encoders import NAMES, Encoder, ReferenceEncoder, choose, version_of
from .errors import Reason
from .forks import renewed_after_fork
from .ids import IdList, Ids, Kind, Part, container
from .metrics import Counters, Prometheus, Stats
from .pool import (
    DIVIDE_FROM,
    Encoded,
    PoolError,
    PoolFull,
    Request,
    Stretch,
    WorkerPool,
    divide,
    encode_stretch,
)
from .pool.chunks import Encode
from .pool.workers import thread_pool
from .reference import Reference, UnsupportedTokenizer, backend_of
from .shadow import Shadow
from .splice import (
    TAIL,
    Checkpoints,
    Reuse,
    Transcript,
    common_blocks,
    common_prefix,
    plan,
)
from .store import (
    DEFAULT_BUDGET,
    MIN_REMEMBERED,
    Branch,
    Origin,
    SessionStore,
    size_in_bytes,
)

log = logging.getLogger("delta_core")

# Characters between checkpoints. Smaller means less to encode again around an edit, larger means less work on new
# text; at 256 the checkpoints cost 2% of the IDs' memory.
SEGMENT = 256
# They stand this many times farther apart where a character costs little: finding the cuts would cost more than the
# encoder, and what an edit encodes again costs next to nothing.
SPARSE = {"fastokens": 4, "gigatoken": 4}
# A stored text that leaves no more than this to encode (characters) is taken without looking for a better one.
_CLOSE = 4096
# What may be encoded on an event loop (characters): about 2 ms.
_INLINE = {"reference": 4096, "fastokens": 65536}
# First guess of what a character costs, cutting and building lists included (ms); the pool corrects it.
_COST = {"reference": 1e-3, "fastokens": 5e-5, "gigatoken": 1e-4}

# Threads of the pool, where it is not one a core. Of what a text costs with a fast encoder the interpreter takes half,
# and it lets one thread run at a time; the encoder's half is spread over the cores by its library. In chunks, with a
# thread a core, four documents of 1M characters took a sixth longer than whole in one, and held up the loop for longer.
_THREADS = {"fastokens": 1, "gigatoken": 1}

# Where a text is looked for: under its key and by content, under its key alone, nowhere.
POLICIES = ("content", "keyed", "off")


@dataclass(frozen=True, slots=True)
class Admission:
    """What admission decided.

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


@dataclass(slots=True)
class _Job:
    """One request after the look-up: what is taken over, and what is still to be encoded.

    steps: what covers the text, in order; stretches are gaps that no stored IDs cover. pending: characters of these.
    kind: what the caller wants, list or array.
    """

    text: str
    kind: Kind
    namespace: bytes
    key: bytes | None
    origin: Origin | None
    steps: list[Reuse | Stretch]
    pending: int

    @property
    def stretches(self) -> list[Stretch]:
        return [step for step in self.steps if type(step) is Stretch]

    def divide(self, rules: CutRules, most: int) -> None:
        """Divide long gaps into chunks, `most` at most each."""
        steps: list[Reuse | Stretch] = []
        for step in self.steps:
            if type(step) is Stretch:
                for inner in divide(rules, self.text, step.start, step.end, most):
                    steps.append(step._replace(end=inner.position, tail=()))
                    step = step._replace(start=inner.position, cut=inner)
            steps.append(step)
        self.steps = steps


class DeltaTokenizer:
    """Encodes prompts at the cost of their new text, with exactly the IDs of the live tokenizer.

    live: a `tokenizers.Tokenizer` or a transformers fast tokenizer; it is read, never changed. Any other object is
        accepted, too, and never admitted.
    encoder: "auto" (the fastest certified one), "reference", "fastokens" or "gigatoken".
    budget: bytes for everything that is remembered, or a size such as "512M" or "2G".
    config: a frozen config to compare with instead of all known ones.
    policy: "content" (a text is looked up by its session, then by content), "keyed" (by its session alone) or "off".
    shadow_rate: the share of requests that the live tokenizer encodes again in the background, see `shadow.Shadow`.

    >>> tok = DeltaTokenizer(live)
    >>> tok.encode(prompt, session="conversation-7") == live.encode(prompt, add_special_tokens=False).ids
    True

    Construction takes 2 to 4 s for 150K tokens: the live state is compared with the frozen configs, a copy and a fast
    encoder are made of it and shown to be the same tokenizer. Raises TypeError or ValueError for an argument that can't
    be meant.

    A forked child may go on using it. What threads of the parent's were changing at the fork is forgotten there, and
    the reference encodes in place of a fast encoder, see `_after_fork`; spawned processes lose nothing.
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
    ) -> None:
        _check_arguments(live, encoder, config, policy, shadow_rate)
        self._live = live
        self._policy = policy
        self._counters = Counters()
        self._store = SessionStore(size_in_bytes(budget))
        self._executor: ThreadPoolExecutor | None = None
        self._pool: WorkerPool | None = None
        self._pool_lock = threading.Lock()
        self._detail: dict[Reason, str] = {}  # for the log: the sections that differ; where the first fault happened
        self._reference: Reference | None = None
        self._shadow: Shadow | None = None
        self._unsaid: str | None = None  # a note that the next request logs
        renewed_after_fork(self)
        try:
            self._reference = Reference(live)
        except UnsupportedTokenizer as error:
            mismatch = Mismatch("tokenizer", str(error), Reason.NOT_FAST)
            self.admission = Admission(False, None, (mismatch,), Reason.NOT_FAST, "reference", None)
            return
        verdict = admit(self._reference, None if config is None else [config])
        if verdict.frozen is None:
            self.admission = Admission(False, verdict.nearest, verdict.mismatches, verdict.reason, "reference", None)
            if verdict.reason is not None:
                self._detail[verdict.reason] = f" ({self.admission.why_not})"
            return
        self._rules = rules_for(verdict.frozen, self._reference)
        affixes = self._reference.affixes()
        assert affixes is not None  # admission asked for it
        self._affixes = affixes
        self._encoder: Encoder
        self._encoder, note, refused = choose(encoder, verdict.frozen, self._reference)
        if refused is not None:
            self._counters.fallback(refused)  # `choose` has said it
        self._fallback_encoder = ReferenceEncoder(self._reference)
        self._inline = _INLINE.get(self._encoder.name, _INLINE["reference"])
        if shadow_rate > 0:
            self._shadow = Shadow(self._reference, shadow_rate, self._counters, self._store.clear)
        self.admission = Admission(True, verdict.frozen.name, (), None, self._encoder.name, note)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, encoder: str = "auto", **options: Any) -> DeltaTokenizer:
        """A DeltaTokenizer over the tokenizer in a tokenizer.json."""
        return cls(Tokenizer.from_file(os.fspath(path)), encoder=encoder, **options)

    def prepare(self) -> None:
        """Do now what the first requests would wait for. 0.4 to 0.9 s; for serving processes.

        The usual characters are classified (1 to 4 ms for each 256 of them), the encoder makes its tables (fastokens:
        0.2 s for the first text) and its caches in this thread and in the pool's (5 to 40 ms each).
        """
        if self.admission.admitted and self._policy != "off":
            self._rules.prepare()
            _warm(self._encode_flat)
            self._workers()

    # -- the path of one request --

    def encode(
        self,
        text: str,
        *,
        session: str | None = None,
        namespace: str | None = None,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """The reference's IDs of a text, as a fresh list.

        session: whose conversation this is, if known; only a hint where to look, never part of the result. Without
            it the session of `session_key` counts, and without that one the text is looked up by content.
        namespace: nothing is shared between namespaces (cache salts).
        Cost: comparing the text with the stored one, encoding what is new, copying the IDs.
        Raises what the live tokenizer raises for the same input. Thread-safe.
        """
        return self._encode(text, list, session, namespace, add_special_tokens)  # type: ignore[no-any-return]

    def encode_array(
        self,
        text: str,
        *,
        session: str | None = None,
        namespace: str | None = None,
        add_special_tokens: bool = False,
    ) -> array[int]:
        """As `encode`, the IDs as a fresh `array("q")`.

        For callers that would make one of the list, at 26 us per 1,000 IDs: the copy costs a fifth of a list's, and
        nothing is converted. A text that is asked for as both is remembered twice.
        """
        return self._encode(text, array, session, namespace, add_special_tokens)  # type: ignore[no-any-return]

    async def encode_async(
        self,
        text: str,
        *,
        session: str | None = None,
        namespace: str | None = None,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """As `encode`, for an event loop: what takes longer than about 2 ms is done in a thread."""
        return await self._encode_async(text, list, session, namespace, add_special_tokens)  # type: ignore[no-any-return]

    async def encode_array_async(
        self,
        text: str,
        *,
        session: str | None = None,
        namespace: str | None = None,
        add_special_tokens: bool = False,
    ) -> array[int]:
        """As `encode_array`, for an event loop."""
        return await self._encode_async(text, array, session, namespace, add_special_tokens)  # type: ignore[no-any-return]

    def _encode(self, text: Any, kind: Kind, session: str | None, namespace: str | None, special: bool) -> Any:
        reason = self.refusal(text)
        if reason is None:
            try:
                job = self._look_up(text, kind, session, namespace)
                encoded = None
                if job.pending >= DIVIDE_FROM and self._workers().most_chunks > 1:
                    request = self._submit(job)
                    try:
                        encoded = None if request is None else request.result()
                    except PoolError as error:
                        self._without_pool(error)
                return self._finish(job, special, encoded)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the request; counted, logged once
                reason = self._explain(error, text)
        return self._stock(text, kind, special, reason)

    async def _encode_async(
        self, text: Any, kind: Kind, session: str | None, namespace: str | None, special: bool
    ) -> Any:
        reason = self.refusal(text)
        loop = asyncio.get_running_loop()
        if reason is None:
            try:
                job = self._look_up(text, kind, session, namespace)
                if job.pending <= self._inline:
                    return self._finish(job, special)
                encoded = None
                request = self._submit(job)
                try:
                    encoded = None if request is None else await request.wait()
                except PoolError as error:
                    self._without_pool(error)
                return await loop.run_in_executor(self._threads(), self._finish, job, special, encoded)
            except Exception as error:  # noqa: BLE001 - as in _encode
                reason = self._explain(error, text)
        return await loop.run_in_executor(self._threads(), self._stock, text, kind, special, reason)

    def refusal(self, text: Any) -> Reason | None:
        """Why a request for this text would take the stock path from the start, or None. About 10 us.

        For adapters whose stock path is the engine's own call, not the live tokenizer's `encode`.
        """
        if not self.admission.admitted:
            return self.admission.reason
        if self._policy == "off":
            return Reason.POLICY_OFF
        if not isinstance(text, str):
            return Reason.NOT_TEXT
        if self._shadow is not None and self._shadow.open:
            return Reason.SHADOW_DIFFERS
        assert self._reference is not None
        return self._reference.changed()

    def _look_up(self, text: str, kind: Kind, session: str | None, namespace: str | None) -> _Job:
        if self._unsaid is not None:
            log.warning("%s", self._unsaid)
            self._unsaid = None
        if type(text) is not str:
            text = str.__str__(text)[:]  # a subclass may compare and slice as it likes; it is not kept
        size = len(text)
        if size < MIN_REMEMBERED:
            return _Job(text, kind, b"", None, None, [Stretch(text, 0, size, (), kind)], size)
        here, salt = current()
        space, key = self._store.name(
            salt if namespace is None else namespace, here if session is None else session, kind
        )
        found = self._find(space, key, text)
        if found is None:
            return _Job(text, kind, space, key, None, [Stretch(text, 0, size, TAIL, kind)], size)
        branch, old, prefix = found
        steps: list[Reuse | Stretch] = []
        at = kept = 0
        blocks = common_blocks(old.text, text, prefix)
        for block in plan(old, text, blocks):
            if block.start > at:
                steps.append(Stretch(text, at, block.start, (), kind))
            steps.append(block)
            at = block.end
            kept += block.end - block.start
        if at < size:
            steps.append(Stretch(text, at, size, TAIL, kind))
        origin = Origin(
            branch,
            old,
            same=[(start, end) for start, end, shift in blocks if shift == 0],
            lost=len(old.text) - sum(end - start for start, end, _ in blocks),
        )
        return _Job(text, kind, space, key, origin, steps, size - kept)

    def _find(self, namespace: bytes, key: bytes | None, text: str) -> tuple[Branch, Transcript, int] | None:
        """The stored transcript that shares the longest prefix with the text: of the key's own, else by content."""
        best: tuple[Branch, Transcript, int] | None = None
        by_content = self._store.by_content(namespace, text) if self._policy == "content" else ()
        seen: set[Branch] = set()
        for branch in chain(self._store.of_key(key), by_content):
            if branch in seen:  # the key's own is mostly found by content, too
                continue
            seen.add(branch)
            transcript = branch.transcript  # another thread may put the next one in its place
            old = transcript.text
            prefix = common_prefix(old, text)
            if best is None or prefix > best[2]:
                best = branch, transcript, prefix
            if len(text) - prefix <= _CLOSE:
                break
        return best

    def _submit(self, job: _Job) -> Request | None:
        """Give the gaps to the pool; None when it refuses."""
        pool = self._workers()
        job.divide(self._rules, pool.most_chunks)
        try:
            return pool.submit(job.stretches, job.key)
        except PoolError as error:
            self._without_pool(error)
            return None

    def _without_pool(self, error: PoolError) -> None:
        """The pool did not serve a request: its caller does. Counted; a bad text is found out there."""
        reason = Reason.POOL_FULL if isinstance(error, PoolFull) else Reason.POOL_FAILED
        if self._counters.fallback(reason):
            log.warning("%s: %s: %s; the caller encodes", reason, type(error).__name__, error)

    def _finish(self, job: _Job, special: bool, encoded: Sequence[Encoded] | None = None) -> Any:
        """Encode the gaps, unless the pool did, put the IDs together, remember the text."""
        text, kind = job.text, job.kind
        segment = segment_for(self._encoder.name) if len(text) >= MIN_REMEMBERED else MIN_REMEMBERED
        checkpoints = Checkpoints()
        parts: list[Part] = []
        tokens = reused = 0
        gaps = None if encoded is None else iter(encoded)
        for step in job.steps:
            if type(step) is Stretch:
                fresh = encode_stretch(self._rules, self._encode_flat, step, segment) if gaps is None else next(gaps)
                if step.cut is not None:
                    checkpoints.append(step.cut, tokens)
                checkpoints.extend_from(fresh.checkpoints, 0, len(fresh.checkpoints) - 1, step.start, tokens)
                parts.append((fresh.ids, 0, len(fresh.ids)))
                tokens += len(fresh.ids)
            else:
                assert type(step) is Reuse
                assert job.origin is not None
                old = job.origin.transcript
                first = max(step.first, 0)
                if len(checkpoints) and first <= step.last and step.first >= 0:
                    # Two blocks that meet without a gap share their cut.
                    first += checkpoints.positions[-1] == old.checkpoints.positions[first] + step.shift
                checkpoints.extend_from(old.checkpoints, first, step.last, step.shift, tokens - step.token_start)
                parts += old.ids.slice(step.token_start, step.token_end)
                tokens += step.token_end - step.token_start
                reused += step.token_end - step.token_start

        ids = self._remember(job, Transcript(text, IdList.of(parts, kind), checkpoints), reused)
        if self._shadow is not None:
            self._shadow.offer(text, ids)
        result = ids.copy()
        if special:
            result += container(self._affixes.suffix, kind)
            result[:0] = container(self._affixes.prefix, kind)
        return result

    def _encode_flat(self, segments: list[str], kind: Kind) -> tuple[Ids, list[int]]:
        try:
            return self._encoder.encode_flat(segments, kind)
        except BaseException as error:
            # A panic in Rust is a BaseException, and no reason to fail a request that the reference can serve.
            if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
                raise
            result = self._fallback_encoder.encode_flat(segments, kind)
            if self._counters.fallback(Reason.ENCODER_FAILED):
                log.warning("%s failed (%s): reference instead", self._encoder.name, type(error).__name__)
            return result

    def _remember(self, job: _Job, transcript: Transcript, reused: int) -> IdList:
        """Put the new transcript into the store and count the request. Its IDs, as they are stored."""
        encoded, ids = job.pending, transcript.ids
        if len(job.text) < MIN_REMEMBERED:
            self._counters.request("short", 0, encoded)
            return ids
        origin = job.origin if reused else None
        path = "cold" if origin is None else "append" if origin.prefix == len(origin.transcript.text) else "splice"
        unchanged = origin is not None and origin.lost == 0 and encoded == 0 and origin.prefix == len(job.text)
        if origin is not None and unchanged and origin.branch.key == job.key:
            self._store.touch(origin.branch)
        else:
            ids = self._store.remember(job.namespace, job.key, transcript, origin)
        self._counters.request(path, reused, encoded, self._store.held)
        return ids

    # -- the stock path --

    def _stock(self, text: Any, kind: Kind, special: bool, reason: Reason | None) -> Any:
        assert reason is not None
        if self.fallback(reason):
            log.warning("stock path: %s%s", reason, self._detail.get(reason, ""))
        reference = self._reference
        if reference is None:
            ids = list(self._live.encode(text, add_special_tokens=special))
        else:
            if backend_of(self._live) is not reference.backend:
                reference = Reference(self._live)  # the backend was replaced: the live one is the reference
            ids = reference.encode(text, special)
        return ids if kind is list else array("q", ids)

    def _explain(self, error: Exception, text: str) -> Reason:
        try:
            text.encode()
        except UnicodeEncodeError:
            return Reason.BAD_TEXT
        # Where it happened, never the message: that one may quote the text.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f" ({type(error).__name__} at {os.path.basename(frame.filename)}:{frame.lineno})"
        self._detail.setdefault(Reason.INTERNAL, where)
        return Reason.INTERNAL

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
                rules, encode, name = self._rules, self._encoder.encode_flat, self._encoder.name
                segment = segment_for(name)
                self._pool = thread_pool(
                    lambda stretch: encode_stretch(rules, encode, stretch, segment),
                    _COST.get(name, _COST["reference"]),
                    warm=lambda: _warm(encode),
                    workers=_THREADS.get(name),
                )
            return self._pool

    def _after_fork(self) -> None:
        """In a forked child: none of the parent's threads, and the reference in place of a fast encoder.

        Fast encoders have threads, locks and borrowed objects of their own, which do not survive a fork: where the
        parent was encoding batches, fastokens waited for ever in one child of twenty. The reference, segment by
        segment, needs no other thread, and of its locks it takes only those that are free.
        """
        self._executor, self._pool, self._pool_lock = None, None, threading.Lock()
        # Without an admission it was still being made at the fork, by a thread that is not here.
        admission: Admission | None = getattr(self, "admission", None)
        if admission is None or not admission.admitted or self._encoder.name == "reference":
            return
        self._unsaid = f"{self._encoder.name} stays with the process this one was forked from; the reference encodes"
        self._encoder = self._fallback_encoder
        self._inline = _INLINE["reference"]
        self.admission = replace(admission, encoder="reference", note=self._unsaid)

    # -- state --

    def fallback(self, reason: Reason, *, stock: bool = True) -> bool:
        """Count a fallback; True the first time for this reason, when it is worth a log line. Adapters count theirs.

        stock: the stock path serves the request, which is counted, too.
        """
        if stock:
            self._counters.request("stock")
        return self._counters.fallback(reason)

    def describe(self) -> str:
        """What was decided at the start, in one line for a log."""
        admission = self.admission
        if not admission.admitted:
            return f"not admitted, stock path: {admission.why_not}"
        line = (
            f"config {admission.config}, encoder {admission.encoder} {version_of(admission.encoder)}, "
            f"policy {self._policy}, budget {self._store.budget >> 20} MiB"
        )
        return f"{line} ({admission.note})" if admission.note else line

    def export(self, prometheus: Prometheus) -> None:
        """Count into Prometheus metrics from now on."""
        admission = self.admission
        section = admission.mismatches[0].section if admission.mismatches else ""
        prometheus.admitted.labels(admission.config or "", admission.encoder, section).set(admission.admitted)
        self._counters.prometheus = prometheus

    def stats(self) -> Stats:
        """A snapshot of the counters."""
        return self._counters.snapshot(
            held=self._store.held, sessions=len(self._store), evictions=self._store.evictions
        )

    def clear(self) -> None:
        """Forget all texts. The counters stay."""
        self._store.clear()


def _check_arguments(live: object, encoder: object, config: object, policy: object, shadow_rate: object) -> None:
    """Raise TypeError or ValueError at once for what would fail, or be ignored, much later."""
    if isinstance(live, (str, bytes, os.PathLike)):
        raise TypeError("a tokenizer object is wanted, not a path: DeltaTokenizer.from_file(path) opens one")
    for name, value, choices in (("encoder", encoder, ("auto", *NAMES)), ("policy", policy, POLICIES)):
        if not isinstance(value, str):
            raise TypeError(f"{name} is one of {', '.join(choices)}, not a {type(value).__name__}")
        if value not in choices:
            raise ValueError(f"unknown {name} {value!r}: one of {', '.join(choices)}")
    if not isinstance(config, (Frozen, NoneType)):
        raise TypeError(f"config is a Frozen or None, not a {type(config).__name__}")
    if isinstance(shadow_rate, bool) or not isinstance(shadow_rate, Real):
        raise TypeError(f"shadow_rate is a number, not a {type(shadow_rate).__name__}")
    if not 0 <= float(shadow_rate) <= 1:
        raise ValueError(f"shadow_rate {shadow_rate!r} is not between 0 and 1")


def _warm(encode: Encode) -> None:
    """Make an encoder's caches, by few segments and by many."""
    encode(["a b"], list)
    encode([f"a b {n}" for n in range(64)], list)


def segment_for(encoder: str) -> int:
    """Characters between checkpoints where the encoder of this name serves."""
    return SEGMENT * SPARSE.get(encoder, 1)


def rules_for(frozen: Frozen, reference: Reference) -> CutRules:
    """The cut rules of an admitted tokenizer, asking the live one's own engines. About 0.3 s with a normalizer."""
    sections = frozen.sections
    normalizes = bool(sections.normalizer)
    normalizer = reference.backend.normalizer
    return CutRules(
        sections.added_tokens,
        frozen.transitions,
        normalizes=normalizes,
        normalized_contents=[
            normalizer.normalize_str(token.content) for token in sections.added_tokens if token.normalized
        ]
        if normalizes
        else (),
    )
