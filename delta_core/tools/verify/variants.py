"""Tokenizers with tokens added in all the ways that users do it: whether what serves is the live tokenizer.

Whatever is made by writing the live object out and reading it again, the reference's copy and every encoder, may be
another tokenizer. Here each tokenizer is changed, frozen anew, and asked through every encoder that is certified for
the original, turn by turn, against the changed live object: the IDs must be the same, or it must have been refused.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders

from ...admission.frozen import Frozen
from ...admission.sections import sections_of
from ...errors import FreezeError
from ...identity import normalized_forms
from ...reference import Reference
from ...tokenizer import DeltaTokenizer
from ..freezing.freeze import freeze
from .cases import Call
from .outside import Strings, calls_of, compare, compare_unicode, guard_edges
from .subjects import locate
from .tally import SERVED, Subject, Tally

_BYTES = decoders.ByteLevel()

_SHARE = 5  # a unit of `unicode` divided by this, with the variant's own tokens
_MOST_PAIRS = 200
_LETTERS = (
    "<", "|", ">", "=", "a", "N", "1", " ", " a", "\n", "é", "e\u0301", "\u0301", "\u0338", "\u0327",
    "K", "\u212a", ";", "\u037e", "\u1112\u1161", "하",
)  # fmt: skip


@dataclass(slots=True)
class Workshop:
    """What a variant is made of: fresh objects of the same tokenizer, and random choices."""

    name: str
    base: Tokenizer
    rng: random.Random

    def fresh(self) -> Tokenizer:
        """The tokenizer as its file has it; the subject's own object is never changed."""
        return locate(self.name)[0]

    def parsed(self) -> dict[str, Any]:
        """The tokenizer's state, to be changed."""
        result: dict[str, Any] = json.loads(self.base.to_str())
        return result

    def words(self, count: int) -> list[str]:
        """Entries of the vocabulary as they are written there: byte-level letters, Ġ for a space."""
        words = [w for w in self.base.get_vocab(with_added_tokens=False) if len(w) > 1]
        return self.rng.sample(sorted(words), min(count, len(words)))

    def contents(self, count: int) -> list[str]:
        """New contents in the form of most models' markers, numbered from anywhere."""
        start = self.rng.randrange(1000)
        form = self.rng.choice(("<|p{}|>", "<p{}>", "[P{}]", "<|reserved_p_{}|>", "p{}"))
        return [form.format(start + n) for n in range(count)]


def _add(live: Tokenizer, tokens: Iterable[str | AddedToken], special: bool) -> Tokenizer:
    (live.add_special_tokens if special else live.add_tokens)(list(tokens))
    return live


def _one_by_one(live: Tokenizer, contents: Iterable[str], rng: random.Random, *, normalized: float) -> Tokenizer:
    """Each content in a call of its own, special or not at random. normalized: how likely it is a normalized token."""
    for content in contents:
        _add(live, [AddedToken(content, normalized=rng.random() < normalized)], rng.random() < 0.5)
    return live


def _special(w: Workshop) -> Tokenizer:
    return _add(w.fresh(), w.contents(5), True)


def _normal(w: Workshop) -> Tokenizer:
    return _add(w.fresh(), (AddedToken(c, normalized=False) for c in w.contents(5)), False)


def _normalized(w: Workshop) -> Tokenizer:
    """As plain strings, which are normalized tokens when they are not special; and special ones that are."""
    live = _add(w.fresh(), w.contents(4), False)
    return _add(live, (AddedToken(c, normalized=True, special=True) for c in ("<|N|>", "<|É|>")), True)


def _duplicates(w: Workshop) -> Tokenizer:
    """Tokens that the vocabulary has already keep its IDs."""
    live = _add(w.fresh(), w.words(6), True)
    return _add(live, [*w.words(6), *w.contents(2)], False)


def _odd_order(w: Workshop) -> Tokenizer:
    """One by one, kinds mixed, entries of the vocabulary between new ones, some of them twice."""
    tokens = [*w.contents(8), *w.words(8)]
    tokens += w.rng.sample(tokens, 4)
    w.rng.shuffle(tokens)
    return _one_by_one(w.fresh(), tokens, w.rng, normalized=0.4)


