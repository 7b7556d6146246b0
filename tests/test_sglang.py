"""The parts of the SGLang adapter that can be tried without SGLang; `e2e/sglang.py` shows the rest on a real server."""

from __future__ import annotations

import argparse
import asyncio
import copy
import logging
import pickle
import subprocess
import sys
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Subject
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE

import delta_sglang
from delta_core import DeltaTokenizer
from delta_core.context import NO_KEY, Key
from delta_core.options import Options
from delta_sglang import hooks
from delta_sglang.adapter import Adapter, override_encode
from delta_sglang.install import TARGETS, Target
from delta_sglang.keys import key_of

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _hooks_may_act(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an installation."""
    monkeypatch.setattr(hooks, "complete", True)


# -- registration --


def test_importing_the_plugin_imports_neither_engine_nor_core() -> None:
    code = (
        "import sys, delta_sglang; "
        "assert not {'delta_core', 'tokenizers', 'sglang'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_backend_is_offered_beside_the_others() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer-backend", choices=["huggingface", "fastokens"], default="huggingface")
    parser.add_argument("--tokenizer-mode", choices=["auto", "slow"])
    for _ in range(2):
        delta_sglang._add_choice(None, parser)
    assert parser.parse_args(["--tokenizer-backend", "delta"]).tokenizer_backend == "delta"
    assert parser._actions[1].choices == ["huggingface", "fastokens", "delta"]
    assert parser._actions[2].choices == ["auto", "slow"]


# -- keys --


def request(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**fields)


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"session_id": "a", "cache_salt": "b", "extra_key": "c", "rid": "d/1"}, "session_id:a"),
        ({"cache_salt": "b", "extra_key": "c", "rid": "d/1"}, "cache_salt:b"),
        ({"extra_key": "c", "rid": "d/1"}, "extra_key:c"),
        ({"rid": "d/1/2"}, "rid:d"),
        ({"rid": "d"}, None),
        ({"rid": "/d"}, None),
        ({"rid": ["d/1", "d/2"]}, None),
        ({"session_id": "", "cache_salt": None}, None),
        ({}, None),
    ],
)
def test_the_first_field_that_is_there_is_the_session(fields: dict[str, Any], session: str | None) -> None:
    assert key_of(request(**fields), "/").session == session


def test_request_ids_are_no_keys_without_a_separator() -> None:
    assert key_of(request(rid="d/1")) == NO_KEY
    assert key_of(request(rid="d/1"), "") == NO_KEY


def test_a_continuation_on_the_servers_side_has_no_session_but_its_namespace() -> None:
    key = key_of(request(session_params={"id": "s"}, session_id="a", cache_salt="b"))
    assert key == Key(None, key_of(request(cache_salt="b")).namespace)
    assert key.namespace is not None


@given(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))
def test_namespaces_are_equal_only_for_equal_salts_and_keys(a: str, b: str, c: str, d: str) -> None:
    one = key_of(request(cache_salt=a, extra_key=b)).namespace
    two = key_of(request(cache_salt=c, extra_key=d)).namespace
    assert (one == two) == ((a, b) == (c, d))


class Plain(str):
    """A salt as an offline caller may have it: a string all the same."""


# No two of them are the same salt, though some are equal, look alike, or are the text of another.
ODD = [
    5, 1, True, 1.0, 0, False, b"", b"a", [], ["a", "b"], ["b", "a"], ("a", "b"), ("a",), [5], [["a"]], [None],
    {"a": 1}, {}, object(), object(), 10**5000, [10**5000], "5", "a", "b'a'", "['a', 'b']", "intint5", "int5",
]  # fmt: skip


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
def test_a_salt_that_is_no_string_shares_with_no_other(field: str) -> None:
    keys = [key_of(request(**{field: salt})) for salt in ODD]
    namespaces = [key.namespace for key in keys]
    assert all(namespaces)
    assert len(set(namespaces)) == len(ODD)
    assert len({key.session for key in keys}) == len(ODD)
    for salt in (5, ["a", "b"], ("a", "b"), b"a"):
        assert key_of(request(**{field: salt})) == keys[ODD.index(salt)]
    for salt in ({"a": 1}, 10**5000):  # not told apart by what they look like: each time another
        assert key_of(request(**{field: salt})).namespace not in namespaces


def test_salts_that_are_no_strings_stay_apart_by_their_fields() -> None:
    salts = (5, ["a", "b"], "a", None)
    namespaces = [key_of(request(cache_salt=a, extra_key=b)).namespace for a in salts for b in salts]
    assert len(set(namespaces)) == len(namespaces)


def test_a_list_of_one_salt_is_the_salt_of_the_one_prompt() -> None:
    """As SGLang has it where a chat is asked for several answers."""
    assert key_of(request(cache_salt=["a"], extra_key=["b"])) == key_of(request(cache_salt="a", extra_key="b"))
    assert key_of(request(cache_salt=[""], extra_key=None)) == NO_KEY
    assert key_of(request(cache_salt=Plain("a"))) == key_of(request(cache_salt="a"))


# -- the live tokenizer's encode --


@pytest.fixture
def adapter(synthetic: Callable[..., Subject]) -> Adapter:
    return adapter_for(synthetic("llama3_1"))


def adapter_for(subject: Subject) -> Adapter:
    live = transformers.PreTrainedTokenizerFast(tokenizer_object=subject.live)
    delta = DeltaTokenizer(live, config=subject.frozen, encoder="reference")
    assert delta.admission.admitted
    adapter = Adapter(live, delta, Options())
    override_encode(adapter)
    return adapter


def stock(adapter: Adapter) -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=adapter.live._tokenizer)


TEXT = "A sentence with numbers 12345 and more. " * 200


@pytest.mark.parametrize("text", ["", "short", TEXT, TEXT + "e\u0301"])
@pytest.mark.parametrize("kwargs", [{}, {"add_special_tokens": False}, {"add_special_tokens": True}])
def test_encode_is_the_stock_one_wherever_it_is_called(adapter: Adapter, text: str, kwargs: dict[str, Any]) -> None:
    want = stock(adapter).encode(text, **kwargs)
    assert adapter.live.encode(text, **kwargs) == want
    with adapter.rendering(request(session_id="s")):
        assert adapter.live.encode(text, **kwargs) == want
        assert adapter.live.encode(text, None, **kwargs) == want


def test_only_prompts_that_are_rendered_are_ours(adapter: Adapter) -> None:
    adapter.live.encode(TEXT)
    adapter.live(TEXT)
    assert adapter.delta.stats().requests == 0
    with adapter.rendering(request(session_id="s")):
        adapter.live.encode(TEXT)
    assert adapter.delta.stats().requests > 0


@pytest.mark.parametrize("salt", [["a", "b"], ["a"], 5, b"a", {"a": 1}, 0])
def test_a_chat_whose_salt_is_no_string_shares_nothing_with_those_without(adapter: Adapter, salt: Any) -> None:
    """SGLang encodes a chat before it looks at the salt, which it may refuse then."""

    def cold() -> int:
        return adapter.delta.stats().by_path.get("cold", 0)

    with adapter.rendering(request(cache_salt=salt)):
        adapter.live.encode(TEXT)
    with adapter.rendering(request()):
        adapter.live.encode(TEXT)
    assert cold() == 2, "the common namespace held what was sent under a salt"
    with adapter.rendering(request(extra_key=salt)):
        adapter.live.encode(TEXT)
    assert cold() == 3
    assert adapter.delta.stats().fallbacks == {}


def test_a_fault_of_ours_leads_to_the_stock_encode_and_is_counted(
    adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: Any, **__: Any) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr(adapter.delta, "encode", raises)
    with adapter.rendering(request()):
        assert adapter.live.encode(TEXT) == stock(adapter).encode(TEXT)
    assert adapter.delta.stats().fallbacks == {"adapter_failed": 1}


def raised_by(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is compared
        return error
    pytest.fail("nothing was raised")


def test_bad_text_gets_the_stock_error_and_is_no_fault_of_ours(adapter: Adapter) -> None:
    want = raised_by(lambda: stock(adapter).encode("a \ud800"))
    with adapter.rendering(request()):
        got = raised_by(lambda: adapter.live.encode("a \ud800"))
    assert (type(got), str(got)) == (type(want), str(want))
    assert "adapter_failed" not in adapter.delta.stats().fallbacks


def test_copies_and_pickles_of_the_tokenizer_are_stock(adapter: Adapter) -> None:
    assert type(adapter.live) is not transformers.PreTrainedTokenizerFast
    assert type(adapter.live).__name__ == transformers.PreTrainedTokenizerFast.__name__
    for other in (copy.deepcopy(adapter.live), pickle.loads(pickle.dumps(adapter.live))):
        assert type(other) is transformers.PreTrainedTokenizerFast
        assert other.encode(TEXT) == stock(adapter).encode(TEXT)


# -- the hooks around the tokenizer manager --


def manager_of(adapter: Adapter) -> SimpleNamespace:
    return SimpleNamespace(tokenizer=adapter.live, _delta_adapter=adapter)


async def original_texts(manager: Any, texts: Any, is_cross_encoder: bool = False) -> Any:
    return "the stock path", is_cross_encoder


def tokenize(manager: Any, texts: Any, **kwargs: Any) -> Any:
    return asyncio.run(hooks.tokenize_texts(original_texts, manager, texts, **kwargs))


def test_texts_become_ids_with_special_tokens(adapter: Adapter) -> None:
    ids, types = tokenize(manager_of(adapter), TEXT)
    assert ids == array("q", stock(adapter)([TEXT])["input_ids"][0])
    assert types is None
    del ids[5:]  # as auto-truncation does
    assert len(tokenize(manager_of(adapter), TEXT)[0]) > 5


def test_pairs_unknown_batches_and_other_tokenizers_take_the_stock_path(adapter: Adapter) -> None:
    manager = manager_of(adapter)
    assert tokenize(manager, TEXT, is_cross_encoder=True) == ("the stock path", True)
    assert tokenize(manager, [TEXT]) == ("the stock path", False)
    assert tokenize(manager, None) == ("the stock path", False)
    manager.tokenizer = stock(adapter)  # replaced after start
    assert tokenize(manager, TEXT) == ("the stock path", False)
    assert tokenize(SimpleNamespace(tokenizer=adapter.live), TEXT) == ("the stock path", False)


def refused() -> Adapter:
    """An adapter as it is over a tokenizer that no config fits."""
    live = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    )
    manager = SimpleNamespace(
        server_args=SimpleNamespace(tokenizer_backend="delta"), tokenizer=live, mm_processor=None,
        model_config=SimpleNamespace(is_embedding_gemma=False),
    )  # fmt: skip
    hooks.start(None, manager)
    adapter = manager._delta_adapter
    assert not adapter.delta.admission.admitted
    assert type(live) is transformers.PreTrainedTokenizerFast, "stock was changed"
    assert "encode" not in vars(live), "stock was changed"
    return adapter  # type: ignore[no-any-return]


def process(adapter: Adapter, asked: Any, prompt_ids: Any) -> Any:
    def original(_serving: Any, _request: Any, **kwargs: Any) -> Any:
        return SimpleNamespace(prompt_ids=prompt_ids, **kwargs)

    serving = SimpleNamespace(tokenizer_manager=manager_of(adapter))
    return hooks.process_messages(original, serving, asked, output_constrained=True)


def test_what_stock_serves_of_a_refused_tokenizer_is_counted_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    adapter = refused()
    reason = str(adapter.delta.admission.reason)
    assert tokenize(manager_of(adapter), TEXT) == ("the stock path", False)
    assert tokenize(manager_of(adapter), [TEXT, TEXT]) == ("the stock path", False)
    assert process(adapter, request(input_ids=None), [1, 2]) == SimpleNamespace(
        prompt_ids=[1, 2], output_constrained=True
    )
    assert process(adapter, request(), [1, 2]).prompt_ids == [1, 2]
    stats = adapter.delta.stats()
    assert stats.by_path == {"stock": 5}
    assert stats.fallbacks == {reason: 5}
    # IDs that the client sent, and text that comes by `_tokenize_texts` afterwards
    process(adapter, request(input_ids=[1, 2]), [1, 2])
    process(adapter, request(), "text")
    assert adapter.delta.stats().requests == 5
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("Delta Tokenizer: not admitted, stock path: ")


def test_a_chat_that_stock_refuses_is_no_request_that_it_served() -> None:
    adapter = refused()

    def original(_serving: Any, _request: Any) -> Any:
        raise ValueError("no template")

    with pytest.raises(ValueError, match="no template"):
        hooks.process_messages(original, SimpleNamespace(tokenizer_manager=manager_of(adapter)), request())
    assert adapter.delta.stats().requests == 0


def test_each_thing_that_is_left_to_stock_has_its_reason_and_its_line(
    adapter: Adapter, caplog: pytest.LogCaptureFixture
) -> None:
    manager = manager_of(adapter)
    for _ in range(2):
        tokenize(manager, [[TEXT, TEXT], [TEXT, TEXT]], is_cross_encoder=True)
        tokenize(manager, [TEXT])
        tokenize(manager, 5)
    manager.tokenizer = stock(adapter)
    tokenize(manager, TEXT)
    hooks.process_messages(
        lambda _serving, _request: SimpleNamespace(prompt_ids=[1]),
        SimpleNamespace(tokenizer_manager=manager),
        request(),
    )
    reasons = {"not_text_model": 4, "salt_unknown": 2, "not_text": 2, "live_changed": 2}
    assert adapter.delta.stats().fallbacks == reasons
    assert adapter.delta.stats().by_path == {"stock": 10}
    assert [record.message for record in caplog.records] == [f"stock path: {reason}" for reason in reasons]


def test_a_batch_has_the_keys_of_its_requests(adapter: Adapter) -> None:
    texts = [TEXT, TEXT + "more", TEXT + "and"]
    batch = [request(cache_salt=salt) for salt in ("a", "b", "a")]
    manager = manager_of(adapter)

    async def original(manager: Any, size: int, obj: Any) -> Any:
        return await hooks.tokenize_texts(original_texts, manager, texts)

    ids, _ = asyncio.run(hooks.batch_tokenize_and_process(original, manager, 3, batch))
    assert [list(one) for one in ids] == stock(adapter)(texts)["input_ids"]
    paths = adapter.delta.stats().by_path
    assert paths["cold"] == 2  # "b" takes nothing from "a"
    assert paths["append"] + paths.get("splice", 0) == 1


def test_a_request_whose_key_fails_shares_nothing(
    adapter: Adapter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokenize(manager_of(adapter), TEXT)

    def raises(*_: Any) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr("delta_sglang.adapter.key_of", raises)

    async def original(manager: Any, obj: Any) -> Any:
        return await hooks.tokenize_texts(original_texts, manager, TEXT)

    ids, _ = asyncio.run(hooks.tokenize_one_request(original, manager_of(adapter), request(cache_salt="a")))
    assert ids.tolist() == stock(adapter).encode(TEXT)
    assert adapter.delta.stats().by_path == {"cold": 2}
    assert adapter.delta.stats().fallbacks == {"key_failed": 1}
    (line,) = [record.message for record in caplog.records]
    assert "key_failed (KeyError at test_sglang.py:" in line
    assert "stock path" not in line


def test_the_key_of_a_request_made_of_another_is_kept(adapter: Adapter) -> None:
    serving = SimpleNamespace(tokenizer_manager=manager_of(adapter))

    def process(_serving: Any, _request: Any) -> Any:
        return adapter.live.encode(TEXT)

    async def make(serving: Any, _request: Any) -> Any:
        return hooks.process_messages(process, serving, request())  # the fields are gone

    for salt, cold in (("a", 1), ("b", 2), ("b", 2)):
        asyncio.run(hooks.make_request(make, serving, request(cache_salt=salt)))
        assert adapter.delta.stats().by_path["cold"] == cold


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tokenizer": None}, "--skip-tokenizer-init"),
        ({"mm_processor": object()}, "multimodal"),
        ({"model_config": SimpleNamespace(is_embedding_gemma=True)}, "appends a token"),
    ],
)
def test_what_is_no_plain_text_model_stays_stock_and_is_said_once(
    fields: dict[str, Any], said: str, adapter: Adapter, caplog: pytest.LogCaptureFixture
) -> None:
    args = SimpleNamespace(tokenizer_backend="delta")
    config = SimpleNamespace(is_embedding_gemma=False)
    manager = SimpleNamespace(
        **{"server_args": args, "tokenizer": stock(adapter), "mm_processor": None, "model_config": config} | fields
    )
    hooks.start(None, manager)
    assert hooks.adapter_of(manager) is None
    assert [said in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(("level", "said_as"), [(logging.INFO, logging.INFO), (logging.WARNING, logging.WARNING)])
def test_what_was_decided_is_said_where_it_is_shown(
    level: int, said_as: int, adapter: Adapter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of 0.5.23 has a handler, and shows warnings only."""
    monkeypatch.setattr(Options, "tokenizer", lambda self, live: adapter.delta)
    caplog.set_level(level)  # of the root logger, as in a worker
    manager = SimpleNamespace(
        server_args=SimpleNamespace(tokenizer_backend="delta"), tokenizer=stock(adapter), mm_processor=None,
        model_config=SimpleNamespace(is_embedding_gemma=False),
    )  # fmt: skip
    hooks.start(None, manager)
    said = [record for record in caplog.records if record.message.startswith("Delta Tokenizer: config ")]
    assert [record.levelno for record in said] == [said_as]


def test_a_server_with_another_backend_is_left_alone(adapter: Adapter, caplog: pytest.LogCaptureFixture) -> None:
    manager = SimpleNamespace(server_args=SimpleNamespace(tokenizer_backend="huggingface"), tokenizer=stock(adapter))
    kind = type(manager.tokenizer)
    hooks.start(None, manager)
    assert hooks.adapter_of(manager) is None
    assert type(manager.tokenizer) is kind
    assert not caplog.records


# -- targets --


def test_a_target_that_is_not_as_expected_is_named() -> None:
    here = f"{__name__}.Example"
    fits = Target(f"{here}.method", hooks.process_messages, "around", ("obj", "input_text"))
    assert fits.fault() is None
    assert Target(f"{here}.gone", hooks.start, "after", ()).fault() is not None
    assert Target("no_such_module.Class.method", hooks.start, "after", ()).fault() is not None
    assert Target(f"{here}.method", hooks.start, "after", ("texts",)).fault() is not None
    assert Target(f"{here}.method", hooks.tokenize_texts, "around", ("obj",)).fault() is not None


class Example:
    def method(self, obj: Any, input_text: Any, *rest: Any) -> None:
        """What a hook would be put around."""


def test_each_target_is_hooked_once() -> None:
    assert len({target.path for target in TARGETS}) == len(TARGETS) == 6
