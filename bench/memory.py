"""What a stored conversation costs, and whether memory stays where it is while thousands come and go."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer

from delta_core import DeltaTokenizer
from delta_core.tools.demo.templates import family_of

from . import peers
from .measure import Case, Check, Churn, Contestant, State
from .ours import Delta
from .texts import transcript
from .workloads import MAIN, SEGMENT_CACHE, Bench, append

ROWS = ("Delta", "Delta, array", "fastokens", "fastokens, segment cache", "gigatoken")
_CHARS = 18_000  # of one conversation


def measure(b: Bench, *, churn: bool) -> None:
    """The table of states; with `churn` also one process for each of ROWS."""
    for kind in b.plan.kinds:
        for scene in b.scenes(append(b, kind, n, 400) for n in b.plan.sizes):
            for form in ("list", "array"):
                Delta("", b.tok, form=form).prepare(scene.cases[0])
                text = scene.cases[0].before[-1][1]
                size, tokens = sys.getsizeof(text), len(b.reference(text[:1] + text[1:]))
                state = State(b.name, kind, form, len(text), tokens, size, b.tok.stats().bytes - size)
                b.record.states.append(state)
                if tokens >= 50_000:
                    name = f"MB of state per 100K tokens ({b.name}, {kind}, {len(text):,} characters, {form})"
                    b.record.checks.append(Check(name, state.state_bytes / tokens / 10, 1.2))
    b.tok.clear()
    if not churn or not Path("/proc/self/statm").exists():
        return
    for row in ROWS:
        command = [sys.executable, "-m", "bench", "churn", row, str(b.path), str(b.plan.churned)]
        done = subprocess.run(command, cwd=peers.ROOT, capture_output=True, text=True)
        if done.returncode:
            b.record.note(f"churn of {row}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
            continue
        found = Churn(**json.loads(done.stdout))
        b.record.churns.append(found)
        if found.budget:
            half = [rss for _, rss, _, _ in found.samples[len(found.samples) // 2 :]]
            name = f"resident memory over the second half of {b.plan.churned:,} conversations ({row})"
            b.record.checks.append(Check(name, max(half) / half[0], 1.08))


def churn(row: str, tokenizer: str, sessions: int) -> int:
    """Two turns of so many conversations, one after the other; prints a Churn. Raises AssertionError on a wrong ID."""
    path = Path(tokenizer)
    live = Tokenizer.from_file(str(path))
    budget = 0
    contestant: Contestant
    if row.startswith("Delta"):
        budget = sessions * 12_000  # a fifth of what all of them would take
        tok = DeltaTokenizer(live, budget=budget)
        contestant = Delta(row, tok, form="array" if "array" in row else "list")
    elif row.startswith("fastokens"):
        contestant = peers.fastokens(path, SEGMENT_CACHE if "cache" in row else 0)
    else:
        contestant = peers.gigatoken(path, "array")
    source = transcript(MAIN, family_of("qwen3"), 120_000 + 150 * sessions)
    samples: list[tuple[int, int, int, int]] = []
    for n in range(sessions):
        text = f"Conversation {n}\n" + source[150 * n :][:_CHARS]
        for case in (Case(f"s{n}", text, anew=False), Case(f"s{n}", text + source[-400:], anew=False)):
            ids = contestant.encode(case)
        if n % max(1, sessions // 20) == 0 or n == sessions - 1:
            assert list(ids) == live.encode(case.text, add_special_tokens=False).ids
            gc.collect()
            held, evicted = (tok.stats().bytes, tok.stats().evictions) if budget else (0, 0)
            samples.append((n + 1, _resident(), held, evicted))
    print(json.dumps({"row": row, "tokenizer": path.parent.name, "budget": budget, "samples": samples}))
    return 0


def _resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
