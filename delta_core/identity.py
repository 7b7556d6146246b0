"""Is it the same tokenizer? What was made of the live one is held against it before it encodes anything.

Whatever is made by serialising a tokenizer may be another one: the library numbers added tokens anew where the
vocabulary has holes, and other libraries read the same file in their own way. So every copy is compared: the whole
vocabulary with added tokens, by ID and by token; the added tokens with their flags; and the IDs of a small battery, in
which every added token stands in context.

Guarded by tests/test_identity.py, and by the controls of `delta verify`: a copy with two IDs swapped must be found.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain, islice

from tokenizers import AddedToken, Tokenizer

from .errors import panics_are_errors

Encode = Callable[[list[str]], Sequence[Sequence[int]]]

_FORMS = ("{}", "{}{}", "a{}b", " {} ", "1{}2", "\n{}\n", ".{}'s", "{}\u0301", "é{}ー")
_TEXTS = (
    "", " ", "a", "Hello world", " the tokenizer reads\n\n\tit's 12345 times, don't\r\n",
    "x" * 40, "1" * 40, " " * 40, "\n" * 40,
    "naïve café e\u0301 \u212b \u0958/ \ufb01", "日本語テスト。中文，한국어 \u1112\u1161\u11ab",
    "🙂👩\u200d💻 🇩🇪", "def f(x):\n    return {'a': [1, 2.50, -3e10]}  # ...",
    "привет مرحبا שלום हिन्दी ไทย", "\x00\x01\ufeff\u00a0\u3000\u0085\u2028",
)  # fmt: skip
HOLE = "\0 "
"""Begins the name of an entry that fills a hole of the vocabulary in a copy: no byte-level text spells it."""

_MOST_OVERLAPS = 2000  # of each kind of pair
_LONGEST_OVERLAP = 64  # characters
# What NFC makes other characters of by itself, or together with a neighbour: where it may hide or make a token's name.
BEFORE_NFC = str.maketrans({"K": "\u212a", "Å": "\u212b", "Ω": "\u2126", ";": "\u037e", "`": "\u1fef"})
_MARKS = "".join(map(chr, (*range(0x300, 0x346), 0x3099, 0x309A, 0x1161, 0x11A8)))
_BASES = "aceiounyAEIOU<>=\u03b1\u3042\u304b\u306f\u1100\uac00"

_ROW = 24  # vocabulary entries in one text of the battery
_MOST_ROWS = 400


class Known:
    """A live tokenizer, asked once for all that is held against it: asking takes longer than comparing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def state(self) -> str:
        """As a tokenizer.json."""
        return self.tokenizer.to_str()

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """With added tokens."""
        return self.tokenizer.get_vocab(with_added_tokens=True)

    @cached_property
    def added(self) -> dict[int, AddedToken]:
        """By ID."""
        return dict(self.tokenizer.get_added_tokens_decoder())

    @cached_property
    def battery(self) -> list[str]:
        """See `battery`."""
        return battery(self)

    @cached_property
    def answers(self) -> list[list[int]]:
        """The IDs of the battery."""
        return [e.ids for e in self.tokenizer.encode_batch_fast(self.battery, add_special_tokens=False)]

    def has_holes(self) -> bool:
        """Whether the model's vocabulary has fewer entries than IDs up to its largest."""
        entries = self.tokenizer.get_vocab_size(with_added_tokens=False)
        if len(self.vocabulary) - entries == len(self.added):  # none of the added tokens is in the model, too
            largest = max((i for i in self.vocabulary.values() if i not in self.added), default=-1)
        elif len(self.vocabulary) == entries:  # all of them are
            largest = max(self.vocabulary.values(), default=-1)
        else:
            largest = max(self.tokenizer.get_vocab(with_added_tokens=False).values(), default=-1)
        return largest >= entries


def difference(known: Known, copy: Tokenizer) -> str | None:
    """Where a copy made by the same library is another tokenizer, or None.

    About 0.3 s for 150K tokens. The message names IDs and tokens of the vocabulary, never a user's text.
    """
    live, there, here = known.tokenizer, known.vocabulary, copy.get_vocab(with_added_tokens=True)
    used = {*there.values()}
    here = {token: i for token, i in here.items() if not (token.startswith(HOLE) and i not in used)}
    if there != here:
        token = min(t for t in {*there, *here} if there.get(t) != here.get(t))
        return f"the copy has {token!r} as {here.get(token)}, the live tokenizer as {there.get(token)}"
    # From IDs to tokens, a model has its vocabulary the other way round: there is a choice only where two tokens share
    # an ID, and for added tokens.
    shared = {i for i, n in Counter(there.values()).items() if n > 1} if len(used) < len(there) else set()
    for i in shared | {*known.added}:
        if live.id_to_token(i) != copy.id_to_token(i):
            return f"ID {i} is {copy.id_to_token(i)!r} to the copy, {live.id_to_token(i)!r} to the live tokenizer"
    added, others = known.added, dict(copy.get_added_tokens_decoder())
    if added != others:
        i = min(i for i in {*added, *others} if added.get(i) != others.get(i))
        return f"added token {i} is {others.get(i)!r} to the copy, {added.get(i)!r} to the live tokenizer"
    if live.encode_special_tokens != copy.encode_special_tokens:
        return "the copy reads special tokens in another way"

    @panics_are_errors
    def encode(texts: list[str]) -> list[list[int]]:
        return [e.ids for e in copy.encode_batch_fast(texts, add_special_tokens=False)]

    return answers_differ(known, encode)


