"""Counters of one DeltaTokenizer."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from .errors import Reason
from .forks import renewed_after_fork

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger("delta_core")


# What happened to a request, a label of the metric: too short to look up; nothing to reuse; everything stored reused,
# up to the last checkpoint; parts reused; served by the engine's own tokenizer.
Path = Literal["short", "cold", "append", "splice", "stock"]


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot; all counts since construction.

    requests: calls of encode and encode_async.
    by_path: requests by what happened, see Path.
    reused_tokens, encoded_chars: IDs taken over from earlier requests; characters given to an encoder.
    bytes, branches: memory held by the store, and how many lines of conversations it holds (a session may have
        several). evictions: branches pushed out of it.
    fallbacks: by reason, how often something stood in; what did says `Reason.part`.
    shadow: shadow checks by result: same, different, skipped (too many were waiting, or the tokenizer had changed).
    """

    requests: int
    by_path: dict[str, int]
    reused_tokens: int
    encoded_chars: int
    bytes: int
    branches: int
    evictions: int
    fallbacks: dict[str, int]
    shadow: dict[str, int]


class Counters:
    """Thread-safe counters. O(1), well under a microsecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: Counter[Path] = Counter()
        self._fallbacks: Counter[Reason] = Counter()
        self._shadow: Counter[str] = Counter()
        self._reused_tokens = 0
        self._encoded_chars = 0
        self.prometheus: Prometheus | None = None
        self._untold = False
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def request(self, path: Path, reused_tokens: int = 0, encoded_chars: int = 0, held: int | None = None) -> None:
        """Count one. held: the bytes of the store, if they may have changed."""
        with self._lock:
            self._paths[path] += 1
            self._reused_tokens += reused_tokens
            self._encoded_chars += encoded_chars
        self.tell(lambda prometheus: prometheus.request(path, reused_tokens, encoded_chars, held))

    def fallback(self, reason: Reason) -> bool:
        """Count it; True the first time, when it is worth a log line."""
        with self._lock:
            self._fallbacks[reason] += 1
            first = self._fallbacks[reason] == 1
        self.tell(lambda prometheus: prometheus.fallbacks.labels(reason.value, reason.part).inc())
        return first

    def shadow(self, result: str) -> None:
        """Count the result of one shadow check."""
        with self._lock:
            self._shadow[result] += 1
        self.tell(lambda prometheus: prometheus.shadow.labels(result).inc())

    def tell(self, count: Callable[[Prometheus], None]) -> None:
        """Count in Prometheus, too. A metrics file that can't be written (a full disk) must not fail a request."""
        if self.prometheus is None:
            return
        try:
            count(self.prometheus)
        except Exception as error:  # noqa: BLE001 - see above; said once
            if not self._untold:
                self._untold = True
                log.warning("metrics: some counts are not in Prometheus: %s", type(error).__name__)

    def snapshot(self, *, held: int, branches: int, evictions: int) -> Stats:
        """All counts, with what the store says of itself."""
        with self._lock:
            return Stats(
                requests=sum(self._paths.values()),
                by_path={str(path): n for path, n in self._paths.items()},
                reused_tokens=self._reused_tokens,
                encoded_chars=self._encoded_chars,
                bytes=held,
                branches=branches,
                evictions=evictions,
                fallbacks={str(reason): n for reason, n in self._fallbacks.items()},
                shadow=dict(self._shadow),
            )


class Prometheus:
    """The same counts as Prometheus metrics. A few microseconds a request.

    registry: where they are registered; None for the process's default one. Raises ImportError without
        prometheus_client, ValueError when the registry has them already. In multi-process mode the client library wants
        PROMETHEUS_MULTIPROC_DIR to be set before it is imported.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        import prometheus_client as client

        where = client.REGISTRY if registry is None else registry
        name = "delta_tokenizer"
        self._requests = client.Counter(
            f"{name}_requests", f"Texts encoded, by path ({', '.join(get_args(Path))})", ["path"], registry=where
        )
        self._reused = client.Counter(f"{name}_reused_tokens", "IDs taken over from earlier requests", registry=where)
        self._encoded = client.Counter(f"{name}_encoded_characters", "Characters that were encoded", registry=where)
        self.fallbacks = client.Counter(
            f"{name}_fallbacks",
            "Times that something stood in, by reason and by the part it stood in for: request (the engine's own "
            "tokenizer served it), encoder (the reference encoded), pool (the caller encoded), key (its own namespace)",
            ["reason", "part"],
            registry=where,
        )
        self.shadow = client.Counter(f"{name}_shadow_checks", "Shadow checks, by result", ["result"], registry=where)
        self._held = client.Gauge(
            f"{name}_held_bytes", "Memory of remembered texts", registry=where, multiprocess_mode="livesum"
        )
        self.admitted = client.Gauge(
            f"{name}_admitted",
            "1 when the live tokenizer is admitted, 0 when the named section refuses it",
            ["config", "encoder", "section"],
            registry=where,
            multiprocess_mode="livemax",
        )
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        """The client library does not renew its locks; a child that counts would wait for one for ever."""
        for metric in (self._requests, self._reused, self._encoded, self.fallbacks, self.shadow, self._held):
            for lock in _locks_of(metric):
                lock._at_fork_reinit()  # in place: other metrics of the process share it

    def request(self, path: Path, reused_tokens: int, encoded_chars: int, held: int | None) -> None:
        """Count one."""
        self._requests.labels(path).inc()
        self._reused.inc(reused_tokens)
        self._encoded.inc(encoded_chars)
        if held is not None:
            self._held.set(held)


def _locks_of(metric: Any) -> Iterator[Any]:
    """The locks that counting with a metric takes: its own, its values', and in multi-process mode the one of all."""
    for held in (metric, *getattr(metric, "_metrics", {}).values()):
        value = getattr(held, "_value", None)
        cells = getattr(getattr(type(value), "inc", None), "__closure__", None) or ()
        for lock in (getattr(held, "_lock", None), getattr(value, "_lock", None), *(c.cell_contents for c in cells)):
            if hasattr(lock, "_at_fork_reinit"):
                yield lock
