"""Where the adapters put their hooks: all of an engine's places are as expected, or none is touched.

Stand-ins for the engines' modules have the places that `install.py` names, and nothing else; `e2e/` shows the same on
the real engines.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Callable
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import delta_sglang
import delta_vllm
from delta_core.options import Options
from delta_sglang import hooks
from delta_sglang import install as for_sglang
from delta_vllm import install as for_vllm
from delta_vllm import keys

# -- what another version of an engine may have done to a place --


def missing(owner: type, name: str) -> None:
    delattr(owner, name)


def renamed(owner: type, name: str) -> None:
    setattr(owner, f"{name}_renamed", getattr(owner, name))
    delattr(owner, name)


def with_other_parameters(owner: type, name: str) -> None:
    other = inspect.signature(lambda self, other: None)
    _replace(owner, name, other, inspect.iscoroutinefunction(getattr(owner, name)))


def of_the_other_kind(owner: type, name: str) -> None:
    """A plain function where a coroutine function is expected, or the other way round."""
    stock = getattr(owner, name)
    _replace(owner, name, inspect.signature(stock), not inspect.iscoroutinefunction(stock))


def _replace(owner: type, name: str, signature: inspect.Signature, coroutine: bool) -> None:
    async def awaited(*_: Any) -> None: ...

    def called(*_: Any) -> None: ...

    method: Any = awaited if coroutine else called
    method.__signature__ = signature
    setattr(owner, name, method)


CHANGES: tuple[Callable[[type, str], None], ...] = (missing, renamed, with_other_parameters, of_the_other_kind)


def stand_in(monkeypatch: pytest.MonkeyPatch, **modules: dict[str, Any]) -> None:
    """Put modules of these contents into sys.modules, with their packages; `__` in a name is a dot."""
    for name, contents in modules.items():
        whole = name.replace("__", ".")
        for end in range(1, whole.count(".") + 2):
            part = ".".join(whole.split(".")[:end])
            if not isinstance(sys.modules.get(part), StandIn):
                monkeypatch.setitem(sys.modules, part, StandIn(part))
            parent, _, child = part.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[part])
        vars(sys.modules[whole]).update(contents)


class StandIn(ModuleType):
    """A module that may have others in it."""

    __path__: tuple[str, ...] = ()


def places(*owners: type) -> dict[str, Any]:
    """What the classes have, to see whether it was touched."""
    return {f"{owner.__name__}.{name}": value for owner in owners for name, value in vars(owner).items()}


@pytest.fixture(autouse=True)
def _as_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (delta_sglang, "_called", False), (for_sglang, "_installed", None), (hooks, "complete", False),
        (delta_vllm, "_called", False),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    for name in ("DELTA_TOKENIZER", "DELTA_DETOKENIZER", "VLLM_USE_RUST_FRONTEND", "SGLANG_HTTP_SERVER_APP_PATH"):
        monkeypatch.setenv(name, "")  # so that what an installation sets is unset afterwards
        monkeypatch.delenv(name)
    for name in ("delta_core", "delta_vllm"):  # vLLM's logger becomes their parent
        monkeypatch.setattr(logging.getLogger(name), "parent", logging.getLogger())


# -- SGLang --


class HookType(Enum):
    AFTER = "after"
    AROUND = "around"


class SGLang:
    """SGLang's modules, as far as the adapter looks at them.

    fails: paths that its registry can't hook; it logs that, and goes on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rust: bool = False, app_path: bool = True) -> None:
        class TokenizerManager:
            def init_tokenizer_and_processor(self) -> None: ...

            async def _tokenize_one_request(self, obj: Any) -> None: ...

            async def _tokenize_texts(self, texts: Any, is_cross_encoder: bool = False) -> None: ...

            async def _batch_tokenize_and_process(self, batch_size: int, obj: Any) -> None: ...

        class OpenAIServingChat:
            def _process_messages(self, request: Any, is_multimodal: bool) -> None: ...

        class OpenAIServingResponses:
            async def _make_request(self, request: Any, prev_response: Any) -> None: ...

        self.owners = {
            "init_tokenizer_and_processor": TokenizerManager, "_tokenize_one_request": TokenizerManager,
            "_tokenize_texts": TokenizerManager, "_batch_tokenize_and_process": TokenizerManager,
            "_process_messages": OpenAIServingChat, "_make_request": OpenAIServingResponses,
        }  # fmt: skip
        self.registered: list[tuple[str, Any, HookType]] = []
        self.fails: set[str] = set()
        envs = SimpleNamespace(SGLANG_RUST_SERVER=SimpleNamespace(get=lambda: rust))
        if app_path:
            envs.SGLANG_HTTP_SERVER_APP_PATH = SimpleNamespace()
        self.registry = SimpleNamespace(
            register=lambda *hook: self.registered.append(hook), apply_hooks=lambda: self._apply()
        )
        stand_in(
            monkeypatch,
            sglang__srt__environ={"envs": envs},
            sglang__srt__plugins__hook_registry={"HookRegistry": self.registry, "HookType": HookType},
            sglang__srt__managers__tokenizer_manager={"TokenizerManager": TokenizerManager},
            sglang__srt__entrypoints__openai__serving_chat={"OpenAIServingChat": OpenAIServingChat},
            sglang__srt__entrypoints__openai__serving_responses={"OpenAIServingResponses": OpenAIServingResponses},
        )

    def _apply(self) -> None:
        for path, hook, _ in self.registered:
            name = path.rpartition(".")[2]
            if name in self.owners and name not in self.fails:
                setattr(self.owners[name], name, ("hooked", hook))

    def hooked(self) -> dict[str, Any]:
        found = {name: vars(owner).get(name) for name, owner in self.owners.items()}
        return {name: value[1] for name, value in found.items() if isinstance(value, tuple)}


