"""DeltaTokenizer, the public object: every way of asking gives the IDs of the live tokenizer."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Subject
from oracle import assert_all_ways, assert_same, battery, error_of, ids_of
from tokenizers import Tokenizer

import delta_core
from delta_core import DeltaTokenizer, Reason, session_key, tokenizer
from delta_core.splice import common_prefix
from delta_core.tools.verify.generators import PIPELINES, frozen_config, live_from, spec


@pytest.fixture
def llama(synthetic: Callable[..., Subject]) -> Subject:
    """A small tokenizer with a DeltaTokenizer of its own, for tests that read its counters."""
    subject = synthetic("llama3_1")
    return replace(subject, tok=DeltaTokenizer(subject.live, config=subject.frozen))


# -- the battery, over every pipeline --


@pytest.mark.parametrize("nasty", [False, True], ids=["own tokens", "nested and overlapping tokens"])
@pytest.mark.parametrize("name", PIPELINES)
def test_random_sessions_give_the_references_ids(
    name: str, nasty: bool, density: str, synthetic: Callable[..., Subject], run_slow: bool
) -> None:
    subject = synthetic(name, nasty)
    cases = 20_000 if run_slow else 350
    finding = battery(
        subject.tok, subject.live, subject.maker(17), cases, pieces=250 if density == "as shipped" else 40
    )
    assert finding is None, finding.what


@pytest.mark.parametrize("name", PIPELINES)
def test_cold_warm_and_threaded_agree_with_the_reference(
    name: str, density: str, synthetic: Callable[..., Subject]
) -> None:
    subject = synthetic(name, True)
    assert_all_ways(subject.tok, subject.live, subject.maker(23).session(7, 150))


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "gpt_oss", "deepseek_v3"])
def test_random_sessions_under_real_tokenizers(
    name: str, density: str, real_tokenizer: Callable[[str], Subject], run_slow: bool
) -> None:
    subject = real_tokenizer(name)
    cases = 20_000 if run_slow else 150
    finding = battery(
        subject.tok, subject.live, subject.maker(29), cases, pieces=250 if density == "as shipped" else 40
    )
    assert finding is None, finding.what


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in PIPELINES if n not in ("qwen3", "llama3_1", "gpt_oss", "deepseek_v3")])
def test_random_sessions_under_the_other_real_tokenizers(
    name: str, density: str, real_tokenizer: Callable[[str], Subject]
) -> None:
    subject = real_tokenizer(name)
    finding = battery(subject.tok, subject.live, subject.maker(31), 10_000)
    assert finding is None, finding.what


# -- what encode promises --


def test_the_public_names_are_those_of_the_package() -> None:
    for name in delta_core.__all__:
        assert getattr(delta_core, name)


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 2048, 5000])
def test_texts_of_every_length_with_and_without_special_tokens(llama: Subject, length: int) -> None:
    text = (llama.maker(1).text(2000) * 3)[:length]
    for add in (False, True):
        for where in ({}, {"session": "s"}, {"session": "s", "namespace": "n"}):
            assert_same(llama.tok, llama.live, text, add_special_tokens=add, **where)


def test_the_empty_text_is_only_its_affixes(llama: Subject) -> None:
    assert llama.tok.encode("", add_special_tokens=False) == []
    assert llama.tok.encode("", add_special_tokens=True) == llama.live.encode("").ids != []


def test_special_tokens_come_with_each_turn_whatever_was_asked_before(llama: Subject) -> None:
    text = llama.maker(2).text(200)
    for n, add in enumerate([True, False, True, True, False, False, True]):
        assert_same(llama.tok, llama.live, text + "x" * n * 20, session="s", add_special_tokens=add)


def test_lists_are_fresh_and_the_caller_may_do_with_them_what_it_likes(llama: Subject) -> None:
    text = llama.maker(3).text(300)
    want = ids_of(llama.live, text)
    for edit in (list.clear, list.reverse, lambda ids: ids.append(-1), lambda ids: ids.__delitem__(slice(0, 50))):
        got = llama.tok.encode(text, session="s", add_special_tokens=False)
        assert got == want
        edit(got)
    assert llama.tok.encode(text, session="s", add_special_tokens=False) == want
    assert_same(llama.tok, llama.live, text + " and more", session="s")


def test_the_result_is_a_list_of_plain_ints(llama: Subject) -> None:
    got = llama.tok.encode(llama.maker(4).text(300), add_special_tokens=False)
    assert type(got) is list
    assert {type(i) for i in got} == {int}


class Sly(str):
    """A str that lies about itself in every way that Python lets it."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: Any) -> str:
        return "lie"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1

    def startswith(self, *_: Any) -> bool:
        return True

    def __str__(self) -> str:
        return "lie"


