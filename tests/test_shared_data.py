"""Adversarial inputs and corpora: each as an append, as an edit, and as cold text; no difference."""

from __future__ import annotations

import importlib.util
import json
import lzma
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import Subject
from oracle import assert_same

from delta_core.tools.verify.dense import dense
from delta_core.tools.verify.generators import prose

pytestmark = pytest.mark.shared

TOKENIZERS = ("qwen3", "llama3_1", "gpt_oss", "deepseek_v3")
BASE = prose(77, 900)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def corpus(shared: Path, name: str) -> str:
    with lzma.open(shared / "data" / "corpora" / name, "rt", encoding="utf-8", newline="") as file:
        return file.read()


def as_append_edit_and_cold(subject: Subject, text: str, base: str = BASE, cut: int | None = None) -> None:
    """One input: alone, behind known text, grown at `cut`, put into the middle of known text, and taken out again."""
    tok, live = subject.tok, subject.live
    cut = len(text) // 2 if cut is None else cut
    tok.clear()
    assert_same(tok, live, text)
    for step in (base, base + text[:cut], base + text, base + text + base):
        assert_same(tok, live, step, session="append")
    for step in (base + base, base + text + base, base + text[:cut] + text[cut + 1 :] + base, base + base[1:]):
        assert_same(tok, live, step, session="edit")
    assert_same(tok, live, text + base, session="edit", add_special_tokens=True)


@pytest.fixture(params=TOKENIZERS)
def subject(request: pytest.FixtureRequest, real_tokenizer: Callable[[str], Subject], shared: Path) -> Subject:
    return real_tokenizer(request.param)


def test_seams(subject: Subject, shared: Path, density: str) -> None:
    """Each seam where a session may be cut, with checkpoints at the distances as shipped, and everywhere."""
    for seam in lines(shared / "data" / "adversarial" / "seams.jsonl"):
        as_append_edit_and_cold(subject, seam["prefix"] + seam["suffix"], cut=len(seam["prefix"]))


def test_seams_at_the_places_of_the_last_checkpoints(subject: Subject, shared: Path) -> None:
    """The last cuts stand 64 and 16 characters before the end: the seam is moved across both."""
    for seam in lines(shared / "data" / "adversarial" / "seams.jsonl"):
        for behind in (14, 15, 16, 17, 63, 64, 65):
            old = BASE[:300] + seam["prefix"] + seam["suffix"] + "x" * behind
            assert_same(subject.tok, subject.live, old, session="s")
            assert_same(subject.tok, subject.live, BASE[:300] + seam["prefix"] + "y" + seam["suffix"], session="s")
            subject.tok.clear()


def test_cases(subject: Subject, shared: Path, density: str) -> None:
    for case in lines(shared / "data" / "adversarial" / "cases.jsonl"):
        as_append_edit_and_cold(subject, case["text"])


def adversarial(shared: Path) -> ModuleType:
    pytest.importorskip("regex", reason="the generator of the big cases needs the regex package")
    where = importlib.util.spec_from_file_location("adversarial_gen", shared / "data" / "adversarial" / "gen.py")
    assert where is not None
    assert where.loader is not None
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


def test_big_cases(subject: Subject, shared: Path, run_slow: bool) -> None:
    """Long runs, starved boundaries, floods of special tokens: scaled down."""
    for _, _, _, text in adversarial(shared).big_cases(0.05 if run_slow else 0.004):
        as_append_edit_and_cold(subject, text)


@pytest.mark.slow
def test_big_cases_at_their_full_length(subject: Subject, shared: Path) -> None:
    """Up to 5.5 million characters: as cold text, continued, and with a character less in the middle. Minutes each."""
    tok, live = subject.tok, subject.live
    for _, _, _, text in adversarial(shared).big_cases(1.0):
        tok.clear()
        cut = len(text) // 2
        for step in (text, text + BASE, text[:cut] + text[cut + 1 :] + BASE):
            assert_same(tok, live, step, session="s")


def batches(strings: Iterator[str], size: int, separator: str) -> Iterator[str]:
    while batch := list(islice(strings, size)):
        yield separator.join(batch)


@pytest.mark.parametrize("separator", ["", "\n", " ", "a"])
def test_unicode_normalization_strings(subject: Subject, shared: Path, separator: str, run_slow: bool) -> None:
    rows = lines_of(corpus(shared, "unicode_normalization_strings.jsonl.xz"))
    strings = [s for row in rows for s in row]
    for text in batches(iter(strings if run_slow else strings[::23]), 300, separator):
        as_append_edit_and_cold(subject, text)


def test_unicode_normalization_strings_at_every_cut(
    synthetic: Callable[..., Subject], shared: Path, run_slow: bool
) -> None:
    """NFC's own test strings, with a cut wherever one is allowed."""
    subject = synthetic("qwen3")
    rows = lines_of(corpus(shared, "unicode_normalization_strings.jsonl.xz"))
    with dense():
        for row in rows if run_slow else rows[::60]:
            text = "\n".join(row) + "/".join(row)
            as_append_edit_and_cold(subject, text, base="a\nb\n")


def test_unicode_break_strings(subject: Subject, shared: Path, run_slow: bool) -> None:
    rows = lines_of(corpus(shared, "unicode_break_test_strings.jsonl.xz"))
    strings = ["".join(row) for row in rows]
    for text in batches(iter(strings if run_slow else strings[::5]), 200, "\n"):
        as_append_edit_and_cold(subject, text)


def lines_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def test_naughty_strings(subject: Subject, shared: Path) -> None:
    strings = json.loads(corpus(shared, "blns.json.xz"))
    for text in batches(iter(strings), 60, "\n"):
        as_append_edit_and_cold(subject, text)
    with dense():
        for text in strings[::4]:
            as_append_edit_and_cold(subject, text, base=BASE[:40])


def test_languages_of_the_world(subject: Subject, shared: Path, run_slow: bool) -> None:
    """The Universal Declaration in 532 languages and scripts: windows spread over all of it."""
    text = corpus(shared, "udhr_532_languages.txt.xz")
    step = 4000 if run_slow else len(text) // 40
    for at in range(0, len(text) - 1500, step):
        as_append_edit_and_cold(subject, text[at : at + (4000 if run_slow else 700)])


@pytest.mark.parametrize("name", ["chinese_novel.txt.xz", "korean_reviews.txt.xz", "typescript.js.xz"])
def test_long_texts(subject: Subject, shared: Path, name: str, run_slow: bool) -> None:
    text = corpus(shared, name)
    as_append_edit_and_cold(subject, text if run_slow else text[5000:25_000])


def test_every_assigned_code_point_beside_letters_spaces_and_itself(
    synthetic: Callable[..., Subject], shared: Path, run_slow: bool
) -> None:
    """Pairwise with what stands beside it most often, at every cut that is allowed."""
    points = corpus(shared, "all_assigned_codepoints.txt.xz")
    for name in ("qwen3", "gpt_oss"):
        subject = synthetic(name)
        with dense():
            sample = points if run_slow else points[::60]
            for at in range(0, len(sample), 400):
                part = sample[at : at + 400]
                as_append_edit_and_cold(subject, "".join(f"a{c} {c}{c}\n{c}1" for c in part), base="x\n")
