"""Puts the hooks into SGLang, all of them or none."""

from __future__ import annotations

import inspect
import logging
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from delta_core import Reason

from . import hooks

log = logging.getLogger("delta_sglang")

_APP, _STOCK_APP = "delta_sglang.app:app", "sglang.srt.entrypoints.http_server:app"
_installed: bool | None = None  # None: not tried yet


@dataclass(frozen=True, slots=True)
class Target:
    """A function of SGLang's that is hooked, as it must be for the hook to fit.

    path: dotted. hook: of `hooks`. kind: "after" or "around". parameters: its first ones, after self.
    """

    path: str
    hook: Callable[..., Any]
    kind: str
    parameters: tuple[str, ...]

    def fault(self) -> str | None:
        """Why this SGLang does not have it, or None."""
        try:
            function = pkgutil.resolve_name(self.path)
            names = tuple(inspect.signature(function).parameters)[1 : len(self.parameters) + 1]
        except Exception as error:  # noqa: BLE001 - a module of SGLang's may raise anything when it is imported
            return f"{self.path} is missing ({error})"
        if names != self.parameters:
            return f"{self.path} takes ({', '.join(names)}), not ({', '.join(self.parameters)})"
        if _is_async(function) != _is_async(self.hook):
            return f"{self.path} is {'' if _is_async(function) else 'not '}a coroutine function"
        return None


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function))


_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_OPENAI = "sglang.srt.entrypoints.openai"
TARGETS = (
    Target(f"{_MANAGER}.init_tokenizer_and_processor", hooks.start, "after", ()),
    Target(f"{_MANAGER}._tokenize_one_request", hooks.tokenize_one_request, "around", ("obj",)),
    Target(f"{_MANAGER}._tokenize_texts", hooks.tokenize_texts, "around", ("texts", "is_cross_encoder")),
    Target(
        f"{_MANAGER}._batch_tokenize_and_process", hooks.batch_tokenize_and_process, "around", ("batch_size", "obj")
    ),
    Target(
        f"{_OPENAI}.serving_chat.OpenAIServingChat._process_messages", hooks.process_messages, "around", ("request",)
    ),
    Target(
        f"{_OPENAI}.serving_responses.OpenAIServingResponses._make_request", hooks.make_request, "around", ("request",)
    ),
)


def install(server_args: Any) -> bool:
    """Install the hooks in this process, once; whether they are in.

    SGLang only logs what goes wrong with a plugin. So everything is looked at first, and if anything is not as
    expected, nothing is hooked, and one line says so.
    """
    global _installed
    if _installed is None:
        _installed = _install()
    if _installed:
        _workers(server_args)
    return _installed


def _install() -> bool:
    from sglang.srt.environ import envs
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if envs.SGLANG_RUST_SERVER.get():
        log.warning("stock path: %s (SGLANG_RUST_SERVER tokenizes outside Python)", Reason.NOT_TEXT_MODEL)
        return False
    faults = [fault for target in TARGETS if (fault := target.fault())]
    if faults:
        log.error("stock path: %s: %s", Reason.HOOK_MISSING, "; ".join(faults))
        return False
    before = {target: pkgutil.resolve_name(target.path) for target in TARGETS}
    kinds = {"after": HookType.AFTER, "around": HookType.AROUND}
    for target in TARGETS:
        HookRegistry.register(target.path, target.hook, kinds[target.kind])
    if not hasattr(envs, "SGLANG_HTTP_SERVER_APP_PATH"):
        HookRegistry.register("uvicorn.run", _run_app, HookType.AROUND)
    HookRegistry.apply_hooks()
    missing = [target.path for target in TARGETS if pkgutil.resolve_name(target.path) is before[target]]
    if missing:  # SGLang has logged why
        log.error("stock path: %s: SGLang did not hook %s", Reason.HOOK_MISSING, ", ".join(missing))
    hooks.complete = not missing
    return hooks.complete


def _workers(server_args: Any) -> None:
    """Name our application to the HTTP workers of --tokenizer-worker-num > 1, which load no plugins themselves."""
    from sglang.srt.environ import envs

    several = getattr(server_args, "tokenizer_worker_num", 1) > 1
    if hasattr(envs, "SGLANG_HTTP_SERVER_APP_PATH"):
        chosen = os.environ.setdefault("SGLANG_HTTP_SERVER_APP_PATH", _APP)
        if several and chosen != _APP:
            log.warning("SGLANG_HTTP_SERVER_APP_PATH is %s: its workers must load SGLang's plugins themselves", chosen)
    elif several and getattr(server_args, "enable_http2", False):
        log.error("stock path: %s: HTTP/2 workers of this SGLang can't load plugins", Reason.HOOK_MISSING)


def _run_app(original: Callable[..., Any], app: Any, *args: Any, **kwargs: Any) -> Any:
    """Around `uvicorn.run`, where this SGLang has no setting for the workers' application."""
    return original(_APP if app == _STOCK_APP else app, *args, **kwargs)