def _many(w: Workshop) -> Tokenizer:
    return _add(w.fresh(), [*w.contents(60), *w.words(2), *(f"<extra_id_{n}>" for n in range(35))], True)


def _reloaded(parsed: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(parsed))


def _row(content: str, identifier: int, special: bool, normalized: bool = False) -> dict[str, Any]:
    return {
        "id": identifier, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": normalized, "special": special,
    }  # fmt: skip


def _next(parsed: dict[str, Any]) -> int:
    taken: list[int] = [*parsed["model"]["vocab"].values(), *(row["id"] for row in parsed["added_tokens"])]
    return max(taken) + 1


def _high_ids(w: Workshop) -> Tokenizer:
    """Declared with IDs far above the vocabulary, with gaps between them and not in their order."""
    parsed = w.parsed()
    start = _next(parsed) + 5000
    ids = w.rng.sample(range(start, start + 400), 12)
    for n, content in enumerate(w.contents(len(ids))):
        parsed["added_tokens"].append(_row(content, ids[n], n % 3 > 0, n % 2 > 0))
    return _add(_reloaded(parsed), ["<|late|>"], True)


def _holes(w: Workshop) -> Tokenizer:
    """A vocabulary that ends behind a hole with its special tokens in it, and tokens added to the live object."""
    parsed = w.parsed()
    start = _next(parsed) + w.rng.randrange(3, 20)
    vocabulary = parsed["model"]["vocab"]
    for n, content in enumerate(w.contents(3)):
        vocabulary[content] = start + 2 * n
        parsed["added_tokens"].append(_row(content, start + 2 * n, True))
    return _add(_reloaded(parsed), [f"<|behind{n}|>" for n in range(5)], True)


def _spelled(w: Workshop) -> Tokenizer:
    """New words as the vocabulary spells them, behind a hole. They must not become what the words are made of."""
    live = _holes(w)
    words = [f"{''.join(w.rng.choices('abcdefgxyzKQ', k=6))}" for _ in range(4)]
    tokens = [*(f"Ġ{word}" for word in words[:2]), *words[2:], "Ã©Ã¨Ã©", "Kelvinq", "ĠĠĠqq"]
    return _add(live, (AddedToken(token, normalized=False) for token in tokens), False)


def _declared(w: Workshop) -> Tokenizer:
    """A token that the vocabulary holds at one ID, declared with another one among many."""
    parsed = w.parsed()
    start = _next(parsed)
    held, *others = [*w.contents(1), *(f"<|d{n}|>" for n in range(96))]
    parsed["model"]["vocab"][held] = start
    rows = [_row(content, start + 1 + n, True) for n, content in enumerate(others)]
    rows.insert(20, _row(held, start + 200, True))
    parsed["added_tokens"] += rows
    return _reloaded(parsed)


def _reflagged(w: Workshop) -> Tokenizer:
    """Tokens that are there, added again with other flags."""
    live = w.fresh()
    there = sorted(live.get_added_tokens_decoder().values(), key=lambda token: token.content)
    live.add_special_tokens(["<|again|>"])
    for token in [*w.rng.sample(there, min(4, len(there))), AddedToken("<|again|>")]:
        turned = AddedToken(token.content, normalized=not token.normalized, special=not token.special)
        _add(live, [turned], turned.special)
    return live


def _stripping(w: Workshop) -> Tokenizer:
    """Tokens that take the spaces around them along. No cut rule covers them: to be refused."""
    live = _add(w.fresh(), [AddedToken("<|left|>", lstrip=True), AddedToken("<|right|>", rstrip=True)], True)
    return _add(live, [AddedToken("word", single_word=True)], False)


def _nested(w: Workshop) -> Tokenizer:
    """Contents that begin, end, hold and continue each other."""
    contents = ["<|a", "<|a|>", "|>", "a|><|b", "<|a|><|b|>", "<|b|>", "|><|", "aa", "aaa", "aaaa", "ab", "ba"]
    w.rng.shuffle(contents)
    return _one_by_one(w.fresh(), contents, w.rng, normalized=0.3)


