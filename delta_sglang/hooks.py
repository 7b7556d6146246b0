"""The hooks: what runs around SGLang's own functions. Each falls back to the original, and never fails a request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

from delta_core import Reason, session_key
from delta_core.context import Key
from delta_core.options import Options

from .adapter import Adapter
from .backend import BACKEND
from .live import outside

log = logging.getLogger("delta_sglang")

complete = False  # whether all hooks are in; until they are, none acts
_ADAPTER = "_delta_adapter"  # the attribute of a tokenizer manager that holds its Adapter
# The keys of a batch that is tokenized in one call.
_batch: ContextVar[Sequence[Key]] = ContextVar("delta_batch", default=())


def adapter_of(manager: Any) -> Adapter | None:
    """The manager's adapter, while it tokenizes with a tokenizer that was admitted."""
    adapter: Adapter | None = getattr(manager, _ADAPTER, None)
    return adapter if adapter is not None and adapter.refusal(manager) is None else None


def start(_result: None, manager: Any) -> None:
    """After `TokenizerManager.init_tokenizer_and_processor`: admit the tokenizer, say what was decided."""
    if not complete or getattr(manager.server_args, "tokenizer_backend", None) != BACKEND:
        return
    try:
        adapter = _start(manager)
    except Exception:
        log.exception("stock path: %s", Reason.ADAPTER_FAILED)
        return
    if adapter is not None:
        setattr(manager, _ADAPTER, adapter)


def _start(manager: Any) -> Adapter | None:
    if manager.tokenizer is None:
        log.warning("stock path: %s (no tokenizer in this process: --skip-tokenizer-init)", Reason.NOT_TEXT_MODEL)
        return None
    if getattr(manager.model_config, "is_embedding_gemma", False):
        log.warning("stock path: %s (SGLang appends a token to this model's texts)", Reason.NOT_TEXT_MODEL)
        return None
    options = Options.from_environment()
    delta = options.tokenizer(manager.tokenizer)
    admitted = delta.admission.admitted
    # Further HTTP workers have no logging set up, or half of it: they show nothing below a warning.
    shown = logging.getLogger().handlers and log.isEnabledFor(logging.INFO)
    log.log(logging.INFO if admitted and shown else logging.WARNING, "Delta Tokenizer: %s", delta.describe())
    if getattr(manager, "enable_metrics", False):
        _export(delta)
    processor = getattr(manager, "mm_processor", None)
    adapter = Adapter(manager.tokenizer, delta, options, multimodal=processor is not None)
    adapter.attend(processor)
    return adapter


def _export(delta: Any) -> None:
    from delta_core.metrics import Prometheus

    try:
        delta.export(Prometheus())
    except ValueError:  # a second engine in this process: the names are taken
        log.warning("metrics: another engine in this process has them")


async def tokenize_one_request(original: Callable[..., Awaitable[Any]], manager: Any, obj: Any, *args: Any) -> Any:
    """Around `_tokenize_one_request`: the key of one request, for everything that is encoded on its behalf.

    Of a prompt with images, audio or video SGLang's processor makes the IDs, mostly by the tokenizer's own methods.
    """
    adapter = adapter_of(manager)
    if adapter is None:
        return await original(manager, obj, *args)
    with session_key(*adapter.key(obj)):
        if getattr(manager, "mm_processor", None) is None or not obj.contains_mm_input():
            return await original(manager, obj, *args)
        with adapter.making() as prompt:
            result = await original(manager, obj, *args)
        if not prompt.served:
            adapter.left(Reason.MULTIMODAL)
        return result


async def batch_tokenize_and_process(
    original: Callable[..., Awaitable[Any]], manager: Any, batch_size: int, obj: Any
) -> Any:
    """Around `_batch_tokenize_and_process` (--enable-tokenizer-batch-encode): the keys of all its requests."""
    adapter = adapter_of(manager)
    if adapter is None:
        return await original(manager, batch_size, obj)
    token = _batch.set([adapter.key(obj[i]) for i in range(batch_size)])
    try:
        return await original(manager, batch_size, obj)
    finally:
        _batch.reset(token)


async def tokenize_texts(
    original: Callable[..., Awaitable[Any]], manager: Any, texts: Any, is_cross_encoder: bool = False
) -> Any:
    """Around `_tokenize_texts`: texts of /generate, /v1/completions and embeddings, before any queue of SGLang's."""
    adapter: Adapter | None = getattr(manager, _ADAPTER, None)
    if adapter is None:
        return await original(manager, texts, is_cross_encoder)
    keys = _batch.get()
    reason = adapter.refusal(manager) or _refusal(texts, keys, is_cross_encoder)
    if reason is not None:
        adapter.left(reason, len(texts) if isinstance(texts, list) else 1)
        with outside():
            return await original(manager, texts, is_cross_encoder)
    try:
        return await adapter.ids(texts, keys), None
    except Exception as error:  # noqa: BLE001 - the stock tokenizer decides whether it is the text's fault or ours
        with outside():
            result = await original(manager, texts, is_cross_encoder)
        adapter.failed(error)
        return result


def _refusal(texts: Any, keys: Sequence[Key], is_cross_encoder: bool) -> Reason | None:
    """Why SGLang's own tokenizer is to serve these texts, or None."""
    if is_cross_encoder:
        return Reason.NOT_TEXT_MODEL
    if isinstance(texts, list):
        return None if len(texts) == len(keys) > 0 else Reason.SALT_UNKNOWN
    return None if isinstance(texts, str) else Reason.NOT_TEXT


def process_messages(original: Callable[..., Any], serving: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Around `OpenAIServingChat._process_messages`: it renders and encodes the prompts of all chat-like endpoints."""
    manager = serving.tokenizer_manager
    adapter: Adapter | None = getattr(manager, _ADAPTER, None)
    if adapter is None:
        return original(serving, request, *args, **kwargs)
    reason = adapter.refusal(manager)
    if reason is None:
        with adapter.rendering(request):
            return original(serving, request, *args, **kwargs)
    result = original(serving, request, *args, **kwargs)
    # Text comes through `_tokenize_texts` later, and IDs may be the client's own.
    if isinstance(getattr(result, "prompt_ids", None), list) and getattr(request, "input_ids", None) is None:
        adapter.left(reason)
    return result


async def make_request(
    original: Callable[..., Awaitable[Any]], serving: Any, request: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around `OpenAIServingResponses._make_request`, which makes a chat request without the fields of the key."""
    adapter = adapter_of(serving.tokenizer_manager)
    if adapter is None:
        return await original(serving, request, *args, **kwargs)
    with session_key(*adapter.key(request)):
        return await original(serving, request, *args, **kwargs)
