"""A hypothesis state machine against the reference: whatever is done to texts, keys and memory, the IDs are right."""

from __future__ import annotations

from typing import ClassVar

import pytest
from conftest import NASTY_TOKENS
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule
from oracle import assert_same

from delta_core import DeltaTokenizer
from delta_core.tools.verify.dense import dense
from delta_core.tools.verify.generators import frozen_from, live_from, spec

FRAGMENTS = (
    "a", "the ", "word", "s", "'", "'s", "1", "234", " ", "  ", "\n", "\n\n", "\r\n", "\t", ".", "!", "//", "/", "é",
    "e", "\u0301", "\u0323", "\u0958", "\u1112", "\u1161", "\u11ab", "中", "か", "\u3099", "A", "Bc", "ſ", "😀",
    "\u00a0", "\u0378", "<", ">", "|", "|>", "<|im_end|>", "<|im_start|>", "<think>", "<|eot_id|>", *NASTY_TOKENS,
)  # fmt: skip
PIECES = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
KEYS = st.sampled_from([None, "a", "b"])
SPACES = st.sampled_from([None, None, "n"])
FLAG = st.booleans()
PLACE = st.floats(0, 1)


class Conversations(RuleBasedStateMachine):
    """Texts live in a bundle: every rule takes one, makes another of it and encodes that."""

    name: ClassVar[str]
    budget: ClassVar[int]
    tokenizers: ClassVar[dict[tuple[str, int], DeltaTokenizer]] = {}

    texts = Bundle("texts")

    def __init__(self) -> None:
        super().__init__()
        at = (self.name, self.budget)
        if at not in self.tokenizers:
            live = live_from(spec(self.name, NASTY_TOKENS))
            self.tokenizers[at] = DeltaTokenizer(live, config=frozen_from(live), budget=self.budget)
        self.tok = self.tokenizers[at]
        self.live = self.tok._reference.backend  # type: ignore[union-attr]
        self.tok.clear()
        self.context = dense()
        self.context.__enter__()

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)
        assert not self.tok.stats().fallbacks

    def encoded(self, text: str, key: str | None, namespace: str | None, add: bool) -> str:
        text = text[-600:]
        assert_same(self.tok, self.live, text, session=key, namespace=namespace, add_special_tokens=add)
        self.tok._store._check()
        return text

    @initialize(target=texts, text=PIECES)
    def begin(self, text: str) -> str:
        return text

    @rule(target=texts, text=PIECES, key=KEYS, namespace=SPACES, add=FLAG)
    def start(self, text: str, key: str | None, namespace: str | None, add: bool) -> str:
        return self.encoded(text, key, namespace, add)

    @rule(target=texts, old=texts, new=PIECES, key=KEYS, namespace=SPACES, add=FLAG)
    def append(self, old: str, new: str, key: str | None, namespace: str | None, add: bool) -> str:
        return self.encoded(old + new, key, namespace, add)

    @rule(target=texts, old=texts, new=PIECES, key=KEYS, namespace=SPACES, keep=PLACE)
    def replace_tail(self, old: str, new: str, key: str | None, namespace: str | None, keep: float) -> str:
        return self.encoded(old[: int(len(old) * keep)] + new, key, namespace, False)

    @rule(target=texts, old=texts, new=PIECES, key=KEYS, namespace=SPACES, low=PLACE, high=PLACE)
    def edit_middle(self, old: str, new: str, key: str | None, namespace: str | None, low: float, high: float) -> str:
        a, b = sorted((int(len(old) * low), int(len(old) * high)))
        return self.encoded(old[:a] + new + old[b:], key, namespace, False)

    @rule(target=texts, old=texts, head=PIECES, tail=PIECES, key=KEYS, namespace=SPACES, a=PLACE, b=PLACE)
    def edit_both_ends(
        self, old: str, head: str, tail: str, key: str | None, namespace: str | None, a: float, b: float
    ) -> str:
        low, high = sorted((int(len(old) * a), int(len(old) * b)))
        return self.encoded(head + old[low:high] + tail, key, namespace, False)

    @rule(target=texts, old=texts, new=PIECES, key=KEYS, namespace=SPACES, at=PLACE, add=FLAG)
    def trim_head_and_append(
        self, old: str, new: str, key: str | None, namespace: str | None, at: float, add: bool
    ) -> str:
        return self.encoded(old[int(len(old) * at) :] + new, key, namespace, add)

    @rule(target=texts, one=texts, two=texts, key=KEYS, namespace=SPACES)
    def join(self, one: str, two: str, key: str | None, namespace: str | None) -> str:
        return self.encoded(one + two, key, namespace, False)

    @rule(old=texts, key=KEYS, namespace=SPACES, add=FLAG)
    def again(self, old: str, key: str | None, namespace: str | None, add: bool) -> None:
        self.encoded(old, key, namespace, add)

    @rule()
    def forget(self) -> None:
        self.tok.clear()


def machine(name: str, budget: int, examples: int) -> type:
    case = type(f"Conversations_{name}", (Conversations,), {"name": name, "budget": budget}).TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=25)
    return case


# A tiny budget evicts all the time; a large one lets branches pile up.
TestQwenRoomy = machine("qwen3", 1 << 30, 40)
TestQwenTiny = machine("qwen3", 12_000, 40)
TestLlamaTiny = machine("llama3_1", 12_000, 60)
TestGptOssRoomy = machine("gpt_oss", 1 << 30, 40)
TestDeepseekRoomy = machine("deepseek_v3", 1 << 30, 40)


@pytest.mark.slow
class TestLong:
    """The same machines, two orders of magnitude longer."""

    @pytest.mark.parametrize("budget", [12_000, 1 << 30])
    @pytest.mark.parametrize("name", ["qwen3", "llama3_1", "gpt_oss", "deepseek_v3", "kimi_k3", "gpt2"])
    def test_conversations(self, name: str, budget: int) -> None:
        machine(name, budget, 3000)("runTest").runTest()