SELECTED = SimpleNamespace(tokenizer_backend="delta", tokenizer_worker_num=1)


def publish(args: Any = SELECTED, role: str = "tokenizer") -> None:
    """What SGLang calls when a process has taken up its configuration."""
    delta_sglang._published(object(), args, role=role)


def test_sglang_is_hooked_where_its_places_are_as_expected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sglang = SGLang(monkeypatch)
    delta_sglang.register()
    assert sglang.hooked() == {}, "registering alone hooks nothing in"
    publish()
    assert sglang.hooked() == {
        "init_tokenizer_and_processor": hooks.start, "_tokenize_one_request": hooks.tokenize_one_request,
        "_tokenize_texts": hooks.tokenize_texts, "_batch_tokenize_and_process": hooks.batch_tokenize_and_process,
        "_process_messages": hooks.process_messages, "_make_request": hooks.make_request,
    }  # fmt: skip
    kinds = {path.rpartition(".")[2]: kind for path, _, kind in sglang.registered}
    assert kinds.pop("add_cli_args") is kinds.pop("publish") is kinds.pop("init_tokenizer_and_processor")
    assert set(kinds.values()) == {HookType.AROUND}
    assert hooks.complete
    assert caplog.records == []


def test_sglang_is_hooked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sglang = SGLang(monkeypatch)
    for _ in range(2):
        delta_sglang.register()
    assert [path.rpartition(".")[2] for path, _, _ in sglang.registered] == ["add_cli_args", "publish"]
    for _ in range(2):
        publish()
    assert len(sglang.registered) == 2 + 6


def test_a_place_of_sglangs_that_is_not_as_expected_leaves_all_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in SGLang(monkeypatch).owners:
        for change in CHANGES:
            if (name, change) == ("init_tokenizer_and_processor", with_other_parameters):
                continue  # a hook that runs afterwards takes any
            sglang = SGLang(monkeypatch)
            change(sglang.owners[name], name)
            before = places(*sglang.owners.values())
            monkeypatch.setattr(for_sglang, "_installed", None)
            caplog.clear()
            for _ in range(2):
                publish()
            what = f"{name} {change.__name__}"
            assert places(*sglang.owners.values()) == before, what
            assert sglang.registered == [], what
            assert not hooks.complete, what
            (line,) = [(record.levelname, record.message) for record in caplog.records]
            assert line[0] == "ERROR", what
            assert line[1].startswith("stock path: hook_missing: sglang.srt."), what
            assert f".{name} " in line[1], what


