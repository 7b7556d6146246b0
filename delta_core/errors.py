"""Why a request, or a whole tokenizer, takes the stock path: one enum, metric label and word in the log alike."""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable
from enum import Enum
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Reason(str, Enum):
    """Why Delta Tokenizer stood aside."""

    # The tokenizer as a whole: decided once, at admission.
    NOT_FAST = "not_fast"  # no Hugging Face `tokenizers` object behind it
    UNKNOWN_TOKENIZER = "unknown_tokenizer"  # no frozen config has its vocabulary and merges
    SECTION_DIFFERS = "section_differs"  # a frozen config fits except for the named sections
    UNSUPPORTED_MODEL = "unsupported_model"  # not BPE, or BPE with dropout
    UNSUPPORTED_NORMALIZER = "unsupported_normalizer"
    UNSUPPORTED_PRE_TOKENIZER = "unsupported_pre_tokenizer"
    UNSUPPORTED_POST_PROCESSOR = "unsupported_post_processor"
    UNSUPPORTED_ADDED_TOKEN = "unsupported_added_token"  # lstrip, rstrip or single_word
    TRUNCATION_SET = "truncation_set"
    PADDING_SET = "padding_set"

    UNKNOWN_PRE_TOKENIZER = "unknown_pre_tokenizer"  # its table of safe transitions is not derived yet
    COPY_DIFFERS = "copy_differs"  # what serialising the live tokenizer gives is another tokenizer
    ENCODER_DIFFERS = "encoder_differs"  # a fast encoder makes another tokenizer of this one: the reference encodes

    HOOK_MISSING = "hook_missing"  # the engine's version has no place where an adapter could stand
    NOT_TEXT_MODEL = "not_text_model"  # a cross-encoder, or tokenized outside Python
    SHADOW_DIFFERS = "shadow_differs"  # a shadow check found a difference: everything is stock from then on

    # One request.
    LIVE_CHANGED = "live_changed"  # the live tokenizer is not the one that was admitted any more
    NOT_TEXT = "not_text"  # the input is no str; the reference decides what to make of it
    BAD_TEXT = "bad_text"  # lone surrogates: the reference raises its own error
    ENCODER_FAILED = "encoder_failed"  # a fast encoder raised where the reference does not
    POOL_FULL = "pool_full"  # the workers' queue holds all it may hold: the caller encodes
    POOL_FAILED = "pool_failed"  # a worker died, or an encoder raised there: the caller encodes
    MULTIMODAL = "multimodal"  # images, audio or video: a processor made the IDs in a way of its own
    OFFSETS = "offsets"  # the engine asks for more than IDs
    KEYWORD_UNKNOWN = "keyword_unknown"  # the engine's call has a keyword whose meaning is not known here
    SALT_UNKNOWN = "salt_unknown"  # a prompt came past the hooks that know its salt: with whom to share it is unknown
    TRUNCATED = "truncated"  # longer than the engine truncates to: which IDs remain is its own affair
    KEY_FAILED = "key_failed"  # no session and salt could be made of a request: it shares with none
    ADAPTER_FAILED = "adapter_failed"  # a fault of the adapter's
    INTERNAL = "internal"  # a fault of our own

    def __str__(self) -> str:
        return self.value

    @property
    def part(self) -> str:
        """What did not serve as meant, and so what stood in for it: a label of the metric.

        "request": the stock path served it. "encoder": the reference encoded. "pool": the caller encoded. "key": the
        request got a namespace of its own.
        """
        return _PARTS.get(self, "request")


_PARTS = {
    Reason.ENCODER_DIFFERS: "encoder",
    Reason.ENCODER_FAILED: "encoder",
    Reason.POOL_FULL: "pool",
    Reason.POOL_FAILED: "pool",
    Reason.KEY_FAILED: "key",
}


class DeltaError(Exception):
    """Base of the errors this package raises on its own account; encoding never raises one."""


class ConfigError(DeltaError):
    """A frozen config can't be read or is inconsistent."""


class FreezeError(DeltaError):
    """A tokenizer can't be frozen; the message names the section and what is not covered."""

    def __init__(self, message: str, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class Panic(RuntimeError):
    """A panic in a library written in Rust; the message is the type's name, never a text."""


def panics_are_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Have panics of Rust libraries raised as Panic: as the BaseExceptions that they are they would end a thread."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            raise Panic(type(error).__name__) from error

    return call


def where(error: BaseException) -> str:
    """An error's type and the line that raised it, for a log: never its message, which may quote a text."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {os.path.basename(frame.filename)}:{frame.lineno}"
