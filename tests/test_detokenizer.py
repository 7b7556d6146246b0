"""A detokenizer primed with the tail streams, step by step, what one primed with the whole prompt streams."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from conftest import Subject
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.decoders import DecodeStream
from tokenizers.pre_tokenizers import ByteLevel

from delta_core.detokenize import REACH, exact_tail, unproven

REAL = ("qwen3", "llama3_1", "deepseek_v3", "gpt_oss", "deepseek_v4")  # no registry ships kimi_k3
SYNTHETIC = ("qwen3", "llama3_1", "deepseek_v3", "kimi_k3", "gpt2")
TEXTS = (
    "plain words, ",
    "def f(x):\n    return x\n",
    "naïve café ",
    "日本語のテキスト",
    "🙂🏳️‍🌈👩‍👩‍👧 ",
    "\u0915\u093c\u094d\u0937 ",
    "\ufffd",
    "\x00\x7f",
    "𒀀𒁀",
)

Tail = Callable[[Tokenizer, Sequence[int], bool], "list[int] | None"]


def stream(live: Tokenizer, primed_with: Sequence[int], new: Sequence[int], skip: bool) -> list[str | None]:
    """What each step returns; an error's text ends the stream, as an engine resets it there."""
    decoding = DecodeStream(ids=list(primed_with), skip_special_tokens=skip)
    steps: list[str | None] = []
    for token in new:
        try:
            steps.append(decoding.step(live, token))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            return [*steps, f"error: {error}"]
    return steps


class Drawn:
    """Prompts and continuations: text, text cut at any token, special tokens, and IDs drawn from the vocabulary."""

    def __init__(self, live: Tokenizer, seed: int) -> None:
        self.live = live
        self.rng = random.Random(f"detokenizer {seed}")
        self.size = live.get_vocab_size(with_added_tokens=True)
        self.added = sorted(live.get_added_tokens_decoder())
        # Single bytes and pieces of characters are rare in a vocabulary and are what it is about.
        self.broken = [i for i in range(min(self.size, 4000)) if live.decode([i]).startswith("\ufffd")]

    def piece(self) -> list[int]:
        kind = self.rng.random()
        if kind < 0.45:
            ids = self.live.encode(self.rng.choice(TEXTS) * self.rng.randint(1, 2), add_special_tokens=False).ids
            return list(ids[: self.rng.randint(1, len(ids))]) if self.rng.random() < 0.5 else list(ids)
        if kind < 0.6 and self.added:
            return [self.rng.choice(self.added) for _ in range(self.rng.randint(1, 3))]
        if kind < 0.8 and self.broken:
            return [self.rng.choice(self.broken) for _ in range(self.rng.randint(1, 3))]
        return [self.rng.randrange(self.size + 20) for _ in range(self.rng.randint(1, 4))]  # some are in no vocabulary

    def ids(self, pieces: int) -> list[int]:
        return [i for _ in range(pieces) for i in self.piece()]

    def cases(self, count: int) -> Iterator[tuple[list[int], list[int], bool]]:
        for _ in range(count):
            yield self.ids(self.rng.randint(1, 6)), self.ids(self.rng.randint(1, 5)), self.rng.random() < 0.5


def differing(live: Tokenizer, seed: int, count: int, tail: Tail) -> tuple[int, int]:
    """How many cases took a tail, and in how many of those its stream differs."""
    taken = wrong = 0
    for prompt, new, skip in Drawn(live, seed).cases(count):
        short = tail(live, prompt, skip)
        if short is None:
            continue
        taken += 1
        wrong += stream(live, short, new, skip) != stream(live, prompt, new, skip)
    return taken, wrong


def exact(live: Tokenizer, ids: Sequence[int], skip: bool) -> list[int] | None:
    return exact_tail(live, ids, skip_special_tokens=skip)


def ends_anywhere(live: Tokenizer, ids: Sequence[int], skip: bool) -> list[int] | None:
    """Without condition 1: a tail of fixed length, which may end within a character."""
    return list(ids[-4:])


