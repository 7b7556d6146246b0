"""The live tokenizer's own methods: ours while SGLang makes a prompt of a chat, or of a request with images."""

from __future__ import annotations

import copyreg
import inspect
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

from delta_core.detokenize import unproven
from delta_core.identity import bytes_of


class Server(Protocol):
    """Who serves a tokenizer: an Adapter, or a Clone."""

    live: Any
    stock: Any
    one_type: bool

    def serves(self, text: str) -> bool:
        """Whether this is to be asked at all."""

    def rendered(self, text: str, add_special_tokens: bool) -> list[int]:
        """The IDs of a prompt."""

    def rendered_array(self, text: str, add_special_tokens: bool) -> array[int]:
        """The same as an array."""

    def admits(self, text: str) -> bool:
        """Whether the live tokenizer is still the admitted one."""

    def decoded(self, ids: list[int]) -> str | None:
        """The text of these IDs, or None."""

    def failed(self, error: Exception) -> None:
        """Count a fault of ours."""


class Prompt:
    """One prompt that SGLang is making. served: whether an encode was ours. ids: the list that the latest returned."""

    def __init__(self) -> None:
        self.served = False
        self.ids: list[int] | None = None


# Only here the live tokenizer's methods are ours: elsewhere SGLang tokenizes stop strings, labels and bare texts.
making: ContextVar[Prompt | None] = ContextVar("delta_prompt", default=None)