def _spaces(w: Workshop) -> Tokenizer:
    live = _add(w.fresh(), [" ", "  x", "y ", "\n\n", "\t", " \n", "two words", "\r\n", "\n<|turn|>\n"], True)
    return _add(live, [AddedToken("    ", normalized=False), AddedToken(" mid dle ", normalized=True)], False)


def _short(w: Workshop) -> Tokenizer:
    """Single characters and digits, which cut words and groups of digits."""
    return _add(_add(w.fresh(), ["7", "42", "q", "'", "é", "中"], True), ["0", "'s", "."], False)


def _non_ascii(w: Workshop) -> Tokenizer:
    live = _add(w.fresh(), ["＜｜用户｜＞", "<|конец|>", "🙂", "👩‍💻", "\u200b", "한국"], True)
    return _add(live, ["«début»", "สวัสดี", "ß", "\U0001f9ff\ufe0f"], False)


def _unstable(w: Workshop) -> Tokenizer:
    """Contents that NFC changes, or that join what stands beside them."""
    contents = ["e\u0301", "\u212b", "\u0958", "か\u3099", "\u0301", "\u1100\u1161", "x\u0323\u0307", "\u2126m"]
    return _one_by_one(w.fresh(), contents, w.rng, normalized=0.5)


def _overlapping(w: Workshop) -> Tokenizer:
    """Contents of few letters, so that they overlap each other and, once normalized, the text around them."""
    contents = ["".join(w.rng.choices(_LETTERS, k=w.rng.randint(1, 4))) for _ in range(w.rng.randint(2, 6))]
    return _one_by_one(w.fresh(), (c for c in contents if c.strip()), w.rng, normalized=0.5)


def _all_at_once(w: Workshop) -> Tokenizer:
    """Any of the above together, in any order, some of them through the file and some on the live object."""
    parsed = w.parsed()
    start = _next(parsed) + w.rng.choice((0, 1, 30))
    held = [*w.contents(6), *w.words(3)]
    rows = [_row(c, start + n, w.rng.random() < 0.5, w.rng.random() < 0.3) for n, c in enumerate(held)]
    w.rng.shuffle(rows)
    parsed["added_tokens"] += rows
    parsed["model"]["vocab"]["<|in|>"] = start + 50
    contents = ["<|", "<|in|>", "|>", " x", "\n", "e\u0301", "é", "1", "🙂", "aa", "L" * 300, *w.words(3)]
    return _one_by_one(_reloaded(parsed), w.rng.sample(contents, len(contents)), w.rng, normalized=0.4)


VARIANTS: dict[str, Callable[[Workshop], Tokenizer]] = {
    "special": _special,
    "normal": _normal,
    "normalized": _normalized,
    "duplicates": _duplicates,
    "odd-order": _odd_order,
    "many": _many,
    "high-ids": _high_ids,
    "holes": _holes,
    "spelled": _spelled,
    "declared": _declared,
    "reflagged": _reflagged,
    "stripping": _stripping,
    "nested": _nested,
    "spaces": _spaces,
    "short": _short,
    "non-ascii": _non_ascii,
    "unstable": _unstable,
    "overlapping": _overlapping,
    "all-at-once": _all_at_once,
}
"""By name, what makes a changed tokenizer of a workshop."""


