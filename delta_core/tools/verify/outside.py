"""Texts from outside: of what Unicode's versions disagree about, and real text.

Nothing here is shared with certification, which must not be judged by texts of its own making: no fragment, no context,
no list of characters. Characters come from Unicode's tables as far as this machine has them, real text from what every
Python brings along. The tables are a source of strings, never of answers: these are the live tokenizer's.
"""

from __future__ import annotations

import gettext
import importlib
import random
import sys
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np

from ...characters import PatternProbe
from .cases import Call
from .dense import dense
from .tally import Subject, Tally, reference_ids

_THREADS = 4
_SINGLES = 1000  # texts of a `unicode` unit that stand alone
_SESSIONS = 120  # conversations of one, half of them with a checkpoint at every allowed position
_SUSPECTS = 200  # in dozens of places each
_PLACES = 40
_TURNS = 10
_LONG = 6  # texts of hundreds of segments: encoders take other ways in a batch
_REAL_SESSIONS = 12  # conversations of a `realtext` unit

# What patterns ask of a character.
_KINDS = ("L", "N", "M", "P", "S", "Lu", "Ll")
# Where characters are assigned, and versions of Unicode assign new ones.
_PLANES = (range(0xD800), range(0xE000, 0x34000), range(0xE0000, 0xE0200))

Table = np.ndarray[tuple[int], np.dtype[np.int64]]


# -- what Unicode's versions disagree about --


def _of_categories(category: Callable[[str], str]) -> Table:
    """One bit a kind for each code point of the planes, by a function such as unicodedata.category."""
    bits = {
        name: sum(1 << bit for bit, kind in enumerate(_KINDS) if name.startswith(kind))
        for name in {category(chr(code)) for codes in _PLANES for code in codes}
    }
    return np.array([bits[category(chr(code))] for codes in _PLANES for code in codes], np.int64)


def _of_regex() -> Table | None:
    """As the module `regex` has it, which follows Unicode more closely than Python; None where it isn't installed."""
    try:
        module: Any = importlib.import_module("regex")
    except ImportError:
        return None
    text = "".join(chr(code) for codes in _PLANES for code in codes)
    result = np.zeros(len(text), np.int64)
    for bit, kind in enumerate(_KINDS):
        for match in module.finditer(rf"\p{{{kind}}}+", text):
            result[match.start() : match.end()] |= 1 << bit
    return result


def _runs(tables: Sequence[Table]) -> list[range]:
    """Ranges of neighbours over which the tables disagree in the same way."""
    codes = np.concatenate([np.arange(r.start, r.stop) for r in _PLANES])
    apart = np.zeros(len(codes), bool)
    for table in tables[1:]:
        apart |= table != tables[0]
    at = np.flatnonzero(apart)
    signatures = [(int(codes[i]), *(int(t[i]) for t in tables)) for i in at]
    found = []
    for _, group in groupby(enumerate(signatures), lambda item: (item[1][0] - item[0], item[1][1:])):
        members = [signature[0] for _, signature in group]
        found.append(range(members[0], members[-1] + 1))
    return found


@dataclass(frozen=True, slots=True)
class Repertoire:
    """Characters by what is known of them.

    disputed: ranges that the reference's engine and the tables of this machine take for different things.
    newer: ranges that came, or changed, between Unicode 3.2 and the running Python's.
    empty: first code points of rows of 16 with an unassigned one, near assigned ones: the next version's characters.
    alphabets: by category, by the script that the name begins with: characters that have been the same since 3.2.
    folded: by ASCII letter, everything that folds to it.
    """

    disputed: list[range]
    newer: list[range]
    empty: list[int]
    alphabets: dict[str, list[list[str]]]
    folded: dict[str, list[str]]


