"""What is run on this code: `nox` for lint and tests, `nox -s NAME` for one of the others, `nox -l` to list them.

nox comes with the `test` extra, so the environment that it runs in has what most sessions want, and they run there.
Only `oldest` and `e2e` need other packages, and have environments of their own under .nox/.
"""

from __future__ import annotations

import secrets
import sys

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]
nox.options.stop_on_first_error = False

# The oldest versions that pyproject.toml and README promise.
OLDEST = ("tokenizers==0.22.2", "transformers==4.57.6")
CAMPAIGN = ("qwen3", "gpt_oss", "deepseek_v3", "--minutes", "4", "--workers", "2")
PYTEST = ("-m", "pytest", "-n", "2")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Ruff's rules and format, and types."""
    session.run(sys.executable, "-m", "ruff", "check", ".")
    session.run(sys.executable, "-m", "ruff", "format", "--check", ".")
    session.run(sys.executable, "-m", "mypy")
    session.run(sys.executable, "-m", "mypy", "noxfile.py", "docs/turn.py")  # no package has these


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """The tests; arguments after -- go to pytest."""
    session.run(sys.executable, *PYTEST, *session.posargs)


@nox.session
def oldest(session: nox.Session) -> None:
    """The tests with the oldest tokenizers and transformers; arguments after -- go to pytest."""
    session.install("-e", ".[test]", *OLDEST)
    session.run("python", *PYTEST, *session.posargs)


@nox.session(venv_backend="none")
def campaign(session: nox.Session) -> None:
    """A slice of the exactness campaign with a fresh seed; arguments after -- go to `delta verify` instead."""
    # `delta verify` tells its seed before anything else, so that who reads the log finds a difference again. A report
    # goes on where it was left, with its own seed; so each slice has one of its own.
    seed = secrets.token_hex(4)
    arguments = session.posargs or [*CAMPAIGN, "--seed", seed, "--report", f"build/verify/{seed}"]
    session.run(sys.executable, "-m", "delta_core.tools.cli", "verify", *arguments)


@nox.session
@nox.parametrize("engine", ["sglang", "vllm"], ids=["sglang", "vllm"])
def e2e(session: nox.Session, engine: str) -> None:
    """The adapters on the real, unmodified engines; arguments after -- go to e2e/ENGINE.py, e.g. --quick.

    `nox -s "e2e(vllm)"` runs one of them. Each makes its own environment with the engine: minutes, gigabytes.
    """
    session.install("-e", ".[e2e]")
    session.run("python", f"e2e/{engine}.py", *session.posargs)
