"""Options, data and tokenizers that the tests share."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer

from delta_core import DeltaTokenizer
from delta_core.admission.frozen import Frozen
from delta_core.metrics import Counters
from delta_core.tools.fetch import NAMES, cached, fetch
from delta_core.tools.verify.dense import dense
from delta_core.tools.verify.generators import (
    NASTY_TOKENS,
    TextMaker,
    frozen_config,
    frozen_from,
    live_from,
    maker_for,
    spec,
)

# A red run is a fact about the code, not about the day: examples are the same every time. --run-slow draws new ones.
_COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
settings.register_profile("default", derandomize=True, **_COMMON)
settings.register_profile("slow", print_blob=True, **_COMMON)


STARTED = time.monotonic()
PATIENCE = 60.0  # seconds that a test waits for something; only what is broken needs them


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="also run the long campaigns")
    parser.addoption("--run-network", action="store_true", help="also run tests that ask a package registry")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("slow" if config.getoption("--run-slow") else "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    off = {
        "slow": not config.getoption("--run-slow"),
        "network": not (config.getoption("--run-network") or _must_fetch()),
    }
    deselected = [item for item in items if any(off[m] and item.get_closest_marker(m) for m in off)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in set(deselected)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """What takes seconds to make is made by one worker: its tests go there together."""
    if config.getoption("dist") != "load":  # what -n asks for
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    return Together(config, log)


def together(nodeid: str) -> str:
    """Which tests share a worker: those of one real tokenizer, those of certification, and each other one alone."""
    file, _, test = nodeid.partition("::")
    name, _, parameters = test.partition("[")
    if "test_certify" in file:
        return file
    if "real" in name or Path(file).stem in ("test_shared_data", "test_shared_sessions", "test_literal_ids"):
        return next((part for part in reversed(parameters.strip("]").split("-")) if part in NAMES), nodeid)
    return nodeid


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long the run took, and why tests were skipped: a line for each reason."""
    skipped = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in skipped.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in spent)
    terminalreporter.write_line(f"took {time.monotonic() - STARTED:.0f} s, {cpu:.0f} s of CPU time")


def _must_fetch() -> bool:
    return os.environ.get("DELTA_TEST_FETCH") == "1"


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread or process is about to do."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


@pytest.fixture(autouse=True, scope="session")
def _no_configs_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What lies in the user's own folder must not decide a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTA_CONFIGS", str(tmp_path_factory.mktemp("configs")))
        yield


@pytest.fixture(scope="session")
def run_slow(request: pytest.FixtureRequest) -> bool:
    """Whether the long campaigns were asked for: tests with a short form by default take their full one."""
    return bool(request.config.getoption("--run-slow"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the shared test data: $DELTA_SHARED, else beside the checkout."""
    configured = os.environ.get("DELTA_SHARED")
    folder = Path(configured) if configured else Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("no shared test data (set DELTA_SHARED to the folder that holds data/)")
    return folder


@dataclass(frozen=True)
class Subject:
    """A tokenizer under test: the live reference, its frozen config, and one DeltaTokenizer over both."""

    live: Tokenizer
    frozen: Frozen
    tok: DeltaTokenizer

    def maker(self, seed: int) -> TextMaker:
        return maker_for(self.live, self.frozen, seed)


def _anew(tok: DeltaTokenizer) -> None:
    """Nothing remembered, nothing counted: a shared tokenizer tells one test nothing of another."""
    tok.clear()
    tok._counters = Counters()


@pytest.fixture(scope="session")
def synthetic() -> Callable[..., Subject]:
    """A small trained tokenizer with the pipeline of a config: `synthetic(name, nasty=False)`. Shared; don't mutate."""
    made: dict[tuple[str, bool], Subject] = {}

    def get(name: str, nasty: bool = False) -> Subject:
        if (name, nasty) not in made:
            live = live_from(spec(name, NASTY_TOKENS if nasty else ()))
            frozen = frozen_from(live)
            made[name, nasty] = Subject(live, frozen, DeltaTokenizer(live, config=frozen, encoder="reference"))
        _anew(made[name, nasty].tok)
        return made[name, nasty]

    return get


@pytest.fixture(scope="session")
def real_tokenizer() -> Callable[[str], Subject]:
    """A model's own tokenizer, from the cache: `real_tokenizer(name)`. Fetched with DELTA_TEST_FETCH=1."""
    made: dict[str, Subject] = {}

    def get(name: str) -> Subject:
        if name not in made:
            path = fetch(name) if _must_fetch() else cached(name)
            if path is None:
                pytest.skip("real tokenizer files are not cached (run `delta fetch`, or set DELTA_TEST_FETCH=1)")
            live, frozen = Tokenizer.from_file(str(path)), frozen_config(name)
            if len(made) >= 4:
                made.pop(next(iter(made)))  # a large vocabulary costs some 200 MB
            made[name] = Subject(live, frozen, DeltaTokenizer(live, config=frozen, encoder="reference"))
            assert made[name].tok.admission.admitted, made[name].tok.admission
        _anew(made[name].tok)
        return made[name]

    return get


@pytest.fixture(params=["as shipped", "a cut wherever one is allowed"])
def density(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test twice: with the distances as they are, and with every allowed cut made."""
    if request.param == "as shipped":
        yield request.param
    else:
        with dense():
            yield request.param


@pytest.fixture
def densely() -> Iterator[None]:
    """Every allowed cut is made, and texts of any length are remembered."""
    with dense():
        yield
