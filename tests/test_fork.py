"""Forked children: whatever the parent's threads were in the middle of, they answer, and exactly."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
import signal
import threading
import time
import traceback
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import Subject
from oracle import ids_of
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from delta_core import DeltaTokenizer, encoders, forks, ids
from delta_core.encoders import NAMES, EncoderUnavailable, build
from delta_core.metrics import Prometheus, _locks_of
from delta_core.reference import Reference
from delta_core.tools.verify.generators import prose

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    # We fork with threads running; that this is dangerous is what is tested.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PATIENCE = 20.0  # seconds for one child, which needs a tenth of one
LOCKS = (type(threading.Lock()), type(threading.RLock()))


def exit_code(work: Callable[[], object]) -> int | None:
    """What a forked child that does this work exits with, 0 for success; None when it hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing of the test run may go on in the child
            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def served(subject: Subject, encoder: str, **options: Any) -> DeltaTokenizer:
    """A tokenizer in which this encoder serves, certified or not: the texts here are plain."""
    live = Tokenizer.from_str(subject.live.to_str())
    tok = DeltaTokenizer(live, config=subject.frozen, encoder="reference", **options)
    if encoder != "reference":
        try:
            tok._encoder = build(encoder, Reference(live))
        except EncoderUnavailable as error:
            pytest.skip(str(error))
        tok._inline = 4096
    return tok


class Expected:
    """Texts with the reference's IDs, and a check that every way to ask for them gives these."""

    def __init__(self, live: Tokenizer) -> None:
        self.texts = [prose(seed, size) for seed, size in ((1, 100), (2, 2000), (3, 9000))]
        self.texts += [text + " and more" for text in self.texts]
        self.ids = [ids_of(live, text) for text in self.texts]

    def check(self, tok: DeltaTokenizer) -> None:
        async def asked() -> None:
            for n, (text, want) in enumerate(zip(self.texts, self.ids, strict=True)):
                assert await tok.encode_async(text, session=f"a{n}", add_special_tokens=False) == want
                assert await tok.encode_array_async(text, session="s", add_special_tokens=False) == array("q", want)

        before = tok.stats()
        for text, want in zip(self.texts, self.ids, strict=True):
            assert tok.encode(text, session="s", add_special_tokens=False) == want
            assert tok.encode_array(text, add_special_tokens=False) == array("q", want)
        asyncio.run(asked())
        tok._store._check()
        tok.clear()
        asyncio.run(asked())
        stats = tok.stats()
        assert stats.requests == before.requests + 6 * len(self.texts)
        assert stats.fallbacks == before.fallbacks


@contextmanager
def busy(*works: Callable[[int], object]) -> Iterator[None]:
    """Threads that do these things over and over, given the number of the time."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def run(work: Callable[[int], object]) -> None:
        number = 0
        try:
            while not stop.is_set():
                work(number)
                number += 1
        except BaseException as error:  # noqa: BLE001 - told to the test below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed


@pytest.mark.parametrize("encoder", NAMES)
def test_children_of_a_parent_whose_threads_are_inside_requests_answer(
    encoder: str, synthetic: Callable[..., Subject]
) -> None:
    tok = served(synthetic("qwen3"), encoder, shadow_rate=0.2)
    tok.export(Prometheus(CollectorRegistry()))
    expected = Expected(tok.live)
    texts = [prose(10 + seed, 8000) for seed in range(4)]

    def asks(encode: Callable[..., Any]) -> Callable[[int], object]:
        return lambda n: encode(
            texts[n % 4][: 3000 + 371 * n % 5000] + str(n) * 30, session=str(n % 5), add_special_tokens=False
        )

    with busy(
        asks(tok.encode),
        asks(tok.encode_array),
        asks(lambda *a, **k: asyncio.run(tok.encode_async(*a, **k))),
        asks(lambda *a, **k: asyncio.run(tok.encode_array_async(*a, **k))),
        lambda n: tok.clear() if n % 50 == 0 else time.sleep(0.001),
    ):
        for n in range(8):
            time.sleep(random.Random(n).random() * 0.03)
            assert exit_code(lambda: expected.check(tok)) == 0
    assert tok.encode(expected.texts[0], add_special_tokens=False) == expected.ids[0], "the parent goes on"


def locks_within(*roots: object) -> Iterator[Any]:
    """Every lock that our own objects, and those of the libraries that we lock by, hold at any depth."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, LOCKS):
            yield thing
        elif isinstance(thing, (dict, list, tuple, set)) or type(thing).__module__.split(".")[0] in (
            "delta_core", "prometheus_client", "queue", "threading",
        ):  # fmt: skip
            waiting += gc.get_referents(thing)


@pytest.mark.parametrize("encoder", NAMES)
def test_a_child_answers_although_every_lock_of_ours_was_held_at_the_fork(
    encoder: str, synthetic: Callable[..., Subject]
) -> None:
    tok = served(synthetic("qwen3"), encoder, shadow_rate=1.0)
    prometheus = Prometheus(CollectorRegistry())
    tok.export(prometheus)
    expected = Expected(tok.live)
    expected.check(tok)  # makes threads, pool and metrics
    assert tok._shadow is not None
    tok._shadow.drain()
    roots = [vars(module) for module in (encoders, ids, forks)]
    locks = {id(lock): lock for lock in locks_within(tok, *roots)}
    own = (tok._store._lock, tok._counters._lock, tok._pool_lock, tok._shadow._lock, ids._making)
    assert {id(lock) for lock in own} <= set(locks), "the walk sees what it is for"
    assert {id(lock) for lock in _locks_of(prometheus._requests)} <= set(locks)
    held = [lock for lock in locks.values() if lock.acquire(blocking=False)]
    try:
        assert len(held) > 20
        code = exit_code(lambda: expected.check(tok))
    finally:
        for lock in held:
            lock.release()
    assert code == 0
    expected.check(tok)


