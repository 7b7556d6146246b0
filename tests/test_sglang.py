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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Subject
from hypothesis import given
from hypothesis import strategies as st
from later import Job, do, of_refused_structure, of_unknown_pattern, waiting_jobs
from tokenizers import Tokenizer, decoders

import delta_sglang
from delta_core import DeltaTokenizer
from delta_core.context import NO_KEY, Key
from delta_core.options import Options
from delta_core.tools.verify.generators import prose
from delta_sglang import hooks, live
from delta_sglang.adapter import Adapter
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
    return Adapter(live, delta, Options())


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
    """An adapter as it is over a tokenizer of a structure that is not covered."""
    live = transformers.PreTrainedTokenizerFast(tokenizer_object=of_refused_structure())
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


# -- admitted while it serves --


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Job]:
    """What would have been started in the background."""
    return waiting_jobs(monkeypatch, tmp_path)


def started(tokenizer: Tokenizer, processor: Any = None, **options: Any) -> Any:
    """A tokenizer manager whose tokenizer has just been made."""
    own = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)
    manager = SimpleNamespace(
        server_args=SimpleNamespace(tokenizer_backend="delta"), tokenizer=own, mm_processor=processor,
        model_config=SimpleNamespace(is_embedding_gemma=False),
    )  # fmt: skip
    hooks.start(None, manager)
    return manager


def chat_of(manager: Any, text: str) -> Any:
    def original(_serving: Any, _request: Any) -> Any:
        return SimpleNamespace(prompt_ids=manager.tokenizer.encode(text))

    return hooks.process_messages(original, SimpleNamespace(tokenizer_manager=manager), request()).prompt_ids