def variants(subject: Subject, unit: int, seed: str, tally: Tally) -> None:
    """One kind of change a unit: served with the live object's IDs, or refused with a reason that is counted."""
    kind = list(VARIANTS)[unit % len(VARIANTS)]
    rng = random.Random(seed)
    live = VARIANTS[kind](Workshop(subject.name, subject.live, rng))
    tally.variant = kind
    try:
        frozen = _frozen_anew(live, subject.frozen)
        tok = DeltaTokenizer(live, encoder=subject.encoder.name, config=frozen)
    except Exception as error:  # noqa: BLE001 - a finding like any other
        tally.outcome = f"raised {type(error).__name__}"
        tally.fail([])
        return
    if not tok.admission.admitted:
        tally.outcome = str(tok.admission.reason)
        _check_refused(tok, live, tally)
        return
    # An encoder that was refused leaves the reference to serve: its IDs count as much.
    counted = tok.stats().fallbacks
    tally.outcome = SERVED
    if tok.admission.encoder != subject.encoder.name:
        why = ", ".join(map(str, counted)) or tok.admission.note
        tally.outcome = f"reference instead: {why}"
        if why is None:
            tally.fail([])  # nobody is told why
    reference = tok._reference
    assert reference is not None
    tally.subject = Subject(
        f"{subject.name}+{kind}", live, reference, frozen, tok._rules, tok, tok._encoder, subject.texts
    )
    strings = Strings(f"{seed}/text", [t.content for t in frozen.sections.added_tokens], guard_edges(tally.subject))
    new = _added_since(subject.live, live)
    compare(tally.subject, _sessions_with(new, strings), tally)
    compare(tally.subject, _sessions_with(new, strings), tally, scale_dense=True)
    compare_unicode(tally.subject, strings, tally, share=_SHARE)
    if tok.stats().fallbacks != counted:
        tally.fail([])  # the stock path gave right IDs, and hid that ours failed


def _frozen_anew(live: Tokenizer, base: Frozen) -> Frozen:
    """As `delta freeze` does it, and with the records of the original: its encoders are to be refused, or right.

    What can't be frozen gets the config that a hand would write: admission must refuse it all the same.
    """
    reference = Reference(live)
    try:
        frozen = freeze(reference, base.name, known=[base])
    except FreezeError:
        frozen = replace(base, sections=sections_of(reference.parsed()))
    return replace(frozen, certified=base.certified)


def _check_refused(tok: DeltaTokenizer, live: Tokenizer, tally: Tally) -> None:
    """A refused tokenizer takes the stock path, counted under its reason."""
    text = " ".join(_contents(live)[-20:])
    tally.cases += 1
    same = tok.encode(text, add_special_tokens=False) == live.encode(text, add_special_tokens=False).ids
    reason = tok.admission.reason
    if tok.admission.admitted or reason is None or not tok.stats().fallbacks.get(reason) or not same:
        tally.fail([])


def _contents(live: Tokenizer) -> list[str]:
    return [token.content for _, token in sorted(live.get_added_tokens_decoder().items())]


def _added_since(base: Tokenizer, live: Tokenizer) -> list[str]:
    """Contents that are added tokens now and were none, or had other flags."""
    before = {token.content: token for token in base.get_added_tokens_decoder().values()}
    return sorted(t.content for t in live.get_added_tokens_decoder().values() if before.get(t.content) != t)


def _sessions_with(contents: Sequence[str], strings: Strings) -> list[list[Call]]:
    """Each new token alone, in pieces, beside the others and between runs; then conversations that hold them."""
    rng = strings.rng
    texts = [content * n for content in contents for n in (1, 2)]
    for content in contents:
        at = rng.randrange(1, len(content) + 1)
        pieces = (content[:at], content[at:], content[:at] + content, content + content[at:])
        forms = normalized_forms(content)
        word = _BYTES.decode([content])  # what a piece that the vocabulary spells like this comes from
        texts += [strings.around(piece) for piece in (content, *pieces, *forms, content.swapcase(), word)]
        texts += [piece for piece in (*forms, word, f" {word}") if piece != content]
    texts += [rng.choice(contents) + rng.choice(("", "", " ", "\n")) + rng.choice(contents) for _ in range(_MOST_PAIRS)]
    letters = (*_LETTERS, *contents, *contents)
    texts += ["".join(rng.choices(letters, k=rng.randint(1, 8))) for _ in range(_MOST_PAIRS)]
    sessions = [calls_of([text], rng) for text in texts if text]
    for _ in range(40):
        text, turns = "", []
        for _ in range(8):
            text += "".join(rng.choice((rng.choice(contents), strings.run(), strings.run())) for _ in range(12))
            if rng.random() < 0.3:
                at = rng.randrange(len(text))
                text = text[:at] + rng.choice(contents) + text[at + rng.randrange(5) :]
            turns.append(text)
        sessions.append(calls_of(turns, rng))
    return sessions
