"""The one-character tests that a pre-tokenizer's pattern is made of.

A regular expression without look-behind, anchors or back-references sees a character only through the tests that
it applies to one character: a class, a property, a literal. Two characters that pass the same tests cannot be told
apart by it, in any text. So the tests ("atoms") give the complete alphabet over which safe transitions are derived,
and the engine's own answer to each atom gives the class of a character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


class UnsupportedPattern(ValueError):
    """The pattern uses a construct for which the atoms would not tell the whole story; says which and where."""


@dataclass(frozen=True, slots=True)
class Atoms:
    """The one-character tests of one or more patterns.

    tests: regular expressions, each matching exactly one character; sorted, without repetition.
    folded: literals of two and more characters under (?i), whose case folding must stay character by character.
    reach: the most characters that one match looks at, a run without a bound counted as one.
    need: the most characters that a match must have for one of its tests to be asked at all.
    counts: repetitions that count further than RUN: the test, the bound.
    runs: the most runs without a bound that follow each other in one match.
    """

    tests: tuple[str, ...]
    folded: tuple[str, ...]
    reach: int
    need: int
    counts: tuple[tuple[str, int], ...]
    runs: int


@dataclass(frozen=True, slots=True)
class _Part:
    """What a part of a pattern looks at.

    least: the fewest characters that it takes.
    reach, need: as in Atoms.
    long: how many repetitions that count further than RUN may follow each other in it.
    runs: as in Atoms.
    """

    least: int = 0
    reach: int = 0
    need: int = 0
    long: int = 0
    runs: int = 0

    def then(self, other: _Part) -> _Part:
        return _Part(
            self.least + other.least,
            self.reach + other.reach,
            max(self.need + other.least, other.need + self.least),
            self.long + other.long,
            self.runs + other.runs,
        )

    def either(self, other: _Part) -> _Part:
        return _Part(
            min(self.least, other.least),
            max(self.reach, other.reach),
            max(self.need, other.need),
            max(self.long, other.long),
            max(self.runs, other.runs),
        )


RUN = 3
"""Up to this bound a counted repetition is like any run: short strings, and runs of one more, show what it does."""

_PROPERTY = re.compile(r"\\[pP]\{\^?[A-Za-z_]+\}")
_QUANTIFIER = re.compile(r"[?*+][?+]?|\{\d+(?:,\d*)?\}")
_COUNT = re.compile(r"\d+")
_CLASS_ESCAPES = "sSdDwW"
_LITERAL_ESCAPES = "rntfv"


class _Scanner:
    """One pass over one pattern; recursion only for groups, so its depth is that of the pattern's own nesting."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.tests: set[str] = set()
        self.folded: set[str] = set()
        self.counts: set[tuple[str, int]] = set()
        self.last = ""  # the last test that was added

    def fail(self, what: str) -> UnsupportedPattern:
        return UnsupportedPattern(f"{what} at offset {self.at} of the pattern {self.pattern!r}")

    def group(self, ignore_case: bool, nested: bool) -> _Part:
        p = self.pattern
        run = ""  # consecutive literals under (?i), to look for folds that join characters
        before: _Part | None = None  # the alternatives before this one
        so_far = _Part()
        while self.at < len(p):
            c = p[self.at]
            literal = ""
            part = _Part(1, 1, 1)
            if c == ")":
                break
            if c == "|":
                self.at += 1
                before, so_far, part = before.either(so_far) if before else so_far, _Part(), _Part()
            elif c == "(":
                part = self.open(ignore_case)
            elif c == "[":
                self.add(self.bracket(), ignore_case)
            elif c == ".":
                self.at += 1
                self.add(".", ignore_case)
            elif c == "\\":
                literal = self.escape(ignore_case)
            elif c in "^$":
                raise self.fail(f"the anchor {c!r} is not supported")
            elif c in "?*+{":
                raise self.fail("a quantifier without anything to repeat")
            else:
                self.at += 1
                self.literal(c, ignore_case)
                literal = c
            quantifier = _QUANTIFIER.match(p, self.at)
            if quantifier and c not in "|":
                part = self.repeated(part, quantifier.group(), is_test=c != "(")
                self.at = quantifier.end()
                literal = literal if c == "(" else ""
            so_far = so_far.then(part)
            if ignore_case:
                run = run + literal if literal else ""
                if len(run) > 1:
                    self.folded.update(run[i:] for i in range(len(run) - 1))
        if nested:
            if self.at >= len(p):
                raise self.fail("a group that is not closed")
            self.at += 1
        elif self.at < len(p):
            raise self.fail("an unbalanced ')'")
        return before.either(so_far) if before else so_far

    def repeated(self, part: _Part, quantifier: str, *, is_test: bool) -> _Part:
        bounds = [int(bound) for bound in _COUNT.findall(quantifier)]
        fewest, most = (bounds[0], bounds[-1]) if bounds else (int(quantifier[0] == "+"), 1)
        if most > RUN:
            if not is_test:
                raise self.fail(f"a group repeated {most} times")
            self.counts.update((self.last, bound) for bound in bounds if bound > RUN)
            return _Part(min(fewest, 1), 1, 1, 1)
        endless = quantifier[0] in "*+" or quantifier.endswith(",}")
        return _Part(
            part.least * fewest,
            part.reach * most,
            part.need + part.least * max(most - 1, 0),
            part.long * (2 if endless else most),  # once more is enough to be refused
            max(part.runs * (2 if endless else most), int(endless)),
        )

    def open(self, ignore_case: bool) -> _Part:
        p = self.pattern
        if p.startswith("(?i:", self.at):
            self.at += 4
            ignore_case = True
        elif p.startswith(("(?:", "(?!", "(?="), self.at):
            self.at += 3
        elif p.startswith("(?", self.at):
            raise self.fail(f"the group {p[self.at : self.at + 4]!r} is not supported")
        else:
            self.at += 1
        return self.group(ignore_case, nested=True)

    def escape(self, ignore_case: bool) -> str:
        p = self.pattern
        prop = _PROPERTY.match(p, self.at)
        if prop:
            self.at = prop.end()
            self.add(prop.group(), ignore_case)
            return ""
        c = p[self.at + 1 : self.at + 2]
        if c in _CLASS_ESCAPES and c:
            self.at += 2
            self.add("\\" + c, ignore_case)
            return ""
        if c and (c in _LITERAL_ESCAPES or (not (c.isalnum() or c.isspace()) and c.isascii())):
            self.at += 2
            self.add("\\" + c, False)
            return c
        raise self.fail(f"the escape \\{c} is not supported")

    def bracket(self) -> str:
        """A bracket expression, whole and untouched: nested brackets and && are the engine's to read."""
        start, depth = self.at, 0
        p = self.pattern
        while self.at < len(p):
            c = p[self.at]
            if c == "\\":
                self.at += 1
            elif c == "[":
                depth += 1
            elif c == "]":
                depth -= 1
                if depth == 0:
                    self.at += 1
                    return p[start : self.at]
            self.at += 1
        raise self.fail("a bracket expression that is not closed")

    def literal(self, c: str, ignore_case: bool) -> None:
        if ignore_case and not c.isascii():
            raise self.fail("a non-ASCII literal under (?i)")
        self.add(re.escape(c) if c.isascii() else c, ignore_case and c.isalpha())

    def add(self, test: str, ignore_case: bool) -> None:
        self.last = f"(?i:{test})" if ignore_case else test
        self.tests.add(self.last)


def atoms_of(patterns: list[str]) -> Atoms:
    """The atoms of several patterns together. Raises UnsupportedPattern. Linear in their length."""
    tests: set[str] = set()
    folded: set[str] = set()
    counts: set[tuple[str, int]] = set()
    whole = _Part()
    for pattern in patterns:
        scanner = _Scanner(pattern)
        part = scanner.group(ignore_case=False, nested=False)
        if part.long > 1:
            raise scanner.fail(f"repetitions that count further than {RUN} follow each other before the end")
        whole = whole.either(part)
        tests |= scanner.tests
        folded |= scanner.folded
        counts |= scanner.counts
    return Atoms(
        tuple(sorted(tests)), tuple(sorted(folded)), whole.reach, whole.need, tuple(sorted(counts)), whole.runs
    )
