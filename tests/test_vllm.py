"""The parts of the vLLM adapter that can be tried without vLLM; `e2e/vllm.py` shows the rest on the real server."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Subject
from later import Job, do, of_refused_structure, of_unknown_pattern, waiting_jobs

from delta_core import DeltaTokenizer
from delta_core.context import Key
from delta_core.options import Options
from delta_core.tools.verify.generators import prose
from delta_vllm import SessionHeader, keys
from delta_vllm.detokenization import with_tail
from delta_vllm.tokenization import PromptTokenizer

transformers = pytest.importorskip("transformers")


# -- register --


@pytest.mark.parametrize("value", [None, "", "0", "no", "false", "off"])
def test_register_does_nothing_unless_asked(value: str | None) -> None:
    code = (
        "import sys, delta_vllm; delta_vllm.register(); "
        "assert not {'delta_core', 'tokenizers', 'vllm'} & set(sys.modules), sorted(sys.modules)"
    )
    assert _run(code, value) == ""


def test_register_never_raises_and_says_why_it_does_nothing() -> None:
    hidden = "import sys; sys.modules['vllm'] = None; "
    said = _run(f"{hidden} import delta_vllm; delta_vllm.register(); delta_vllm.register()", "1")
    assert said.count("vLLM's own tokenizer serves") == 1


def _run(code: str, value: str | None) -> str:
    environ = {name: v for name, v in os.environ.items() if name != "DELTA_TOKENIZER"}
    environ |= {"DELTA_TOKENIZER": value} if value is not None else {}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# -- keys --


def _seen_behind(headers: list[tuple[bytes, bytes]], request: object, extras: Mapping[str, Any] | None) -> Key | None:
    seen: list[Key | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with keys.of_body(request, "::"), keys.of_render(extras):
            seen.append(keys.current())

    asyncio.run(SessionHeader(app)({"type": "http", "headers": headers}, None, None))
    assert keys.current() is None, "the key outlived its request"
    return seen[0]


HEADER = [(b"x-session-id", b"from-header")]


@pytest.mark.parametrize(
    ("headers", "body", "extras", "session", "namespace"),
    [
        ([], {}, None, None, None),
        ([], {"session_id": "s"}, None, "s", None),
        (HEADER, {"session_id": "s"}, None, "s", None),
        (HEADER, {"vllm_xargs": {"session_id": "x"}}, None, "from-header", None),
        ([], {"vllm_xargs": {"session_id": "x"}}, None, "x", None),
        ([], {"vllm_xargs": {"session_id": 5}}, None, None, None),
        ([], {"session_id": "", "vllm_xargs": None}, {"cache_salt": ""}, None, None),
        ([], {"request_id": "agent-7::turn-3::x"}, None, "agent-7", None),
        ([], {"request_id": "::x"}, None, None, None),
        ([], {"request_id": "4f0c"}, None, None, None),
        ([], {"request_id": "agent-7::turn-3", "vllm_xargs": {"session_id": "x"}}, None, "x", None),
        (HEADER, {}, {"cache_salt": "salt", "mm_processor_kwargs": {}}, "from-header", "salt"),
    ],
)
def test_where_the_session_and_the_salt_come_from(
    headers: list[tuple[bytes, bytes]],
    body: dict[str, Any],
    extras: Mapping[str, Any] | None,
    session: str | None,
    namespace: str | None,
) -> None:
    assert _seen_behind(headers, SimpleNamespace(**body), extras) == Key(session, namespace)


def test_a_salt_that_is_no_string_is_a_namespace_of_its_own() -> None:
    def namespace(extras: object) -> str | None:
        with keys.of_render(extras):
            key = keys.current()
        assert key is not None
        return key.namespace

    odd = [5, 1, True, 1.0, b"5", ["a"], ("a",), {"a": 1}, object(), 10**5000, "5", "['a']", "a"]
    found = [namespace({"cache_salt": salt}) for salt in odd]
    assert all(found)
    assert len(set(found)) == len(odd)
    for salt in (5, True, ["a"], b"5"):
        assert namespace({"cache_salt": salt}) == namespace({"cache_salt": salt}), salt
    # Extras that vLLM understands (`dict.update`) and that can't be asked for their salt.
    pairs = [("cache_salt", "a")]
    assert namespace(pairs) not in (None, *found)
    assert namespace(iter(pairs)) not in (None, namespace(iter(pairs)))


def test_the_middleware_passes_on_what_is_no_http_request() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    asyncio.run(SessionHeader(app)({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


# -- tokenization --


@dataclass
class Params:
    """vLLM's TokenizeParams, as far as the adapter looks at them."""

    truncation: bool = True
    max_length: int | None = 10_000
    add_special_tokens: bool = True
    return_token_offsets: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def get_encode_kwargs(self) -> dict[str, Any]:
        return {
            "truncation": self.truncation,
            "max_length": self.max_length,
            "add_special_tokens": self.add_special_tokens,
            **self.more,
        }