def test_a_tokenizer_that_is_admitted_later_serves_from_then_on(
    jobs: list[Job], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTA_ENCODER", "reference")
    manager = started(of_unknown_pattern())
    adapter = manager._delta_adapter
    kind, want = type(manager.tokenizer), manager.tokenizer.encode(TEXT)
    assert kind is transformers.PreTrainedTokenizerFast
    assert tokenize(manager, TEXT) == ("the stock path", False)
    assert chat_of(manager, TEXT) == want
    assert adapter.delta.stats().fallbacks == {"unknown_pre_tokenizer": 2}
    do(jobs[0])
    assert adapter.delta.admission.admitted
    assert type(manager.tokenizer) is not kind
    assert tokenize(manager, TEXT)[0].tolist() == want
    assert chat_of(manager, TEXT) == want
    assert chat_of(manager, TEXT + "more") == manager.tokenizer.encode(TEXT + "more")
    assert adapter.delta.stats().by_path == {"stock": 2, "cold": 2, "append": 1}
    assert adapter.delta.stats().fallbacks == {"unknown_pre_tokenizer": 2}
    said = [record.message for record in caplog.records]
    assert len(said) == 2
    assert "no table of safe transitions is known for it yet" in said[0]
    assert said[1] == f"Delta Tokenizer: {adapter.delta.describe()}"


def test_a_tokenizer_that_cannot_be_taken_over_later_stays_stock(
    jobs: list[Job], caplog: pytest.LogCaptureFixture
) -> None:
    manager = started(of_unknown_pattern())
    manager.tokenizer.split_special_tokens = True
    caplog.clear()
    do(jobs[0])
    adapter = manager._delta_adapter
    assert adapter.delta.admission.reason == "adapter_failed"
    assert type(manager.tokenizer) is transformers.PreTrainedTokenizerFast
    for _ in range(2):
        assert tokenize(manager, TEXT) == ("the stock path", False)
    assert adapter.delta.stats().fallbacks == {"adapter_failed": 2}
    (line,) = [record.message for record in caplog.records]
    assert "not admitted, stock path: adapter" in line
    assert "split_special_tokens" in line


def test_what_sglang_remembers_of_its_own_way_to_encode_is_forgotten(
    adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SimpleNamespace(_plans={adapter.live: "a plan"}, _segment_encoders={adapter.live: None, "other": 1})
    monkeypatch.setitem(sys.modules, "sglang.srt.entrypoints.openai.parallel_prompt_encode", module)  # type: ignore
    with adapter.rendering(request()):
        assert module._plans == {}
        assert module._segment_encoders == {adapter.live: None, "other": 1}


# -- models with a processor for images --

IMAGE = "<|image|>"


@pytest.fixture
def multimodal(monkeypatch: pytest.MonkeyPatch, synthetic: Callable[..., Subject]) -> Any:
    """A manager of a model that takes images."""
    monkeypatch.setenv("DELTA_ENCODER", "reference")
    copy_ = Tokenizer.from_str(synthetic("llama3_1").live.to_str())
    copy_.decoder = decoders.ByteLevel()
    copy_.add_special_tokens([IMAGE, "\u00e9<|\uff5c|>"])
    return started(copy_, object(), pad_token=IMAGE)


class Mixed:
    """A request with images or without."""

    def __init__(self, text: str, *images: str, **fields: Any) -> None:
        self.text, self.images = text, images
        self.__dict__ |= fields

    def contains_mm_input(self) -> bool:
        return bool(self.images)


def one_request(manager: Any, obj: Mixed, process: Callable[[Any, str], Any]) -> Any:
    """What SGLang's `_tokenize_one_request` does: the text as it is, then the processor for one with images."""

    async def original(manager: Any, obj: Mixed) -> Any:
        ids, _ = await hooks.tokenize_texts(original_texts, manager, obj.text)
        return process(manager.tokenizer, obj.text.replace(IMAGE, IMAGE * 5)) if obj.images else ids

    return asyncio.run(hooks.tokenize_one_request(original, manager, obj))


def own(manager: Any) -> Any:
    """The stock tokenizer of a manager, on its own."""
    return copy.deepcopy(manager.tokenizer)


@pytest.mark.parametrize("tensors", [None, "np"])
@pytest.mark.parametrize("text", [TEXT + IMAGE, IMAGE, prose(3, 900) + IMAGE + "e\u0301\u65e5\n" + IMAGE])
def test_a_processor_gets_what_the_tokenizers_call_returns(multimodal: Any, text: str, tensors: str | None) -> None:
    live = own(multimodal)
    for kwargs in (
        {}, {"padding": True}, {"padding": "longest", "add_special_tokens": False}, {"return_attention_mask": False},
        {"return_token_type_ids": True}, {"truncation": False, "max_length": None, "verbose": False},
    ):  # fmt: skip
        for batched in (False, True):

            def process(tokenizer: Any, text: str) -> Any:
                return tokenizer([text] if batched else text, return_tensors=tensors, **kwargs)  # noqa: B023

            got, want = (
                one_request(multimodal, Mixed(text, "image"), process),
                process(live, text.replace(IMAGE, IMAGE * 5)),
            )
            assert list(got) == list(want)
            assert type(got) is type(want)
            for name in want:
                assert type(got[name]) is type(want[name])
                assert getattr(got[name], "dtype", None) == getattr(want[name], "dtype", None)
                assert repr(got[name]) == repr(want[name])
                if tensors:
                    assert (got[name] == want[name]).all()
            assert got.is_fast is want.is_fast
            assert got.n_sequences == want.n_sequences
            assert got.word_ids(0) == want.word_ids(0)
            assert len(pickle.loads(pickle.dumps(got)).encodings) == 1
    stats = multimodal._delta_adapter.delta.stats()
    assert stats.fallbacks == {}
    assert stats.requests == 24


def test_requests_of_text_alone_and_with_images_are_ours(multimodal: Any) -> None:
    live, text = own(multimodal), prose(5, 1200)
    for n, turn in enumerate((text, text + "more", text + IMAGE, text + IMAGE + "and", text + "more and")):
        images = ("image",) * (IMAGE in turn)
        got = one_request(multimodal, Mixed(turn, *images), lambda tokenizer, text: tokenizer.encode(text))
        assert list(got) == live.encode(turn.replace(IMAGE, IMAGE * 5)), n
    stats = multimodal._delta_adapter.delta.stats()
    assert stats.fallbacks == {}
    assert stats.by_path["cold"] == 2, "as an array and as a list"


@pytest.mark.parametrize(
    "process",
    [
        lambda tokenizer, text: tokenizer([text, text]),
        lambda tokenizer, text: tokenizer(text, text),
        lambda tokenizer, text: tokenizer(text, return_offsets_mapping=True),
        lambda tokenizer, text: tokenizer(text, padding="max_length", max_length=2000),
        lambda tokenizer, text: tokenizer(text, truncation=True, max_length=20),
        lambda tokenizer, text: tokenizer(text, padding=True, pad_to_multiple_of=64),
        lambda tokenizer, text: tokenizer([[text]], is_split_into_words=True),
        lambda tokenizer, text: tokenizer(text, return_special_tokens_mask=True),
        lambda tokenizer, text: copy.deepcopy(tokenizer)(text),
        lambda tokenizer, text: {"input_ids": [1, 2]},
    ],
)
def test_what_a_processor_asks_for_beyond_one_texts_ids_is_stock_and_counted(
    process: Callable[[Any, str], Any], multimodal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    live = own(multimodal)
    for _ in range(2):
        got = one_request(multimodal, Mixed(TEXT + IMAGE, "image"), process)
        assert dict(got) == dict(process(live, TEXT + IMAGE * 5))
        backend = multimodal.tokenizer._tokenizer
        assert (backend.padding, backend.truncation) == (None, None), "it would look like another tokenizer"
    stats = multimodal._delta_adapter.delta.stats()
    assert stats.fallbacks == {"multimodal": 2}
    assert stats.by_path["stock"] == 2
    assert [record.message for record in caplog.records] == ["stock path: multimodal"]


def test_a_processors_errors_are_the_stock_ones(multimodal: Any) -> None:
    live = own(multimodal)
    live.pad_token = multimodal.tokenizer.pad_token = None
    for process in (
        lambda tokenizer, text: tokenizer(text, padding=True),
        lambda tokenizer, text: tokenizer(text + "\ud800"),
        lambda tokenizer, text: tokenizer(5),
        lambda tokenizer, text: tokenizer(),
    ):
        want = raised_by(lambda: process(live, TEXT))  # noqa: B023
        got = raised_by(lambda: one_request(multimodal, Mixed(TEXT, "image"), process))  # noqa: B023
        assert (type(got), str(got)) == (type(want), str(want))


def test_a_fault_of_ours_leads_to_the_processors_stock_call(multimodal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    live, delta = own(multimodal), multimodal._delta_adapter.delta

    def raises(*_: Any, **__: Any) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr(delta, "encode", raises)
    got = one_request(multimodal, Mixed(TEXT + IMAGE, "image"), lambda tokenizer, text: tokenizer(text))
    assert dict(got) == dict(live(TEXT + IMAGE * 5))
    assert delta.stats().fallbacks == {"adapter_failed": 1, "multimodal": 1}


def test_outside_of_a_prompt_the_tokenizers_methods_are_stock(multimodal: Any) -> None:
    requests = multimodal._delta_adapter.delta.stats().requests
    ids = multimodal.tokenizer(TEXT)["input_ids"]
    assert multimodal.tokenizer.decode(ids) == own(multimodal).decode(ids)
    assert multimodal._delta_adapter.delta.stats().requests == requests


class Executor:
    """SGLang's, as far as the adapter looks at it: worker threads, each with a processor of its own."""

    def __init__(self, tokenizer: Any) -> None:
        self._of, self._threads = tokenizer, ThreadPoolExecutor(2)
        self.clones: list[Any] = []

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def work() -> Any:
            if not self.clones:
                self.clones.append(SimpleNamespace(tokenizer=copy.deepcopy(self._of)))
            return function(*args, processor=self.clones[0], **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def in_threads(manager: Any, obj: Mixed, process: Callable[[Any, str], Any]) -> Any:
    """As `one_request`, where the processor works in threads."""

    def work(text: str, processor: Any) -> Any:
        return process(processor.tokenizer, text)

    async def original(manager: Any, obj: Mixed) -> Any:
        return await manager.mm_processor.mm_processor_executor.run(work, obj.text.replace(IMAGE, IMAGE * 5))

    return asyncio.run(hooks.tokenize_one_request(original, manager, obj))


@pytest.fixture
def threaded(multimodal: Any) -> Any:
    multimodal.mm_processor = SimpleNamespace(mm_processor_executor=Executor(multimodal.tokenizer))
    multimodal._delta_adapter.attend(multimodal.mm_processor)
    return multimodal


def test_what_a_processor_does_in_threads_of_its_own_is_ours(threaded: Any) -> None:
    live, text = own(threaded), prose(6, 1500)
    for turn, salt in ((text, "a"), (text + IMAGE, "a"), (text + IMAGE + "and", "b")):
        obj = Mixed(turn, "image", cache_salt=salt)
        got = in_threads(threaded, obj, lambda tokenizer, text: tokenizer([text], padding=True))
        want = live([turn.replace(IMAGE, IMAGE * 5)], padding=True)
        assert got["input_ids"] == want["input_ids"]
        assert got.word_ids(0) == want.word_ids(0)
    stats = threaded._delta_adapter.delta.stats()
    assert stats.fallbacks == {}
    assert stats.by_path == {"cold": 2, "append": 1}, "the salt has come along"
    (clone,) = threaded.mm_processor.mm_processor_executor.clones
    assert clone.tokenizer is not threaded.tokenizer
    assert clone.tokenizer._tokenizer.padding is None
    outside = asyncio.run(
        threaded.mm_processor.mm_processor_executor.run(lambda processor: processor.tokenizer(TEXT)["input_ids"])
    )
    assert outside == live(TEXT)["input_ids"]
    assert threaded._delta_adapter.delta.stats().requests == 3, "nobody's prompt"


@pytest.mark.parametrize("which", ["live", "clone", "before"])
def test_a_clone_that_is_not_the_admitted_tokenizer_any_more_is_stock(which: str, threaded: Any) -> None:
    executor = threaded.mm_processor.mm_processor_executor
    process = lambda tokenizer, text: tokenizer(text)["input_ids"]  # noqa: E731 - twice
    if which == "before":
        other = own(threaded)
        other.add_tokens(["sentence with"])
        executor.clones.append(SimpleNamespace(tokenizer=other))
    else:
        in_threads(threaded, Mixed(TEXT, "image"), process)
        assert threaded._delta_adapter.delta.stats().fallbacks == {}
        (threaded if which == "live" else executor.clones[0]).tokenizer.add_tokens(["sentence with"])
    want = copy.deepcopy(executor.clones[0].tokenizer)(TEXT)["input_ids"]
    assert in_threads(threaded, Mixed(TEXT, "image"), process) == want
    assert threaded._delta_adapter.delta.stats().fallbacks == {"multimodal": 1}


def test_an_executor_that_is_not_as_expected_is_left_alone(multimodal: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Other:
        def run(self, function: Any) -> Any:
            return function()

    for executor in (Other(), SimpleNamespace()):
        caplog.clear()
        multimodal._delta_adapter.attend(SimpleNamespace(mm_processor_executor=executor))
        assert "run" not in vars(executor)
        (line,) = [record.message for record in caplog.records]
        assert line.startswith("the processor's threads ask their own tokenizers: ")


# -- decoding --


@pytest.mark.parametrize(
    "text",
    [
        "short",
        TEXT,
        prose(7, 900),
        "e\u0301 \u65e5\u672c \U0001f642\U00013000",
        f"a{IMAGE} b \u00e9<|\uff5c|> c",
        "\x00\x7f\u2028",
    ],
)
def test_the_ids_of_a_prompt_are_decoded_as_the_tokenizer_does(
    multimodal: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, live = multimodal._delta_adapter, own(multimodal)
    with adapter.rendering(request()):
        ids, want = multimodal.tokenizer.encode(text), live.decode(live.encode(text))
        assert adapter.decoded(ids) == want
        with monkeypatch.context() as patch:
            patch.setattr(adapter.stock, "decode", None)
            assert multimodal.tokenizer.decode(ids) == want
        for other in (list(ids), ids[1:]):
            assert multimodal.tokenizer.decode(other) == live.decode(other)
        assert multimodal.tokenizer.decode(ids, skip_special_tokens=True) == live.decode(ids, skip_special_tokens=True)


def test_what_has_no_bytes_of_its_own_is_left_to_the_library(multimodal: Any) -> None:
    adapter = multimodal._delta_adapter
    size = len(multimodal.tokenizer)
    broken = multimodal.tokenizer._tokenizer.token_to_id("\u00e4")  # one byte of a character
    for ids in ([], [size + 5], [10**12], [broken]):
        assert adapter.decoded(ids) is None, ids
    assert adapter.decoded([multimodal.tokenizer._tokenizer.token_to_id("a")]) == "a"
    multimodal.tokenizer._tokenizer.decoder = decoders.Fuse()
    assert adapter.decoded([5, 6]) is None


def test_a_decode_that_does_more_than_its_decoder_is_not_ours(synthetic: Callable[..., Subject]) -> None:
    own = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(synthetic("llama3_1").live.to_str()))
    own._tokenizer.decoder = decoders.ByteLevel()
    assert live.Bytes(own, own.decode).text([64, 65, 66])
    with pytest.raises(ValueError, match="more than its decoder"):
        live.Bytes(own, lambda ids: own.decode(ids).strip() + ".")
    own._tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="decoder WordPiece"):
        live.Bytes(own, own.decode)


def test_a_multimodal_model_that_is_admitted_later_leaves_no_padding_meanwhile(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTA_ENCODER", "reference")
    manager = started(of_unknown_pattern(), object(), pad_token="<|eot_id|>")
    process = lambda tokenizer, text: tokenizer(text, padding=True)  # noqa: E731 - twice
    want = one_request(manager, Mixed(TEXT, "image"), process)
    assert manager.tokenizer._tokenizer.padding is None
    do(jobs[0])
    assert manager._delta_adapter.delta.admission.admitted
    assert dict(one_request(manager, Mixed(TEXT, "image"), process)) == dict(want)
    assert manager._delta_adapter.delta.stats().fallbacks == {"unknown_pre_tokenizer": 1}


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