def test_a_module_of_sglangs_that_is_missing_or_broken_leaves_all_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sglang = SGLang(monkeypatch)
    monkeypatch.delattr(sys.modules["sglang.srt.entrypoints.openai"], "serving_responses")
    monkeypatch.setitem(sys.modules, "sglang.srt.entrypoints.openai.serving_responses", None)
    publish()
    assert sglang.hooked() == {}
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "hook_missing" in caplog.text
    assert "serving_responses" in caplog.text


def test_no_hook_acts_when_sglang_could_not_put_one_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sglang = SGLang(monkeypatch)
    sglang.fails = {"_make_request"}
    publish()
    assert len(sglang.hooked()) == 5
    manager = SimpleNamespace(server_args=SELECTED, tokenizer=object())
    hooks.start(None, manager)
    assert vars(manager).keys() == {"server_args", "tokenizer"}, "it has an adapter"
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("stock path: hook_missing: SGLang did not hook ")
    assert line.endswith("OpenAIServingResponses._make_request")


def test_processes_that_do_not_tokenize_and_other_backends_are_not_hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    sglang = SGLang(monkeypatch)
    publish(role="scheduler")
    publish(SimpleNamespace(tokenizer_backend="huggingface"))
    publish(SimpleNamespace())
    assert sglang.registered == []


def test_sglangs_rust_server_is_left_alone_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sglang = SGLang(monkeypatch, rust=True)
    publish()
    assert sglang.registered == []
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("stock path: not_text_model")


def test_sglang_starts_whatever_the_adapter_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(*_: Any) -> None:
        raise KeyError("planted")

    sglang = SGLang(monkeypatch)
    sglang.registry.register = raises
    delta_sglang.register()
    publish()
    monkeypatch.setitem(sys.modules, "sglang", None)
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", None)
    monkeypatch.setattr(delta_sglang, "_called", False)
    delta_sglang.register()
    assert not hooks.complete
    assert [(record.levelname, record.message[:13]) for record in caplog.records] == [
        ("ERROR", "not registere"), ("ERROR", "not installed"), ("ERROR", "not registere")
    ]  # fmt: skip


def test_sglangs_http_workers_are_told_the_application_that_loads_plugins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    several = SimpleNamespace(tokenizer_backend="delta", tokenizer_worker_num=2)
    SGLang(monkeypatch)
    publish(several)
    assert os.environ["SGLANG_HTTP_SERVER_APP_PATH"] == "delta_sglang.app:app"
    assert caplog.records == []
    os.environ["SGLANG_HTTP_SERVER_APP_PATH"] = "mine:app"  # an operator's own stays
    publish(several)
    assert os.environ["SGLANG_HTTP_SERVER_APP_PATH"] == "mine:app"
    assert "mine:app" in caplog.text


def test_where_sglang_has_no_setting_for_the_application_uvicorn_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sglang = SGLang(monkeypatch, app_path=False)
    publish()
    (run,) = [hook for path, hook, _ in sglang.registered if path == "uvicorn.run"]
    given = [
        run(lambda app, **more: app, app, workers=2) for app in ("sglang.srt.entrypoints.http_server:app", "other")
    ]
    assert given == ["delta_sglang.app:app", "other"]
    publish(SimpleNamespace(tokenizer_backend="delta", tokenizer_worker_num=2, enable_http2=True))
    assert [record.message[:24] for record in caplog.records] == ["stock path: hook_missing"]


# -- vLLM --