class Renderer:
    """vLLM's renderer with an unpooled tokenizer, as far as the adapter looks at it."""

    def __init__(self, live: Any) -> None:
        self.live = live

    def get_tokenizer(self) -> Any:
        return self.live

    def stock(self, prompt: Mapping[str, Any], params: Any) -> Any:
        return {"prompt_token_ids": self.live(prompt["prompt"], **params.get_encode_kwargs())["input_ids"], **prompt}


@pytest.fixture
def served(synthetic: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a renderer and its PromptTokenizer by name and policy, over a copy that a test may change."""

    def make(name: str = "llama3_1", policy: str = "content") -> tuple[Renderer, PromptTokenizer, Subject]:
        subject = synthetic(name)
        copy = type(subject.live).from_str(subject.live.to_str())
        renderer = Renderer(transformers.PreTrainedTokenizerFast(tokenizer_object=copy))
        options = Options(policy=policy, encoder="reference")
        delta = DeltaTokenizer(renderer.live, policy=policy, encoder="reference", config=subject.frozen)
        monkeypatch.setattr(Options, "tokenizer", lambda _options, _live: delta)
        tokenizer = PromptTokenizer(renderer, Renderer.stock, options)
        assert tokenizer.delta.admission.admitted, tokenizer.delta.admission
        return renderer, tokenizer, subject

    return make


def own(renderer: Renderer, text: str, params: Params) -> list[int]:
    """What the transformers object returns, asked so that nothing stays behind."""
    before = renderer.live._tokenizer.truncation
    ids = renderer.stock({"prompt": text}, params)["prompt_token_ids"]
    if before is None:
        renderer.live._tokenizer.no_truncation()
    return list(ids)


def asked(renderer: Renderer, tokenizer: PromptTokenizer, text: str, params: Params, **extras: Any) -> list[int]:
    with keys.of_render(extras):
        return list(tokenizer(renderer, {"prompt": text}, params)["prompt_token_ids"])


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "deepseek_v3"])
def test_prompts_have_the_ids_of_the_engines_own_call(name: str, served: Callable[..., Any]) -> None:
    renderer, tokenizer, subject = served(name)
    growing = prose(5, 6000)
    texts = [growing[:end] for end in range(1000, 6001, 1000)] + list(subject.maker(5).session(8, 200))
    for i, text in enumerate(texts):
        for params in (Params(), Params(add_special_tokens=False), Params(truncation=False, max_length=None)):
            assert asked(renderer, tokenizer, text, params) == own(renderer, text, params), i
    assert tokenizer.delta.stats().fallbacks == {}
    assert tokenizer.delta.stats().reused_tokens > 1000


def test_truncation_is_left_to_the_engine_and_leaves_no_trace(served: Callable[..., Any]) -> None:
    renderer, tokenizer, subject = served("llama3_1")
    text = subject.maker(6).text(300)
    count = len(own(renderer, text, Params()))
    for most in (0, 1, 7, count - 1, count, count + 1):
        params = Params(max_length=most)
        before = tokenizer.delta.stats().fallbacks.get("truncated", 0)
        assert asked(renderer, tokenizer, text, params) == own(renderer, text, params)
        assert tokenizer.delta.stats().fallbacks.get("truncated", 0) - before == (most < count), most
        assert renderer.live._tokenizer.truncation is None
    assert tokenizer.delta.stats().fallbacks == {"truncated": 4}


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (Params(return_token_offsets=True), "offsets"),
        (Params(more={"return_offsets_mapping": True}), "offsets"),
        (Params(more={"padding": False}), "keyword_unknown"),
    ],
)
def test_requests_for_more_than_ids_are_left_to_the_engine(
    params: Params, reason: str, served: Callable[..., Any]
) -> None:
    renderer, tokenizer, subject = served()
    text = subject.maker(7).text(100)
    assert asked(renderer, tokenizer, text, params) == own(renderer, text, params)
    assert tokenizer.delta.stats().fallbacks == {reason: 1}
    assert tokenizer.delta.stats().by_path == {"stock": 1}


def test_a_prompt_whose_salt_is_unknown_is_left_to_the_engine(served: Callable[..., Any]) -> None:
    renderer, tokenizer, subject = served()
    text = subject.maker(8).text(200)
    assert tokenizer(renderer, {"prompt": text}, Params())["prompt_token_ids"] == own(renderer, text, Params())
    assert tokenizer.delta.stats().fallbacks == {"salt_unknown": 1}
    assert tokenizer.delta.stats().by_path == {"stock": 1}
    assert len(tokenizer.delta._store) == 0


def test_nothing_is_shared_between_salts(served: Callable[..., Any]) -> None:
    renderer, tokenizer, subject = served()
    text = subject.maker(9).text(300)

    def reused(**extras: Any) -> int:
        before = tokenizer.delta.stats().reused_tokens
        assert asked(renderer, tokenizer, text, Params(), **extras) == own(renderer, text, Params())
        return tokenizer.delta.stats().reused_tokens - before

    assert reused(cache_salt="a") == 0
    assert reused(cache_salt="b") == 0
    assert reused() == 0
    assert reused(cache_salt="a") > 100
    assert reused() > 100


@pytest.mark.parametrize("salt", [5, ["a"], b"a", {"a": 1}, 1.5])
@pytest.mark.parametrize("offline", [False, True])
def test_nothing_is_shared_with_a_salt_that_is_no_string(salt: Any, offline: bool, served: Callable[..., Any]) -> None:
    renderer, tokenizer, subject = served()
    text = subject.maker(9).text(300)

    def reused(salt: Any) -> int:
        extras, more = ({}, {"cache_salt": salt}) if offline else ({"cache_salt": salt}, {})
        before = tokenizer.delta.stats().reused_tokens
        with keys.of_render(extras):
            ids = tokenizer(renderer, {"prompt": text, **more}, Params())["prompt_token_ids"]
        assert ids == own(renderer, text, Params())
        return int(tokenizer.delta.stats().reused_tokens - before)

    assert reused(salt) == 0
    for other in (None, str(salt), "a"):
        assert reused(other) == 0, other
    assert reused(None) > 100
    assert tokenizer.delta.stats().fallbacks == {}


def test_the_extras_salt_comes_before_the_prompts_own(served: Callable[..., Any]) -> None:
    """As in vLLM, which writes the extras over the prompt."""
    renderer, tokenizer, subject = served()
    text = subject.maker(9).text(300)

    def reused(extra: str, own: str) -> int:
        before = tokenizer.delta.stats().reused_tokens
        with keys.of_render({"cache_salt": extra} if extra else None):
            tokenizer(renderer, {"prompt": text, "cache_salt": own}, Params())
        return int(tokenizer.delta.stats().reused_tokens - before)

    assert reused("a", "b") == 0
    assert reused("", "b") == 0
    assert reused("a", "c") > 100
    assert reused("", "a") > 100


def test_a_salt_is_the_key_only_where_nothing_is_found_by_content(served: Callable[..., Any]) -> None:
    for policy, keyed in (("content", False), ("keyed", True)):
        renderer, tokenizer, subject = served(policy=policy)
        asked(renderer, tokenizer, subject.maker(9).text(300), Params(), cache_salt="a")
        (branch,) = tokenizer.delta._store._branches.values()
        assert (branch.key is not None) is keyed


def test_the_rest_of_the_prompt_is_kept(served: Callable[..., Any]) -> None:
    renderer, tokenizer, subject = served()
    prompt = {"prompt": subject.maker(3).text(50), "multi_modal_data": {"image": 1}}
    with keys.of_render(None):
        result = tokenizer(renderer, prompt, Params())
    assert result == renderer.stock(prompt, Params())


def raised_by(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is compared
        return error
    pytest.fail("nothing was raised")


def test_bad_text_gets_the_engines_own_error(served: Callable[..., Any]) -> None:
    renderer, tokenizer, _ = served()
    text, params = "x\ud800" * 200, Params(truncation=False, max_length=None)
    theirs = raised_by(lambda: renderer.stock({"prompt": text}, params))
    ours = raised_by(lambda: asked(renderer, tokenizer, text, params))
    assert (type(ours), str(ours)) == (type(theirs), str(theirs))
    assert tokenizer.delta.stats().fallbacks == {"bad_text": 1}


def test_a_fault_of_ours_is_counted_and_the_engine_serves(
    served: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    renderer, tokenizer, subject = served()
    text = subject.maker(3).text(100)

    class Odd(Params):
        calls = 0

        def get_encode_kwargs(self) -> dict[str, Any]:
            Odd.calls += 1
            if Odd.calls % 2:  # ours is the first call, the engine's the second
                raise RuntimeError(text)
            return super().get_encode_kwargs()

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert asked(renderer, tokenizer, text, Odd()) == own(renderer, text, Params())
    assert tokenizer.delta.stats().fallbacks == {"adapter_failed": 3}
    assert tokenizer.delta.stats().by_path["stock"] == 3
    (line,) = [r.getMessage() for r in caplog.records]
    assert "adapter_failed" in line
    assert text[:20] not in line


def test_a_tokenizer_whose_call_does_more_than_its_backend_is_refused(served: Callable[..., Any]) -> None:
    renderer, _, _ = served()

    def shouting(renderer: Renderer, prompt: Mapping[str, Any], params: Any) -> Any:
        return renderer.stock({"prompt": prompt["prompt"].upper()}, params)

    with pytest.raises(ValueError, match="other IDs than its backend"):
        PromptTokenizer(renderer, shouting, Options(encoder="reference"))


def test_a_tokenizer_that_is_not_admitted_is_left_to_the_engine() -> None:
    class Other:
        """As vLLM's own Mistral tokenizer: nothing of the `tokenizers` library behind it."""

        def __call__(self, text: str, **kwargs: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(c) for c in text]}

    renderer = Renderer(Other())
    tokenizer = PromptTokenizer(renderer, Renderer.stock, Options())
    for _ in range(2):
        assert asked(renderer, tokenizer, "some text", Params()) == [ord(c) for c in "some text"]
    assert tokenizer.delta.stats().fallbacks == {"not_fast": 2}