def test_a_str_subclass_is_encoded_as_its_characters(llama: Subject) -> None:
    text = llama.maker(5).text(300)
    for sub in (type("Mine", (str,), {})(text), Sly(text)):
        want = list(llama.live.encode(sub, add_special_tokens=False).ids)
        assert llama.tok.encode(sub, session="s", add_special_tokens=False) == want
        assert llama.tok.encode(text, session="s", add_special_tokens=False) == ids_of(llama.live, text)
        assert_same(llama.tok, llama.live, text + "!", session="s")
    assert all(type(b.transcript.text) is str for b in llama.tok._store._branches.values()), "it is not kept"


@pytest.mark.parametrize("odd", [None, 3, 2.5, b"bytes", ["a"], ("a", "b"), {"a": 1}, [1, 2], object()])
def test_an_input_that_is_no_str_gets_what_the_live_tokenizer_makes_of_it(llama: Subject, odd: Any) -> None:
    tok = llama.tok
    try:
        want = llama.live.encode(odd, add_special_tokens=False).ids
    except Exception as error:  # noqa: BLE001 - the type is what is compared
        with pytest.raises(type(error)):
            tok.encode(odd, session="s", add_special_tokens=False)
    else:
        assert tok.encode(odd, session="s", add_special_tokens=False) == want
    assert tok.stats().fallbacks == {str(Reason.NOT_TEXT): 1}
    assert tok.stats().bytes == 0


@pytest.mark.parametrize("text", ["\ud800", "ok\ud800bad", "x" * 500 + "\udfff", "\ud83d" + "y" * 500])
def test_a_lone_surrogate_raises_the_references_error_and_nothing_is_cached(llama: Subject, text: str) -> None:
    tok = llama.tok
    wanted = error_of(llama.live, text)
    for _ in range(2):
        with pytest.raises(wanted):
            tok.encode(text, session="s", add_special_tokens=False)
    assert tok.stats().bytes == 0
    assert tok.stats().fallbacks == {str(Reason.BAD_TEXT): 2}
    with pytest.raises(wanted):
        asyncio.run(tok.encode_async(text, session="s", add_special_tokens=False))


def test_a_surrogate_behind_a_known_text_raises_and_leaves_the_session_as_it_was(llama: Subject) -> None:
    text = llama.maker(6).text(300)
    assert_same(llama.tok, llama.live, text, session="s")
    with pytest.raises(TypeError):
        llama.tok.encode(text + "\ud83d", session="s", add_special_tokens=False)
    assert_same(llama.tok, llama.live, text + "\U0001f600", session="s")


# -- where a text is looked up --


def test_a_known_text_is_reused_by_key_by_content_and_by_context(llama: Subject) -> None:
    tok, text = llama.tok, llama.maker(7).text(800)
    for n, ask in enumerate([
        lambda t: tok.encode(t, session="s", add_special_tokens=False),
        lambda t: tok.encode(t, add_special_tokens=False),
        lambda t: tok.encode(t, session="another", add_special_tokens=False),
    ]):  # fmt: skip
        assert ask(text) == ids_of(llama.live, text)
        before = tok.stats().reused_tokens
        longer = text + f" turn {n}"
        assert ask(longer) == ids_of(llama.live, longer)
        assert tok.stats().reused_tokens - before > 0.9 * len(ids_of(llama.live, longer))


def test_session_key_names_the_session_of_its_block(llama: Subject) -> None:
    tok = llama.tok
    text = llama.maker(8).text(60)  # too short for the content index
    assert 256 <= len(text) < 1024
    with session_key("k"):
        assert_same(tok, llama.live, text)
        assert_same(tok, llama.live, text + "!")
    assert tok.stats().by_path == {"cold": 1, "append": 1}
    assert_same(tok, llama.live, text + "!")
    assert tok.stats().by_path["cold"] == 2, "outside of the block there is no key"
    assert_same(tok, llama.live, text + "!?", session="k")
    assert tok.stats().by_path["append"] == 2, "the same key by argument"


