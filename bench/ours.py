"""Delta Tokenizer as a contestant, and the floor: what no exact tokenizer that returns a list can do without."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from delta_core import DeltaTokenizer
from delta_core.ids import shared_ids
from delta_core.scale import scale

from .measure import Case, Contestant

FLOOR, FLOOR_ARRAY = "floor, list", "floor, array"
KEYED, UNKEYED, ARRAY = "Delta, keyed", "Delta, unkeyed", "Delta, keyed, array"
REFERENCE = "Delta, keyed, reference encoder"


class Delta(Contestant):
    """keyed: with the case's session; else found by content. form: list, array (`encode_array`) or async."""

    exact = True

    def __init__(self, name: str, tok: DeltaTokenizer, *, keyed: bool = True, form: str = "list") -> None:
        self.name, self.tok, self._keyed = name, tok, keyed
        calls: dict[str, Callable[..., Any]] = {"list": tok.encode, "array": tok.encode_array}
        if form == "async":
            loop = asyncio.new_event_loop()
            calls["async"] = lambda text, **options: loop.run_until_complete(tok.encode_async(text, **options))
        self._call = partial(calls[form], add_special_tokens=False)

    def prepare(self, case: Case) -> None:
        if case.anew:
            self.tok.clear()
        for session, text in case.before:
            self._call(text, session=session if self._keyed else None)

    def encode(self, case: Case) -> Any:
        return self._call(case.text, session=case.session if self._keyed else None)


class Floor(Contestant):
    """The floor of an append: compare the old text, encode what follows its last safe cut, copy the old IDs.

    Where the cut is, and the IDs before it, is known beforehand: no look-up, no plan, nothing remembered.
    """

    exact = True

    def __init__(self, name: str, live: Tokenizer, tok: DeltaTokenizer, *, form: str = "list") -> None:
        self.name, self._live, self._rules, self._segment = name, live, tok._rules, tok._segment()
        self._array = form == "array"
        self._encode = window_encoder(live, tok.admission.encoder)
        self._old, self._cut = "", 0
        self._ids: Any = []

    def prepare(self, case: Case) -> None:
        old = case.before[-1][1]
        if old is not self._old:
            start = max(0, len(old) - 4 * self._segment)
            cuts = self._rules.cuts(old, start, len(old), self._segment, scale().tail)
            near = max(cut.position for cut in cuts if cut.position + cut.right <= len(old))
            ids = self._live.encode_batch_fast([old], add_special_tokens=False)[0].ids
            tail = self._live.encode_batch_fast([old[near:]], add_special_tokens=False)[0].ids
            kept = ids[: len(ids) - len(tail)]
            # Shared integers, as ours: a list of those that HF made for each occurrence waits twice as long for memory.
            self._ids = array("q", kept) if self._array else shared_ids(kept)
            self._old, self._cut = old, near
        # As warm as a contestant that has just served the turn before.
        self.encode(Case(case.session, old))

    def encode(self, case: Case) -> Any:
        text = case.text
        if not text.startswith(self._old):
            raise AssertionError("the floor knows appends only")
        fresh = self._encode(text[self._cut :])
        return self._ids + (array("q", fresh) if self._array else fresh)


def window_encoder(live: Tokenizer, name: str) -> Callable[[str], list[int]]:
    """The encoder that serves new text, without guards: fastokens where it is certified, else the reference."""
    if name == "fastokens":
        import fastokens

        encode = fastokens.Tokenizer.from_json_str(live.to_str()).encode
    else:
        encode = live.encode
    return lambda text: encode(text, add_special_tokens=False).ids