def test_a_structure_that_is_not_covered_is_left_to_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    renderer = Renderer(transformers.PreTrainedTokenizerFast(tokenizer_object=of_refused_structure()))
    tokenizer = PromptTokenizer(renderer, Renderer.stock, Options())
    for _ in range(2):
        assert asked(renderer, tokenizer, "\ufb01n 12", Params()) == own(renderer, "\ufb01n 12", Params())
    assert tokenizer.delta.stats().fallbacks == {"unsupported_normalizer": 2}
    assert not caplog.records, "the startup line says it"


# -- admitted while it serves --


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Job]:
    """What would have been started in the background."""
    return waiting_jobs(monkeypatch, tmp_path)


def later(stock: Any = Renderer.stock) -> tuple[Renderer, PromptTokenizer]:
    """A renderer over a tokenizer whose table has to be derived."""
    renderer = Renderer(transformers.PreTrainedTokenizerFast(tokenizer_object=of_unknown_pattern()))
    return renderer, PromptTokenizer(renderer, stock, Options(encoder="reference"))


def test_a_tokenizer_that_is_admitted_later_serves_from_then_on(
    jobs: list[Job], caplog: pytest.LogCaptureFixture
) -> None:
    renderer, tokenizer = later()
    text = prose(4, 1500) + "12 345\n"
    for params in (Params(), Params(max_length=7)):
        assert asked(renderer, tokenizer, text, params) == own(renderer, text, params)
        assert renderer.live._tokenizer.truncation is None, "it would not be admitted"
    assert tokenizer.delta.stats().fallbacks == {"unknown_pre_tokenizer": 2}
    do(jobs[0])
    assert tokenizer.delta.admission.admitted
    for turn in (text, text + "more 12"):
        assert asked(renderer, tokenizer, turn, Params()) == own(renderer, turn, Params())
    assert tokenizer.delta.stats().by_path == {"stock": 2, "cold": 1, "append": 1}
    assert tokenizer.delta.stats().fallbacks == {"unknown_pre_tokenizer": 2}
    (line,) = [record.message for record in caplog.records]
    assert line == f"Delta Tokenizer: {tokenizer.delta.describe()}"