def test_session_key_also_carries_a_namespace_and_an_argument_wins(llama: Subject) -> None:
    tok = llama.tok
    text = llama.maker(9).text(800)
    with session_key("k", namespace="a"):
        assert_same(tok, llama.live, text)
        assert_same(tok, llama.live, text + "1", namespace="b")
        assert tok.stats().by_path == {"cold": 2}
        with session_key(None):
            assert_same(tok, llama.live, text + "2")
            assert tok.stats().by_path == {"cold": 3}, "the inner block has no namespace"
        assert_same(tok, llama.live, text + "3")
    assert tok.stats().by_path == {"cold": 3, "append": 1}


def test_session_key_follows_tasks_and_not_each_other(llama: Subject) -> None:
    tok = llama.tok
    base = llama.maker(10).text(60)

    async def conversation(name: str) -> None:
        with session_key(name, namespace=name):
            for n in range(4):
                text = name * 300 + base + "z" * n
                assert await tok.encode_async(text, add_special_tokens=False) == ids_of(llama.live, text)
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(*(conversation(name) for name in "abcd"))

    asyncio.run(both())
    assert tok.stats().by_path == {"cold": 4, "append": 12}


def test_nothing_is_shared_across_namespaces(llama: Subject) -> None:
    tok = llama.tok
    text = llama.maker(11).text(800)
    for n, namespace in enumerate((None, "", "a", "b", "a\x00")):
        assert_same(tok, llama.live, text, session="s", namespace=namespace)
        assert tok.stats().by_path == {"cold": n + 1}
        assert tok.stats().reused_tokens == 0


@pytest.mark.parametrize("odd", [3, b"key", ("a",), "k" * 100_000, "\ud800", ""])
def test_an_odd_session_key_never_fails_a_request(llama: Subject, odd: Any) -> None:
    text = llama.maker(12).text(200)
    for _ in range(2):
        assert_same(llama.tok, llama.live, text, session=odd)


# -- async --


def test_encode_async_gives_the_same_ids_for_short_and_long_texts(llama: Subject) -> None:
    tok = llama.tok
    maker = llama.maker(13)
    texts = ["", "a", maker.text(100), maker.text(3000), maker.text(3000)]

    async def run() -> None:
        got = await asyncio.gather(
            *(tok.encode_async(t, session=str(i), add_special_tokens=False) for i, t in enumerate(texts))
        )
        assert got == [ids_of(llama.live, t) for t in texts]
        more = [t + " more" for t in texts]
        got = await asyncio.gather(
            *(tok.encode_async(t, session=str(i), add_special_tokens=True) for i, t in enumerate(more))
        )
        assert got == [ids_of(llama.live, t, True) for t in more]

    asyncio.run(run())


def test_arrays_hold_the_ids_of_the_list_on_every_path(llama: Subject) -> None:
    tok, live = llama.tok, llama.live
    text = "A turn, and one more: " * 200
    edited = text[:1000] + "EDIT" + text[1010:]
    turns = [text, text + " appended", edited, "short", edited[500:] + "and a tail. " * 50, text + " appended"]
    for turn in turns:
        for special in (False, True):
            got = tok.encode_array(turn, session="s", add_special_tokens=special)
            assert type(got) is array
            assert got.typecode == "q"
            assert got.tolist() == ids_of(live, turn, special)
            del got[:]  # the caller's own
        assert tok.encode(turn, session="s", add_special_tokens=False) == ids_of(live, turn)
        tok._store._check()
    assert set(tok.stats().by_path) == {"cold", "append", "splice", "short"}
    assert not tok.stats().fallbacks

    async def both() -> None:
        for turn in ("short", "long text " * 2000):
            assert (await tok.encode_array_async(turn, add_special_tokens=False)).tolist() == ids_of(live, turn)

    asyncio.run(both())


