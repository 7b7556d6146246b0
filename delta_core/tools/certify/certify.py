"""Certification: does a fast encoder give the reference's IDs for a config, under exactly these two versions?

Nothing can be proved about foreign code from outside, so it is compared with the reference where tokenizers are known
to differ: at every code point in contexts that follow from the pattern (see `contexts`: Unicode tables are older or
newer), in canonical order and composition, at the seams of the pattern's classes, around added tokens, in long runs and
in random text with a fresh seed. What serves is compared: `encode_flat` in the sizes that serve, as list and as array,
every batch twice, a part of it from several threads. Differences that hang on single rare code points become *guards*:
segments with such a character go to the reference. With the guards in place everything is run again and must give no
difference. Anything else refuses, with a minimal example.

The reference is by far the slower side. A hash of each of its answers is kept, so that a second encoder, and the
second run behind guards, cost the encoder's own time.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
import time
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, count, islice, pairwise, product
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
from tokenizers import normalizers

from ... import encoders
from ...admission.admit import admit
from ...admission.frozen import METHOD, Certification, Frozen, load_frozen, load_path, user_folder
from ...encoders import Encoder, EncoderUnavailable
from ...errors import ConfigError, DeltaError
from ...ids import Kind as IdKind
from ...reference import Reference
from .. import fetch
from ..certify.contexts import CODE_POINTS, Context, Contexts, Mask, Numbers
from ..opening import open_tokenizer

Ids = Sequence[int]  # list or array
Log = Callable[[str], None]
Kind = Literal["ids", "raises", "accepts", "unstable", "guards"]
Way = Literal["batch", "few", "alone", "threads"]

MAX_RANGES = 2000
"""More guard ranges than this refuse: the encoder's tables are then not those of this reference at all."""

_SHRINK_CALLS = 3000  # comparisons spent on one example; what is left then may not be minimal
_MOST_COMMON = 8  # guards that the vocabulary has a token for: each costs speed in ordinary text
_SHRINKS = 200  # examples shrunk per batch; an encoder that needs more is refused
_ROUNDS = 5  # runs of everything: guards found late may uncover others


class CertifyError(DeltaError):
    """`delta certify` can't do what was asked: no such file, not admitted, config of another tokenizer."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One text for which the encoder is not the reference, as short as could be found.

    expected, got: IDs of the reference and of the encoder; None where it raised.
    kind: "ids" they differ; "raises" only the encoder raises; "accepts" only the reference raises; "unstable" the
        encoder differed once and then did not again; "guards" it would need guards it may not have (too many).
    """

    text: str
    expected: tuple[int, ...] | None
    got: tuple[int, ...] | None
    kind: Kind


@dataclass(frozen=True, slots=True)
class Result:
    """What certification found.

    certification: the record, None when refused.
    cases: comparisons made with the encoder, all runs together.
    differences: what stands against it; empty when certified.
    """

    certification: Certification | None
    cases: int
    differences: tuple[Difference, ...]
    seconds: float


def certify(
    reference: Reference,
    frozen: Frozen,
    encoder_name: str,
    *,
    quick: bool = False,
    seed: int | None = None,
    log: Log = lambda line: None,
) -> Result:
    """Compare the installed encoder of one name with the reference, whose sections must be those of `frozen`.

    40 million comparisons and more, in 2 to 5 minutes on two cores; with `quick` some 500,000 in seconds, in which code
    points from U+3000 on are sampled unless a difference turns up. Memory: 16 bytes per string, some 100 MB. Changes
    neither the tokenizer nor the config.
    seed: of what is drawn at random; None for a fresh one. It is logged.
    Raises EncoderUnavailable when the encoder is not installed or does not take the tokenizer, ValueError for an
    unknown name.
    """
    return _certify(_Truth(reference, seed), frozen, encoder_name, quick=quick, log=log)


# ----------------------------------------------------------------------------------------------------- what is compared


@dataclass(frozen=True, slots=True)
class _Batch:
    """Strings that are encoded together.

    key: names the batch; the same key holds the same strings in every run.
    strings: what is encoded.
    probes: what each string was joined from, None when they are the probes themselves.
    way: how they are given to the encoder, see `_encode`.
    """

    key: str
    strings: list[str]
    probes: list[list[str]] | None = None
    way: Way = "batch"

    @property
    def cases(self) -> int:
        return len(self.strings) if self.probes is None else sum(map(len, self.probes))


# Planes 0-3 and 14 hold all characters there are. The rest is private use or not assigned in any version of Unicode.
_DENSE = (range(0x0000, 0xD800), range(0xE000, 0x40000), range(0xE0000, 0xF0000))
_SPARSE = (range(0x40000, 0xE0000), range(0xF0000, 0x110000))
_FURTHER = 20  # contexts drawn at random in which the dense planes are tried, beside those derived for them
_DRAWN = 200_000  # code points drawn at random, each in a context drawn at random
# Where newer characters compose with each other (by blocks), or with older general marks.
_BLOCK = 128
_BLOCKS = (*range(0, 0x3400, _BLOCK), *range(0xA000, 0xAC00, _BLOCK), *range(0xF900, 0x20000, _BLOCK))
_NEWER = range(0x10000, 0x20000)
_JOIN = 64

# One mark of every canonical combining class that is in use, several of the common ones.
_MARKS = (
    "\u0334\u0335\u0338\U00016ff0\u093c\u3099\u309a\u094d\u05b0\u05b4\u05c1\u064b\u064c\u0650\u0651\u0670\u0711\u0c55\u0c56"
    "\u0e38\u0e48\u0f71\u0f72\u0f74\u0321\u0327\u031b\u302a\u0316\u0323\u0324\u0591\u302e\u0300\u0301\u0302\u0304\u0306"
    "\u0307\u0308\u030a\u030c\u0342\u0344\u0345\u0313\u0314\u0315\u035c\u035d\u05ae\u1ab0\u1acf\u1ad0\u0897\u0898\u08ca"
)
_PARTNERS = "\u0301\u0335\u0323\u0307"
_BATTERY = (
    "a{}b", "1{}2", " {}", "{}'t", "{}{}", "\n{}\n",
    *(form for m in _PARTNERS for form in (f"a{m}{{}}b", f"a{{}}{m}b")),
)  # fmt: skip
_STAND_INS = ("", "x", "1", ".", " ", "\n")