def test_a_child_forgets_what_another_thread_was_changing(synthetic: Callable[..., Subject]) -> None:
    tok = served(synthetic("qwen3"), "reference")
    expected = Expected(tok.live)
    for text in expected.texts:
        tok.encode(text, session="s", add_special_tokens=False)
    with tok._store._lock:  # as another thread in the middle of SessionStore._drop
        kept = tok._store._keys
        tok._store._keys = {}
        assert exit_code(lambda: expected.check(tok)) == 0
        tok._store._keys = kept
    expected.check(tok)


def test_a_child_of_a_quiet_parent_remembers(synthetic: Callable[..., Subject]) -> None:
    tok = served(synthetic("qwen3"), "reference")
    text = prose(1, 5000)
    want = ids_of(tok.live, text + "?")
    tok.encode(text, session="s", add_special_tokens=False)

    def work() -> None:
        assert tok.encode(text + "?", session="s", add_special_tokens=False) == want
        assert tok.stats().by_path == {"cold": 1, "append": 1}

    assert exit_code(work) == 0


def test_a_shadow_check_goes_on_in_a_child(synthetic: Callable[..., Subject]) -> None:
    tok = served(synthetic("qwen3"), "reference", shadow_rate=1.0)
    shadow = tok._shadow
    assert shadow is not None
    tok.encode(prose(1, 5000), add_special_tokens=False)
    shadow.drain()

    def work() -> None:
        tok.encode(prose(2, 5000), add_special_tokens=False)
        shadow.drain()
        assert tok.stats().shadow == {"same": 2}

    with shadow._waiting.mutex, shadow._lock:
        assert exit_code(work) == 0


@pytest.mark.parametrize("encoder", NAMES[1:])
def test_in_a_child_the_reference_encodes_and_says_so_once(
    encoder: str, synthetic: Callable[..., Subject], caplog: pytest.LogCaptureFixture
) -> None:
    tok = served(synthetic("qwen3"), encoder)
    text = prose(4, 3000)
    want = ids_of(tok.live, text)

    def work() -> None:
        assert tok.encode(text, add_special_tokens=False) == want
        assert tok.encode(text, session="s", add_special_tokens=False) == want
        assert tok.admission.encoder == "reference"
        assert f"{encoder} stays" in tok.describe()
        assert [encoder in record.getMessage() for record in caplog.records] == [True]
        with pytest.raises(EncoderUnavailable, match="in use in the process"):
            build(encoder, Reference(tok.live))

    assert exit_code(work) == 0
    assert tok._encoder.name == encoder, "the parent keeps it"
    assert not caplog.records
    build(encoder, Reference(tok.live))


@pytest.mark.parametrize("encoder", NAMES)
def test_processes_that_multiprocessing_forks_answer(encoder: str, synthetic: Callable[..., Subject]) -> None:
    tok = served(synthetic("qwen3"), encoder)
    expected = Expected(tok.live)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def work(text: str, want: list[int]) -> None:
        answers.put(
            (
                tok.encode(text, add_special_tokens=False) == want,
                asyncio.run(tok.encode_async(text, add_special_tokens=False)) == want,
            )
        )

    text = expected.texts[2]
    with busy(lambda n: tok.encode_array(text + str(n) * 99, add_special_tokens=False)):
        processes = [context.Process(target=work, args=(text, expected.ids[2]), daemon=True) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [answers.get() for _ in processes] == [(True, True)] * 3


def test_metrics_are_counted_in_a_child_although_a_scrape_was_running(synthetic: Callable[..., Subject]) -> None:
    tok = served(synthetic("qwen3"), "reference")
    registry = CollectorRegistry()
    prometheus = Prometheus(registry)
    tok.export(prometheus)
    text = prose(1, 1000)
    tok.encode(text, session="s", add_special_tokens=False)
    held = {id(lock): lock for lock in _locks_of(prometheus._requests)}
    for lock in held.values():
        lock.acquire()

    def work() -> None:
        tok.encode(text + "!", session="s", add_special_tokens=False)
        for path in ("cold", "append"):
            assert registry.get_sample_value("delta_tokenizer_requests_total", {"path": path}) == 1.0

    code = exit_code(work)
    for lock in held.values():
        lock.release()
    assert code == 0


def test_the_one_lock_of_multi_process_metrics_is_found(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """prometheus_client keeps it in a closure, out of sight of gc-walks by attribute."""
    from prometheus_client import Counter, values

    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr("prometheus_client.metrics.values.ValueClass", values.MultiProcessValue())
    counter = Counter("some", "some", ["path"], registry=CollectorRegistry())
    counter.labels("x").inc()
    locks = list(_locks_of(counter))
    assert len(locks) == 2, "the metric's own, and the values'"


def test_what_can_not_be_renewed_does_not_keep_the_rest_from_it() -> None:
    class Broken:
        def _after_fork(self) -> None:
            raise RuntimeError

    class Whole:
        renewed = False

        def _after_fork(self) -> None:
            self.renewed = True

    things: list[Any] = [Broken(), Whole(), Broken(), Whole()]
    for thing in things:
        forks.renewed_after_fork(thing)

    def work() -> None:
        assert things[1].renewed
        assert things[3].renewed

    assert exit_code(work) == 0
    assert not things[1].renewed


def test_what_is_renewed_is_not_kept_alive(synthetic: Callable[..., Subject]) -> None:
    tok = served(synthetic("qwen3"), "reference")
    tok.encode(prose(1, 1000), add_special_tokens=False)
    number = len(forks._renewables)
    del tok
    gc.collect()
    assert len(forks._renewables) <= number - 3  # itself, its store, its counters; the reference where it has locks