@lru_cache(maxsize=1)
def repertoire() -> Repertoire:
    """About 3 s, once per process."""
    probe = PatternProbe([rf"\p{{{kind}}}" for kind in _KINDS])
    engine = np.concatenate([probe.signatures(codes.start, len(codes)) for codes in _PLANES])
    running = _of_categories(unicodedata.category)
    old = _of_categories(unicodedata.ucd_3_2_0.category)
    tables = [engine, running, *(table for table in (_of_regex(),) if table is not None)]
    alphabets: dict[str, dict[str, list[str]]] = {}
    for code in chain(range(0xD800), range(0xF900, 0x20000)):
        character = chr(code)
        category = unicodedata.category(character)
        if category == unicodedata.ucd_3_2_0.category(character) and category not in ("Cn", "Co", "Cs"):
            script = unicodedata.name(character, " ").split(" ")[0]
            alphabets.setdefault(category, {}).setdefault(script, []).append(character)
    folded: dict[str, list[str]] = {}
    for code in range(0x80, 0x3000):
        fold = chr(code).casefold()
        if fold.isascii():
            folded.setdefault(fold[0], []).append(chr(code))
    return Repertoire(
        disputed=_runs(tables),
        newer=_runs([running, old]),
        empty=list(_empty_rows()),
        alphabets={category: list(scripts.values()) for category, scripts in alphabets.items()},
        folded=folded,
    )


def _empty_rows() -> Iterator[int]:
    for codes in _PLANES:
        for block in range(codes.start, codes.stop, 256):
            assigned = [unicodedata.category(chr(c)) not in ("Cn", "Co") for c in range(block, block + 256)]
            if any(assigned):
                yield from (block + at for at in range(0, 256, 16) if not all(assigned[at : at + 16]))


# How often a run is of a category. Digits first: patterns count them.
_WEIGHTS = {
    "Nd": 7, "Nl": 0.5, "No": 1, "Lu": 2, "Ll": 3, "Lt": 0.4, "Lm": 0.6, "Lo": 3, "Mn": 2, "Mc": 1, "Me": 0.3, "Zs": 1,
    "Pc": 0.4, "Pd": 0.6, "Ps": 0.5, "Pe": 0.5, "Pi": 0.3, "Pf": 0.3, "Po": 1, "Sm": 0.7, "Sc": 0.5, "Sk": 0.5, "So": 1,
    "Cf": 0.8, "Cc": 0.4,
}  # fmt: skip
_ASCII = (
    "0123456789", "0123456789", "0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", " ", " ",
    "\t", "\n", "\n", "\r\n", "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~", "/",
)  # fmt: skip
_APOSTROPHES = "''''\u2019\u02bc\uff07"
_CONTRACTED = ("s", "t", "d", "m", "re", "ve", "ll")