_CONTRACTIONS = ["s", "S", "ſ", "t", "T", "re", "Re", "RE", "ve", "vE", "m", "M", "ll", "Ll", "LL", "d", "D", "l", "r"]
_WORDS = (
    "the", " the", " tokenizer", "Hello", " World", "camelCase", " HTTPServer", "naïve", " Straße", "Ελλάδα",
    " привет", "日本語", "テスト", "ーー", "한국어", "\u1112\u1161\u11ab", "中文。", "مرحبا", " שלום", "हिन्दी", "ไทย",
    "e\u0301", "\u0344", "\u0958/", "\u212b", "\ufb01", "🙂", "👩\u200d💻", "🇩🇪", "\u200b", "\ufeff", "\u00a0",
    "\u3000", "\u0085", "\u2028", "\x00",
)  # fmt: skip
_CODE = (
    "def f(x):\n    return x", '{"a": [1, 2.50, -3e10]}', "\t\tif (a != b) {\r\n", "</div>\n", "// ...", "x_y-z", "''",
    '""', "0123456789", "1,234.5", " 42", "http://a.b/c?d=e&f", "\n\n\n", "\r\n\r\n", "    ", " \n \n", "--------",
    "====", "/*", "*/",
)  # fmt: skip


def _all_batches(truth: _Truth, frozen: Frozen, contexts: Contexts, quick: bool, sample: bool) -> Iterator[_Batch]:
    """Everything that is compared but the code points in contexts. sample: only a part of the compositions."""
    reference = truth.reference
    joiner = _joiner(frozen)
    normalizes = bool(frozen.sections.normalizer)
    yield from _groups(contexts, joiner, truth.seed, quick)
    yield from _normal_forms(joiner, normalizes, quick, sample)
    yield from _seams(frozen, quick)
    yield from _vocabulary(reference, joiner, quick)
    yield from _runs(frozen, quick)
    yield from _added_tokens(frozen, quick)
    yield from _random_text(frozen, truth.seed, quick)


def _codes(sample: bool) -> Numbers:
    """The code points that are tried; with `sample` those below U+3000 and one in 61 above."""
    every = np.concatenate([np.arange(codes.start, codes.stop) for codes in (*_DENSE, *_SPARSE)])
    return every[(every < 0x3000) | (every % 61 == 0)] if sample else every


def _joiner(frozen: Frozen) -> str:
    """What keeps joined probes apart: an added token, between which the reference handles each stretch on its own."""
    contents = [t.content for t in frozen.sections.added_tokens if not (t.lstrip or t.rstrip or t.single_word)]
    return next((c for c in contents if not any(c != o and (c in o or o in c) for o in contents)), "\n\n")


def _joined(key: str, probes: Sequence[str], joiner: str) -> _Batch:
    groups = [list(probes[i : i + _JOIN]) for i in range(0, len(probes), _JOIN)]
    return _Batch(key, [joiner.join(group) for group in groups], groups)


def _chunks(key: str, strings: Iterable[str], size: int, way: Way) -> Iterator[_Batch]:
    held: list[str] = []
    n = 0
    for string in strings:
        held.append(string)
        if len(held) == size:
            yield _Batch(f"{key}/{n}", held, way=way)
            held, n = [], n + 1
    if held:
        yield _Batch(f"{key}/{n}", held, way=way)


