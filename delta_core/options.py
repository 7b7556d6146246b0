"""Options of a serving process, read from the environment: the same names under every engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .arguments import ADMIT, ENCODERS, POLICIES, size_in_bytes
from .store import DEFAULT_BUDGET
from .tokenizer import DeltaTokenizer

log = logging.getLogger("delta_core")


@dataclass(frozen=True, slots=True)
class Options:
    """What an operator may set. Every field has a variable, named with it.

    policy (DELTA_POLICY): "content" looks a text up by its session key, then by content; "keyed" by its key alone.
    budget (DELTA_BUDGET): bytes for remembered texts and IDs, in each process that tokenizes; "512M", "2G".
    encoder (DELTA_ENCODER): "auto", "reference", "fastokens" or "gigatoken".
    shadow_rate (DELTA_SHADOW_RATE): the share of requests, 0 to 1, that the reference encodes again in the background.
    admit (DELTA_ADMIT): "structure" serves every tokenizer that the cut rules hold for, "frozen" only those that a
        frozen config knows whole.
    background (DELTA_BACKGROUND): whether a process of low priority may derive the table of a pre-tokenizer that is not
        known, or certify the fast encoder; "0" or "1".
    rid_separator (DELTA_RID_SEPARATOR): what stands before this in a client's request ID is a session key; None or
        empty: request IDs are no keys.
    """

    policy: str = "content"
    budget: int = DEFAULT_BUDGET
    encoder: str = "auto"
    shadow_rate: float = 0.0
    admit: str = "structure"
    background: bool = True
    rid_separator: str | None = None

    @staticmethod
    def from_environment(environ: Mapping[str, str] = os.environ) -> Options:
        """The options the environment sets. A value that can't be read is named in a warning; the default stays."""
        readers: dict[str, Callable[[str], Any]] = {
            "policy": lambda value: _one_of(value, POLICIES),
            "budget": size_in_bytes,
            "encoder": lambda value: _one_of(value, ENCODERS),
            "shadow_rate": _share,
            "admit": lambda value: _one_of(value, ADMIT),
            "background": lambda value: _one_of(value, ("0", "1")) == "1",
            "rid_separator": str,
        }
        chosen: dict[str, Any] = {}
        for field, read in readers.items():
            variable = f"DELTA_{field.upper()}"
            value = environ.get(variable, "")
            if not value:
                continue
            try:
                chosen[field] = read(value)
            except ValueError as error:
                log.warning("%s: %s; the default %r stays", variable, error, getattr(Options(), field))
        return Options(**chosen)

    def tokenizer(self, live: Any) -> DeltaTokenizer:
        """A DeltaTokenizer over an engine's live tokenizer with these options, prepared to serve."""
        tok = DeltaTokenizer(
            live,
            encoder=self.encoder,
            budget=self.budget,
            policy=self.policy,
            shadow_rate=self.shadow_rate,
            admit=self.admit,
            background=self.background,
        )
        tok.prepare()
        return tok


def _one_of(value: str, choices: tuple[str, ...]) -> str:
    if value.lower() not in choices:
        raise ValueError(f"{value!r} is none of {', '.join(choices)}")
    return value.lower()


def _share(value: str) -> float:
    share = float(value)
    if not 0 <= share <= 1:
        raise ValueError(f"{value!r} is not between 0 and 1")
    return share
