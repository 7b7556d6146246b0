"""DeltaTokenizer as a library: what callers of `tokenizers` reach for works, and every example in a docstring runs."""

from __future__ import annotations

import asyncio
import copy
import doctest
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Subject
from oracle import ids_of

import delta_core
from delta_core import DeltaTokenizer, Options
from delta_core.library import Library

TEXT = "A turn of a conversation, long enough to be remembered. " * 20


@pytest.fixture
def folder(synthetic: Callable[..., Subject], tmp_path: Path) -> Path:
    synthetic("llama3_1").live.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
def tok(synthetic: Callable[..., Subject]) -> DeltaTokenizer:
    subject = synthetic("llama3_1")
    return DeltaTokenizer(subject.live, config=subject.frozen, encoder="reference")


def modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(delta_core.__path__, "delta_core."):
        if ".tools" not in module.name:
            yield module.name


def test_every_example_in_a_docstring_runs(tok: DeltaTokenizer, folder: Path) -> None:
    ran = 0
    names = {"tok": tok, "live": tok.live, "folder": folder, "prompt": TEXT, "asyncio": asyncio}
    for name in modules():
        module = importlib.import_module(name)
        for example in doctest.DocTestFinder().find(module, extraglobs=names | vars(delta_core)):
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            assert runner.run(example).failed == 0, example.name
            ran += len(example.examples)
    assert ran >= 18


def test_every_public_method_has_an_example() -> None:
    without = {
        "encode_array_async",
        "id_to_token",
        "get_vocab",
        "get_vocab_size",
        "export",
        "fallback",
        "when_admitted",
    }
    for name, method in inspect.getmembers(DeltaTokenizer, callable):
        if not name.startswith("_") and name not in without:
            assert ">>>" in (method.__doc__ or ""), name


def test_special_tokens_are_added_unless_they_are_unwanted(tok: DeltaTokenizer) -> None:
    for text in ("", "Hello", TEXT):
        assert tok.encode(text) == tok.live.encode(text).ids == ids_of(tok.live, text, True)
        assert tok.encode(text, add_special_tokens=False) == tok.live.encode(text, add_special_tokens=False).ids
        assert list(tok.encode_array(text)) == asyncio.run(tok.encode_async(text)) == tok.encode(text)
        assert list(asyncio.run(tok.encode_array_async(text))) == tok.encode(text)
    assert len(tok.encode("")) == 1, "this tokenizer begins a text with a token"


def test_a_batch_is_its_texts_one_by_one(tok: DeltaTokenizer) -> None:
    texts = ["", "Hello", TEXT, TEXT + "more"]
    for special in (True, False):
        want = [ids_of(tok.live, text, special) for text in texts]
        assert tok.encode_batch(texts, add_special_tokens=special) == want
        assert tok.encode_batch(iter(texts), sessions=["a", None, "b", "b"], add_special_tokens=special) == want
    with pytest.raises(ValueError, match="zip"):
        tok.encode_batch(texts, sessions=["a"])


def test_decoding_and_the_vocabulary_are_the_live_tokenizers(tok: DeltaTokenizer) -> None:
    live, ids = tok.live, tok.encode(TEXT)
    assert tok.decode(ids) == live.decode(ids) == TEXT
    assert tok.decode(ids, skip_special_tokens=False) == live.decode(ids, skip_special_tokens=False) != TEXT
    assert tok.decode_batch([ids, ids[:3]]) == live.decode_batch([ids, ids[:3]])
    assert len(tok) == tok.get_vocab_size() == live.get_vocab_size() == len(tok.get_vocab())
    assert tok.get_vocab_size(with_added_tokens=False) == live.get_vocab_size(with_added_tokens=False) < len(tok)
    for token, i in list(live.get_vocab().items())[:50]:
        assert tok.token_to_id(token) == i
        assert tok.id_to_token(i) == token
    assert tok.token_to_id("no such token") is tok.id_to_token(1 << 31) is None


def test_over_a_transformers_tokenizer_they_are_those_of_that_object(synthetic: Callable[..., Subject]) -> None:
    transformers = pytest.importorskip("transformers")
    subject = synthetic("llama3_1")
    live = transformers.PreTrainedTokenizerFast(tokenizer_object=subject.live)
    tok = DeltaTokenizer(live, encoder="reference")
    assert tok.encode(TEXT) == live.encode(TEXT)
    assert tok.decode(tok.encode(TEXT)) == live.decode(live.encode(TEXT))
    assert len(tok) == len(live)


def test_a_folder_and_a_file_are_opened(folder: Path, tok: DeltaTokenizer) -> None:
    for opened in (
        DeltaTokenizer.from_pretrained(folder, encoder="reference"),
        DeltaTokenizer.from_pretrained(str(folder)),
        DeltaTokenizer.from_file(folder / "tokenizer.json"),
    ):
        assert opened.encode(TEXT) == tok.encode(TEXT)
    (folder / "empty").mkdir()
    with pytest.raises(Exception, match="No such file"):
        DeltaTokenizer.from_pretrained(folder / "empty")


def test_copies_and_pickles_are_admitted_anew_and_remember_nothing(
    tok: DeltaTokenizer, synthetic: Callable[..., Subject]
) -> None:
    keyed = DeltaTokenizer(
        tok.live, config=synthetic("llama3_1").frozen, encoder="reference", policy="keyed", budget="1M"
    )
    keyed.encode(TEXT)
    for other in (copy.copy(keyed), copy.deepcopy(keyed), pickle.loads(pickle.dumps(keyed))):
        assert type(other) is DeltaTokenizer
        assert other.admission == keyed.admission
        assert other.admission.admitted
        assert other.stats().branches == 0
        assert other.describe() == keyed.describe()
        assert other.encode(TEXT) == keyed.encode(TEXT)
    assert copy.copy(keyed).live is keyed.live
    assert copy.deepcopy(keyed).live is not keyed.live


def test_its_repr_says_what_was_decided_and_no_text(tok: DeltaTokenizer) -> None:
    tok.encode("secret " * 100)
    assert repr(tok).startswith(f"<DeltaTokenizer: {tok.describe()}; 1 branches, ")
    assert "secret" not in repr(tok)
    assert repr(DeltaTokenizer(object())).startswith("<DeltaTokenizer: not admitted, stock path: tokenizer: ")


def test_an_object_without_a_tokenizer_behind_it_has_no_vocabulary() -> None:
    with pytest.raises(TypeError, match="has no tokenizers"):
        len(DeltaTokenizer(object()))


def test_the_package_says_its_names_and_its_version() -> None:
    assert issubclass(DeltaTokenizer, Library)
    assert delta_core.__version__ == "0.2.0"
    assert Options in vars(delta_core).values()
    assert (Path(delta_core.__file__).parent / "py.typed").exists()
