"""Worker processes: the same results as threads, and nothing lost or left over when one of them goes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE, Subject, until
from tokenizers import Tokenizer

from delta_core.cuts import Cut
from delta_core.encoders import ReferenceEncoder
from delta_core.pool import Encoded, PoolClosed, Stretch, WorkerDied, WorkerPool, encode_stretch, processes
from delta_core.pool.processes import ProcessWorker, Setup, pack, process_pool, unpack
from delta_core.pool.workers import DeadlineExceeded, EncodingFailed
from delta_core.splice import Checkpoints

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="socket pairs are not inherited there")

SEGMENT = 64


def running(pid: int) -> bool:
    """A process that is there and no zombie; whoever inherits an orphan may not look after it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def sleeping(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def setup_of(subject: Subject, encoder: str = "reference") -> Setup:
    return Setup(subject.live.to_str(), subject.frozen, encoder, SEGMENT)


@pytest.fixture(scope="module")
def subject(synthetic: Callable[..., Subject]) -> Subject:
    return synthetic("qwen3")


@dataclass
class Crew:
    """A pool of processes with its workers in sight."""

    pool: WorkerPool
    processes: list[ProcessWorker]

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes if process.pid is not None]

    def ready(self) -> Crew:
        until(lambda: self.pool.workers == len(self.processes))
        return self


