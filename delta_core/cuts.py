"""CutRules: at which positions every text may be cut, decided by the characters beside the position alone.

A position 0 < b < len(x) is a *locally safe cut* of x when units(x) == units(x[:b]) + units(x[b:]) (units: added
tokens and pre-tokenizer pieces, whose IDs are independent of each other), and when this holds in every text that has
the same `left` characters before b and `right` characters after it. Two rules find such positions.

R1, the edge of an added token: an occurrence of an *isolated* added token begins or ends at b. A token is isolated when
no added token, itself included, can overlap, contain or be contained in it, so that every occurrence in the raw text
is a match whatever stands around it; it is matched in the raw text (normalized=False) and takes no space with it. The
texts on its two sides are normalised and split separately by the reference.

R2, a class transition: the classes of (x[b-1], x[b]) are a safe transition of the pre-tokenizer (derived, see
admission.transitions); the two characters are nowhere adjacent inside an added token, so that no match spans b; and
the normalizer splits between them (both are stable), with every first character that the right part may have after
normalisation making a safe transition, too.

Guarded by tests/test_cuts.py, and by the controls in tests/test_controls.py, each of which switches one condition off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .admission.frozen import Frozen
from .admission.sections import AddedToken
from .admission.transitions import Transitions
from .characters import UNKNOWN, CharacterClasses, NfcStability, NoNormalizer, Stability
from .reference import Reference

_MEMO = 1 << 16  # pairs remembered; attacker-chosen characters must not grow it without bound
_LONGEST = 1024  # characters of an added token that R1 looks for; those of real tokenizers have less than a hundred


class Cut(NamedTuple):
    """A locally safe cut: position in characters, and how many characters before and after it decide it."""

    position: int
    left: int
    right: int


class CutRules:
    """R1 and R2 for one admitted tokenizer. Immutable but for memos; safe to share between threads.

    added_tokens: the whole added_tokens section.
    transitions: the derived table.
    normalizes: True for NFC, False for no normalizer.
    normalized_contents: the contents of added tokens as the normalizer leaves them.
    """

    def __init__(
        self,
        added_tokens: Sequence[AddedToken],
        transitions: Transitions,
        *,
        normalizes: bool,
        normalized_contents: Iterable[str] = (),
    ) -> None:
        self._classes = CharacterClasses(transitions.tests, transitions.signatures)
        self._stability: Stability = NfcStability() if normalizes else NoNormalizer()
        self._safe = frozenset(transitions.safe)
        contents = [token.content for token in added_tokens]
        normalized = list(normalized_contents)
        self._spanned = self._spanned_pairs([*contents, *normalized])
        isolated = _isolated(added_tokens, [*contents, *normalized])
        self._starts = _by_character(isolated, 0)
        self._ends = _by_character(isolated, -1)
        self._isolated = frozenset(isolated)
        self._memo: dict[str, bool] = {}

    @classmethod
    def of(cls, frozen: Frozen, reference: Reference) -> CutRules:
        """The rules of an admitted tokenizer, asking the live one's own engines. About 0.3 s with a normalizer."""
        sections = frozen.sections
        normalized = [token.content for token in sections.added_tokens if token.normalized]
        if not sections.normalizer:
            return cls(sections.added_tokens, frozen.transitions, normalizes=False)
        normalize = reference.backend.normalizer.normalize_str
        return cls(
            sections.added_tokens, frozen.transitions, normalizes=True, normalized_contents=map(normalize, normalized)
        )

    def prepare(self) -> None:
        """Ask the reference now what the first texts would ask it: the classes of usual characters. 0.2 to 0.6 s."""
        self._classes.prepare()

    # -- the two rules --

    def at_transition(self, pair: str) -> bool:
        """R2 for the two characters around a position. O(1); asks the reference once per new pair."""
        verdict = self._memo.get(pair)
        if verdict is None:
            if len(self._memo) >= _MEMO:
                self._memo.clear()
            verdict = self._memo[pair] = self._ask_transition(pair[0], pair[1])
        return verdict

    def _ask_transition(self, left: str, right: str) -> bool:
        if self.spanned(left + right):
            return False
        if not self.stable(left, right):
            return False
        before = self._classes.of(left)
        return before != UNKNOWN and all(
            self.transition(before, self._classes.of(outcome)) for outcome in self._stability.outcomes(right)
        )

    def transition(self, before: int, after: int) -> bool:
        """R2's table: a safe transition between two classes."""
        return (before, after) in self._safe

    def spanned(self, pair: str) -> bool:
        """R2's added-token check: an added token may have these two characters side by side."""
        return pair in self._spanned

    def stable(self, left: str, right: str) -> bool:
        """R2's stability check: the normalizer splits between the two characters and keeps the left one."""
        return self._stability.left(left) and self._stability.right(right)

    def at_added_token(self, text: str, position: int) -> Cut | None:
        """R1 at one position: the start or the end of an isolated added token."""
        for length in self._starts.get(text[position], ()):
            if position + length <= len(text) and text[position : position + length] in self._isolated:
                return Cut(position, 0, length)
        for length in self._ends.get(text[position - 1], ()):
            if length <= position and text[position - length : position] in self._isolated:
                return Cut(position, length, 0)
        return None

    def at(self, text: str, position: int) -> Cut | None:
        """The cut at one inner position, or None."""
        if self.at_transition(text[position - 1 : position + 1]):
            return Cut(position, 1, 1)
        return self.at_added_token(text, position)

    # -- searching --

    def last_cut(self, text: str, low: int, high: int) -> Cut | None:
        """The last locally safe cut with low <= position <= high, or None. Linear in the distance to it.

        Positions outside 1 .. len(text) - 1 are never cuts.
        """
        position = min(high, len(text) - 1)
        low = max(low, 1)
        known = self._memo.get
        while position >= low:
            pair = text[position - 1 : position + 1]
            # Most positions are no cut, and these looks say so without a call: no R2, and no added token's edge.
            if known(pair) is not False or pair[1] in self._starts or pair[0] in self._ends:
                cut = self.at(text, position)
                if cut is not None:
                    return cut
            position -= 1
        return None

    def cuts(self, text: str, start: int, end: int, size: int, tail: Sequence[int] = ()) -> list[Cut]:
        """Cuts that divide text[start:end] into segments of about `size` characters.

        start, end: positions that are cuts already, or the ends of the text.
        tail: distances from `end`, descending, at which further cuts are wanted.
        Each is the last cut at or before its target, looked for as far back as the target before it; where there is
        none, a segment is longer. Linear: every position is looked at once at most, also in text without any cut.
        """
        found: list[Cut] = []
        looked = start
        for target in self._targets(start, end, size, tail):
            if target <= looked:
                continue
            cut = self.last_cut(text, looked + 1, target)
            if cut is not None:
                found.append(cut)
            looked = target
        return found

    @staticmethod
    def _targets(start: int, end: int, size: int, tail: Sequence[int]) -> Iterator[int]:
        # What is left over joins the last segment: none is shorter than half of `size` but those of the tail.
        yield from range(start + size, end - (tail[0] if tail else 0) - size // 2, size)
        for distance in tail:
            yield end - distance

    # -- preparation --

    def _spanned_pairs(self, contents: Iterable[str]) -> frozenset[str]:
        inside = {content[i : i + 2] for content in contents for i in range(len(content) - 1)}
        pairs = set(inside)
        for pair in inside:
            # A token may be matched after normalisation: its second character stands for all that become it.
            pairs.update(pair[0] + raw for raw in (*self._stability.outcomes(pair[1]), *self._origins(pair[1])))
        return frozenset(pairs)

    def _origins(self, character: str) -> Iterable[str]:
        if isinstance(self._stability, NfcStability):
            base = self._stability.base(character)
            return (base, *self._stability.outcomes(base))
        return ()


def _isolated(added_tokens: Sequence[AddedToken], contents: Sequence[str]) -> list[str]:
    """The added tokens to which R1 applies. Quadratic in the length of those up to _LONGEST, linear in the others'.

    A longer one is left out, which is exact: R1 permits cuts, it demands none. The others are compared with it, too.
    """
    whole = set(contents)
    forwards, backwards = sorted(whole), sorted(content[::-1] for content in whole)
    lengths = _by_character(whole, 0)
    haystack = "\0".join(forwards)
    result = []
    for token in added_tokens:
        c = token.content
        if token.normalized or token.lstrip or token.rstrip or token.single_word or len(c) > _LONGEST:
            continue
        contains = any(
            c[i : i + length] in whole for i in range(len(c)) for length in lengths.get(c[i], ()) if length < len(c)
        )
        contained = haystack.count(c) != 1
        if not (contains or contained or _runs_into(c, forwards) or _runs_into(c[::-1], backwards)):
            result.append(c)
    return result


def _runs_into(content: str, ordered: Sequence[str]) -> bool:
    """Whether a proper ending of `content` is one of the sorted texts, or the beginning of one."""
    for i in range(1, len(content)):
        ending = content[i:]
        at = bisect_left(ordered, ending)  # the texts that begin like it stand together, from here on
        if at < len(ordered) and ordered[at].startswith(ending):
            return True
    return False


def _by_character(tokens: Iterable[str], index: int) -> dict[str, tuple[int, ...]]:
    """The lengths of the tokens, longest first, by their first or last character."""
    lengths: dict[str, set[int]] = {}
    for token in tokens:
        lengths.setdefault(token[index], set()).add(len(token))
    return {character: tuple(sorted(sizes, reverse=True)) for character, sizes in lengths.items()}
