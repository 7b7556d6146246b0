"""transformers objects: whatever wraps the tokenizer, the live backend decides."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
from conftest import Subject
from oracle import ids_of
from tokenizers import AddedToken, Tokenizer

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
    assert tok.encode(text, add_special_tokens=False) == live.encode(text, add_special_tokens=False)
    live.add_tokens(["<new_token>"])
    assert tok.encode(text, add_special_tokens=False) == live.encode(text, add_special_tokens=False)
    assert tok.stats().fallbacks == {"live_changed": 1}


@pytest.mark.parametrize("way", ["add_special_tokens", "add_tokens", "a list of flags", "a subclass"])
def test_a_token_flagged_anew_through_transformers_is_noticed_by_the_next_request(
    way: str, synthetic: Callable[..., Subject]
) -> None:
    base = transformers.PreTrainedTokenizerFast
    kind = type("Wrapped", (base,), {}) if way == "a subclass" else base
    live = kind(tokenizer_object=Tokenizer.from_str(synthetic("qwen3").live.to_str()))
    tok = DeltaTokenizer(live, config=synthetic("qwen3").frozen, encoder="reference")
    text = "some text <|im_end|> more text  <|im_end|>\n" * 20
    assert tok.encode(text, add_special_tokens=False) == live.encode(text, add_special_tokens=False)
    tok.encode(
        text, add_special_tokens=False
    )  # the table was read just now: what follows lies inside the window of a bare tokenizer
    tok._reference._watch_due = float("inf")  # type: ignore[union-attr]
    token = AddedToken("<|im_end|>", lstrip=True, special=True)
    if way in ("add_special_tokens", "a subclass"):
        live.add_special_tokens({"eos_token": token})
    else:
        live.add_tokens([token] if way == "a list of flags" else token, special_tokens=True)
    want = live.encode(text, add_special_tokens=False)
    assert want != ids_of(synthetic("qwen3").live, text)
    assert tok.encode(text, add_special_tokens=False) == want
    assert tok.stats().fallbacks == {"live_changed": 1}


def test_a_watched_tokenizer_is_copied_and_pickled_as_before(synthetic: Callable[..., Subject]) -> None:
    live = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(synthetic("qwen3").live.to_str()))
    tok = DeltaTokenizer(live, config=synthetic("qwen3").frozen, encoder="reference")
    for other in (copy.deepcopy(live), pickle.loads(pickle.dumps(live))):
        assert type(other) is type(live)
        assert other.add_tokens(["<new_token>"]) == 1
        assert other.encode("a <new_token> b") != live.encode("a <new_token> b")
    text = "some text " * 50
    assert tok.encode(text, add_special_tokens=False) == live.encode(text, add_special_tokens=False)
    assert not tok.stats().fallbacks, "another object was changed"


def test_a_truncating_call_of_the_engine_does_not_reach_other_requests(synthetic: Callable[..., Subject]) -> None:
    subject = synthetic("llama3_1")
    live = transformers.PreTrainedTokenizerFast(tokenizer_object=subject.live)
    tok = DeltaTokenizer(live, config=subject.frozen, encoder="reference")
    text = subject.maker(2).text(200)
    want = live.encode(text, add_special_tokens=False)
    assert len(live.encode(text, truncation=True, max_length=7)) == 7
    live.encode(text)  # the wrapper sets truncation back with its next call
    assert tok.encode(text, session="s", add_special_tokens=False) == want