def test_a_call_that_does_more_than_its_backend_stays_stock_later_too(
    jobs: list[Job], caplog: pytest.LogCaptureFixture
) -> None:
    def shouting(renderer: Renderer, prompt: Mapping[str, Any], params: Any) -> Any:
        return renderer.stock({"prompt": prompt["prompt"].upper()}, params)

    renderer, tokenizer = later(shouting)
    do(jobs[0])
    for _ in range(2):
        assert asked(renderer, tokenizer, "some text", Params()) == own(renderer, "SOME TEXT", Params())
    assert tokenizer.delta.stats().fallbacks == {"adapter_failed": 2}
    (line,) = [record.message for record in caplog.records]
    assert "not admitted, stock path: adapter" in line
    assert "other IDs than its backend" in line


def test_requests_that_truncate_while_it_is_admitted_do_not_stand_in_its_way(jobs: list[Job]) -> None:
    renderer, tokenizer = later()
    text = prose(4, 100)
    want, wrong, over = own(renderer, text, Params(max_length=9)), [], threading.Event()

    def ask() -> None:
        while not over.wait(0.005):
            if asked(renderer, tokenizer, text, Params(max_length=9)) != want:
                wrong.append(1)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        do(jobs[0])
    finally:
        over.set()
        thread.join()
    assert tokenizer.delta.admission.admitted, tokenizer.delta.admission
    assert not wrong


