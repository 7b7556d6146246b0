"""Workers that are processes: text goes out once as UTF-8, IDs and checkpoints come back as packed integers.

A process is a fresh interpreter (never a fork: the encoders' own threads don't survive one), started without
multiprocessing, which would run the engine's main module again and refuses to start from daemonic processes. It builds
its encoder as this process did, from the tokenizer's state and the frozen config. Both ends talk over a socket pair. A
worker whose other end is closed exits at once, also while it encodes: nothing is left when the parent is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from array import array
from dataclasses import dataclass

import numpy as np

from ..admission.frozen import Frozen
from ..ids import Kind, from_numbers
from ..splice import Checkpoints
from .chunks import Encoded, Stretch, encode_stretch
from .workers import CAPACITY, DEADLINE, WorkerDied, WorkerPool, cores

START_TIMEOUT = 60.0  # seconds until a new process must be ready
_LENGTH = struct.Struct("<Q")  # before every message: its length in bytes
_REPLY = struct.Struct("<QQ")  # numbers of IDs and of checkpoints
_BOOT = "import sys; from delta_core.pool.processes import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker process needs: the tokenizer's state as JSON, its frozen config, the encoder's name, and the
    characters between checkpoints.
    """

    tokenizer_json: str
    frozen: Frozen
    encoder: str
    segment: int

    def to_message(self) -> bytes:
        return json.dumps([self.tokenizer_json, self.frozen.to_json(), self.encoder, self.segment]).encode()

    @staticmethod
    def from_message(message: bytes | bytearray) -> Setup:
        tokenizer_json, frozen, encoder, segment = json.loads(message)
        return Setup(tokenizer_json, Frozen.from_json(frozen), encoder, segment)


class StretchRefused(Exception):
    """The process did not encode it; the message is the error's type. On start, why it can't encode at all."""