def override(adapter: Server) -> None:
    """Give the live tokenizer a subclass of its own class, whose methods serve prompts that are being made.

    SGLang's own accelerations ask whether `encode` is the stock one, and call it when it is not. Anywhere else, with
    arguments that ask for more than IDs, or on a copy of the tokenizer, the methods are the stock ones. Copies and
    pickles are of the stock class.
    """
    base = adapter.stock

    def encode(self: Any, text: Any, *args: Any, **kwargs: Any) -> Any:
        prompt = making.get()
        plain = isinstance(text, str) and not args and not kwargs.keys() - {"add_special_tokens"}
        if prompt is None or self is not adapter.live or not plain or not adapter.serves(text):
            return base.encode(self, text, *args, **kwargs)
        try:
            ids = adapter.rendered(text, kwargs.get("add_special_tokens", True))
        except Exception as error:  # noqa: BLE001 - the stock tokenizer decides whether it is the text's fault or ours
            ids = base.encode(self, text, **kwargs)
            adapter.failed(error)
            return ids
        prompt.served, prompt.ids = True, ids
        return ids

    def decode(self: Any, token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        prompt, text = making.get(), None
        made = None if prompt is None or self is not adapter.live else prompt.ids
        if made is not None and token_ids is made and not args and not kwargs:
            text = adapter.decoded(made)
        return base.decode(self, token_ids, *args, **kwargs) if text is None else text

    def call(self: Any, text: Any = None, *args: Any, **kwargs: Any) -> Any:
        prompt, stock = making.get(), partial(tidy_call, base, self, text, *args, **kwargs)
        if prompt is not None and self is adapter.live and not args:
            try:
                result = encoded(adapter, text, kwargs, stock)
            except Exception as error:  # noqa: BLE001 - as in encode
                result = stock()
                adapter.failed(error)
                return result
            if result is not None:
                prompt.served = True
                return result
        return stock()

    _subclass(adapter, {"encode": encode, "decode": decode, "__call__": call})


def keep_tidy(adapter: Server) -> None:
    """Have the live tokenizer's calls leave no padding and no truncation on it, before it is admitted."""

    def call(self: Any, text: Any = None, *args: Any, **kwargs: Any) -> Any:
        return tidy_call(adapter.stock, self, text, *args, **kwargs)

    _subclass(adapter, {"__call__": call})


def tidy_call(base: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """The stock call. It sets the backend's padding, and leaves it set until the next call sets it anew.

    To us that would look like a changed tokenizer; an image processor asks for padding.
    """
    backend = self._tokenizer
    truncation, padding, special = backend.truncation, backend.padding, backend.encode_special_tokens
    try:
        return base.__call__(self, *args, **kwargs)
    finally:
        if truncation is None and backend.truncation is not None:
            backend.no_truncation()
        if padding is None and backend.padding is not None:
            backend.no_padding()
        if backend.encode_special_tokens != special:
            backend.encode_special_tokens = special


def _subclass(adapter: Server, methods: dict[str, Any]) -> None:
    base = adapter.stock

    def reduce(self: Any, protocol: Any) -> Any:
        make, arguments, *rest = base.__reduce_ex__(self, protocol)
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            make = object.__new__  # what it calls; it would insist on the object's own class
        return make, tuple(base if argument is subclass else argument for argument in arguments), *rest

    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    subclass = type(base.__name__, (base,), {**names, **methods, "__reduce_ex__": reduce})
    adapter.live.__class__ = subclass


def claim(live: object) -> None:
    """Have SGLang look at `encode` again: it remembers how it encodes a tokenizer's long prompts in parallel.

    Where the tokenizer serves later than its first long chat, that is past `encode`. Under a microsecond.
    """
    module = sys.modules.get("sglang.srt.entrypoints.openai.parallel_prompt_encode")
    for name in ("_plans", "_segment_encoders"):
        remembered = getattr(module, name, None)
        if remembered is not None and remembered.get(live) is not None:
            remembered.pop(live, None)


# -- the call of an image processor --

# What the tokenizer's call may be asked for: all that leaves a single text's IDs, and what stands around them, alone.
_PLAIN: dict[str, tuple[object, ...]] = {
    "add_special_tokens": (True, False),
    "padding": (False, True, "longest", "do_not_pad"),
    "truncation": (None, False, "do_not_truncate"),
    "max_length": (None,),
    "return_tensors": (None, "pt", "np"),
    "return_token_type_ids": (None, False, True),
    "return_attention_mask": (None, False, True),
    "return_overflowing_tokens": (False,),
    "return_special_tokens_mask": (False,),
    "return_offsets_mapping": (False,),
    "return_length": (False,),
    "is_split_into_words": (False,),
    "pad_to_multiple_of": (None,),
    "padding_side": (None, "left", "right"),
    "stride": (0,),
    "verbose": (True, False),
}


def encoded(adapter: Server, text: Any, kwargs: Mapping[str, Any], stock: Callable[[], Any]) -> Any:
    """What the tokenizer's call returns for one text, or None: it is asked for something else.

    stock: makes the stock result. It has what the call knows of each token, too; whoever wants that waits for it.
    """
    batched = isinstance(text, list)
    if batched and len(text) == 1:
        text = text[0]
    if not isinstance(text, str) or not all(_plain(name, value) for name, value in kwargs.items()):
        return None
    if not adapter.serves(text):
        return None
    live, tensors = adapter.live, kwargs.get("return_tensors")
    if kwargs.get("padding") and live.pad_token is None:
        return None  # an error
    wanted = {}
    for name, asked in (("token_type_ids", "return_token_type_ids"), ("attention_mask", "return_attention_mask")):
        value = kwargs.get(asked)
        wanted[name] = name in live.model_input_names if value is None else value
    if wanted["token_type_ids"] and not adapter.one_type:
        return None
    special = kwargs.get("add_special_tokens", True)
    ids: Any
    if tensors is None:
        ids = adapter.rendered(text, special)
        fill: Callable[[int], Any] = lambda value: [value] * len(ids)  # noqa: E731 - one of two
    else:
        import numpy as np

        ids = np.frombuffer(adapter.rendered_array(text, special), np.int64)
        fill = lambda value: np.full(len(ids), value, np.int64)  # noqa: E731 - see above
    if len(ids) == 0:
        return None  # tensors of nothing have types of their own
    data = {"input_ids": ids}
    if wanted["token_type_ids"]:
        data["token_type_ids"] = fill(0)
    if wanted["attention_mask"]:
        data["attention_mask"] = fill(1)
    if batched or tensors is not None:
        data = {name: [value] for name, value in data.items()}
    from transformers import BatchEncoding

    return BatchEncoding(data, _Encodings(stock), tensor_type=tensors, n_sequences=1)


def _plain(name: str, value: Any) -> bool:
    return (value is None or isinstance(value, bool | int | str)) and value in _PLAIN.get(name, ())


class _Encodings(Sequence[Any]):
    """What the library's own result knows of the tokens of one text, made when somebody asks for it."""

    def __init__(self, stock: Callable[[], Any]) -> None:
        self._stock = stock
        self._made: list[Any] | None = None

    def __len__(self) -> int:
        return 1

    def __getitem__(self, at: Any) -> Any:
        if self._made is None:
            with outside():
                self._made = list(self._stock().encodings)
        return self._made[at]

    def __reduce__(self) -> Any:
        return list, (list(self),)


@contextmanager
def outside() -> Iterator[None]:
    """The live tokenizer's methods are the stock ones here."""
    token = making.set(None)
    try:
        yield
    finally:
        making.reset(token)


# -- the clones of a processor --


class Clone:
    """The copy of the live tokenizer in one of the processors with which SGLang's worker threads work.

    It is served as the live one is, for as long as neither has changed.
    """

    def __init__(self, adapter: Server, tokenizer: Any) -> None:
        self._adapter, self.live, self.stock = adapter, tokenizer, type(tokenizer)
        self.one_type = adapter.one_type
        self._size = tokenizer._tokenizer.get_vocab_size()
        self._same = tokenizer._tokenizer.to_str() == adapter.live._tokenizer.to_str()

    def serves(self, text: str) -> bool:
        """Whether it is the admitted tokenizer: its own stock call serves otherwise."""
        same = self._same and self.live._tokenizer.get_vocab_size() == self._size
        return same and self._adapter.serves(text) and self._adapter.admits(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def carry(adapter: Server, executor: Any) -> None:
    """Have a processor's worker threads know for whom they work. Raises where SGLang's executor is another one."""
    stock = executor.run
    if [*inspect.signature(stock).parameters][:1] != ["function"] or not inspect.iscoroutinefunction(stock):
        raise TypeError(f"{type(executor).__name__}.run is not as expected")

    async def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if making.get() is None:
            return await stock(function, *args, **kwargs)
        return await stock(partial(copy_context().run, _on_clone, adapter, function), *args, **kwargs)

    executor.run = run


def _on_clone(adapter: Server, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    processor = kwargs.get("processor")
    tokenizer = getattr(processor, "tokenizer", processor)
    if type(tokenizer) is adapter.stock:
        override(Clone(adapter, tokenizer))
    return function(*args, **kwargs)


# -- decoding --


class Bytes:
    """The bytes of every token, by which a list of IDs is decoded in a tenth of the library's time.

    A `ByteLevel` decoder on its own maps every token to bytes (one with a character outside the byte alphabet to its
    UTF-8), joins them, and reads the whole as UTF-8. So does this, with the bytes that the decoder itself is shown to
    give for the whole vocabulary. Malformed UTF-8, IDs without a token and tokens that came later are left to the
    library. Raises ValueError where the tokenizer's decode does something else.
    """

    def __init__(self, live: Any, decode: Callable[[list[int]], str]) -> None:
        self._backend = backend = live._tokenizer
        reason = unproven(backend)
        if reason is not None:
            raise ValueError(reason)
        tokens = backend.get_vocab(with_added_tokens=True)
        self._table: list[bytes | None] = [None] * (max(tokens.values(), default=-1) + 1)
        for token, number in tokens.items():
            spelled = bytes_of(token)
            self._table[number] = token.encode() if spelled is None else spelled
        every = sorted(tokens.values())
        for ids in (every, every[::-1]):
            if decode(ids) != b"".join(self._of(ids)).decode(errors="replace"):
                raise ValueError("its decode does more than its decoder")

    def _of(self, ids: Sequence[int]) -> tuple[bytes, ...]:
        got: Any = itemgetter(*ids)(self._table)
        return (got,) if len(ids) == 1 else got

    def text(self, ids: Sequence[int]) -> str | None:
        """What the tokenizer's `decode` returns for IDs that its encode gave, None where the library is to decode."""
        if not ids or unproven(self._backend) is not None:
            return None
        try:
            return b"".join(self._of(ids)).decode()
        except (UnicodeDecodeError, IndexError, TypeError):
            return None