@pytest.fixture
def crew_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Crew]]:
    """Crews; afterwards no process of theirs may run."""
    crews: list[Crew] = []
    made: list[ProcessWorker] = []
    original = ProcessWorker.__init__

    def noted(self: ProcessWorker, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(ProcessWorker, "__init__", noted)

    def make(setup: Setup, workers: int, **options: Any) -> Crew:
        made.clear()
        pool = process_pool(setup, 1e-3, workers=workers, **options)
        crews.append(Crew(pool, list(made)))
        return crews[-1]

    yield make
    for crew in crews:
        assert crew.pool.close(PATIENCE)
        assert not any(running(pid) for pid in crew.pids())


def expected(subject: Subject, piece: Stretch) -> Encoded:
    reference = subject.tok._reference
    assert reference is not None
    return encode_stretch(subject.tok._rules, ReferenceEncoder(reference).encode_flat, piece, SEGMENT)


def same(a: Encoded, b: Encoded) -> bool:
    c, d = a.checkpoints, b.checkpoints
    return a.ids == b.ids and (c.positions, c.tokens, c.extents) == (d.positions, d.tokens, d.extents)


# -- messages --


def test_messages_keep_everything() -> None:
    checkpoints = Checkpoints()
    checkpoints.append(Cut(1, 1, 1), 0)
    checkpoints.append(Cut(70_000, 0, 8), 3)
    encoded = Encoded([0, 1, 151_935, 2**32 - 1], checkpoints)
    assert same(unpack(bytearray(pack(encoded)), list), encoded)
    assert same(unpack(bytearray(pack(encoded)), array), Encoded(array("q", encoded.ids), checkpoints))
    assert same(unpack(bytearray(pack(Encoded([], Checkpoints()))), list), Encoded([], Checkpoints()))


# -- serving --


def test_processes_give_what_the_reference_gives_in_lists_and_arrays(
    subject: Subject, crew_of: Callable[..., Crew]
) -> None:
    crew = crew_of(setup_of(subject), 2).ready()
    maker = subject.maker(3)
    texts = [maker.text(size) for size in (0, 1, 70, 700, 7000)]
    for kind in (list, array):
        pieces = [Stretch(text, 0, len(text), (16, 4), kind) for text in texts]
        results = crew.pool.submit(pieces, b"a session").result()
        for piece, result in zip(pieces, results, strict=True):
            assert type(result.ids) is kind
            assert same(result, expected(subject, piece))
            assert list(result.ids) == subject.live.encode(piece.text, add_special_tokens=False).ids
    middle = Stretch(texts[-1], 100, 5000)
    (result,) = crew.pool.submit([middle]).result()
    assert result.ids == subject.live.encode(texts[-1][100:5000], add_special_tokens=False).ids
    # A text that can't be sent fails alone.
    with pytest.raises(EncodingFailed, match="UnicodeEncodeError"):
        crew.pool.submit([Stretch("a\ud800", 0, 2)]).result()
    assert crew.pool.workers == 2


def test_an_error_in_the_process_fails_its_request_alone(subject: Subject, crew_of: Callable[..., Crew]) -> None:
    # A process that was told to cut into segments of no length at all fails at every text, and lives.
    crew = crew_of(Setup(subject.live.to_str(), subject.frozen, "reference", 0), 1).ready()
    for _ in range(2):
        with pytest.raises(EncodingFailed, match="StretchRefused"):
            crew.pool.submit([Stretch("some text", 0, 9)]).result()
    assert crew.pool.workers == 1


def test_a_process_that_makes_another_tokenizer_of_the_state_does_not_serve(
    subject: Subject, crew_of: Callable[..., Crew], caplog: pytest.LogCaptureFixture
) -> None:
    live = Tokenizer.from_str(subject.live.to_str())
    live.add_special_tokens(["<|new|>"])
    crew = crew_of(Setup(live.to_str(), subject.frozen, "reference", SEGMENT), 1)
    assert not crew.pool.wait_ready(PATIENCE)
    assert "added_tokens: 1 added" in caplog.text


def test_a_killed_worker_loses_nothing(subject: Subject, crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(setup_of(subject), 2).ready()
    for pid in crew.pids():
        os.kill(pid, signal.SIGSTOP)
        until(lambda pid=pid: sleeping(pid))  # type: ignore[misc]
    texts = [subject.maker(seed).text(3000) for seed in range(8)]
    requests = [crew.pool.submit([Stretch(text, 0, len(text))]) for text in texts]
    until(lambda: crew.pool.waiting == 6)  # each worker holds one
    os.kill(crew.pids()[0], signal.SIGKILL)
    until(lambda: crew.pool.workers == 1)
    os.kill(crew.pids()[1], signal.SIGCONT)
    died = 0
    for text, request in zip(texts, requests, strict=True):
        try:
            (encoded,) = request.result()
        except WorkerDied:
            died += 1
        else:
            assert encoded.ids == subject.live.encode(text, add_special_tokens=False).ids
    assert died == 1


def test_a_worker_that_hangs_is_retired_at_the_deadline(subject: Subject, crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(setup_of(subject), 1, deadline=0.2).ready()
    (pid,) = crew.pids()
    os.kill(pid, signal.SIGSTOP)
    text = subject.maker(1).text(400_000)  # more than a socket buffers
    with pytest.raises((WorkerDied, DeadlineExceeded)):  # whichever of the two notices first
        crew.pool.submit([Stretch(text, 0, len(text))]).result()
    until(lambda: crew.pool.workers == 0)
    until(lambda: not running(pid))


# -- starting --


def test_a_worker_that_does_not_start_in_time_is_retired(
    subject: Subject, crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_BOOT", "import signal; signal.pause()")
    crew = crew_of(setup_of(subject), 2, start_timeout=0.2)
    until(lambda: crew.pool._queue.closed)
    with pytest.raises(PoolClosed):
        crew.pool.submit([Stretch("x", 0, 1)])


def test_a_worker_that_cannot_encode_exactly_does_not_serve(
    subject: Subject, crew_of: Callable[..., Crew], caplog: pytest.LogCaptureFixture
) -> None:
    crew = crew_of(setup_of(subject, "fastokens"), 1)  # not certified for a tokenizer made here
    until(lambda: crew.pool._queue.closed)
    assert "is not certified" in caplog.text


def test_an_interpreter_that_is_missing_is_no_error_of_ours(
    subject: Subject, crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    crew = crew_of(setup_of(subject), 1)
    until(lambda: crew.pool._queue.closed)


# -- ending --

_PARENT = """
import os, sys, threading
from pathlib import Path
from delta_core.pool import Stretch
from delta_core.pool.processes import Setup, process_pool

path, how = sys.argv[1:]
pool = process_pool(Setup.from_message(Path(path).read_bytes()), 1e-3, workers=2)
while pool.workers < 2:
    threading.Event().wait(0.01)
text = "some words and more of them " * 200_000
requests = [pool.submit([Stretch(text, 0, len(text))]) for _ in range(4)]
while pool.waiting > 2:
    threading.Event().wait(0.01)
if how == "fork":  # a child that holds a copy of every socket, and outlives us
    if os.fork() == 0:
        threading.Event().wait(120)
        os._exit(0)
print("encoding", flush=True)
if how == "exit":
    sys.exit(0)
threading.Event().wait(120)
"""


@pytest.mark.parametrize("how", ["kill", "fork", "exit"])
def test_no_worker_outlives_its_parent_even_while_it_encodes(how: str, subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "setup").write_bytes(setup_of(subject).to_message())
    command = [sys.executable, "-c", _PARENT, str(tmp_path / "setup"), how]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "encoding\n"
        workers = [pid for pid in children(parent.pid) if "serve(" in command_of(pid)]
        if how == "exit":
            assert parent.wait(PATIENCE) == 0
        else:
            assert len(workers) == 2
            parent.kill()
            parent.wait(PATIENCE)
        until(lambda: not any(map(running, workers)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def test_closing_leaves_no_process(subject: Subject, crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(setup_of(subject), 2).ready()
    pids = crew.pids()
    assert all(map(running, pids))
    os.kill(pids[0], signal.SIGSTOP)  # one that would not hear of it
    assert crew.pool.close(PATIENCE)
    assert not any(map(running, pids))


def test_a_pool_that_is_forgotten_ends_its_processes(subject: Subject) -> None:
    pool: WorkerPool | None = process_pool(setup_of(subject), 1e-3, workers=1)
    assert pool is not None
    until(lambda: pool is not None and pool.workers == 1)
    (pid,) = [pid for pid in children(os.getpid()) if "serve(" in command_of(pid)]
    pool = None
    until(lambda: not running(pid))
