"""transformers objects: whatever wraps the tokenizer, the live backend decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Subject

from delta_core import DeltaTokenizer

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "deepseek_v3"])
def test_a_fast_tokenizer_is_admitted_by_its_backend(name: str, synthetic: Callable[..., Subject]) -> None:
    subject = synthetic(name)
    live = transformers.PreTrainedTokenizerFast(tokenizer_object=subject.live)
    tok = DeltaTokenizer(live, config=subject.frozen, encoder="reference")
    assert tok.admission.admitted, tok.admission
    for text in subject.maker(9).session(5, 150):
        for add in (False, True):
            got = tok.encode(text, session="s", add_special_tokens=add)
            assert got == live.encode(text, add_special_tokens=add)
    assert not tok.stats().fallbacks


def test_tokens_added_through_transformers_are_noticed(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("qwen3")
    live = transformers.PreTrainedTokenizerFast(tokenizer_object=subject.live)
    tok = DeltaTokenizer(live, config=subject.frozen, encoder="reference")
    text = "some text <new_token> more text " * 20
    assert tok.encode(text) == live.encode(text, add_special_tokens=False)
    live.add_tokens(["<new_token>"])
    assert tok.encode(text) == live.encode(text, add_special_tokens=False)
    assert tok.stats().fallbacks == {"live_changed": 1}


def test_a_truncating_call_of_the_engine_does_not_reach_other_requests(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("llama3_1")
    live = transformers.PreTrainedTokenizerFast(tokenizer_object=subject.live)
    tok = DeltaTokenizer(live, config=subject.frozen, encoder="reference")
    text = subject.maker(2).text(200)
    want = live.encode(text, add_special_tokens=False)
    assert len(live.encode(text, truncation=True, max_length=7)) == 7
    live.encode(text)  # the wrapper sets truncation back with its next call
    assert tok.encode(text, session="s") == want
