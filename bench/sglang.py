"""What tokenizing costs inside SGLang: `python bench/sglang.py`.

An agent's session grows by 400 characters a turn at several context lengths; every variant gets the same texts:

- The tokenize stage: SGLang's own tokenizer manager and chat serving, in a process of their own without schedulers, so
  that nothing else takes part. Of /generate, the time from the request to what would be sent to the scheduler; of a
  chat also its rendering. Then four documents of a million characters arrive at once, and a timer of 1 ms says how
  late the event loop came back to it. All IDs are compared with those of the stock backend. The last row is the
  machine's own: how late the same timer is while the loop does nothing, and a process on each core is busy.
- The time to the first token of the same turns on a running server with a tiny model, at the client.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

E2E = Path(__file__).resolve().parent.parent / "e2e"
NEW = 400  # characters a turn
DOCUMENT = 1_000_000  # characters


def _load() -> ModuleType:
    """The end-to-end test, which knows how to make an environment and start servers."""
    sys.path.insert(0, str(E2E))
    spec = importlib.util.spec_from_file_location("e2e_sglang", E2E / "sglang.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Variant:
    """A tokenizer backend under test. fastokens: the version to use, None for the environment's own."""

    name: str
    backend: str
    encoder: str | None = None
    fastokens: str | None = None


VARIANTS = (
    Variant("stock", "huggingface"),
    Variant("fastokens 0.1.2", "fastokens", fastokens="0.1.2"),
    Variant("fastokens 0.3.5", "fastokens"),
    Variant("delta, reference", "delta", encoder="reference"),
    Variant("delta, fastokens 0.3.5", "delta", encoder="fastokens"),
)


@dataclass(frozen=True)
class Row:
    """One variant, endpoint and context length; times in milliseconds, all but the first over the warm turns."""

    variant: str
    endpoint: str
    tokens: int
    turns: int
    cold: float
    median: float
    p99: float
    identical: bool


@dataclass(frozen=True)
class Stall:
    """The event loop of one variant while the documents arrive; milliseconds. together: until all were tokenized.

    The last two are None of a loop that did nothing.
    """

    variant: str
    longest: float
    over_5: int
    together: float | None
    identical: bool | None


@dataclass(frozen=True)
class FirstToken:
    """Time to the first token at the client, in milliseconds, over the warm turns."""

    variant: str
    tokens: int
    turns: int
    median: float
    p99: float


def p99(values: list[float]) -> float:
    """The 99th percentile; of few values, the largest."""
    return sorted(values)[min(len(values) - 1, round(0.99 * (len(values) - 1)))]