class ProcessWorker:
    """One worker process, seen from the parent.

    setup: a Setup as a message. start_timeout, deadline: seconds until it must be ready, and until it must answer.
    """

    ready = False

    def __init__(self, setup: bytes, *, start_timeout: float = START_TIMEOUT, deadline: float = DEADLINE) -> None:
        self._setup = setup
        self._start_timeout = start_timeout
        self._deadline = deadline
        self.pid: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """About 2 s: imports, building the encoder. Raises WorkerDied."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "TOKENIZERS_PARALLELISM": "false",  # one worker is one core
                "RAYON_NUM_THREADS": "1",
            }
            command = [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(os.getpid())]
            try:
                self._process = subprocess.Popen(
                    command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
                )
            except OSError as error:
                raise WorkerDied(f"no process: {error}") from error
            self.pid = self._process.pid
        try:
            self._ask(self._setup, self._start_timeout)
        except StretchRefused as error:
            raise WorkerDied(str(error)) from error

    def run(self, stretch: Stretch) -> Encoded:
        text = stretch.text[stretch.start : stretch.end].encode()  # raises for lone surrogates: not our affair
        tail = array("I", stretch.tail)
        return unpack(self._ask(struct.pack("<I", len(tail)) + tail.tobytes() + text, self._deadline), stretch.kind)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()  # the process exits
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1.0)
            self._process.kill()  # one that is stopped, or hangs
            self._process.wait()

    def _ask(self, message: bytes, timeout: float) -> bytearray:
        """Send a message, wait for the answer. Raises WorkerDied, StretchRefused."""
        assert self._socket is not None
        end = time.monotonic() + timeout
        try:
            self._socket.settimeout(timeout)
            _send(self._socket, message)
            answer = _receive(self._socket, end)
        except TimeoutError as error:
            raise WorkerDied(f"process {self.pid} does not answer") from error
        except OSError as error:
            raise WorkerDied(f"process {self.pid} is gone") from error
        if answer is None:
            raise WorkerDied(f"process {self.pid} is gone")
        if answer[0]:
            raise StretchRefused(answer[1:].decode())
        return answer


def process_pool(
    setup: Setup,
    ms_per_character: float,
    *,
    workers: int | None = None,
    aging: float = 1.0,
    capacity: int = CAPACITY,
    deadline: float = DEADLINE,
    start_timeout: float = START_TIMEOUT,
) -> WorkerPool:
    """A pool of processes, one for each core. Returns at once; the workers take tasks as they get ready."""
    message = setup.to_message()
    crew = [ProcessWorker(message, start_timeout=start_timeout, deadline=deadline) for _ in range(workers or cores())]
    return WorkerPool(crew, ms_per_character, aging=aging, homes=True, capacity=capacity, deadline=deadline)


# -- messages --


def pack(encoded: Encoded) -> bytes:
    """An Encoded as bytes, 4 for each ID and 12 for each checkpoint. A leading zero byte: no error."""
    c = encoded.checkpoints
    header = _REPLY.pack(len(encoded.ids), len(c))
    ids = np.array(encoded.ids, "<u4").tobytes()
    return b"\0" + header + ids + c.positions.tobytes() + c.tokens.tobytes() + c.extents.tobytes()


def unpack(message: bytearray, kind: Kind) -> Encoded:
    """The Encoded of such bytes."""
    count, checkpoints = _REPLY.unpack_from(message, 1)
    at = 1 + _REPLY.size
    numbers = np.frombuffer(message, "<u4", count, at)
    ids = from_numbers(numbers, kind)
    at += 4 * count
    result = Checkpoints()
    for into in (result.positions, result.tokens, result.extents):
        into.frombytes(memoryview(message)[at : at + 4 * checkpoints])
        at += 4 * checkpoints
    return Encoded(ids, result)


def _send(sock: socket.socket, message: bytes) -> None:
    sock.sendall(_LENGTH.pack(len(message)) + message)


def _receive(sock: socket.socket, end: float | None) -> bytearray | None:
    """One message; None when the other end is closed. end: of patience, monotonic; raises TimeoutError."""
    header = _receive_exactly(sock, _LENGTH.size, end)
    return None if header is None else _receive_exactly(sock, _LENGTH.unpack(header)[0], end)


def _receive_exactly(sock: socket.socket, size: int, end: float | None) -> bytearray | None:
    message = bytearray(size)
    view = memoryview(message)
    while view:
        if end is not None:
            sock.settimeout(max(1e-3, end - time.monotonic()))
        got = sock.recv_into(view)
        if got == 0:
            return None
        view = view[got:]
    return message


# -- in the process --


def serve(descriptor: int, parent: int) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; we go when it goes
    sock = socket.socket(fileno=descriptor)
    threading.Thread(target=_watch, args=(descriptor, parent), daemon=True).start()
    message = _receive(sock, None)
    if message is None:
        return
    setup = Setup.from_message(message)
    # Imported here: the router imports this package.
    from tokenizers import Tokenizer

    from ..admission.admit import admit
    from ..encoders import choose
    from ..reference import Reference
    from ..tokenizer import rules_for

    reference = Reference(Tokenizer.from_str(setup.tokenizer_json))
    # What is made of the state here may be another tokenizer than the one it was written by.
    verdict = admit(reference, [setup.frozen])
    if verdict.frozen is None:
        _send(sock, b"\1" + "; ".join(map(str, verdict.mismatches)).encode())
        return
    rules = rules_for(setup.frozen, reference)
    encoder, note, _ = choose(setup.encoder, setup.frozen, reference)
    if note is not None:
        _send(sock, b"\1" + note.encode())
        return
    _send(sock, b"\0")
    while (message := _receive(sock, None)) is not None:
        try:
            (tails,) = struct.unpack_from("<I", message)
            tail = array("I", bytes(message[4 : 4 + 4 * tails]))
            text = message[4 + 4 * tails :].decode()
            stretch = Stretch(text, 0, len(text), tuple(tail), array)
            answer = pack(encode_stretch(rules, encoder.encode_flat, stretch, setup.segment))
        except BaseException as error:  # noqa: BLE001 - panics, too; the parent encodes it and finds out
            answer = b"\1" + type(error).__name__.encode()
        _send(sock, answer)


def _watch(descriptor: int, parent: int) -> None:
    """Exit when the other end is closed, or when the parent is another one (a fork of the old one holds the end)."""
    poll = select.poll()
    poll.register(descriptor, getattr(select, "POLLRDHUP", 0))
    while not poll.poll(1000) and os.getppid() == parent:
        pass
    os._exit(0)
