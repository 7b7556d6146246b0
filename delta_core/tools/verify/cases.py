"""What one comparison is: a sequence of calls whose last result differs from the reference's, and how to shrink it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...tokenizer import DeltaTokenizer


@dataclass(frozen=True, slots=True)
class Call:
    """One call of DeltaTokenizer.encode, or of encode_array."""

    text: str
    session: str | None = None
    namespace: str | None = None
    add_special_tokens: bool = False
    array: bool = False

    @property
    def _arguments(self) -> dict[str, Any]:
        # An empty namespace is one of its own, so it is written down, too.
        given = {k: v for k, v in asdict(self).items() if k in ("session", "namespace") and v is not None}
        return given | {"add_special_tokens": self.add_special_tokens}

    def of(self, tok: DeltaTokenizer) -> list[int]:
        """Make the call. Raises what the live tokenizer raises."""
        encode = tok.encode_array if self.array else tok.encode
        return list(encode(self.text, **self._arguments))

    def source(self) -> str:
        """The call as Python."""
        parts = [ascii(self.text), *(f"{k}={v!r}" for k, v in self._arguments.items())]
        return f"tok.{'encode_array' if self.array else 'encode'}({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Difference:
    """A reproducer.

    calls: the calls in order, from an empty store; the last one's IDs differ.
    how: at which scale they were made, empty for the shipped one.
    """

    tokenizer: str
    encoder: str
    battery: str
    unit: int
    calls: tuple[Call, ...]
    expected: tuple[int, ...]
    got: tuple[int, ...]
    how: str = ""

    @property
    def at(self) -> int:
        """The index of the first differing token."""
        pairs = zip(self.expected, self.got, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self.expected), len(self.got)))

    def lines(self) -> list[str]:
        """The reproducer for a person."""
        near = slice(max(self.at - 3, 0), self.at + 5)
        return [
            f"{self.battery} unit {self.unit} on {self.tokenizer} with {self.encoder}"
            f"{self.how and ', '}{self.how}: differs at token {self.at}",
            *(f"    {call.source()}" for call in self.calls),
            f"    expected {list(self.expected[near])} of {len(self.expected)}",
            f"    got      {list(self.got[near])} of {len(self.got)}",
        ]


Fails = Callable[[Sequence[Call]], bool]


_SIMPLER: tuple[Callable[[Call], Call], ...] = (
    lambda call: replace(call, namespace=None),
    lambda call: replace(call, session=None),
    lambda call: replace(call, add_special_tokens=False),
    lambda call: replace(call, array=False),
)


def shrink(calls: Sequence[Call], fails: Fails, *, budget: int = 1500) -> list[Call]:
    """A smaller sequence of calls that still fails: fewer calls, shorter texts, plainer arguments.

    Texts of one session share most of their characters, so the same stretch is removed from all of them where that
    still fails, before each is shortened alone. budget: how often `fails` may be asked.
    """
    best = list(calls)
    left = [budget]

    def still(candidate: Sequence[Call]) -> bool:
        if left[0] <= 0:
            return False
        left[0] -= 1
        return fails(candidate)

    changed = True
    while changed and left[0] > 0:
        changed = False
        for i in range(len(best) - 2, -1, -1):
            candidate = best[:i] + best[i + 1 :]
            if still(candidate):
                best, changed = candidate, True
        for simpler in _SIMPLER:
            candidate = [simpler(call) for call in best]
            if candidate != best and still(candidate):
                best, changed = candidate, True
        together = _shorten(best, range(len(best)), still)
        alone = together
        for i in range(len(best)):
            alone = _shorten(alone, [i], still)
        if alone != best:
            best, changed = alone, True
    return best


def _shorten(calls: list[Call], which: Sequence[int], still: Fails) -> list[Call]:
    """Remove ever smaller stretches at the same place from the texts of some calls."""
    best = list(calls)
    size = max(len(best[i].text) for i in which) // 2
    while size >= 1:
        at = 0
        while at < max(len(best[i].text) for i in which):
            candidate = list(best)
            for i in which:
                text = best[i].text
                candidate[i] = replace(best[i], text=text[:at] + text[at + size :])
            if candidate != best and still(candidate):
                best = candidate
            else:
                at += size
        size //= 2
    return best