def _groups(contexts: Contexts, joiner: str, seed: int, quick: bool) -> Iterator[_Batch]:
    """Members of every group in the complete set of contexts, alone and in runs; then any code point in any context."""
    rng = random.Random(seed)
    groups = contexts.members(rng)
    complete = list(contexts.complete())
    runs = [c for c in complete if c.kind[0] == "runs"]
    rest = [c for c in complete if c.kind[0] != "runs"]
    if quick:
        groups = [[rng.choice(group)] for group in groups]
        runs, rest = (rng.sample(some, min(len(some), 200)) for some in (runs, rest))
    members = [c for group in groups for c in group]
    texts = chain(
        (x.left + c * n + x.right for n in ((1,) if quick else (1, 2, 3, 4)) for c in members for x in runs),
        (x.left + rng.choice(group) + x.right for group in groups for x in rest),
    )
    codes = contexts.codes.tolist()
    which = f"of {len(codes)}"  # a sample of the code points gives other strings
    yield from _joined_chunks(f"groups/{which}", texts, joiner)
    drawn = ((rng.choice(codes), rng.choice(complete)) for _ in range(_DRAWN // (50 if quick else 1)))
    yield from _joined_chunks(f"drawn/{which}", (x.left + chr(c) + x.right for c, x in drawn), joiner)
    # Each begins and ends a text of its own.
    alone = (x.left + chr(rng.choice(codes)) + x.right for x in rng.choices(complete, k=400 if quick else 40_000))
    yield from _chunks(f"drawn/alone {which}", alone, 20_000, "few")


def _joined_chunks(key: str, probes: Iterable[str], joiner: str) -> Iterator[_Batch]:
    probes = iter(probes)
    for n in count():
        part = list(islice(probes, 32768))
        if not part:
            return
        yield _joined(f"{key}/{n}", part, joiner)


@lru_cache(maxsize=1)
def _canonical_pairs() -> tuple[dict[str, str], tuple[str, ...]]:
    """Canonical decompositions and combining marks, as the reference's NFD has them.

    Python's own table joins in as a source of strings to try, not of answers: it may know newer characters.
    """
    nfd = normalizers.NFD()
    parts_of: dict[str, str] = {}
    marks: dict[str, None] = {}
    for codes in (range(0x0001, 0xD800), range(0xE000, 0x30000), range(0xE0000, 0xE1000)):
        characters = list(map(chr, codes))
        # NUL is no mark and composes with nothing: it keeps the strings apart.
        parts = nfd.normalize_str("\0".join(characters)).split("\0")
        after = nfd.normalize_str("\0".join(c + "\u0335" for c in characters)).split("\0")
        before = nfd.normalize_str("\0".join("\u0301" + c for c in characters)).split("\0")
        for c, p, a, b in zip(characters, parts, after, before, strict=True):
            if p != c:
                parts_of[c] = p
            elif a != c + "\u0335" or b != "\u0301" + c or unicodedata.combining(c):
                marks[c] = None
            newer = unicodedata.normalize("NFD", c)
            if newer not in (c, p):
                parts_of[c] = newer
    return parts_of, tuple(marks)


def _normal_forms(joiner: str, normalizes: bool, quick: bool, sample: bool) -> Iterator[_Batch]:
    """Compositions, canonical order, Hangul, singletons. Without a normalizer, too: nothing may then be changed."""
    rng = random.Random(2)
    parts_of, marks = _canonical_pairs()
    probes: list[str] = []
    for c, parts in parts_of.items():
        hangul = "\uac00" <= c <= "\ud7a3"
        if hangul and quick and ord(c) % 7:
            continue
        probes += [c, parts, c + c, parts + c]
        if hangul:
            probes += [f"a{parts}b", c + "\u11a8", c + "\u0301", parts[0] + c, parts[:2] + "\u0301" + parts[2:]]
            continue
        for m in rng.sample(_MARKS, 4) if quick else _MARKS:
            probes += [c + m, parts + m, parts[0] + m + parts[1:]]
        probes.append(parts[::-1])
    jamo = [chr(c) for c in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A7, 0x11C3), 0x115F, 0xA960)]
    probes += [a + b for a, b in product(jamo, repeat=2)]
    for m in marks:
        for k in rng.sample(_MARKS, 4) if quick else _MARKS:
            probes += [f"a{m}{k}", f"a{k}{m}b"]
    for _ in range(2_000 if quick else 60_000):
        probes.append(rng.choice("aeiouAEO가ー/1 ") + "".join(rng.choices(marks, k=rng.randint(2, 5))))
    for n, start in enumerate(range(0, len(probes), 16384)):
        yield _joined(f"normal forms/{n}", probes[start : start + 16384], joiner)
    if not normalizes or sample:
        return
    # Characters newer than the reference's tables compose with neighbours in their own block, or with general marks;
    # the reference can't name them, so all pairs are tried. A de Bruijn sequence holds every pair of a block.
    sequence = _de_bruijn(_BLOCK)
    for n, start in enumerate(_BLOCKS):
        string = "".join(chr(start + i) for i in sequence)
        yield _Batch(f"normal forms/block {n}", [string], [[a + b for a, b in pairwise(string)]])
    general = sorted({p for parts in parts_of.values() for p in parts[1:] if "\u0300" <= p <= "\u036f"})
    for start in range(_NEWER.start, _NEWER.stop, 1024):
        groups = [[chr(c) + m for m in general] for c in range(start, min(start + 1024, _NEWER.stop))]
        yield _Batch(f"normal forms/marks {start:x}", list(map("".join, groups)), groups)


def _de_bruijn(k: int) -> list[int]:
    """A sequence of numbers below k in which every pair stands once: k * k + 1 long."""
    sequence = []
    for a in range(k):
        sequence.append(a)
        for b in range(a + 1, k):
            sequence += [a, b]
    return [*sequence, 0]


def _seams(frozen: Frozen, quick: bool) -> Iterator[_Batch]:
    """All short strings over the classes, random longer ones, and contractions."""
    samples = frozen.transitions.samples
    rng = random.Random(3)
    budget = 20_000 if quick else 250_000
    for which in (0, -1):
        alphabet = sorted({s[which] for s in samples})
        length = 1
        while len(alphabet) ** length <= budget:
            strings = map("".join, product(alphabet, repeat=length))
            yield from _chunks(f"seams/{which} {length}", strings, 32768, "batch")
            length += 1
    every = sorted({c for s in samples for c in s} | set("'\u2019\u017f\u212a\u180e\u0301"))
    longer = ("".join(rng.choices(every, k=rng.randint(5, 12))) for _ in range(5_000 if quick else 150_000))
    yield from _chunks("seams/longer", longer, 32768, "batch")
    around = ("", "a", "A", "1", " ", "\n", ".", "'", "\u0301", "日", "x ", "\t")
    contractions = (
        f"{before}{mark}{letters}{after}"
        for mark in ("'", "\u2019", "''")
        for letters in _CONTRACTIONS
        for before in around
        for after in around
    )
    yield from _chunks("seams/contractions", contractions, 32768, "batch")


def _vocabulary(reference: Reference, joiner: str, quick: bool) -> Iterator[_Batch]:
    """Every token of the vocabulary that is text, in contexts, and random rows of tokens.

    A piece boundary in the wrong place shows in the IDs only where a token would span it, so seams need real tokens.
    """
    rng = random.Random(6)
    ids = sorted(reference.backend.get_vocab(with_added_tokens=False).values())
    texts = reference.backend.decode_batch([[i] for i in ids], skip_special_tokens=False)
    tokens = [t for t in texts if t and "\ufffd" not in t]
    if quick:
        tokens = rng.sample(tokens, min(len(tokens), 5_000))
    for context in ("{}", "a{}b", "'{}", " {}1", ".{}\n")[: 3 if quick else 5]:
        for first in range(0, len(tokens), 16384):
            probes = [context.replace("{}", t) for t in tokens[first : first + 16384]]
            yield _joined(f"vocabulary/{context!r} {first}", probes, joiner)
    short = [t for t in tokens if len(t) <= 3]
    odd = [t for t in tokens if len(t) <= 6 and not (t.strip().isalpha() or t.isdigit())]
    for n in range(1 if quick else 16):
        probes = [
            "".join(rng.choices(pool, k=rng.randint(2, 5)))
            for pool in (tokens, short or tokens, odd or tokens)
            for _ in range(2_000 if quick else 8_192)
        ]
        yield _joined(f"vocabulary/rows {n}", probes, joiner)