def test_arrays_of_the_stock_path(llama: Subject) -> None:
    live = Tokenizer.from_str(llama.live.to_str())
    tok = DeltaTokenizer(live, config=llama.frozen)
    live.enable_truncation(3)
    assert tok.encode_array("more than three tokens", add_special_tokens=False) == array(
        "q", ids_of(live, "more than three tokens")
    )
    assert tok.stats().by_path == {"stock": 1}


def test_encode_async_works_in_one_loop_after_another(llama: Subject) -> None:
    text = llama.maker(14).text(2500)
    for n in range(3):
        want = ids_of(llama.live, text + str(n))
        assert asyncio.run(llama.tok.encode_async(text + str(n), session="s", add_special_tokens=False)) == want


# -- threads --


@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
def test_many_threads_on_one_session_and_on_many_are_all_right(
    name: str, density: str, synthetic: Callable[..., Subject]
) -> None:
    subject = synthetic(name)
    sessions = [subject.maker(40 + n).session(6, 100) for n in range(3)]
    wanted = {text: ids_of(subject.live, text) for texts in sessions for text in texts}
    barrier = threading.Barrier(8)

    def work(n: int) -> None:
        rng = random.Random(n)
        barrier.wait()
        for _ in range(3):
            for text in rng.choice(sessions):
                key = rng.choice((None, "one", "one", str(n)))
                assert subject.tok.encode(text, session=key, add_special_tokens=False) == wanted[text]

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, n) for n in range(8)]:
            future.result()
    subject.tok._store._check()
    assert not subject.tok.stats().fallbacks


# -- stats and clear --


def test_stats_tell_what_happened(llama: Subject) -> None:
    tok = llama.tok
    text = "".join(f"{n} line of text\n" for n in range(200))
    tok.encode("short", add_special_tokens=False)
    tok.encode(text, session="s", add_special_tokens=False)
    tok.encode(text + "more", session="s", add_special_tokens=False)
    tok.encode(text[:1000] + "EDIT" + text[1000:], session="s", add_special_tokens=False)
    stats = tok.stats()
    assert stats.requests == 4
    assert stats.by_path == {"short": 1, "cold": 1, "append": 1, "splice": 1}
    assert len(text) + 5 <= stats.encoded_chars <= len(text) + 5 + 1500
    assert stats.reused_tokens > 1.7 * len(ids_of(llama.live, text))
    assert stats.bytes > 0
    assert stats.branches >= 1
    assert stats.fallbacks == {}


def test_the_work_of_a_turn_is_that_of_its_new_text(llama: Subject) -> None:
    """Encoded characters grow with what is new, over a session that resends everything each turn."""
    tok = llama.tok
    text, new = "", 0
    for n in range(120):
        part = f"<|start_header_id|>user<|end_header_id|>\n\n{n} please look at file {n * 7}.py again<|eot_id|>"
        text, new = text + part, new + len(part)
        assert tok.encode(text, session="s", add_special_tokens=False) == ids_of(llama.live, text)
    assert tok.stats().encoded_chars < 1.6 * new


