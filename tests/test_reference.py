"""Reference: the live tokenizer is asked, never changed, and every change by others is noticed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from oracle import ids_of
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from delta_core import DeltaTokenizer, Reason
from delta_core.reference import Affixes, Reference, UnsupportedTokenizer, backend_of
from delta_core.tools.verify.generators import PIPELINES, frozen_from, live_from, maker_for, spec, template


class Holder:
    """Looks like a transformers fast tokenizer."""

    def __init__(self, backend: Any) -> None:
        self._tokenizer = backend

    @property
    def backend_tokenizer(self) -> Any:
        return self._tokenizer


class Exposing:
    """Has the public name only."""

    def __init__(self, backend: Any) -> None:
        self.backend_tokenizer = backend


# -- the object behind the object --


def test_the_backend_is_found_in_every_kind_of_live_object() -> None:
    live = live_from(spec("llama3_1"))
    assert backend_of(live) is live
    assert backend_of(Holder(live)) is live
    assert backend_of(Exposing(live)) is live


@pytest.mark.parametrize("other", [object(), None, "text", Holder(None), Exposing(3)])
def test_anything_else_is_unsupported_by_type(other: object) -> None:
    with pytest.raises(UnsupportedTokenizer, match=type(other).__name__):
        backend_of(other)


# -- encoding --


@pytest.mark.parametrize("name", PIPELINES)
def test_the_batch_call_gives_the_ids_of_the_single_call(name: str, synthetic: Callable[..., Any]) -> None:
    subject = synthetic(name)
    reference = Reference(subject.live)
    texts = [subject.maker(i).text(60) for i in range(20)] + [""]
    assert reference.encode_each(texts) == [ids_of(subject.live, text) for text in texts]
    for text in texts:
        assert reference.encode(text, True) == ids_of(subject.live, text, True)


@pytest.mark.parametrize("odd", ["ok\ud800bad", None, 3, b"bytes", ["a"], ("a", "b"), [1, 2]])
def test_odd_inputs_raise_or_return_what_the_live_tokenizer_does(odd: Any) -> None:
    live = live_from(spec("llama3_1"))
    try:
        want: Any = live.encode(odd, add_special_tokens=False).ids
    except BaseException as error:  # noqa: BLE001 - the type is what is compared
        with pytest.raises(type(error)):
            Reference(live).encode(odd, False)
    else:
        assert Reference(live).encode(odd, False) == want


def test_asking_changes_nothing() -> None:
    live = live_from(spec("qwen3"))
    before = live.to_str()
    tok = DeltaTokenizer(live, config=frozen_from(live))
    for text in ("a" * 600, "<|im_end|>" * 100, "é" * 300):
        tok.encode(text, session="s", add_special_tokens=True)
    assert live.to_str() == before


# -- affixes --


def with_post_processor(section: Any, name: str = "llama3_1") -> Tokenizer:
    s = spec(name)
    s["post_processor"] = section
    return live_from(s)


def test_affixes_are_what_the_post_processor_puts_around_a_text() -> None:
    s = spec("llama3_1")
    ids = {row["content"]: row["id"] for row in s["added_tokens"]}
    bos, eos = ("<|begin_of_text|>", ids["<|begin_of_text|>"]), ("<|eot_id|>", ids["<|eot_id|>"])
    assert Reference(with_post_processor(None)).affixes() == Affixes((), ())
    assert Reference(with_post_processor(template([bos]))).affixes() == Affixes((bos[1],), ())
    assert Reference(with_post_processor(template([], [eos]))).affixes() == Affixes((), (eos[1],))
    assert Reference(with_post_processor(template([bos, bos], [eos]))).affixes() == Affixes((bos[1],) * 2, (eos[1],))
    assert Reference(with_post_processor(template([bos], [bos]))).affixes() == Affixes((bos[1],), (bos[1],))


def test_a_post_processor_whose_tokens_depend_on_the_text_has_no_affixes(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = Reference(live_from(spec("llama3_1")))
    encode = reference.encode
    monkeypatch.setattr(reference, "encode", lambda text, add: encode(text, add) + [7] * (add and "w" in text))
    assert reference.affixes() is None


# -- change noticed --


class Watched:
    """A live tokenizer in a holder with a DeltaTokenizer over it, and whether it took the stock path."""

    def __init__(self, name: str = "llama3_1") -> None:
        self.live = live_from(spec(name))
        self.holder = Holder(self.live)
        frozen = frozen_from(self.live)
        self.tok = DeltaTokenizer(self.holder, config=frozen)
        assert self.tok.admission.admitted
        self.text = maker_for(self.live, frozen, 9).text(150) + " hello <|eot_id|> the "
        self.check(stock=False)
        self.tok.encode(self.text, session="s", add_special_tokens=False)

    def check(self, *, stock: bool) -> None:
        """The live tokenizer's IDs come back, by the path expected."""
        before = self.tok.stats().by_path.get("stock", 0)
        for add in (False, True):
            want = self.holder.backend_tokenizer.encode(self.text, add_special_tokens=add).ids
            assert self.tok.encode(self.text, session="s", add_special_tokens=add) == want
        assert self.tok.stats().by_path.get("stock", 0) - before == (2 if stock else 0)
        if stock:
            assert self.tok.stats().fallbacks[str(Reason.LIVE_CHANGED)] > 0