def _runs(frozen: Frozen, quick: bool) -> Iterator[_Batch]:
    """Runs of every class: lengths 1 to 40 in contexts, pairs of runs, and long ones."""
    characters = sorted({c for s in frozen.transitions.samples for c in s})
    contexts = ("{}", "a{}", "{}a", "1{}1", " {}.", "\n{}\n", "a {} b")
    lengths = (1, 2, 3, 4, 5, 8, 16, 17, 40) if quick else range(1, 41)
    short = (form.replace("{}", c * n) for c in characters for n in lengths for form in contexts)
    yield from _chunks("runs/short", short, 32768, "batch")
    sizes = (1, 3) if quick else (1, 2, 3, 4, 7)
    firsts = sorted({s[0] for s in frozen.transitions.samples})
    pairs = (a * n + b * m + "a" for a in firsts for b in firsts for n in sizes for m in sizes)
    yield from _chunks("runs/pairs", pairs, 32768, "batch")
    for size, of in ((1_000, characters), (10_000, firsts), (100_000, firsts))[: 1 if quick else 3]:
        yield from _chunks(f"runs/of {size}", (c * size for c in of), 16, "alone")
        halves = (f"a{c * (size // 2)} {c * (size // 2)}\n" for c in of)
        yield from _chunks(f"runs/in {size}", halves, 16, "alone")