class VLLM:
    """vLLM's modules, as far as the adapter looks at them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class BaseRenderer:
            def __init__(self, config: Any, tokenizer: Any) -> None:
                self.tokenizer = tokenizer

            def get_tokenizer(self) -> Any:
                return self.tokenizer

            def _tokenize_prompt(self, prompt: Any, params: Any) -> Any:
                return ("stock", prompt, params, keys.current())

            def render_cmpl(self, prompts: Any, *, prompt_extras: Any = None) -> Any:
                return self._tokenize_prompt(prompts, prompt_extras)

            def render_chat(self, prompts: Any, *, prompt_extras: Any = None) -> Any:
                return self._tokenize_prompt(prompts, prompt_extras)

            async def render_cmpl_async(self, prompts: Any, *, prompt_extras: Any = None) -> Any:
                return self._tokenize_prompt(prompts, prompt_extras)

            async def render_chat_async(self, prompts: Any, *, prompt_extras: Any = None) -> Any:
                return self._tokenize_prompt(prompts, prompt_extras)

        class TokenizeParams:
            def get_encode_kwargs(self) -> Any: ...

        class OnlineRenderer:
            async def preprocess_chat(self, request: Any, renderer: Any) -> Any:
                return await renderer.render_chat_async("text")

            async def preprocess_cmpl(self, request: Any, renderer: Any) -> Any:
                return await renderer.render_cmpl_async("text")

        class FastIncrementalDetokenizer:
            def __init__(self, tokenizer: Any, request: Any) -> None:
                self.seen = request

        class EngineCoreRequest:
            __struct_fields__ = ("prompt_token_ids",)

        self.renderer, self.params, self.online = BaseRenderer, TokenizeParams, OnlineRenderer
        self.detokenizer, self.request = FastIncrementalDetokenizer, EngineCoreRequest
        stand_in(
            monkeypatch,
            vllm={"__version__": "0.0"},
            vllm__renderers__base={"BaseRenderer": BaseRenderer},
            vllm__renderers__params={"TokenizeParams": TokenizeParams},
            vllm__renderers__online_renderer={"OnlineRenderer": OnlineRenderer},
            vllm__v1__engine={"EngineCoreRequest": EngineCoreRequest},
            vllm__v1__engine__detokenizer={"FastIncrementalDetokenizer": FastIncrementalDetokenizer},
        )
        monkeypatch.setenv("DELTA_TOKENIZER", "1")

    def touched(self, before: dict[str, Any]) -> set[str]:
        owners = (self.renderer, self.params, self.online, self.detokenizer)
        return {name for name, value in places(*owners).items() if before.get(name) is not value}

    def all_places(self) -> dict[str, Any]:
        return places(self.renderer, self.params, self.online, self.detokenizer)


RENDERER = {
    "BaseRenderer.__init__", "BaseRenderer._tokenize_prompt", "BaseRenderer.render_cmpl", "BaseRenderer.render_chat",
    "BaseRenderer.render_cmpl_async", "BaseRenderer.render_chat_async",
}  # fmt: skip
BODY = {"OnlineRenderer.preprocess_chat", "OnlineRenderer.preprocess_cmpl"}
DETOKENIZER = {"FastIncrementalDetokenizer.__init__"}


def register(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Register as in a new process; what was said, in lower levels too."""
    monkeypatch.setattr(delta_vllm, "_called", False)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        delta_vllm.register()
        for name in ("delta_core", "delta_vllm"):
            logging.getLogger(name).parent = logging.getLogger()
    return [(record.levelname, record.message) for record in caplog.records]


def test_vllm_is_hooked_where_its_places_are_as_expected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm = VLLM(monkeypatch)
    before = vllm.all_places()
    assert register(monkeypatch, caplog) == []
    assert vllm.touched(before) == RENDERER | BODY | DETOKENIZER
    once = vllm.all_places()
    delta_vllm.register()
    assert vllm.touched(once) == set(), "a second call hooked the hooks"


