"""What a caller or an operator may ask for, and what is no answer to that: refused at once, not much later."""

from __future__ import annotations

import os
import re
from numbers import Real
from types import NoneType

from .admission.frozen import Frozen
from .encoders import NAMES

# Where a text is looked for: under its session and by content, or under its session alone.
POLICIES = ("content", "keyed")
ENCODERS = ("auto", *NAMES)
# What is admitted: whatever the cut rules hold for, or what a frozen config knows whole.
ADMIT = ("structure", "frozen")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size_in_bytes(value: int | str) -> int:
    """A size in bytes, or as a person writes it. Raises TypeError, ValueError.

    >>> size_in_bytes("512M"), size_in_bytes("2 GiB")
    (536870912, 2147483648)
    """
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+)\s*([kmg]?)(i?b)?", value.strip().lower(), re.ASCII)
        if found is None:
            raise ValueError(f"{value!r} is no size in bytes, such as 536870912 or 512M")
        return int(found[1]) * _UNITS[found[2]]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no size in bytes: an int, or a str such as '512M'")
    if value < 0:
        raise ValueError(f"{value!r} is no size in bytes: it is negative")
    return value


def check_arguments(
    live: object, encoder: object, config: object, policy: object, shadow_rate: object, admit: object
) -> None:
    """Raise TypeError or ValueError for what would fail, or be ignored, much later."""
    if isinstance(live, (str, bytes, os.PathLike)):
        raise TypeError("a tokenizer object is wanted, not a path: DeltaTokenizer.from_file(path) opens one")
    for name, value, choices in (("encoder", encoder, ENCODERS), ("policy", policy, POLICIES), ("admit", admit, ADMIT)):
        if not isinstance(value, str):
            raise TypeError(f"{name} is one of {', '.join(choices)}, not a {type(value).__name__}")
        if value not in choices:
            raise ValueError(f"unknown {name} {value!r}: one of {', '.join(choices)}")
    if not isinstance(config, (Frozen, NoneType)):
        raise TypeError(f"config is a Frozen or None, not a {type(config).__name__}")
    if isinstance(shadow_rate, bool) or not isinstance(shadow_rate, Real):
        raise TypeError(f"shadow_rate is a number, not a {type(shadow_rate).__name__}")
    if not 0 <= float(shadow_rate) <= 1:
        raise ValueError(f"shadow_rate {shadow_rate!r} is not between 0 and 1")