def _added_tokens(frozen: Frozen, quick: bool) -> Iterator[_Batch]:
    """Every added token alone, doubled, in contexts, cut short; and random pairs."""
    rng = random.Random(4)
    contents = [t.content for t in frozen.sections.added_tokens]
    if not contents:
        return
    forms = (
        "{}", "{}{}", "a{}b", "1{}2", " {} ", "  {}  ", "\n{}\n", ".{}.", "{}'s", "'{}", "é{}ー", "a{}{}b", "{}\u0301",
        "\u0301{}", "e{}\u0301", "<{}>", "|{}|", "\t{}\r\n", "a {} {} b", "{}\n\n{}", "日{}本",
    )  # fmt: skip
    strings = [form.replace("{}", content) for content in contents for form in forms]
    step = max(1, len(contents) // (8 if quick else 64))
    for content in contents[::step]:
        for cut in range(1, len(content)):
            head, tail = content[:cut], content[cut:]
            strings += [head, tail, f"a{head}b", f" {tail} ", head + content, content + tail, head + "\n" + tail]
    for content in contents:
        changed = (content.upper(), content.lower(), content.replace("|", ""), content[:-1], content[1:])
        strings += [f"{before}{c} b" for c in changed for before in ("", "a ")]
    between = ("", " ", "\n", "a", ".", "'s", "\u0301", "user\n", "  ", "<", "|")
    for _ in range(1_000 if quick else 20_000):
        strings.append(rng.choice(between).join(rng.choices(contents, k=rng.randint(2, 4))))
    yield from _chunks("added tokens/batch", strings, 16384, "batch")
    yield from _chunks("added tokens/alone", rng.sample(strings, min(len(strings), 2_000)), 2_000, "alone")


def _random_text(frozen: Frozen, seed: int, quick: bool) -> Iterator[_Batch]:
    """Mixed fragments, short and of the sizes the router encodes; a part by single calls, a part from many threads."""
    rng = random.Random(seed)
    samples = [c for s in frozen.transitions.samples for c in s]
    contents = [t.content for t in frozen.sections.added_tokens]
    dense = [c for codes in _DENSE for c in codes]

    def fragment(rare: bool) -> str:
        roll = rng.random()
        if roll < 0.35:
            return rng.choice(_WORDS)
        if roll < 0.6:
            return rng.choice(_CODE)
        if roll < 0.75:
            return "".join(rng.choices(samples, k=rng.randint(1, 4)))
        if roll < 0.8:
            return "'" + rng.choice(_CONTRACTIONS)
        if roll < 0.86:
            return rng.choice(" \n\t\r") * rng.randint(1, 9)
        if roll < 0.9 and contents:
            content = rng.choice(contents)
            return content if rng.random() < 0.6 else content[: rng.randint(1, len(content))]
        if rare:
            return chr(rng.choice(dense))
        return rng.choice(_MARKS) if roll < 0.93 else rng.choice("aeiouxyzAZ09.,;")

    def text(low: int, high: int) -> str:
        size = int(low * (high / low) ** rng.random())
        rare = rng.random() < 0.15
        parts: list[str] = []
        have = 0
        while have < size:
            parts.append(fragment(rare))
            have += len(parts[-1])
        return "".join(parts)[:size]

    scale = 40 if quick else 1
    yield from _chunks("random text/short", (text(2, 24) for _ in range(80_000 // scale)), 32768, "batch")
    yield from _chunks("random text/short alone", (text(2, 24) for _ in range(10_000 // scale)), 10_000, "alone")
    yield from _chunks("random text/segments", (text(16, 4096) for _ in range(4_000 // scale)), 1000, "batch")
    yield from _chunks("random text/segments alone", (text(16, 4096) for _ in range(1_500 // scale)), 500, "alone")
    yield from _chunks("random text/few", (text(16, 1024) for _ in range(4_000 // scale)), 1000, "few")
    yield from _chunks("random text/threads", (text(16, 1024) for _ in range(6_000 // scale)), 3000, "threads")


# ------------------------------------------------------------------------------------------------------- how it is run


class _Truth:
    """The reference's answers: one hash per string is kept, so that a string is encoded by it once.

    seed: of everything drawn at random, so that the second encoder and the second run meet the same strings.
    """

    def __init__(self, reference: Reference, seed: int | None = None) -> None:
        self.reference = reference
        self.seed = secrets.randbits(32) if seed is None else seed
        self._hashes: dict[str, array[int]] = {}
        self._contexts: dict[bool, Contexts] = {}

    def hashes(self, batch: _Batch) -> array[int]:
        """A 64-bit hash of the IDs of each string. Asks the reference the first time: 1 to 2 us per token."""
        known = self._hashes.get(batch.key)
        if known is None:
            known = self._hashes[batch.key] = array("q", map(_hash, self.reference.encode_each(batch.strings)))
        return known

    def contexts(self, frozen: Frozen, sample: bool) -> Contexts:
        """The contexts of this one tokenizer, over all code points or a sample of them."""
        if sample not in self._contexts:
            codes, other = _codes(sample), self._contexts.get(not sample)
            self._contexts[sample] = other.over(codes) if other else Contexts(self.reference, frozen, codes)
        return self._contexts[sample]


def _hash(ids: Sequence[int]) -> int:
    return hash(tuple(ids))  # the same in every process: Python salts the hashes of text only


_SEGMENT = 1024  # characters of a segment, as they serve
_TRIED = (1, 5, 20)  # how often a text stands in a batch when it is tried again
_SIZES = {"batch": 512, "few": 9, "alone": 1}


def _encode(encoder: Encoder, strings: Sequence[str], way: Way = "batch", kind: IdKind = list) -> list[Ids | None]:
    """The encoder's IDs by the call that serves; None for a string for which it raises. A Rust panic counts, too.

    way: "batch" many segments a call, "few" as many as one turn has, "alone" one, "threads" calls of all sizes from
        several threads at once. They are different code in an encoder.
    kind: as list or as array.
    """
    if way == "threads":
        sizes = (1, 3, 20, 9, 64)
        parts: list[Sequence[str]] = []
        at = 0
        while at < len(strings):
            size = sizes[len(parts) % len(sizes)]
            parts.append(strings[at : at + size])
            at += size
        with ThreadPoolExecutor(8) as pool:
            return list(chain.from_iterable(pool.map(lambda part: _call(encoder, part, kind), parts)))
    size = _SIZES[way]
    calls = (_call(encoder, strings[i : i + size], kind) for i in range(0, len(strings), size))
    return list(chain.from_iterable(calls))


def _call(encoder: Encoder, strings: Sequence[str], kind: IdKind) -> list[Ids | None]:
    try:
        ids, ends = encoder.encode_flat(list(strings), kind)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - a panic in Rust is no Exception
        if len(strings) == 1:
            return [None]
        return [_call(encoder, [string], kind)[0] for string in strings]
    if len(ends) != len(strings) or ends[-1] != len(ids):
        return [None] * len(strings)  # not even the right number of answers
    return [ids[a:b] for a, b in pairwise([0, *ends])]


class _Refused(Exception):
    """The encoder can't be certified."""

    def __init__(self, differences: Sequence[Difference]) -> None:
        super().__init__(f"{len(differences)} differences")
        self.differences = tuple(differences)


_Step = tuple[str, Callable[[], list[str]]]  # a stage's name, and what finds its wrong texts


class _Search:
    """Compares one bare encoder with the reference, and pins differences to code points."""

    def __init__(self, truth: _Truth, encoder: Encoder, log: Log) -> None:
        self._truth = truth
        self._reference = truth.reference
        self._encoder = encoder
        self._log = log
        self.guards: set[str] = set()
        self._common_guards: set[str] = set()
        self.cases = 0
        self._common: dict[str, bool] = {}

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The guarded code points as inclusive ranges, sorted, adjacent ones merged."""
        merged: list[list[int]] = []
        for code in sorted(map(ord, self.guards)):
            if merged and code == merged[-1][1] + 1:
                merged[-1][1] = code
            else:
                merged.append([code, code])
        return tuple((low, high) for low, high in merged)

    def sweep(
        self, contexts: Contexts, batches: Iterable[_Batch], record: Certification | None, joiner: str, quick: bool
    ) -> bool:
        """Run everything, pinning what differs; True when nothing differed. Raises _Refused.

        record: the guards to serve behind; None for the bare encoder.
        """
        encoder = self._encoder if record is None else encoders.Guarded(self._encoder, record, self._reference)
        self._surrogates(encoder)
        clean = True
        stage, cases, began = "", self.cases, time.perf_counter()
        steps: Iterator[_Step] = ((batch.key, partial(self._differing, batch, encoder)) for batch in batches)
        for key, find in chain(self._code_points(contexts, encoder, joiner, quick), steps):
            if (name := key.split("/")[0]) != stage:
                if stage:
                    self._log(f"  {stage}: {self.cases - cases} comparisons, {time.perf_counter() - began:.1f} s")
                stage, cases, began = name, self.cases, time.perf_counter()
            if found := find():
                clean = False
                self._pin(found)
        return clean

    def _code_points(self, contexts: Contexts, encoder: Encoder, joiner: str, quick: bool) -> Iterator[_Step]:
        """All code points in the contexts that tell classes apart, the dense planes in some more.

        Where the reference's answer is known from the class, the numbers are compared; for the others it is asked.
        """
        rng = random.Random(self._truth.seed)
        codes = contexts.codes
        dense = codes[np.isin(codes >> 16, (0, 1, 2, 3, 14))]
        further = [*contexts.one_sided(), *rng.sample(list(contexts.complete()), 2 if quick else _FURTHER)]
        seen = {(c.left, c.right) for c in contexts.separating}
        further = [c for c in further if (c.left, c.right) not in seen]
        for n, context in enumerate((*contexts.separating, *further)):
            chosen = codes if n < len(contexts.separating) else dense
            asked = contexts.asked(context)
            guarded = np.zeros(CODE_POINTS, bool)
            guarded[[ord(c) for c in self.guards]] = True
            for first in range(0, len(chosen), 65536):
                part = chosen[first : first + 65536]
                if encoder is self._encoder:  # behind guards, segments without a guarded character reach it as they are
                    todo = part[~asked[part] & ~guarded[part]]
                    way: Way = "batch" if n % 2 else "few"
                    yield "code points", partial(self._compare, contexts, context, todo, joiner, way)
                probes = [context.left + chr(c) + context.right for c in part[asked[part]].tolist()]
                if probes:
                    batch = _joined(f"code points/{n} {first} of {len(codes)}", probes, joiner)
                    yield batch.key, partial(self._differing, batch, encoder)

    def _compare(self, contexts: Contexts, context: Context, codes: Numbers, joiner: str, way: Way) -> list[str]:
        """The texts "left, c, right" for which the bare encoder does not give what the reference is known to give."""
        self.cases += len(codes)
        if not len(codes):
            return []
        template = f"{context.left}.{context.right}{joiner}"
        cells = np.array([[ord(c) for c in template]], np.uint32).repeat(len(codes), 0)
        cells[:, len(context.left)] = codes
        rows = max(1, _SEGMENT // cells.shape[1])
        segments = [cells[i : i + rows].tobytes().decode("utf-32-le") for i in range(0, len(cells), rows)]
        between = self._reference.encode_each([joiner])[0]
        numbers, ends = self._numbers(segments, way)
        # A segment that does not end with its joiner, or has not one for each text, is wrong as a whole.
        row = np.arange(len(codes))
        segment = row // rows
        at = np.flatnonzero(numbers == between[0])
        of = np.searchsorted(ends, at, side="right")
        whole = np.bincount(of, minlength=len(segments))[: len(segments)] == np.bincount(segment)
        whole &= (ends > np.concatenate(([0], ends[:-1]))) & (numbers[ends - 1] == between[0])
        whole &= len(between) == 1
        wrong: Mask = ~whole[segment]
        right = np.flatnonzero(~wrong)
        at = at[whole[of]] if len(at) else at
        begins = np.concatenate(([0], ends[:-1]))[segment[right]]
        starts = np.where(row[right] % rows == 0, begins, np.concatenate(([0], at[:-1] + 1)))
        lengths = at - starts
        kinds = contexts.classes[codes[right]]
        for kind in np.unique(kinds).tolist():
            members = np.flatnonzero(kinds == kind)
            known = contexts.predicted(context, kind)
            of_kind = codes[right[members]]
            own, own_lengths = contexts.own[of_kind], contexts.own_lengths[of_kind]
            start, before, after = starts[members], len(known.before), len(known.after)
            good = lengths[members] == before + own_lengths + after

            def same(places: Numbers, values: Numbers | int, good: Mask) -> Mask:
                result: Mask = good & (numbers[np.where(good, places, 0)] == values)
                return result

            for i, value in enumerate(known.before):
                good = same(start + i, value, good)
            for i in range(own.shape[1]):
                good &= (i >= own_lengths) | same(start + before + i, own[:, i], good & (i < own_lengths))
            for i, value in enumerate(known.after):
                good = same(start + before + own_lengths + i, value, good)
            wrong[right[members]] = ~good
        places = np.flatnonzero(wrong).tolist()
        texts = [context.left + chr(codes[i]) + context.right for i in places]
        found = self._wrong(texts)
        shown = {i // rows for i, text in zip(places, texts, strict=True) if text in found}
        missed = [segments[i] for i in dict.fromkeys(i // rows for i in places) if i not in shown]
        return [*found, *(self._unstable(missed) if missed else ())]

    def _numbers(self, segments: Sequence[str], way: Way) -> tuple[Numbers, Numbers]:
        """The bare encoder's IDs of all segments, and where each ends. A segment for which it raises has none."""
        found = _encode(self._encoder, segments, way, array)
        ends = np.cumsum([len(ids or ()) for ids in found], dtype=np.int64)
        numbers = [np.array(ids, np.int64) for ids in found if ids]
        return np.concatenate([*numbers, np.full(1, -1)]), ends  # one more, so that every place exists

    def _unstable(self, segments: Sequence[str]) -> list[str]:
        """The segments that are wrong as a whole although their parts are right alone. Raises _Refused for none."""
        found = self._wrong(dict.fromkeys(segments))
        if not found:
            self._refuse(segments[0], "unstable")
        return list(found)

    def _differing(self, batch: _Batch, encoder: Encoder) -> list[str]:
        """The strings (probes, where they were joined) for which the encoder is wrong: as array, then again as list."""
        self.cases += batch.cases * 2
        wrong: dict[int, None] = {}
        truth = self._truth.hashes(batch)
        for kind in (array, list):
            got = _encode(encoder, batch.strings, batch.way, kind)
            pairs = enumerate(zip(truth, got, strict=True))
            wrong.update({i: None for i, (known, ids) in pairs if ids is None or _hash(ids) != known})
        if batch.probes is None:
            return [batch.strings[i] for i in wrong]
        found = self._wrong([p for i in wrong for p in batch.probes[i]], encoder) if wrong else {}
        # A joined string whose parts are right on their own is a finding itself.
        missed = [i for i in wrong if not any(p in found for p in batch.probes[i])]
        return [*found, *(batch.strings[i] for i in missed)]

    def _wrong(self, texts: Iterable[str], encoder: Encoder | None = None) -> dict[str, None]:
        """Those of the strings for which an encoder (the bare one by default) is wrong, in their order."""
        strings = list(texts)
        if not strings:
            return {}
        expected = self._reference.encode_each(strings)
        got = _encode(encoder or self._encoder, strings)
        return {s: None for s, a, b in zip(strings, expected, got, strict=True) if b is None or a != list(b)}

    def _differs(self, text: str) -> bool:
        """Whether the bare encoder is wrong on one text, alone or in a batch (encoders take different ways)."""
        expected = self._reference.encode_each([text])[0]
        answers = (ids for n in _TRIED for ids in _encode(self._encoder, [text] * n))
        return any(ids is None or list(ids) != expected for ids in answers)

    # -- pinning --

    def _pin(self, texts: Sequence[str]) -> None:
        """Find guards that cover all these texts. Raises _Refused when there are none."""
        before = len(self.guards)
        single: dict[str, list[str]] = {}
        rest: list[str] = []
        for text in texts:
            suspects = self._suspects(text)
            if self.guards.intersection(text):
                continue
            if len(suspects) == 1 and len(text) <= 64:
                single.setdefault(next(iter(suspects)), []).append(text)
            else:
                rest.append(text)
        # One rare character is to blame only if the text is wrong again, and right without it and with common
        # characters in its place.
        again = self._wrong([t for ts in single.values() for t in ts])
        rest += [t for ts in single.values() for t in ts if t not in again]
        self.guards.update(c for c, ts in single.items() if any(t in again for t in ts))
        rest += self._wrong([t.replace(c, s) for c, ts in single.items() for t in ts for s in _STAND_INS])

        # Of several rare characters, those that differ away from the others.
        rest = [t for t in rest if not self.guards.intersection(t)]
        several = {c: None for t in rest[: 16 * _SHRINKS] for c in sorted(self._suspects(t)) if c not in _PARTNERS}
        forms = {form.replace("{}", c): c for c in several for form in _BATTERY}
        self.guards.update(forms[form] for form in self._wrong(list(forms)))

        # What is left takes shrinking.
        shrunk = 0
        for text in rest:
            if self.guards.intersection(text):
                continue
            shrunk += 1
            if shrunk > _SHRINKS:
                self._refuse(text, "guards")
            example = self._shrink(text)
            suspects = self._suspects(example)
            if not suspects:
                # A few characters that the vocabulary knows may be guarded, too, such as U+017F, which (?i:s) matches.
                suspects = {c for c in example if not c.isascii()}
                self._common_guards |= suspects
                if not suspects or len(self._common_guards) > _MOST_COMMON:
                    self._refuse(example, None)
            self.guards |= suspects
            self._log(f"  {_short(example)} differs: guards {', '.join(f'U+{ord(c):04X}' for c in sorted(suspects))}")
        if len(self.ranges()) > MAX_RANGES:
            self._refuse(min(texts, key=len), "guards")
        if len(self.guards) != before:
            shortest = _short(min(texts, key=len))
            self._log(f"  {len(self.guards)} guarded code points in {len(self.ranges())} ranges so far; {shortest}")

    def _suspects(self, text: str) -> set[str]:
        """The characters to blame first: not ASCII, and not so common that the vocabulary has a token for them."""
        return {c for c in set(text) if not self._is_common(c)}

    def _is_common(self, character: str) -> bool:
        known = self._common.get(character)
        if known is None:
            known = character.isascii() or len(self._reference.encode_each([character])[0]) == 1
            self._common[character] = known
        return known

    def _shrink(self, text: str) -> str:
        """A shortest text that still differs (delta debugging). Raises _Refused when it does not differ again."""
        if not any(self._differs(text) for _ in range(3)):
            self._refuse(text, "unstable")
        if len(text) > 256:  # most faults are local: one of these windows is then a quick start
            windows = self._wrong([text[at : at + 64] for at in range(0, len(text), 32)])
            text = next(iter(windows), text)
        calls = 0
        size = max(1, len(text) // 2)
        while True:
            at, removed = 0, False
            while at < len(text) and calls < _SHRINK_CALLS:
                candidate = text[:at] + text[at + size :]
                calls += 1
                if self._differs(candidate):
                    text, removed = candidate, True
                else:
                    at += size
            if size == 1 and (not removed or calls >= _SHRINK_CALLS):
                return text
            size = max(1, min(size // 2, len(text) // 2))

    def _refuse(self, text: str, kind: Kind | None) -> NoReturn:
        expected = self._reference.encode_each([text])[0]
        answers = (g for n in _TRIED for g in _encode(self._encoder, [text] * n))
        got = next((g for g in answers if g is None or list(g) != expected), expected)
        if kind is None:
            kind = "raises" if got is None else "ids"
        raise _Refused([Difference(text, tuple(expected), None if got is None else tuple(got), kind)])

    def _surrogates(self, encoder: Encoder) -> None:
        """Lone surrogates are no text: the reference raises, and an encoder that answers would hide it."""
        texts = ["\ud800", "a\udfffb", "\udc00\ud800", "x" * 100 + "\ud83d", *(["ok\udead"] * 8)]
        self.cases += len(texts)
        for text in texts:
            got = _encode(encoder, [text])[0]
            if got is not None:
                raise _Refused([Difference(text, None, tuple(got), "accepts")])


def _certify(truth: _Truth, frozen: Frozen, name: str, *, quick: bool, log: Log) -> Result:
    if name not in encoders.NAMES[1:]:
        raise ValueError(f"unknown encoder {name!r}: one of {', '.join(encoders.NAMES[1:])}")
    began = time.perf_counter()
    reference = truth.reference
    version = encoders.version_of(name)
    encoder = encoders.build(name, reference)
    log(f"{frozen.name}: {name} {version} against tokenizers {reference.version}, seed {truth.seed}")
    search = _Search(truth, encoder, log)
    record: Certification | None = None
    sample = quick
    try:
        for _ in range(_ROUNDS):
            contexts = truth.contexts(frozen, sample)
            batches = _all_batches(truth, frozen, contexts, quick, sample)
            clean = search.sweep(contexts, batches, record, _joiner(frozen), quick)
            guards = search.ranges()
            if clean and guards == (record.guards if record else ()):
                break
            if record is not None and guards == record.guards:
                raise AssertionError("a difference behind guards was neither pinned nor refused")
            if sample:  # the tables differ, and a sample can't tell where else; bare, as guards would hide it
                sample = False
                log("  again with every code point")
                continue
            log(f"  again behind {len(guards)} guard ranges")
            record = Certification(name, version, reference.version, guards, search.cases, METHOD)
        else:
            raise _Refused([Difference("", None, None, "guards")])
    except _Refused as refused:
        seconds = time.perf_counter() - began
        against = "; ".join(map(_line, refused.differences))
        log(f"  refused after {search.cases} comparisons, {seconds:.0f} s: {against}")
        return Result(None, search.cases, refused.differences, seconds)
    seconds = time.perf_counter() - began
    log(f"  certified: {search.cases} comparisons, {len(guards)} guard ranges, {seconds:.0f} s")
    record = Certification(name, version, reference.version, guards, search.cases, METHOD)
    return Result(record, search.cases, (), seconds)


def _line(difference: Difference) -> str:
    d = difference
    return f"{d.kind} {_short(d.text)}: {_few(d.expected)} expected, got {_few(d.got)}"


def _short(text: str) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 120 else f"{shown[:100]}... ({len(text)} characters)"


def _few(ids: tuple[int, ...] | None) -> str:
    if ids is None:
        return "an error"
    return str(list(ids)) if len(ids) <= 12 else f"{list(ids[:12])} and {len(ids) - 12} more"


# --------------------------------------------------------------------------------------------------------- command line


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the outcome. error: why it could not be run; recorded: the config file that holds the record."""

    config: str
    encoder: str
    encoder_version: str | None
    reference_version: str
    result: Result | None
    recorded: Path | None
    error: str | None

    def to_json(self) -> dict[str, object]:
        r = self.result
        record = r.certification if r else None
        return {
            "config": self.config,
            "encoder": self.encoder,
            "encoder_version": self.encoder_version,
            "reference_version": self.reference_version,
            "certified": record is not None,
            "guards": [list(g) for g in record.guards] if record else [],
            "cases": r.cases if r else 0,
            "seconds": round(r.seconds, 1) if r else 0.0,
            "differences": [
                {"text": ascii(d.text), "expected": d.expected, "got": d.got, "kind": d.kind}
                for d in (r.differences if r else ())
            ],
            "recorded": str(self.recorded) if self.recorded else None,
            "error": self.error,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``delta certify`` to `parser`."""
    parser.add_argument(
        "tokenizers",
        nargs="*",
        metavar="NAME|PATH",
        help="names, or tokenizer.json files (default: every name in the cache)",
    )
    parser.add_argument("--encoder", choices=(*encoders.NAMES[1:], "all"), default="all")
    parser.add_argument("--into", type=Path, metavar="DIR", help="where the records go (default: DELTA_CONFIGS)")
    parser.add_argument("--quick", action="store_true", help="a smaller battery: seconds; most code points sampled")
    parser.add_argument("--seed", type=int, help="of what is drawn at random (default: a fresh one, which is told)")
    parser.add_argument("--json", action="store_true", help="write the result as JSON on standard output")


def run(args: argparse.Namespace) -> int:
    """Run ``delta certify``: the outcome on standard output, progress on standard error.

    Returns 0 when all are certified, 1 when one is not, 2 when one could not be tried (no such tokenizer, not
    admitted, encoder not installed). An older record of a triple that is refused now is taken out.
    """
    names = args.tokenizers or [name for name in fetch.NAMES if fetch.cached(name) is not None]
    if not names:
        _tell("delta certify: no tokenizer is in the cache; give a NAME or a PATH, or run `delta fetch`")
        return 2
    chosen = encoders.NAMES[1:] if args.encoder == "all" else (args.encoder,)
    rows: list[_Row] = []
    for name in names:
        try:
            reference, frozen = _open(name)
            truth = _Truth(reference, args.seed)
        except (DeltaError, fetch.FetchError, OSError) as error:
            rows += [_Row(name, encoder, None, Reference.version, None, None, str(error)) for encoder in chosen]
            _tell(f"delta certify: {error}")
            continue
        for encoder in chosen:
            rows.append(_one(truth, frozen, encoder, args.into or user_folder(), args.quick))
            if not args.json:
                print(_outcome(rows[-1]), flush=True)
    if args.json:
        print(json.dumps([row.to_json() for row in rows], indent=2))
    if any(row.error for row in rows):
        return 2
    return 0 if all(row.result and row.result.certification for row in rows) else 1


def _one(truth: _Truth, frozen: Frozen, name: str, folder: Path, quick: bool) -> _Row:
    version: str | None = None
    result: Result | None = None
    try:
        version = encoders.version_of(name)
        result = _certify(truth, frozen, name, quick=quick, log=_tell)
        recorded = _record(frozen, (name, version, Reference.version), result.certification, folder)
        return _Row(frozen.name, name, version, Reference.version, result, recorded, None)
    except (EncoderUnavailable, DeltaError, OSError) as error:
        _tell(f"delta certify: {frozen.name}: {error}")
        return _Row(frozen.name, name, version, Reference.version, result, None, str(error))


def _open(name_or_path: str) -> tuple[Reference, Frozen]:
    """The live tokenizer and the config it is admitted under. Raises CertifyError, ConfigError, FetchError, OSError."""
    known = not Path(name_or_path).exists() and name_or_path in fetch.NAMES
    _, live = open_tokenizer(name_or_path, CertifyError, _tell)
    reference = Reference(live)
    # Two names may be one tokenizer; the record is then to go to the one that was asked for.
    verdict = admit(reference, [load_frozen(name_or_path)] if known else None)
    if verdict.frozen is None:
        raise CertifyError(f"{name_or_path}: not admitted: {'; '.join(map(str, verdict.mismatches))}")
    return reference, verdict.frozen


def _record(
    frozen: Frozen, key: tuple[str, str, str], certification: Certification | None, folder: Path
) -> Path | None:
    """Write the record into the folder's copy of the config, or take an older one out. None when nothing is written."""
    path = folder / f"{frozen.name}.json"
    held = load_path(path) if path.is_file() else None  # read now: another certification may have written meanwhile
    if held is not None and held.sections != frozen.sections:
        raise ConfigError(f"{path}: is the config of another tokenizer")
    base = held or frozen
    if certification is not None:
        return base.with_certification(certification).write(folder)
    if all(c.key != key for c in base.certified):
        return None
    replace(base, certified=tuple(c for c in base.certified if c.key != key)).write(folder)
    return None


def _outcome(row: _Row) -> str:
    title = f"{row.config}: {row.encoder} {row.encoder_version or ''} with tokenizers {row.reference_version}"
    if row.error or row.result is None:
        return f"{title}: not tried: {row.error}"
    cost = f"{row.result.cases} comparisons, {row.result.seconds:.0f} s"
    record = row.result.certification
    if record is None:
        return "\n  ".join([f"{title}: NOT certified ({cost})", *map(_line, row.result.differences)])
    count = sum(high - low + 1 for low, high in record.guards)
    guards = f"{count} guarded code points in {len(record.guards)} ranges" if count else "no guards"
    return f"{title}: certified, {guards} ({cost})"


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
