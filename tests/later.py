"""Tokenizers whose table has to be derived, and a background that waits until a test has the work done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from delta_core import background
from delta_core.tools import background as job_room
from delta_core.tools.verify.generators import live_from, spec

Job = tuple[dict[str, Any], Callable[[], object]]


def waiting_jobs(monkeypatch: pytest.MonkeyPatch, cache: Path) -> list[Job]:
    """What would have been started in the background from now on; its results go to an own cache."""
    monkeypatch.setenv("DELTA_CACHE", str(cache))
    started: list[Job] = []

    def start(job: Mapping[str, Any], done: Callable[[], object]) -> None:
        started.append((dict(job), done))

    monkeypatch.setattr(background, "start", start)
    return started


def do(job: Job) -> None:
    """Do a job in this process, as the background would."""
    arguments, done = job
    {"derive": job_room._derive, "certify": job_room._certify}[arguments["job"]](json.loads(json.dumps(arguments)))
    done()


def of_unknown_pattern(pattern: str = r"\s+|[^\s\d]+|\d") -> Tokenizer:
    """Of a structure that the cut rules hold for, with a pattern whose table nobody knows."""
    live = live_from(spec("llama3_1"))
    live.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return live


def of_refused_structure() -> Tokenizer:
    """Of one that they don't hold for."""
    live = live_from(spec("llama3_1"))
    live.normalizer = normalizers.NFKC()
    return live
