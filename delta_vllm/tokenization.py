"""One renderer's prompts: from DeltaTokenizer where it may, by vLLM's own call where it may not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Tokenizer

from delta_core import DeltaTokenizer, Reason
from delta_core.context import Key
from delta_core.errors import where
from delta_core.forks import renewed_after_fork
from delta_core.options import Options
from delta_core.reference import backend_of

from . import keys

log = logging.getLogger("delta_vllm")

# The keywords of vLLM's tokenizer call that are understood here. Any other one asks for something else than IDs.
_KEYWORDS = {"truncation", "max_length", "add_special_tokens"}
# What the engine's call and the backend must agree on before the backend counts as the reference.
_PROBES = ("", "Hello world", " 1\n\n\tx  ", "na\u00efve \u65e5\u672c \U0001f642", "it's\r\n  def f():")

Stock = Callable[[Any, Any, Any], Any]  # BaseRenderer._tokenize_prompt(renderer, prompt, params)


class _PlainParams:
    """Parameters of vLLM's tokenizer call that ask for all IDs of a text."""

    return_token_offsets = False

    def __init__(self, add_special_tokens: bool) -> None:
        self._add = add_special_tokens

    def get_encode_kwargs(self) -> dict[str, Any]:
        return {"truncation": False, "max_length": None, "add_special_tokens": self._add}


class PromptTokenizer:
    """Tokenizes the prompts of one renderer. Thread-safe; an exception of our own leads to vLLM's own call.

    renderer: a vLLM renderer with its tokenizer, before it has served anything.
    stock: vLLM's own method, unbound.
    Construction takes 1 to 3 s: see DeltaTokenizer.
    """

    def __init__(self, renderer: Any, stock: Stock, options: Options) -> None:
        self._stock = stock
        self._live = renderer.get_tokenizer()
        self._lock = threading.Lock()
        renewed_after_fork(self)
        # In `keyed` policy there is no look-up by content: the salt is better than no key. Otherwise it is worse, since
        # a salt is shared by many conversations, and the branches under one key are few.
        self._salt_is_key = options.policy == "keyed"
        self.delta: DeltaTokenizer = options.tokenizer(self._live)
        # What admits a tokenizer later looks at it then: no request may leave a trace on it until that.
        waits = self.delta.admission.reason is Reason.UNKNOWN_PRE_TOKENIZER
        self._backend: Tokenizer | None = None
        if waits or self.delta.admission.admitted:
            backend = self._backend = backend_of(self._live)
            self.delta.when_admitted(lambda: self._compare(renderer, backend))

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def _compare(self, renderer: Any, backend: Tokenizer) -> None:
        """Raises ValueError when vLLM's call does more than the backend's encode, for which all our proofs are."""
        added = "".join(token.content for token in list(backend.get_added_tokens_decoder().values())[:4])
        for text in (*_PROBES, f"a{added} b"):
            for add in (False, True):
                with self._lock:  # requests may run already, and vLLM's call may be on the backend itself
                    mine = list(backend.encode(text, add_special_tokens=add).ids)
                    theirs = self._stock(renderer, {"prompt": text}, _PlainParams(add))["prompt_token_ids"]
                if theirs != mine:
                    raise ValueError(f"{type(self._live).__name__} returns other IDs than its backend")

    def __call__(self, renderer: Any, prompt: Mapping[str, Any], params: Any) -> Any:
        """What `_tokenize_prompt` returns: the prompt with `prompt_token_ids`. Raises what vLLM's own call raises."""
        ids = self._ids(renderer, prompt, params)
        if ids is not None:
            return {"prompt_token_ids": ids, **prompt}
        if self._backend is None or _pooled(self._live):
            return self._stock(renderer, prompt, params)
        return self._stock_leaving_no_trace(self._backend, renderer, prompt, params)

    def _ids(self, renderer: Any, prompt: Mapping[str, Any], params: Any) -> list[int] | None:
        """All IDs of the prompt, or None: vLLM's own call is to serve it."""
        delta = self.delta
        try:
            text, kwargs, key = prompt["prompt"], params.get_encode_kwargs(), keys.current()
            reason = self._refusal(renderer, text, params, kwargs, key)
            if reason is not None:
                self._note(reason)
                return None
            assert key is not None
            # Offline prompts carry their salt themselves. vLLM puts the extras' in its place where both are there.
            namespace = key.namespace or keys.namespace_of(prompt)
            session = key.session or (namespace if self._salt_is_key else None)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the request; counted, logged once
            self._note(Reason.ADAPTER_FAILED, f" ({where(error)})")
            return None
        try:
            ids = delta.encode(
                text, session=session, namespace=namespace, add_special_tokens=kwargs["add_special_tokens"]
            )
        except Exception:  # noqa: BLE001 - counted by DeltaTokenizer; vLLM's own call decides what the client sees
            return None
        most = kwargs.get("max_length")
        if kwargs.get("truncation") and most is not None and len(ids) > most:
            self._note(Reason.TRUNCATED, stock=False)  # a request that is counted already
            return None
        return ids

    def _refusal(
        self, renderer: Any, text: object, params: Any, kwargs: Mapping[str, Any], key: Key | None
    ) -> Reason | None:
        """Why vLLM's own call is to serve this prompt, or None."""
        if renderer.get_tokenizer() is not self._live:
            return Reason.LIVE_CHANGED
        if key is None:
            return Reason.SALT_UNKNOWN  # somebody tokenizes past the hooks that know the salt
        if getattr(params, "return_token_offsets", False) or kwargs.get("return_offsets_mapping"):
            return Reason.OFFSETS
        if not kwargs.keys() <= _KEYWORDS or not isinstance(kwargs.get("add_special_tokens"), bool):
            return Reason.KEYWORD_UNKNOWN
        # Asked here, too, because DeltaTokenizer's own stock path asks the backend, and vLLM's asks copies of it.
        return self.delta.refusal(text)

    def _note(self, reason: Reason, detail: str = "", *, stock: bool = True) -> None:
        first = self.delta.fallback(reason, stock=stock)
        if first and (detail or reason is not self.delta.admission.reason):  # the startup line says that one
            log.warning("vLLM's own tokenizer serves: %s%s", reason, detail)

    def _stock_leaving_no_trace(self, backend: Tokenizer, renderer: Any, prompt: Mapping[str, Any], params: Any) -> Any:
        """VLLM's own call on a tokenizer that it shares with us.

        The call sets the backend's truncation and leaves it set until the next call sets it anew: to us that would look
        like a changed tokenizer for ever. One such call at a time, so that none runs on another's setting.
        """
        with self._lock:
            before = backend.truncation
            try:
                return self._stock(renderer, prompt, params)
            finally:
                if before is None and backend.truncation is not None:
                    backend.no_truncation()


def _pooled(live: object) -> bool:
    """Whether vLLM sends calls of this tokenizer to copies of it."""
    return any(kind.__name__ == "ThreadSafeHFTokenizerMixin" for kind in type(live).__mro__)
