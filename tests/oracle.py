"""The one comparison that all tests make: the live reference on the whole text, against every way of asking us."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tokenizers import Tokenizer

from delta_core import DeltaTokenizer
from delta_core.tools.verify.generators import TextMaker


def ids_of(live: Tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
    """What the reference says about the whole text."""
    return list(live.encode(text, add_special_tokens=add_special_tokens).ids)


def error_of(live: Tokenizer, text: str) -> type[Exception]:
    """What the reference raises for a text that it takes for none."""
    try:
        live.encode(text)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what ours must be
        return type(error)
    pytest.fail(f"the reference takes {text!r}")


@contextmanager
def case(*what: object) -> Iterator[None]:
    """Names the case of a loop in whatever fails in it."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        raise AssertionError(f"in the case {', '.join(map(repr, what))}: {error}") from error


def describe(live: Tokenizer, text: str, got: Sequence[int], want: Sequence[int]) -> str:
    """Where two ID lists part, in tokens that a reader recognises."""
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    near = slice(max(at - 3, 0), at + 4)

    def shown(ids: Sequence[int]) -> list[str | None]:
        return [live.id_to_token(i) for i in ids[near]]

    return (
        f"IDs differ at token {at} of {len(want)} (got {len(got)})\n got  {list(got[near])} {shown(got)}\n"
        f" want {list(want[near])} {shown(want)}\n text {text[:2000]!r}"
    )


def assert_same(
    tok: DeltaTokenizer, live: Tokenizer, text: str, *, add_special_tokens: bool = False, **where: Any
) -> None:
    got = tok.encode(text, add_special_tokens=add_special_tokens, **where)
    want = ids_of(live, text, add_special_tokens)
    if got != want:
        pytest.fail(describe(live, text, got, want))


def assert_all_ways(tok: DeltaTokenizer, live: Tokenizer, texts: Sequence[str], *, threads: int = 4) -> None:
    """Each text cold; all of them warm, with a key and without; and all of them from several threads at once."""
    wanted = {text: (ids_of(live, text), ids_of(live, text, True)) for text in texts}

    def check(text: str, add: bool = False, **where: Any) -> None:
        got = tok.encode(text, add_special_tokens=add, **where)
        if got != wanted[text][add]:
            pytest.fail(f"{where or 'unkeyed'}: {describe(live, text, got, wanted[text][add])}")

    for text in texts:
        tok.clear()
        check(text)
    tok.clear()
    for i, text in enumerate(texts):
        check(text, bool(i % 2), session="one")
        check(text)
        check(text, True, session="two", namespace="other")
    tok._store._check()
    tok.clear()

    def work(n: int) -> None:
        order = list(texts[n % len(texts) :]) + list(texts[: n % len(texts)]) if texts else []
        for i, text in enumerate(order):
            check(text, n % 2 == 1, session="shared" if n != 3 else None)
            if i % 2:
                assert tok.encode_array(text, session="shared", add_special_tokens=False).tolist() == wanted[text][0]

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    tok._store._check()
    assert not tok.stats().fallbacks.get("internal"), "a fault of our own was hidden by the stock path"


@dataclass(frozen=True)
class Finding:
    """The first difference a battery found: after how many cases, and what."""

    cases: int
    what: str


def battery(tok: DeltaTokenizer, live: Tokenizer, maker: TextMaker, cases: int, *, pieces: int = 40) -> Finding | None:
    """Random sessions, turn by turn, until `cases` texts were compared or one differs.

    Keys, forks, namespaces, flags, lists and arrays are mixed; now and then everything is forgotten.
    """
    done = 0
    rng = maker.rng
    while done < cases:
        key = rng.choice((None, "a", "b"))
        namespace = rng.choice((None, None, "n"))
        for text in maker.session(rng.randrange(2, 9), rng.randrange(5, pieces)):
            done += 1
            add = rng.random() < 0.3
            ask = tok.encode_array if rng.random() < 0.2 else tok.encode
            got = list(ask(text, session=key, namespace=namespace, add_special_tokens=add))
            want = ids_of(live, text, add)
            if got != want:
                return Finding(done, describe(live, text, got, want))
            if rng.random() < 0.05:
                tok.clear()
    tok._store._check()
    assert not tok.stats().fallbacks, tok.stats().fallbacks
    return None