def answers_differ(known: Known, encode: Encode) -> str | None:
    """Which text of the battery gets other IDs than the live tokenizer's, or None.

    encode: IDs of each text without special tokens; what it raises is a difference, too. 30 ms, and 5 us for each
    added token.
    """
    try:
        answers = encode(known.battery)
    except Exception as error:  # noqa: BLE001 - whatever it is: the live tokenizer raises nothing here
        return f"it raises {type(error).__name__}"
    if len(answers) != len(known.battery):
        return f"it gives {len(answers)} answers to {len(known.battery)} texts"
    for text, ids, wanted in zip(known.battery, answers, known.answers, strict=True):
        if list(ids) != wanted:
            return f"it gives {list(ids)[:8]} for {text[:40]!r}, the live tokenizer {wanted[:8]}"
    return None


def battery(known: Known) -> list[str]:
    """Every added token in context, entries from all over the vocabulary, and a few texts of all scripts."""
    live, added = known.tokenizer, known.added.values()
    contents = [token.content for token in added]
    ids = sorted({*known.vocabulary.values()} - {*known.added})
    step = max(1, len(ids) // (_ROW * _MOST_ROWS))
    # The first and the last entries, where numbering goes wrong, and as many from between.
    chosen = [*ids[:512], *ids[512:-512:step], *ids[-512:]]
    words = [w for w in live.decode_batch([[i] for i in chosen], skip_special_tokens=False) if "\ufffd" not in w]
    rows = ["".join(words[i : i + _ROW]) for i in range(0, len(words), _ROW)]
    # Texts that the model spells as an added token's name, such as " x" for a token "\u0120x".
    spelled = [raw.decode(errors="ignore") for c in contents if (raw := bytes_of(c)) and not c.isascii()]
    texts = [form.replace("{}", text) for text in spelled for form in ("{}", "a{}b", " {} ", "\n{}")]
    pairs = [a + b for a, b in zip(contents, chain(contents[1:], contents[:1]), strict=True)]
    texts += chain.from_iterable(map(normalized_forms, contents))
    # The library looks for tokens that are not normalized first; others look for all at once. Only tokens that overlap
    # tell it.
    normalized = {token.content for token in added if token.normalized}
    found: tuple[list[str], list[str]] = [], []
    for a, b, text in overlaps(contents):
        found[(a in normalized) == (b in normalized)].append(text)
    texts += chain.from_iterable(kind[:: 1 + len(kind) // _MOST_OVERLAPS] for kind in found)
    return [*_TEXTS, *(form.replace("{}", c) for c in contents for form in _FORMS), *pairs, *rows, *texts]


def normalized_forms(content: str) -> list[str]:
    """Texts that are an added token only once they are normalized, or no longer are it then."""
    ends = content[:1], content[-1:]
    nfc, nfd = (unicodedata.normalize(form, content) for form in ("NFC", "NFD"))
    forms = {nfc, nfd, content.translate(BEFORE_NFC)}
    forms |= {base + content for base in _joining(ends[0], before=True)}
    forms |= {content + mark for mark in _joining(ends[1], before=False)}
    texts = sorted(forms - {content})
    return [*texts, *(f"a{text}b" for text in texts)]


@cache
def _joining(character: str, *, before: bool) -> str:
    """The first character that NFC makes one of with this one."""
    others = _BASES if before else _MARKS
    joined = ((other + character if before else character + other) for other in others)
    return "".join(
        islice((o for o, both in zip(others, joined, strict=True) if len(unicodedata.normalize("NFC", both)) == 1), 1)
    )


def overlaps(contents: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Pairs of contents of which one ends as the other begins, with a text in which they share these characters."""
    beginning: dict[str, list[str]] = defaultdict(list)
    for content in contents:
        for k in range(1, min(len(content), _LONGEST_OVERLAP)):
            beginning[content[:k]].append(content)
    for a in contents:
        for k in range(1, min(len(a), _LONGEST_OVERLAP)):
            for b in beginning.get(a[-k:], ()):
                yield a, b, a + b[k:]


def bytes_of(token: str) -> bytes | None:
    """The bytes that a token of a byte-level vocabulary spells, None when it is spelled in another way."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:
        return None


def _byte_level() -> dict[str, int]:
    """The library's own spelling of bytes: the printable ones as they are, the others from U+0100 on."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in kept]
    return {**{chr(b): b for b in kept}, **{chr(0x100 + n): b for n, b in enumerate(others)}}


_BYTE_OF = _byte_level()
