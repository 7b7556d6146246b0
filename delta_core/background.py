"""Work that a server has done beside it: a process of low priority derives a table, or certifies an encoder, once.

The process runs `delta_core.tools.background`: a fresh interpreter, on one core, at the lowest priority, with bounded
memory. It ends when this process ends. Several servers that start at once start one each; a lock in the cache lets one
of them work, the others find what it wrote.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger("delta_core")


def start(job: Mapping[str, Any], done: Callable[[], object]) -> threading.Thread:
    """Have a job done in a process of its own; then `done` is called, in the thread that waited for it.

    job: see `delta_core.tools.background`. A job that fails is one log line, and `done` is not called.
    """
    thread = threading.Thread(target=_wait, args=(job, done), name="delta-background", daemon=True)
    thread.start()
    return thread


def _wait(job: Mapping[str, Any], done: Callable[[], object]) -> None:
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "delta_core.tools.background", str(os.getpid())],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "TOKENIZERS_PARALLELISM": "false",
                "RAYON_NUM_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        _, said = process.communicate(json.dumps(job).encode())
        if process.returncode == 0:
            done()
        else:
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            log.warning("background: %s of %s was not done: %s", job["job"], job["name"], last or process.returncode)
    except Exception as error:  # noqa: BLE001 - nothing waits for it; the stock path, or the reference, goes on serving
        log.warning("background: %s of %s was not done: %s", job["job"], job["name"], type(error).__name__)
