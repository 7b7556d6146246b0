"""Real agent sessions, turn by turn, under the markers of four chat templates: no difference, cold or warm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Subject
from oracle import describe, ids_of

from delta_core.tools.demo.messages import Message
from delta_core.tools.demo.session import load
from delta_core.tools.demo.templates import family_of, render

FILES = ("aider", "claude_code", "codex", "crosswoz_zh", "cursor", "swe_agent", "tau_bench")
TOKENIZERS = ("qwen3", "llama3_1", "gpt_oss", "deepseek_v3")

# By default the reference reads this many characters per file and tokenizer, spread evenly over all its sessions.
BUDGET = 800_000
LONGEST = 40_000  # characters of one text by default: a session that is longer is replayed up to there
COLD_EVERY = 5  # turns between two that are also encoded without anything remembered


def turns_of(messages: list[Message], family: str, run_slow: bool, allowed: int) -> list[str]:
    """The requests of a session: a render for every growing history that ends in what the model has to answer."""
    ends = [k for k, m in enumerate(messages, 1) if m.role in ("user", "tool")] or [len(messages)]
    if run_slow and len(ends) <= 60:
        return [render(family, messages[:k], add_generation_prompt=True) for k in ends]
    if not run_slow:
        size, fit = 0, []
        for k, m in enumerate(messages, 1):
            size += m.size
            if k in set(ends) and size <= LONGEST:
                fit.append(k)
        ends = fit or ends[:1]
    # A spread: the first turns, the last ones, and pairs of neighbours between, so that real steps are among them.
    wanted = 60 if run_slow else max(2, allowed)
    if len(ends) > wanted:
        step = len(ends) / (wanted / 2)
        ends = sorted({ends[min(int(n * step) + d, len(ends) - 1)] for n in range(wanted // 2) for d in (0, 1)})
    return [render(family, messages[:k], add_generation_prompt=True)[: None if run_slow else 2 * LONGEST] for k in ends]


@pytest.mark.shared
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_turn_of_every_session_is_the_references(
    name: str, file: str, shared: Path, real_tokenizer: Callable[[str], Subject], run_slow: bool
) -> None:
    subject = real_tokenizer(name)
    live, tok = subject.live, subject.tok
    sessions = load(shared / "data" / "sessions" / f"{file}.jsonl.xz")
    family = family_of(name)
    replayed = texts = spent = 0
    for number, messages in enumerate(sessions):
        share = (BUDGET - spent) / (len(sessions) - number)
        size = min(sum(m.size for m in messages), LONGEST) + 500
        for turn, text in enumerate(turns_of(messages, family, run_slow, int(2 * share / size))):
            want = ids_of(live, text)
            ways = {
                "keyed": {"session": f"{file}/{number}"},
                "unkeyed": {"namespace": "unkeyed"},
                **({"cold": {"namespace": f"cold/{texts}"}} if texts % COLD_EVERY == 0 else {}),
            }
            for way, where in ways.items():
                got = tok.encode(text, add_special_tokens=False, **where)
                if got != want:
                    pytest.fail(f"{file} session {number} turn {turn}, {way}: {describe(live, text, got, want)[:3000]}")
            if texts % 7 == 0:
                assert tok.encode(text, session=f"{file}/{number}", add_special_tokens=True) == ids_of(live, text, True)
            texts += 1
            spent += len(text)
        replayed += 1
    assert replayed == len(sessions) > 0
    assert texts >= len(sessions)
    assert not tok.stats().fallbacks
    if texts > len(sessions):
        assert tok.stats().by_path["append"] > 0
    tok._store._check()