def test_a_conversation_found_by_key_and_by_content_is_compared_once(
    llama: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    def counting(old: str, text: str) -> int:
        compared.append(old)
        return common_prefix(old, text)

    monkeypatch.setattr(tokenizer, "common_prefix", counting)
    old = llama.maker(5).text(4000)[:12_000] + "\nthe end"
    llama.tok.encode(old, session="s", add_special_tokens=False)
    assert_same(llama.tok, llama.live, "x" + old[1:6000] + "y" + old[6001:], session="s")
    assert compared == [old]


def test_clear_forgets_the_texts_and_keeps_the_counters(llama: Subject) -> None:
    tok = llama.tok
    text = llama.maker(15).text(500)
    tok.encode(text, session="s", add_special_tokens=False)
    tok.clear()
    assert tok.stats().bytes == 0
    assert tok.stats().branches == 0
    assert tok.stats().requests == 1
    assert_same(tok, llama.live, text, session="s")
    assert tok.stats().by_path == {"cold": 2}


@pytest.mark.parametrize("budget", [0, 1, 3000, 20_000])
def test_a_small_budget_costs_reuse_and_nothing_else(llama: Subject, budget: int) -> None:
    tok = DeltaTokenizer(llama.live, config=llama.frozen, budget=budget)
    for n in range(6):
        for text in llama.maker(n).session(5, 100):
            assert_same(tok, llama.live, text, session=str(n % 3))
            assert tok.stats().bytes <= budget
    tok._store._check()


# -- not admitted: the stock path --


def test_a_tokenizer_that_no_config_knows_is_encoded_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    live = live_from(spec("llama3_1"))
    with caplog.at_level(logging.WARNING, "delta_core"):
        tok = DeltaTokenizer(live, admit="frozen")
        for add in (False, True):
            assert_same(tok, live, "hello <|eot_id|> world " * 50, session="s", add_special_tokens=add)
    assert not tok.admission.admitted
    assert tok.stats().by_path == {"stock": 2}
    assert tok.stats().fallbacks == {str(Reason.UNKNOWN_TOKENIZER): 2}
    assert tok.stats().bytes == 0
    assert len([r for r in caplog.records if "stock path: unknown" in r.getMessage()]) == 1, "said once"


def test_a_refused_structure_is_encoded_by_itself() -> None:
    s = spec("llama3_1")
    s["normalizer"] = {"type": "NFKC"}
    live = live_from(s)
    tok = DeltaTokenizer(live)
    assert tok.admission.reason is Reason.UNSUPPORTED_NORMALIZER
    for text in ("ﬁne ½ ① Å", "ﬁ" * 500):
        assert_same(tok, live, text, session="s")
        assert asyncio.run(tok.encode_async(text, add_special_tokens=False)) == ids_of(live, text)


class Slow:
    """A tokenizer without a fast backend."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + list(map(ord, text))


def test_an_object_without_a_fast_backend_takes_the_stock_path() -> None:
    tok = DeltaTokenizer(Slow())
    assert not tok.admission.admitted
    assert tok.admission.reason is Reason.NOT_FAST
    assert "Slow" in str(tok.admission.mismatches[0])
    assert tok.encode("ab", add_special_tokens=False) == [97, 98]
    assert tok.encode("ab", add_special_tokens=True) == [1, 97, 98]
    assert asyncio.run(tok.encode_async("ab", add_special_tokens=False)) == [97, 98]
    assert tok.stats().fallbacks == {str(Reason.NOT_FAST): 3}


def test_from_file_reads_a_tokenizer_json(tmp_path: Path, llama: Subject) -> None:
    path = tmp_path / "tokenizer.json"
    llama.live.save(str(path))
    tok = DeltaTokenizer.from_file(path, config=llama.frozen, budget=1 << 20)
    text = llama.maker(16).text(300)
    assert tok.admission.admitted
    assert tok.encode(text, add_special_tokens=False) == ids_of(llama.live, text)
    with pytest.raises(Exception, match=r"absent|No such file"):
        DeltaTokenizer.from_file(tmp_path / "absent.json")


def test_a_real_tokenizer_is_admitted_without_being_told_its_config(real_tokenizer: Callable[[str], Subject]) -> None:
    subject = real_tokenizer("qwen3")
    assert DeltaTokenizer(subject.live).admission.config == "qwen3" == frozen_config("qwen3").name


# -- our own faults --


def test_a_fault_of_our_own_is_counted_logged_without_the_text_and_does_not_fail_the_request(
    llama: Subject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tok = llama.tok

    def broken(*_: object) -> None:
        raise ValueError("the text was: secret")

    monkeypatch.setattr(tok._rules, "cuts", broken)
    with caplog.at_level(logging.WARNING, "delta_core"):
        for _ in range(2):
            assert_same(tok, llama.live, "secret " * 100, session="s")
            assert asyncio.run(tok.encode_async("secret " * 100, add_special_tokens=False)) == ids_of(
                llama.live, "secret " * 100
            )
    assert tok.stats().fallbacks == {str(Reason.INTERNAL): 4}
    assert tok.stats().by_path == {"stock": 4}
    assert "secret" not in caplog.text
    assert len(caplog.records) == 1
    assert "ValueError at" in caplog.text


def test_the_live_tokenizer_is_a_tokenizers_object(llama: Subject) -> None:
    assert isinstance(llama.live, Tokenizer), "the oracle of this suite is the reference itself"