@pytest.mark.parametrize("name", SYNTHETIC)
def test_streams_are_identical_on_small_vocabularies(name: str, synthetic: Callable[..., Subject]) -> None:
    live = synthetic(name, nasty=True).live
    taken, wrong = differing(live, 1, 4000, exact)
    assert wrong == 0
    assert taken > 2000, "the rule hardly ever applies: nothing was compared"


@pytest.mark.parametrize("name", REAL)
def test_streams_are_identical_on_real_vocabularies(
    name: str, real_tokenizer: Callable[[str], Subject], run_slow: bool
) -> None:
    live = real_tokenizer(name).live
    count = 100_000 if run_slow else 4000
    taken, wrong = differing(live, 2, count, exact)
    assert wrong == 0
    assert taken > count // 2, "the rule hardly ever applies: nothing was compared"


@pytest.mark.parametrize("name", SYNTHETIC)
def test_control_tails_that_end_within_a_character_stream_differently(
    name: str, synthetic: Callable[..., Subject]
) -> None:
    taken, wrong = differing(synthetic(name, nasty=True).live, 1, 4000, ends_anywhere)
    assert taken == 4000
    assert wrong > 200, "this battery would not notice a wrong tail"


def test_control_with_byte_fallback_a_tail_streams_differently() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"<0x41>": 0, "<0xE2>": 1, "x": 2}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    prompt, new = [1, 0], [0, 2]
    tail = exact_tail(tokenizer, prompt, skip_special_tokens=False)
    assert tail == [0], "the rule is met, and is not enough here"
    assert stream(tokenizer, tail, new, False) != stream(tokenizer, prompt, new, False)
    assert unproven(tokenizer) == "decoder Sequence"


def pieces(live: Tokenizer, text: str) -> list[int]:
    """The text as one token per byte, which every byte-level vocabulary has."""
    ids = [
        live.token_to_id(symbol)
        for symbol in ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]
    ]
    assert live.decode(ids) == text
    assert len(ids) == len(text.encode())
    return ids


def test_the_last_whole_character_is_enough(synthetic: Callable[..., Subject]) -> None:
    live = synthetic("qwen3").live
    line_break = live.token_to_id("Ċ")
    start = live.token_to_id("<|im_start|>")
    prompt = pieces(live, "words and 🙂")
    for skip in (False, True):
        assert exact(live, [*prompt, line_break], skip) == [line_break]
        assert exact(live, prompt, skip) == prompt[-4:], "the four bytes of one character"
        assert exact(live, [*prompt[-2:], line_break], skip) == [line_break], "whatever comes before it"
    assert exact(live, [*prompt, start, start], False) == [start]
    assert exact(live, [*prompt, start, start], True) == [*prompt[-4:], start, start], "skipped tokens have no text"


def test_a_prompt_without_a_usable_tail_is_left_to_the_whole_prompt(synthetic: Callable[..., Subject]) -> None:
    live = synthetic("qwen3").live
    start = live.token_to_id("<|im_start|>")
    text = pieces(live, "words")
    assert exact(live, [], False) is None
    assert exact(live, [start, start], True) is None, "no text at all"
    assert exact(live, [*text, *[start] * REACH], True) is None, "no text within reach"
    assert exact(live, [*text, *[start] * (REACH - 1)], True) == [text[-1], *[start] * (REACH - 1)]
    assert exact(live, [*text, live.get_vocab_size() + 5], False) == [text[-1], live.get_vocab_size() + 5]


def test_a_prompt_cut_within_a_character_keeps_the_streams_own_behaviour(synthetic: Callable[..., Subject]) -> None:
    live = synthetic("qwen3").live
    smile = pieces(live, "🙂")
    prompt = [*pieces(live, "before "), *smile[:2]]
    assert exact(live, prompt, False) is None
    # This is why: the stream returns the whole prompt as new text, and no tail could.
    assert stream(live, prompt, smile[2:], False) == [None, "before 🙂"]


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "deepseek_v3", "gpt2"])
def test_byte_level_decoders_are_proven(name: str, synthetic: Callable[..., Subject]) -> None:
    assert unproven(synthetic(name).live) is None


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.Metaspace(),
        decoders.WordPiece(),
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.ByteLevel()]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    ],
)
def test_other_decoders_are_not(decoder: object) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    if decoder is not None:
        tokenizer.decoder = decoder
    assert unproven(tokenizer) is not None
