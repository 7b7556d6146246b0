"""What is compared beside the code points in contexts: batches of strings in which tokenizers are known to differ.

Canonical order and composition, characters of every class side by side, the vocabulary, long runs, added tokens, and
random text with a fresh seed. A key names the same strings in every run, so that the reference is asked once.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count, islice, pairwise, product

import numpy as np
from tokenizers import normalizers

from ...admission.frozen import Frozen
from ...reference import Reference
from .calls import Way
from .contexts import Contexts, Numbers


@dataclass(frozen=True, slots=True)
class Batch:
    """Strings that are encoded together.

    key: names the batch; the same key holds the same strings in every run.
    strings: what is encoded.
    probes: what each string was joined from, None when they are the probes themselves.
    way: how they are given to the encoder, see `calls.encode`.
    """

    key: str
    strings: list[str]
    probes: list[list[str]] | None = None
    way: Way = "batch"

    @property
    def cases(self) -> int:
        """How many comparisons the batch is."""
        return len(self.strings) if self.probes is None else sum(map(len, self.probes))


# Planes 0-3 and 14 hold all characters there are. The rest is private use or not assigned in any version of Unicode.
DENSE = (range(0x0000, 0xD800), range(0xE000, 0x40000), range(0xE0000, 0xF0000))
SPARSE = (range(0x40000, 0xE0000), range(0xF0000, 0x110000))
_DRAWN = 200_000  # code points drawn at random, each in a context drawn at random
# Where newer characters compose with each other (by blocks), or with older general marks.
_BLOCK = 128
_BLOCKS = (*range(0, 0x3400, _BLOCK), *range(0xA000, 0xAC00, _BLOCK), *range(0xF900, 0x20000, _BLOCK))
_NEWER = range(0x10000, 0x20000)
_JOIN = 64

# One mark of every canonical combining class that is in use, several of the common ones.
MARKS = (
    "\u0334\u0335\u0338\U00016ff0\u093c\u3099\u309a\u094d\u05b0\u05b4\u05c1\u064b\u064c\u0650\u0651\u0670\u0711\u0c55\u0c56"
    "\u0e38\u0e48\u0f71\u0f72\u0f74\u0321\u0327\u031b\u302a\u0316\u0323\u0324\u0591\u302e\u0300\u0301\u0302\u0304\u0306"
    "\u0307\u0308\u030a\u030c\u0342\u0344\u0345\u0313\u0314\u0315\u035c\u035d\u05ae\u1ab0\u1acf\u1ad0\u0897\u0898\u08ca"
)
PARTNERS = "\u0301\u0335\u0323\u0307"

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


def all_batches(
    reference: Reference, frozen: Frozen, contexts: Contexts, seed: int, quick: bool, sample: bool
) -> Iterator[Batch]:
    """Everything that is compared but the code points in contexts. sample: only a part of the compositions."""
    joiner = joiner_of(frozen)
    normalizes = bool(frozen.sections.normalizer)
    yield from _groups(contexts, joiner, seed, quick)
    yield from _normal_forms(joiner, normalizes, quick, sample)
    yield from _class_boundaries(frozen, quick)
    yield from _vocabulary(reference, joiner, quick)
    yield from _runs(frozen, quick)
    yield from _added_tokens(frozen, quick)
    yield from _random_text(frozen, seed, quick)


def code_points(sample: bool) -> Numbers:
    """The code points that are tried; with `sample` those below U+3000 and one in 61 above."""
    every = np.concatenate([np.arange(codes.start, codes.stop) for codes in (*DENSE, *SPARSE)])
    return every[(every < 0x3000) | (every % 61 == 0)] if sample else every


def joiner_of(frozen: Frozen) -> str:
    """What keeps joined probes apart: an added token, for what stands on its two sides is encoded on its own."""
    contents = [t.content for t in frozen.sections.added_tokens if not (t.lstrip or t.rstrip or t.single_word)]
    return next((c for c in contents if not any(c != o and (c in o or o in c) for o in contents)), "\n\n")


def joined(key: str, probes: Sequence[str], joiner: str) -> Batch:
    """A batch of longer strings, made of many short ones: asking for one string costs more than for its characters."""
    groups = [list(probes[i : i + _JOIN]) for i in range(0, len(probes), _JOIN)]
    return Batch(key, [joiner.join(group) for group in groups], groups)


def _chunks(key: str, strings: Iterable[str], size: int, way: Way) -> Iterator[Batch]:
    held: list[str] = []
    n = 0
    for string in strings:
        held.append(string)
        if len(held) == size:
            yield Batch(f"{key}/{n}", held, way=way)
            held, n = [], n + 1
    if held:
        yield Batch(f"{key}/{n}", held, way=way)


def _groups(contexts: Contexts, joiner: str, seed: int, quick: bool) -> Iterator[Batch]:
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


def _joined_chunks(key: str, probes: Iterable[str], joiner: str) -> Iterator[Batch]:
    probes = iter(probes)
    for n in count():
        part = list(islice(probes, 32768))
        if not part:
            return
        yield joined(f"{key}/{n}", part, joiner)


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


def _normal_forms(joiner: str, normalizes: bool, quick: bool, sample: bool) -> Iterator[Batch]:
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
        for m in rng.sample(MARKS, 4) if quick else MARKS:
            probes += [c + m, parts + m, parts[0] + m + parts[1:]]
        probes.append(parts[::-1])
    jamo = [chr(c) for c in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A7, 0x11C3), 0x115F, 0xA960)]
    probes += [a + b for a, b in product(jamo, repeat=2)]
    for m in marks:
        for k in rng.sample(MARKS, 4) if quick else MARKS:
            probes += [f"a{m}{k}", f"a{k}{m}b"]
    for _ in range(2_000 if quick else 60_000):
        probes.append(rng.choice("aeiouAEO가ー/1 ") + "".join(rng.choices(marks, k=rng.randint(2, 5))))
    for n, start in enumerate(range(0, len(probes), 16384)):
        yield joined(f"normal forms/{n}", probes[start : start + 16384], joiner)
    if not normalizes or sample:
        return
    # Characters newer than the reference's tables compose with neighbours in their own block, or with general marks;
    # the reference can't name them, so all pairs are tried. A de Bruijn sequence holds every pair of a block.
    sequence = _de_bruijn(_BLOCK)
    for n, start in enumerate(_BLOCKS):
        string = "".join(chr(start + i) for i in sequence)
        yield Batch(f"normal forms/block {n}", [string], [[a + b for a, b in pairwise(string)]])
    general = sorted({p for parts in parts_of.values() for p in parts[1:] if "\u0300" <= p <= "\u036f"})
    for start in range(_NEWER.start, _NEWER.stop, 1024):
        groups = [[chr(c) + m for m in general] for c in range(start, min(start + 1024, _NEWER.stop))]
        yield Batch(f"normal forms/marks {start:x}", list(map("".join, groups)), groups)


def _de_bruijn(k: int) -> list[int]:
    """A sequence of numbers below k in which every pair stands once: k * k + 1 long."""
    sequence = []
    for a in range(k):
        sequence.append(a)
        for b in range(a + 1, k):
            sequence += [a, b]
    return [*sequence, 0]


def _class_boundaries(frozen: Frozen, quick: bool) -> Iterator[Batch]:
    """All short strings over the classes, random longer ones, and contractions."""
    samples = frozen.transitions.samples
    rng = random.Random(3)
    budget = 20_000 if quick else 250_000
    for which in (0, -1):
        alphabet = sorted({s[which] for s in samples})
        length = 1
        while len(alphabet) ** length <= budget:
            strings = map("".join, product(alphabet, repeat=length))
            yield from _chunks(f"class boundaries/{which} {length}", strings, 32768, "batch")
            length += 1
    every = sorted({c for s in samples for c in s} | set("'\u2019\u017f\u212a\u180e\u0301"))
    longer = ("".join(rng.choices(every, k=rng.randint(5, 12))) for _ in range(5_000 if quick else 150_000))
    yield from _chunks("class boundaries/longer", longer, 32768, "batch")
    around = ("", "a", "A", "1", " ", "\n", ".", "'", "\u0301", "日", "x ", "\t")
    contractions = (
        f"{before}{mark}{letters}{after}"
        for mark in ("'", "\u2019", "''")
        for letters in _CONTRACTIONS
        for before in around
        for after in around
    )
    yield from _chunks("class boundaries/contractions", contractions, 32768, "batch")


def _vocabulary(reference: Reference, joiner: str, quick: bool) -> Iterator[Batch]:
    """Every token of the vocabulary that is text, in contexts, and random rows of tokens.

    A piece boundary in the wrong place shows in the IDs only where a token would span it: real tokens are needed there.
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
            yield joined(f"vocabulary/{context!r} {first}", probes, joiner)
    short = [t for t in tokens if len(t) <= 3]
    odd = [t for t in tokens if len(t) <= 6 and not (t.strip().isalpha() or t.isdigit())]
    for n in range(1 if quick else 16):
        probes = [
            "".join(rng.choices(pool, k=rng.randint(2, 5)))
            for pool in (tokens, short or tokens, odd or tokens)
            for _ in range(2_000 if quick else 8_192)
        ]
        yield joined(f"vocabulary/rows {n}", probes, joiner)


def _runs(frozen: Frozen, quick: bool) -> Iterator[Batch]:
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


def _added_tokens(frozen: Frozen, quick: bool) -> Iterator[Batch]:
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


def _random_text(frozen: Frozen, seed: int, quick: bool) -> Iterator[Batch]:
    """Mixed fragments, short and of the sizes the router encodes; a part by single calls, a part from many threads."""
    rng = random.Random(seed)
    samples = [c for s in frozen.transitions.samples for c in s]
    contents = [t.content for t in frozen.sections.added_tokens]
    dense = [c for codes in DENSE for c in codes]

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
        return rng.choice(MARKS) if roll < 0.93 else rng.choice("aeiouxyzAZ09.,;")

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