class Bench:
    """The inputs, and the environment that the variants run in."""

    def __init__(self, e2e: ModuleType, python: Path, work: Path, tokens: list[int], turns: int) -> None:
        from tokenizers import Tokenizer

        self.e2e, self.python, self.work, self.turns = e2e, python, work, turns
        self.servers = e2e.Servers(python, work / "models", work / "logs" / "bench")
        # One attention head: a long prompt's prefill on a CPU hides as little as possible.
        self.model = e2e.harness.make_model(work / "models" / "qwen3-one-head", "qwen3", heads=1)
        texts = e2e.harness.session_texts
        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        more = texts("qwen3", seed=77, target_chars=NEW * turns + 60_000)[-1]
        self.sessions: dict[int, list[str]] = {}
        for count in tokens:
            text = texts("qwen3", seed=5, target_chars=count * 5)[-1]
            base = text[: tokenizer.encode(text, add_special_tokens=False).offsets[count - 1][1]]
            self.sessions[count] = [base + more[: n * NEW] for n in range(turns + 1)]
        document = texts("qwen3", seed=9, target_chars=DOCUMENT)[-1]
        self.documents = [f"Document {n}.\n{document}"[:DOCUMENT] for n in range(4)]

    def environ(self, variant: Variant) -> dict[str, str]:
        env = {**self.e2e.ENVIRONMENT, "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
        if variant.encoder:
            env["DELTA_ENCODER"] = variant.encoder
        if variant.fastokens:
            folder = self.work / f"fastokens-{variant.fastokens}"
            if not folder.exists():
                install = [str(self.python), "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
                subprocess.run([*install, f"fastokens=={variant.fastokens}"], check=True)
            env["PYTHONPATH"] = str(folder)  # before the environment's own
        return env

    def stage(self, variant: Variant) -> dict[str, Any]:
        """The tokenize stage of all sessions and documents; see `stage` in e2e/sglang_child.py for what comes back."""
        out = self.work / "stage.json"
        engine = {**self.e2e.ENGINE, "model_path": str(self.model), "tokenizer_backend": variant.backend}
        task = {
            "engine": {**engine, "context_length": 400_000},
            "sessions": {str(tokens): texts for tokens, texts in self.sessions.items()},
            "documents": self.documents,
        }
        done = subprocess.run(
            [str(self.python), "-P", str(E2E / "sglang_child.py"), "stage", str(out)],
            input=json.dumps(task),
            env={**os.environ, **self.environ(variant)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{variant.name}: {done.stderr[-3000:]}")
        if variant.encoder and f"encoder {variant.encoder}" not in done.stderr:
            print(f"{variant.name}: another encoder serves\n{done.stderr[-1500:]}", file=sys.stderr)
        return dict(json.loads(out.read_text()))

    def first_token(self, variant: Variant, tokens: int) -> FirstToken:
        """The same turns, as /generate requests to a server."""
        name = f"first-token-{variant.name.replace(' ', '-').replace(',', '')}"
        options = {"model": self.model, "backend": variant.backend, "env": self.environ(variant), "context": 131_072}
        times = []
        with self.servers.server(name, **options) as server:
            for text in self.sessions[tokens]:
                sampling = {"max_new_tokens": 1, "temperature": 0}
                began = time.perf_counter()
                reply = server.post(
                    "/generate", {"text": text, "session_id": "s", "sampling_params": sampling}, timeout_s=1800
                )
                times.append((time.perf_counter() - began) * 1e3)
                assert reply.status == 200, reply
        return FirstToken(variant.name, tokens, self.turns, statistics.median(times[1:]), p99(times[1:]))


def rows_of(variant: Variant, runs: list[dict[str, Any]], stock: dict[str, Any]) -> list[Row]:
    """The rows of one variant out of its runs."""
    rows = []
    for endpoint in ("generate", "chat"):
        for tokens, want in stock[endpoint].items():
            sessions = [run[endpoint][tokens] for run in runs]
            if not all(sessions):
                continue  # this variant fails there
            warm = [ms for session in sessions for ms, _ in session[1:]]
            same = all([ids for _, ids in session] == [ids for _, ids in want] for session in sessions)
            cold = statistics.median(session[0][0] for session in sessions)
            rows.append(
                Row(variant.name, endpoint, int(tokens), len(warm), cold, statistics.median(warm), p99(warm), same)
            )
    return rows


def stall_of(variant: Variant, runs: list[dict[str, Any]], stock: dict[str, Any]) -> Stall:
    """What the documents did to the loop: of the run with the shortest longest stall, as others only add to it."""
    best = min(runs, key=lambda run: run["late"][-1])
    same = [ids for _, ids in best["documents"]["each"]] == [ids for _, ids in stock["documents"]["each"]]
    late = best["late"]
    return Stall(variant.name, late[-1], sum(ms > 5 for ms in late), best["documents"]["all"], same)


def machine_stall(runs: list[dict[str, Any]]) -> Stall:
    """What the machine does to an idle loop while each core is busy, for a second."""
    late = min((run["busy"] for run in runs), key=lambda late: late[-1])
    return Stall("nothing, every core busy", late[-1], sum(ms > 5 for ms in late), None, None)


def markdown(rows: list[Row], stalls: list[Stall], first: list[FirstToken]) -> str:
    """The tables."""
    lines = [
        "| context, tokens | endpoint | variant | cold, ms | warm turn, ms | P99, ms | IDs |",
        "|--:|---|---|--:|--:|--:|---|",
    ]
    lines += [
        f"| {r.tokens:,} | {r.endpoint} | {r.variant} | {r.cold:.1f} | {r.median:.2f} | {r.p99:.2f} "
        f"| {'equal' if r.identical else 'DIFFERENT'} |"
        for r in sorted(rows, key=lambda r: (r.endpoint != "generate", r.tokens))
    ]
    lines += [
        "",
        "| four documents at once, variant | longest stall, ms | stalls over 5 ms | all four, ms | IDs |",
        "|---|--:|--:|--:|---|",
    ]
    lines += [
        f"| {s.variant} | {s.longest:.1f} | {s.over_5} | {'' if s.together is None else f'{s.together:.0f}'} "
        f"| {'' if s.identical is None else 'equal' if s.identical else 'DIFFERENT'} |"
        for s in stalls
    ]
    if first:
        lines += ["", "| first token, context | variant | warm turn, ms | P99, ms |", "|--:|---|--:|--:|"]
        lines += [f"| {f.tokens:,} | {f.variant} | {f.median:.1f} | {f.p99:.1f} |" for f in first]
    return "\n".join(lines)


def main() -> None:
    """Run the variants, print the tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="0.5.23", help="the SGLang version")
    parser.add_argument("--turns", type=int, default=20, help="warm turns at each length")
    parser.add_argument("--rounds", type=int, default=2, help="how often each variant runs, in turn")
    parser.add_argument("--tokens", type=int, nargs="*", default=[8_000, 32_000, 100_000])
    parser.add_argument("--first-token", type=int, nargs="*", default=[], metavar="TOKENS", help="also on a server")
    parser.add_argument("--work", type=Path, default=Path("build") / "e2e", help="scratch folder")
    parser.add_argument("--python", type=Path, help="an environment that is ready, instead of making one")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    args = parser.parse_args()

    e2e, work = _load(), args.work.resolve()
    python = e2e.environment(work, args.version, args.python)
    bench = Bench(e2e, python, work, sorted({*args.tokens, *args.first_token}), args.turns)
    runs: dict[str, list[dict[str, Any]]] = {variant.name: [] for variant in VARIANTS}
    for _ in range(args.rounds):
        for variant in VARIANTS:
            runs[variant.name].append(bench.stage(variant))
            print(f"{variant.name}: done", file=sys.stderr)
    stock = runs["stock"][0]
    rows = [row for variant in VARIANTS for row in rows_of(variant, runs[variant.name], stock)]
    stalls = [stall_of(variant, runs[variant.name], stock) for variant in VARIANTS]
    stalls.append(machine_stall([run for each in runs.values() for run in each]))
    first = [bench.first_token(variant, tokens) for tokens in args.first_token for variant in VARIANTS]
    print(markdown(rows, stalls, first))
    if args.json:
        tables = {"rows": rows, "stalls": stalls, "first_token": first}
        numbers = {name: [asdict(one) for one in table] for name, table in tables.items()}
        about = {"machine": platform.platform(), "cores": os.cpu_count(), "sglang": args.version}
        args.json.write_text(json.dumps({**about, **numbers}, indent=1))


if __name__ == "__main__":
    main()