def test_the_hooks_of_vllm_carry_session_and_salt_to_the_tokenization(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm = VLLM(monkeypatch)
    register(monkeypatch, caplog)
    renderer = vllm.renderer(None, None)
    body = SimpleNamespace(session_id="s")
    for render in (renderer.render_cmpl, renderer.render_chat):
        assert render("text", prompt_extras={"cache_salt": "a"})[3] == (None, "a")
    for render in (renderer.render_cmpl_async, renderer.render_chat_async):
        assert asyncio.run(render("text", prompt_extras={"cache_salt": "a"}))[3] == (None, "a")
    for preprocess in (vllm.online().preprocess_chat, vllm.online().preprocess_cmpl):
        assert asyncio.run(preprocess(body, renderer))[3] == ("s", None)
    assert renderer._tokenize_prompt("text", "params")[3] is None, "past the hooks no salt is known"


def test_a_place_of_vllms_renderer_that_is_not_as_expected_leaves_all_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inherited = {("__init__", missing), ("__init__", renamed)}  # every class has this one: it lacks its parameter then
    for name in ("__init__", "_tokenize_prompt", *for_vllm._RENDERS, "get_tokenizer", "get_encode_kwargs"):
        for change in CHANGES:
            if name.startswith("get_") and change is with_other_parameters:
                continue  # called, not replaced, and without arguments
            vllm = VLLM(monkeypatch)
            change(vllm.params if name == "get_encode_kwargs" else vllm.renderer, name)
            before = vllm.all_places()
            said = register(monkeypatch, caplog)
            what = f"{name} {change.__name__}"
            assert vllm.touched(before) == set(), what
            assert [level for level, _ in said] == ["ERROR"], what
            assert said[0][1].startswith("vLLM's own tokenizer serves: hook_missing: vLLM 0.0: "), what
            assert name in said[0][1], what
            assert (name, change) not in inherited or "no parameter tokenizer" in said[0][1], what


def test_a_missing_module_of_vllms_renderer_leaves_all_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("vllm.renderers.base", "vllm.renderers.params"):
        vllm = VLLM(monkeypatch)
        monkeypatch.setitem(sys.modules, module, None)
        before = vllm.all_places()
        said = register(monkeypatch, caplog)
        assert vllm.touched(before) == set()
        assert [level for level, _ in said] == ["ERROR"]
        assert module in said[0][1]
        monkeypatch.delitem(sys.modules, module)


def test_without_the_places_that_know_the_body_its_session_is_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("preprocess_chat", "preprocess_cmpl"):
        for change in CHANGES:
            vllm = VLLM(monkeypatch)
            change(vllm.online, name)
            before = vllm.all_places()
            said = register(monkeypatch, caplog)
            assert vllm.touched(before) == RENDERER | DETOKENIZER
            assert [(level, name in line, "is not read" in line) for level, line in said] == [("INFO", True, True)]


def test_without_its_place_the_detokenizer_reads_whole_prompts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without_prompt(vllm: VLLM) -> None:
        vllm.request.__struct_fields__ = ()

    def without_fields(vllm: VLLM) -> None:
        del vllm.request.__struct_fields__

    inits = [lambda vllm, change=change: change(vllm.detokenizer, "__init__") for change in CHANGES]
    for change in (*inits, without_prompt, without_fields):
        vllm = VLLM(monkeypatch)
        change(vllm)
        before = vllm.all_places()
        said = register(monkeypatch, caplog)
        assert vllm.touched(before) == RENDERER | BODY
        assert [(level, "reads whole prompts" in line) for level, line in said] == [("WARNING", True)]


def test_the_detokenizer_is_left_alone_when_it_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for value in ("0", "false", " Off "):
        vllm = VLLM(monkeypatch)
        monkeypatch.setenv("DELTA_DETOKENIZER", value)
        before = vllm.all_places()
        assert register(monkeypatch, caplog) == []
        assert vllm.touched(before) == RENDERER | BODY


def test_the_detokenizer_gets_what_the_engine_gives_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm = VLLM(monkeypatch)
    register(monkeypatch, caplog)
    short = SimpleNamespace(prompt_token_ids=[1, 2, 3])
    assert vllm.detokenizer(object(), short).seen is short


def test_vllms_rust_frontend_is_left_alone_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm = VLLM(monkeypatch)
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    before = vllm.all_places()
    (said,) = register(monkeypatch, caplog)
    assert vllm.touched(before) == set()
    assert "not_text_model" in said[1]


def test_vllm_starts_whatever_the_adapter_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raises() -> None:
        raise KeyError("planted")

    vllm = VLLM(monkeypatch)
    before = vllm.all_places()
    monkeypatch.setattr(for_vllm, "install", raises)
    (said,) = register(monkeypatch, caplog)
    assert said == ("ERROR", "not installed, vLLM's own tokenizer serves: KeyError: 'planted'")
    assert vllm.touched(before) == set()


def test_a_renderer_that_cannot_be_served_starts_and_serves_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm = VLLM(monkeypatch)
    register(monkeypatch, caplog)
    assert vllm.renderer(None, None)._tokenize_prompt("text", "params")[0] == "stock"
    assert caplog.records == [], "a renderer without a tokenizer is no fault"
    renderer = vllm.renderer(None, object())  # no executor to encode on
    assert renderer._tokenize_prompt("text", "params")[0] == "stock"
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("vLLM's own tokenizer serves: HookMissing: BaseRenderer has no _executor")


def test_a_renderer_that_is_served_says_so_and_asks_for_more_than_ids_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Any] = []

    class Served:
        """A PromptTokenizer, as far as the hooks look at it."""

        def __init__(self, renderer: Any, stock: Any, options: Options) -> None:
            made.append(renderer)
            admission = SimpleNamespace(admitted=len(made) == 1)
            self.delta = SimpleNamespace(admission=admission, describe=lambda: "described", export=lambda _: None)

        def __call__(self, renderer: Any, prompt: Any, params: Any) -> Any:
            return ("ours", prompt, params, keys.current())

    vllm = VLLM(monkeypatch)
    monkeypatch.setattr(for_vllm, "PromptTokenizer", Served)
    monkeypatch.setattr(vllm.renderer, "_executor", None, raising=False)  # the loop's own
    monkeypatch.setattr(vllm.renderer, "_tokenize_prompt_async", None, raising=False)
    stock = vllm.renderer._tokenize_prompt
    register(monkeypatch, caplog)
    with caplog.at_level(logging.INFO):
        renderer, refused = vllm.renderer(None, object()), vllm.renderer(None, object())
    assert made == [renderer, refused]
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "described"), ("WARNING", "described")
    ]  # fmt: skip
    assert renderer._tokenize_prompt("text", "params") == ("ours", "text", "params", None)

    async def off_the_loop() -> Any:
        with keys.of_render({"cache_salt": "a"}):
            return await renderer._tokenize_prompt_async("text", "params")

    assert asyncio.run(off_the_loop()) == ("ours", "text", "params", (None, "a")), "the thread has another context"
    monkeypatch.undo()
    vllm = VLLM(monkeypatch)

    def wider(self: Any, prompt: Any, params: Any, more: Any = None) -> Any:
        return (*stock(self, prompt, params), more)

    vllm.renderer._tokenize_prompt = wider  # type: ignore[assignment]
    monkeypatch.setattr(for_vllm, "PromptTokenizer", Served)
    monkeypatch.setattr(vllm.renderer, "_executor", None, raising=False)
    monkeypatch.setattr(vllm.renderer, "_tokenize_prompt_async", None, raising=False)
    register(monkeypatch, caplog)
    newer = vllm.renderer(None, object())
    assert newer._tokenize_prompt("text", "params")[0] == "ours"
    assert newer._tokenize_prompt("text", "params", more=1) == ("stock", "text", "params", None, 1)


