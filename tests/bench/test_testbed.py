"""The scheduling testbed: arrivals that come when they are due, what it says of a front end, and its exactness."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Subject
from oracle import ids_of

from bench.testbed import __main__ as testbed
from bench.testbed import drive as driver
from bench.testbed.designs import OnLoop
from bench.testbed.drive import Run, drive, highest_rate
from bench.testbed.load import Arrival, Burst, Fleet, schedule

FLEET = Fleet.generated("qwen3", 2, 8_000, 3, 20_000)


def test_the_same_seed_brings_the_same_load_and_bursts_come_all_at_once() -> None:
    load = schedule(FLEET, 40.0, 2.0, 1, bursts=[Burst("document", 1.0, 3, 9_000)])
    assert load == schedule(FLEET, 40.0, 2.0, 1, bursts=[Burst("document", 1.0, 3, 9_000)])
    assert load == sorted(load, key=lambda a: a.at)
    assert [a.at for a in load if a.kind == "document"] == [0.5] * 3 + [1.5] * 3
    assert 40 < sum(a.kind == "append" for a in load) < 130
    assert len({a.text for a in load if a.kind == "document"}) == 6, "no document comes twice"


def test_the_rate_is_searched_up_to_the_bound() -> None:
    asked: list[float] = []

    def run(rate: float) -> Any:
        asked.append(rate)
        return type("Run", (), {"p99_ms": 10.0 if rate <= 100 else 90.0})

    assert highest_rate(run, 50.0, 20.0, 3, 4096.0, lambda done: None) == 100.0
    assert asked == [20.0, 40.0, 80.0, 160.0, 120.0, 100.0, 110.0]
    assert highest_rate(lambda rate: type("Run", (), {"p99_ms": 90.0}), 50.0, 20.0, 3, 4096.0, lambda done: None) == 0.0


def test_a_wrong_id_and_an_answer_that_never_comes_are_seen(
    monkeypatch: pytest.MonkeyPatch, synthetic: Callable[..., Subject]
) -> None:
    monkeypatch.setattr(driver, "BEHIND", 0.3)
    live = synthetic("qwen3").live
    arrivals = [Arrival(0.0, "append", "s", f"Text number {n}", 13) for n in range(3)]

    def run(front_end: OnLoop) -> Run:
        return drive(front_end, "appends", 1.0, 0.0, arrivals, 0.0, 3)

    right = run(OnLoop("right", live, lambda text: ids_of(live, text)))
    assert (right.checked, right.wrong, right.kept_up, right.kinds["all"].requests) == (3, 0, True, 3)
    assert run(OnLoop("wrong", live, lambda text: [0])).wrong == 3

    class Stuck(OnLoop):
        async def encode(self, arrival: Arrival, text: str) -> Any:
            await asyncio.sleep(3600)

    late = run(Stuck("stuck", live, ids_of))
    assert (late.kept_up, late.unfinished, late.p99_ms) == (False, 3, float("inf"))


def test_all_designs_and_scenarios_run_and_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synthetic: Callable[..., Subject]
) -> None:
    shared = synthetic("qwen3")
    replace(shared.frozen, name="qwen3_tiny").write(tmp_path / "configs")
    monkeypatch.setenv("DELTA_CONFIGS", str(tmp_path / "configs"))
    shared.live.save(str(tmp_path / "tokenizer.json"))
    options = ["--quick", "--encoder", "reference", "--threads", "2", "--sessions", "2", "--base", "3000"]
    options += ["--document", "9000", "--seconds", "0.3", "--rate", "30", "--most-rate", "30"]
    options += ["--scenario", "appends", "--scenario", "bursts"]
    options += ["--model", str(tmp_path / "tokenizer.json"), "--out", str(tmp_path / "out")]
    assert testbed.main(options) == 0
    record = json.loads((tmp_path / "out" / "testbed.json").read_text())
    rows = {run["design"].removesuffix(", as shipped") for _, run in record["runs"]}
    assert rows == {"reference", "fastokens", "delta, on the loop", "delta, 2 threads"}
    assert {run["scenario"] for _, run in record["runs"]} == {"appends", "bursts"}
    assert sum(run["checked"] for _, run in record["runs"]) > 10
    assert "0 differ" in (tmp_path / "out" / "testbed.md").read_text()