class Strings:
    """Random texts of Unicode's own making, reproducible from a seed on machines with the same tables.

    contents: of added tokens. edges: code points at and beside the ranges that encoders are guarded at, where a guard
    that is missing or misplaced shows.
    """

    def __init__(self, seed: str, contents: Sequence[str] = (), edges: Sequence[int] = ()) -> None:
        self.rng = random.Random(seed)
        self.contents = list(contents)
        self.edges = list(edges)
        self.known = repertoire()
        self._categories = list(_WEIGHTS)
        self._weights = list(_WEIGHTS.values())

    def run(self) -> str:
        """One to five characters of one kind, alike or not; or a contraction, or an added token."""
        rng, r = self.rng, self.rng.random()
        if self.contents and r < 0.08:
            return rng.choice(self.contents)
        if r < 0.14:
            letters = "".join(
                rng.choice(self.known.folded.get(c, [c])) if rng.random() < 0.1 else rng.choice((c, c.upper()))
                for c in rng.choice(_CONTRACTED)
            )
            return rng.choice(_APOSTROPHES) + letters
        length = rng.choice((1, 1, 2, 3, 4, 5))
        if r < 0.45:
            alphabet: Sequence[str] = rng.choice(_ASCII)
            if alphabet == "\r\n":
                return "\r\n" * length
        else:
            scripts = self.known.alphabets.get(rng.choices(self._categories, self._weights)[0])
            alphabet = rng.choice(scripts) if scripts else " "
        if rng.random() < 0.4:
            return rng.choice(alphabet) * length
        return "".join(rng.choices(alphabet, k=length))

    def suspect(self) -> str:
        """A character that somebody may take for another thing than the reference does."""
        rng, r = self.rng, self.rng.random()
        if r < 0.15 and self.edges:
            return chr(rng.choice(self.edges))
        if r < 0.60:
            return self._of(rng.choice(self.known.disputed or self.known.newer))
        if r < 0.75:
            return chr(rng.choice(rng.choice(self.known.newer)))
        if r < 0.90:
            return chr(rng.choice(self.known.empty) + rng.randrange(16))
        code = rng.randrange(0x110000)
        return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)

    def _of(self, span: range) -> str:
        return chr(self.rng.choice((span[0], span[-1], self.rng.choice(span))))

    def around(self, suspects: str) -> str:
        """Suspects between runs, or at the start or end of a line."""
        before = self.run() if self.rng.random() < 0.75 else ""
        after = self.run() if self.rng.random() < 0.85 else ""
        return before + suspects + after

    def short(self) -> str:
        """A line with a few suspects in it."""
        rng = self.rng
        parts = [self.around(self.suspect() * rng.choice((1, 1, 1, 2, 3))) for _ in range(rng.choice((1, 1, 2, 3)))]
        parts += [self.run() for _ in range(rng.randrange(3))]
        rng.shuffle(parts)
        line = "".join(parts)
        return rng.choice((line, line, line, f"\n{line}", f"{line}\n", f" {line} "))

    def row(self) -> str:
        """Sixteen suspects, each in the same place: whichever of them is taken for something else meets it."""
        rng, r = self.rng, self.rng.random()
        if r < 0.4:
            start = rng.choice(self.known.empty)
            row: Sequence[str] = [chr(code) for code in range(start, start + 16)]
        elif r < 0.7 and self.edges:
            row = [chr(rng.choice(self.edges)) for _ in range(16)]
        else:
            row = [self.suspect() for _ in range(16)]
        before, after, between = (self.run() if rng.random() < 0.8 else "" for _ in range(3))
        return "".join(f"{before}{character}{after}{between}" for character in row)

    def placed(self, most: int) -> list[str]:
        """Up to so many suspects, one of a range, each in dozens of places."""
        spans = [*self.known.disputed, *(range(edge, edge + 1) for edge in self.edges)]
        chosen = [self._of(span) for span in self.rng.sample(spans, min(most, len(spans)))]
        return ["".join(self.around(character) for _ in range(_PLACES)) for character in chosen]

    def text(self) -> str:
        """A row, or a line with a few suspects."""
        return self.row() if self.rng.random() < 0.4 else self.short()

    def turns(self, count: int) -> list[str]:
        """A text that grows, and now and then changes where it is."""
        text = "".join(self.text() for _ in range(self.rng.randrange(1, 6)))
        turns = [text]
        while len(turns) < count:
            r = self.rng.random()
            at = self.rng.randrange(len(text) + 1)
            if r < 0.6:
                text += self.text()
            elif r < 0.8:
                text = text[:at] + self.suspect() + text[at:]
            elif r < 0.9:
                text = text[:at] + self.run() + text[at + self.rng.randrange(6) :]
            else:
                text = text[at // 2 :] + self.short()
            turns.append(text)
        return turns


def guard_edges(subject: Subject) -> list[int]:
    """Code points at and beside the guards of every encoder that is certified for the tokenizer."""
    ranges = {pair for record in subject.frozen.certified for pair in record.guards}
    beside = {code for low, high in ranges for code in (low - 1, low, high, high + 1)}
    return sorted(code for code in beside if 0 <= code < 0x110000 and not 0xD800 <= code < 0xE000)


# -- the comparison --


def calls_of(texts: Sequence[str], rng: random.Random) -> list[Call]:
    """One conversation's calls: under a key of its own, under one that others use as well, or found by content."""
    key = rng.choice((None, f"k{rng.random()}", "shared"))
    namespace = rng.choice((None, None, None, "n"))
    arrays = rng.choice((0.0, 0.5, 1.0))
    return [Call(text, key, namespace, rng.random() < 0.2, rng.random() < arrays) for text in texts]


def compare(subject: Subject, sessions: Sequence[Sequence[Call]], tally: Tally, *, scale_dense: bool = False) -> None:
    """The calls of each session in their order, four threads with a share of the sessions each, from an empty store.

    The reference's side is one batch of the live tokenizer's.
    """
    wanted: dict[tuple[str, bool], list[int]] = {}
    for special in (False, True):
        calls = (call for call in chain.from_iterable(sessions) if call.add_special_tokens is special)
        texts = list(dict.fromkeys(call.text for call in calls))
        for text, ids in zip(texts, reference_ids(subject, texts, special), strict=True):
            wanted[text, special] = ids

    def work(first: int) -> tuple[int, list[Sequence[Call]]]:
        done, wrong = 0, []
        for session in sessions[first::_THREADS]:
            for n, call in enumerate(session):
                done += 1
                if call.of(subject.tok) != wanted[call.text, call.add_special_tokens]:
                    wrong.append(session[: n + 1])
                    break
        return done, wrong

    subject.tok.clear()
    with dense() if scale_dense else nullcontext(), ThreadPoolExecutor(_THREADS) as pool:
        for done, wrong in pool.map(work, range(_THREADS)):
            tally.cases += done
            for session in wrong:
                tally.fail(session)
        subject.tok._store._check()


def compare_unicode(subject: Subject, strings: Strings, tally: Tally, *, share: int = 1) -> None:
    """Short texts alone, conversations at both scales, long texts. share: a part of them, where time is dear."""
    rng = strings.rng
    texts = [strings.text() for _ in range(_SINGLES // share)] + strings.placed(_SUSPECTS // share)
    compare(subject, [calls_of([text], rng) for text in texts], tally)
    for scale_dense in (False, True):
        sessions = [calls_of(strings.turns(_TURNS), rng) for _ in range(_SESSIONS // 2 // share)]
        compare(subject, sessions, tally, scale_dense=scale_dense)
    long = ["".join(strings.text() for _ in range(400)) for _ in range(max(1, _LONG // share))]
    compare(subject, [calls_of([text, text + strings.text()], rng) for text in long], tally)


def unicode(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """What Unicode's versions disagree about, between runs of every kind."""
    contents = [t.content for t in subject.frozen.sections.added_tokens]
    compare_unicode(subject, Strings(seed, contents, guard_edges(subject)), tally)


# -- real text --

_MONTHS = (
    ("de", "Januar Februar März April Mai Juni Juli August September Oktober November Dezember", "{d}. {m} {y}"),
    ("fr", "janvier février mars avril mai juin juillet août septembre octobre novembre décembre", "le {d} {m} {y}"),
    ("cs", "ledna února března dubna května června července srpna září října listopadu prosince", "{d}. {m} {y}"),
    ("tr", "Ocak Şubat Mart Nisan Mayıs Haziran Temmuz Ağustos Eylül Ekim Kasım Aralık", "{d} {m} {y}"),
    ("ru", "января февраля марта апреля мая июня июля августа сентября октября ноября декабря", "{d} {m} {y} г."),
    ("el", "Ιανουαρίου Φεβρουαρίου Μαρτίου Απριλίου Μαΐου Ιουνίου Ιουλίου Αυγούστου Σεπτεμβρίου Οκτωβρίου "
     "Νοεμβρίου Δεκεμβρίου", "{d} {m} {y}"),
    ("he", "ינואר פברואר מרץ אפריל מאי יוני יולי אוגוסט ספטמבר אוקטובר נובמבר דצמבר", "{d} ב{m} {y}"),
    ("ar", "يناير فبراير مارس أبريل مايو يونيو يوليو أغسطس سبتمبر أكتوبر نوفمبر ديسمبر", "{d} {m} {y}"),
    ("hi", "जनवरी फ़रवरी मार्च अप्रैल मई जून जुलाई अगस्त सितंबर अक्टूबर नवंबर दिसंबर", "{d} {m} {y}"),
    ("th", "มกราคม กุมภาพันธ์ มีนาคม เมษายน พฤษภาคม มิถุนายน กรกฎาคม สิงหาคม กันยายน ตุลาคม พฤศจิกายน ธันวาคม", "{d} {m} {y}"),
    ("vi", "giêng hai ba tư năm sáu bảy tám chín mười", "ngày {d} tháng {m} năm {y}"),
    ("ja", "1月 2月 3月 4月 5月 6月 7月 8月 9月 10月 11月 12月", "{y}年{m}{d}日"),
    ("zh", "一月 二月 三月 四月 五月 六月 七月 八月 九月 十月 十一月 十二月", "{y}年{m}{d}日"),
    ("ko", "1월 2월 3월 4월 5월 6월 7월 8월 9월 10월 11월 12월", "{y}년 {m} {d}일"),
)  # fmt: skip
_DIGITS = {"ar": 0x660, "hi": 0x966, "th": 0xE50}  # where these write digits of their own


def _almanac(rng: random.Random) -> str:
    """Dates and sums as people write them, in many scripts."""
    lines = []
    for _ in range(rng.randrange(40, 400)):
        language, months, form = rng.choice(_MONTHS)
        date = form.format(d=rng.randrange(1, 29), m=rng.choice(months.split()), y=rng.randrange(1900, 2100))
        zero = _DIGITS.get(language)
        if zero is not None and rng.random() < 0.7:
            date = date.translate({ord(str(n)): zero + n for n in range(10)})
        amount = f"{rng.randrange(10 ** rng.randrange(1, 10)):,}"
        lines.append(date + rng.choice((": ", " — ", "\t", " | ")) + amount + rng.choice(("", " €", " ₽", "%", "円")))
    return "\n".join(lines)


def _names(rng: random.Random) -> str:
    """Characters and their names, as in Unicode's lists."""
    start = rng.choice((0x21, 0x370, 0x900, 0x1E00, 0x2190, 0x3040, 0x4E00, 0xAC00, 0x10000, 0x1F300))
    return "\n".join(
        f"U+{code:04X}\t{chr(code)}\t{unicodedata.name(chr(code))}"
        for code in range(start, start + rng.randrange(100, 800))
        if unicodedata.name(chr(code), "")
    )


@lru_cache(maxsize=1)
def _sources() -> tuple[Path, ...]:
    """The standard library's sources: code, prose in docstrings, tables of encodings and entities."""
    found = Path(sysconfig.get_path("stdlib")).glob("**/*.py")
    return tuple(sorted(path for path in found if "site-packages" not in path.parts))


@lru_cache(maxsize=1)
def _catalogs() -> tuple[Path, ...]:
    """Message catalogs, where the machine has any: sentences in the languages of the world."""
    folders = (Path(sys.base_prefix) / "share" / "locale", Path("/usr/share/locale"))
    return tuple(sorted({path for folder in folders for path in folder.glob("*/LC_MESSAGES/*.mo")}))


def _catalog(path: Path) -> str:
    with path.open("rb") as file:
        entries: dict[object, str] = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    return "\n".join(f"{original}\n\t{text}" for original, text in entries.items())


def document(rng: random.Random, own: Sequence[str] = ()) -> str:
    """One real text: of the user's own where there are any, else of what this machine has."""
    if own:
        return rng.choice(own)
    r = rng.random()
    try:
        if r < 0.15 and _catalogs():
            return _catalog(rng.choice(_catalogs()))
        if r < 0.70:
            return rng.choice(_sources()).read_text(encoding="utf-8")
    except (OSError, ValueError, IndexError):  # unreadable, or a Python without sources
        pass
    return _names(rng) if r < 0.85 else _almanac(rng)


def conversation(rng: random.Random, own: Sequence[str] = ()) -> list[str]:
    """A real text as an agent meets it: it grows turn by turn, is edited, loses its head, has other text put in."""
    whole = document(rng, own)
    start = rng.randrange(max(1, len(whole) - 2000))
    whole = whole[start : start + rng.choice((2_000, 8_000, 30_000))]
    at = rng.randrange(1, 2 + len(whole) // 4)
    text = whole[:at]
    turns: list[str] = []
    while len(turns) < 24:
        turns.append(text)
        if at >= len(whole):
            break
        step = rng.choice((1, 3, 20, 150, 800, 2500))
        text, at = text + whole[at : at + step], at + step
        r = rng.random()
        if r < 0.10:
            other = document(rng, own)
            begin = rng.randrange(len(other) + 1)
            text += other[begin : begin + rng.randrange(600)]
        elif r < 0.25:
            place = rng.randrange(len(text) + 1)
            text = text[:place] + rng.choice(("x", "\n", " 12", "é", "")) + text[place + rng.randrange(40) :]
        elif r < 0.30:
            text = text[rng.randrange(1 + len(text) // 3) :]
    return turns


def realtext(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """Real text, growing turn by turn, with edits."""
    rng = random.Random(seed)
    sessions = [calls_of(conversation(rng, subject.texts), rng) for _ in range(_REAL_SESSIONS)]
    compare(subject, sessions, tally)