def test_what_a_models_requests_keep_from_us_is_in_the_startup_line() -> None:
    def renderer(kind: str = "qwen3", embeds: bool = False) -> Any:
        config = SimpleNamespace(hf_config=SimpleNamespace(model_type=kind), enable_prompt_embeds=embeds)
        return SimpleNamespace(model_config=config)

    assert for_vllm._exceptions(renderer()) == for_vllm._exceptions(SimpleNamespace()) == ""
    assert "of gpt_oss chats" in for_vllm._exceptions(renderer("gpt_oss"))
    assert "--enable-prompt-embeds" in for_vllm._exceptions(renderer(embeds=True))


def test_metrics_are_counted_only_where_vllm_counts_and_a_fault_there_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exported: list[Any] = []
    served: Any = SimpleNamespace(delta=SimpleNamespace(export=exported.append))
    monkeypatch.setattr(for_vllm, "_prometheus", None)
    monkeypatch.delitem(sys.modules, "prometheus_client", raising=False)
    for_vllm._export(served)
    assert exported == []
    monkeypatch.setitem(sys.modules, "prometheus_client", ModuleType("prometheus_client"))
    monkeypatch.setattr(for_vllm, "Prometheus", lambda: "the process's own")
    for _ in range(2):
        for_vllm._export(served)
    assert exported == ["the process's own"] * 2
    monkeypatch.setattr(for_vllm, "_prometheus", None)

    def raises() -> Any:
        raise ValueError("taken")

    monkeypatch.setattr(for_vllm, "Prometheus", raises)
    for_vllm._export(served)
    assert "no Prometheus metrics: ValueError: taken" in caplog.text