def add_new_token(live: Tokenizer) -> None:
    live.add_tokens(["hello <|"])


def add_new_special_token(live: Tokenizer) -> None:
    live.add_special_tokens(["hello <"])


def enable_truncation(live: Tokenizer) -> None:
    live.enable_truncation(7)


def enable_padding(live: Tokenizer) -> None:
    live.enable_padding(length=5000, pad_id=1, pad_token="!")


def replace_normalizer(live: Tokenizer) -> None:
    live.normalizer = normalizers.Lowercase()


def replace_pre_tokenizer(live: Tokenizer) -> None:
    live.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("."), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def replace_post_processor(live: Tokenizer) -> None:
    live.post_processor = processors.ByteLevel(trim_offsets=False)


def encode_special_tokens(live: Tokenizer) -> None:
    live.encode_special_tokens = True


def set_dropout(live: Tokenizer) -> None:
    live.model.dropout = 1.0


def set_ignore_merges(live: Tokenizer) -> None:
    live.model.ignore_merges = not live.model.ignore_merges


def set_byte_fallback(live: Tokenizer) -> None:
    live.model.byte_fallback = True


def replace_model(live: Tokenizer) -> None:
    live.model = models.BPE({live.model.id_to_token(0) or "!": 0, "h": 1, "e": 2, "he": 3}, [("h", "e")])


AT_ONCE = [add_new_token, add_new_special_token, enable_truncation, enable_padding, replace_normalizer,
           replace_pre_tokenizer, replace_post_processor, encode_special_tokens, set_dropout, set_ignore_merges,
           set_byte_fallback, replace_model]  # fmt: skip


@pytest.mark.parametrize("change", AT_ONCE, ids=lambda f: f.__name__)
def test_a_change_of_the_live_tokenizer_is_noticed_at_once(change: Callable[[Tokenizer], None]) -> None:
    watched = Watched()
    change(watched.live)
    watched.check(stock=True)


def take_over_a_word(live: Tokenizer) -> None:
    """An added token for a word that the vocabulary has already: no new ID shows it."""
    word = next(w for w in ("the", "he", "in") if live.token_to_id(w) is not None)
    live.add_special_tokens([word])


def other_flags(live: Tokenizer) -> None:
    """The same added token again with other flags: changed in place, under its old ID."""
    live.add_special_tokens([AddedToken("<|eot_id|>", special=True, normalized=False, lstrip=True, rstrip=True)])


@pytest.mark.parametrize("change", [take_over_a_word, other_flags], ids=lambda f: f.__name__)
def test_a_change_that_shows_only_in_the_whole_table_is_noticed_within_the_stated_time(
    change: Callable[[Tokenizer], None],
) -> None:
    watched = Watched()
    change(watched.live)
    time.sleep(0.3)  # stated: 10 ms for thirty added tokens, 130 ms for a thousand
    watched.check(stock=True)


def test_a_replaced_backend_is_noticed_and_the_new_one_is_the_reference() -> None:
    watched = Watched()
    watched.holder._tokenizer = live_from(spec("llama3_1", ["hello"]))
    watched.check(stock=True)


def test_a_backend_that_went_away_is_an_error_of_the_live_objects_kind() -> None:
    watched = Watched()
    watched.holder._tokenizer = None
    with pytest.raises(TypeError):
        watched.tok.encode(watched.text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("on", "off"),
    [(enable_truncation, Tokenizer.no_truncation), (enable_padding, Tokenizer.no_padding)],
    ids=["truncation", "padding"],
)
def test_back_to_normal_when_it_is_removed(on: Callable[[Tokenizer], None], off: Callable[[Tokenizer], None]) -> None:
    watched = Watched()
    on(watched.live)
    watched.check(stock=True)
    off(watched.live)
    watched.check(stock=False)
    on(watched.live)
    watched.check(stock=True)


def test_nothing_is_remembered_while_the_live_tokenizer_is_another() -> None:
    watched = Watched()
    held = watched.tok.stats().bytes
    watched.live.enable_truncation(7)
    watched.tok.encode("another text " * 100, session="t", add_special_tokens=False)
    assert watched.tok.stats().bytes == held
    watched.live.no_truncation()
    watched.check(stock=False)


def test_an_unchanged_tokenizer_is_never_taken_for_a_changed_one(synthetic: Callable[..., Any]) -> None:
    for name in PIPELINES:
        reference = Reference(synthetic(name, True).live)
        began = time.monotonic()
        while time.monotonic() - began < 0.05:
            assert reference.changed() is None
