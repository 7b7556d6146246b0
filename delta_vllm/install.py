"""Puts the adapter into vLLM's classes: which places, what they must look like, and what happens when one is missing.

The renderer is patched, not the tokenizer: vLLM copies its tokenizers through `__reduce__`, which loses a wrapper
without a word. All renderers inherit the patched methods, and none of them overrides one (0.24 to 0.33).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from delta_core import Reason
from delta_core.metrics import Prometheus
from delta_core.options import Options

from . import keys
from .detokenization import with_tail
from .tokenization import PromptTokenizer

log = logging.getLogger("delta_vllm")

_FALSE = ("0", "false", "no", "off")
_RENDERS = ("render_cmpl", "render_cmpl_async", "render_chat", "render_chat_async")
_SERVED = "_delta_prompt_tokenizer"  # where a renderer keeps its PromptTokenizer

_prometheus: Prometheus | None = None


class HookMissing(RuntimeError):
    """A place that this version of vLLM lacks, or has in another shape; the message names it."""


def install() -> None:
    """Patch vLLM's renderer, and its detokenizer unless DELTA_DETOKENIZER is off; what is missing is said in one line.

    Patches classes only: a process that makes no renderer pays nothing else.
    """
    import vllm

    _speak_through_vllm()
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        log.warning(
            "vLLM's own tokenizer serves: %s (VLLM_USE_RUST_FRONTEND tokenizes outside Python)", Reason.NOT_TEXT_MODEL
        )
        return
    options = Options.from_environment()
    try:
        _patch_renderer(options)
    except (HookMissing, ImportError) as error:
        log.error("vLLM's own tokenizer serves: %s: vLLM %s: %s", Reason.HOOK_MISSING, vllm.__version__, error)
        return
    try:
        _patch_request_hooks(options.rid_separator)
    except (HookMissing, ImportError) as error:
        log.info("vLLM %s: %s; session_id in a request's body is not read", vllm.__version__, error)
    if os.environ.get("DELTA_DETOKENIZER", "").strip().lower() not in _FALSE:
        try:
            _patch_detokenizer()
        except (HookMissing, ImportError) as error:
            log.warning("vLLM %s: %s; the detokenizer reads whole prompts", vllm.__version__, error)


# -- tokenization --


def _patch_renderer(options: Options) -> None:
    from vllm.renderers.base import BaseRenderer
    from vllm.renderers.params import TokenizeParams

    # All are checked before one is replaced: half an adapter would lose salts.
    stock_init = _hook(BaseRenderer, "__init__", "tokenizer")
    stock_tokenize = _hook(BaseRenderer, "_tokenize_prompt", "prompt", "params")
    renders = {name: _hook(BaseRenderer, name, "prompt_extras", coroutine=name.endswith("_async")) for name in _RENDERS}
    _hook(BaseRenderer, "get_tokenizer")
    _hook(TokenizeParams, "get_encode_kwargs")

    @functools.wraps(stock_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_init(self, *args, **kwargs)
        try:
            _serve(self, stock_tokenize, options)
        except Exception as error:  # noqa: BLE001 - vLLM must start without us, too
            log.error("vLLM's own tokenizer serves: %s: %s", type(error).__name__, error)

    @functools.wraps(stock_tokenize)
    def tokenize(self: Any, prompt: Any, params: Any, *more: Any, **named: Any) -> Any:
        served = self.__dict__.get(_SERVED)
        if served is None or more or named:  # what a newer vLLM may ask for beyond IDs is its own affair
            return stock_tokenize(self, prompt, params, *more, **named)
        return served(self, prompt, params)

    for name, render in renders.items():
        setattr(BaseRenderer, name, _keyed(render))
    BaseRenderer._tokenize_prompt = tokenize
    BaseRenderer.__init__ = init


def _keyed(render: Callable[..., Any]) -> Callable[..., Any]:
    """A render method that tokenizes under the key of its request."""
    if _is_async(render):

        @functools.wraps(render)
        async def keyed_async(self: Any, *args: Any, prompt_extras: Any = None, **kwargs: Any) -> Any:
            with keys.of_render(prompt_extras):
                return await render(self, *args, prompt_extras=prompt_extras, **kwargs)

        return keyed_async

    @functools.wraps(render)
    def keyed(self: Any, *args: Any, prompt_extras: Any = None, **kwargs: Any) -> Any:
        with keys.of_render(prompt_extras):
            return render(self, *args, prompt_extras=prompt_extras, **kwargs)

    return keyed


def _serve(renderer: Any, stock: Callable[..., Any], options: Options) -> None:
    """Let a new renderer be served, and say so. Raises what stands against it; the renderer is as it was then."""
    if getattr(renderer, "tokenizer", None) is None:
        return  # --skip-tokenizer-init: there is nothing to tokenize
    if not hasattr(renderer, "_executor") or not hasattr(renderer, "_tokenize_prompt_async"):
        raise HookMissing(f"{type(renderer).__name__} has no _executor or no _tokenize_prompt_async")
    served = PromptTokenizer(renderer, stock, options)

    def tokenize_async(prompt: Any, params: Any) -> Any:
        # Executors don't carry context variables to their threads; the key is one.
        run = copy_context().run
        return asyncio.get_running_loop().run_in_executor(
            renderer._executor, run, renderer._tokenize_prompt, prompt, params
        )

    _export(served)
    setattr(renderer, _SERVED, served)
    renderer._tokenize_prompt_async = tokenize_async
    level = logging.INFO if served.delta.admission.admitted else logging.WARNING
    log.log(level, "%s%s", served.delta.describe(), _exceptions(renderer))


def _exceptions(renderer: Any) -> str:
    """What this model's requests keep from us by construction, for the startup line."""
    model = getattr(renderer, "model_config", None)
    kind = getattr(getattr(model, "hf_config", None), "model_type", None)
    if kind in ("gpt_oss", "kimi_k3"):
        return f"; vLLM makes IDs, not text, of {kind} chats: those are its own, completions are ours"
    if getattr(model, "enable_prompt_embeds", False):
        return "; with --enable-prompt-embeds chat templates tokenize: chats are vLLM's own, completions are ours"
    return ""


