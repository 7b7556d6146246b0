"""The embedded tokenizer is the same every time, loses nothing, and splits text about as a real one does."""

from __future__ import annotations

import unicodedata

from delta_core.tools.demo.embedded import embedded_tokenizer
from delta_core.tools.demo.session import generate
from delta_core.tools.demo.templates import render_turn


def test_the_same_every_time() -> None:
    assert embedded_tokenizer().to_str() == embedded_tokenizer().to_str()


def test_round_trip_and_density() -> None:
    tokenizer = embedded_tokenizer()
    *_, turn = generate(target_chars=60_000)
    text = render_turn("qwen3", turn)
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)
    assert 3 < len(text) / len(ids) < 4.5
    every_byte = "".join(map(chr, range(256))) + "\U00100000\u0800\U000c0000"
    assert tokenizer.decode(tokenizer.encode(every_byte).ids) == unicodedata.normalize("NFC", every_byte)


def test_markers_are_single_tokens_after_the_vocabulary() -> None:
    tokenizer = embedded_tokenizer()
    ids = tokenizer.encode("<|im_start|><think></think><|im_end|>").ids
    assert len(ids) == 4
    assert min(ids) >= tokenizer.get_vocab_size(with_added_tokens=False)