# -- detokenization --


def _request(ids: list[int] | None, skip: bool = True) -> Any:
    return SimpleNamespace(prompt_token_ids=ids, sampling_params=SimpleNamespace(skip_special_tokens=skip))


def test_the_detokenizer_sees_a_tail_and_the_request_keeps_its_prompt(synthetic: Callable[..., Subject]) -> None:
    live = synthetic("qwen3").live
    ids = live.encode("some text\n" * 100, add_special_tokens=False).ids
    request = _request(list(ids))
    short = with_tail(SimpleNamespace(_tokenizer=live), request)
    assert short.prompt_token_ids == ids[-1:]
    assert request.prompt_token_ids == ids
    assert short.sampling_params is request.sampling_params


def test_what_is_not_proven_keeps_the_whole_prompt(synthetic: Callable[..., Subject]) -> None:
    live = synthetic("qwen3").live
    ids = live.encode("some text\n" * 100, add_special_tokens=False).ids
    tokenizer = SimpleNamespace(_tokenizer=live)
    other = type(live).from_str(live.to_str())
    other.decoder = __import__("tokenizers").decoders.WordPiece()
    for case, request in (
        (tokenizer, _request(None)),
        (tokenizer, _request([])),
        (tokenizer, _request(ids[:64])),
        (SimpleNamespace(_tokenizer=other), _request(ids)),
        (SimpleNamespace(_tokenizer=object()), _request(ids)),
        (SimpleNamespace(), _request(ids)),
        (tokenizer, SimpleNamespace(prompt_token_ids=ids)),
    ):
        assert with_tail(case, request) is request