def _export(served: PromptTokenizer) -> None:
    """Count into the registry that vLLM serves at /metrics. A second renderer of a process shares the metrics."""
    global _prometheus
    if "prometheus_client" not in sys.modules:
        return  # vLLM counts nothing here
    try:
        _prometheus = _prometheus or Prometheus()
        served.delta.export(_prometheus)
    except Exception as error:  # noqa: BLE001 - serving matters more than counting
        log.warning("no Prometheus metrics: %s: %s", type(error).__name__, error)


def _patch_request_hooks(separator: str | None) -> None:
    from vllm.renderers.online_renderer import OnlineRenderer

    names = ("preprocess_chat", "preprocess_cmpl")
    stock = {name: _hook(OnlineRenderer, name, "request", coroutine=True) for name in names}
    for name, preprocess in stock.items():
        setattr(OnlineRenderer, name, _reading_body(preprocess, separator))


def _reading_body(preprocess: Callable[..., Any], separator: str | None) -> Callable[..., Any]:
    @functools.wraps(preprocess)
    async def reading(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        with keys.of_body(request, separator):
            return await preprocess(self, request, *args, **kwargs)

    return reading


# -- detokenization --


def _patch_detokenizer() -> None:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    stock_init = _hook(FastIncrementalDetokenizer, "__init__", "tokenizer", "request")
    if "prompt_token_ids" not in getattr(EngineCoreRequest, "__struct_fields__", ()):
        raise HookMissing("EngineCoreRequest has no prompt_token_ids")

    @functools.wraps(stock_init)
    def init(self: Any, tokenizer: Any, request: Any, *more: Any, **named: Any) -> None:
        stock_init(self, tokenizer, with_tail(tokenizer, request), *more, **named)

    FastIncrementalDetokenizer.__init__ = init


# -- both --


def _hook(owner: type, name: str, *parameters: str, coroutine: bool = False) -> Callable[..., Any]:
    """A method that is about to be replaced. Raises HookMissing when it is not as expected.

    parameters: some that it must have. coroutine: whether it must be a coroutine function, or must not.
    """
    method: Callable[..., Any] | None = getattr(owner, name, None)
    if method is None:
        raise HookMissing(f"no {owner.__name__}.{name}")
    missing = [p for p in parameters if p not in inspect.signature(method).parameters]
    if missing:
        raise HookMissing(f"{owner.__name__}.{name} has no parameter {missing[0]}")
    if _is_async(method) != coroutine:
        raise HookMissing(f"{owner.__name__}.{name} is {'not ' if coroutine else ''}a coroutine function")
    return method


def _is_async(method: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(method))


def _speak_through_vllm() -> None:
    """Log as vLLM does. Its own logger gets its handlers later than this, so ours become its children."""
    for name in ("delta_core", "delta_vllm"):
        logging.getLogger(name).parent = logging.getLogger("vllm")
