"""Finds the characters that differences hang on: an encoder may serve when segments with these go to the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .batches import PARTNERS
from .calls import Pair, short

MAX_RANGES = 2000
"""More guard ranges than this refuse: the encoder's tables are then not those of this reference at all."""

_MOST_COMMON = 8  # guards that the vocabulary has a token for: each costs speed in ordinary text
_SHRINKS = 200  # examples shrunk per batch; an encoder that needs more is refused
_SHRINK_CALLS = 3000  # comparisons spent on one example; what is left then may not be minimal

_BATTERY = (
    "a{}b", "1{}2", " {}", "{}'t", "{}{}", "\n{}\n",
    *(form for m in PARTNERS for form in (f"a{m}{{}}b", f"a{{}}{m}b")),
)  # fmt: skip
_STAND_INS = ("", "x", "1", ".", " ", "\n")


class Guards:
    """The guarded characters of one encoder, as far as they are found."""

    def __init__(self, pair: Pair, log: Callable[[str], None]) -> None:
        self._pair = pair
        self._log = log
        self.found: set[str] = set()
        self._common_found: set[str] = set()
        self._common: dict[str, bool] = {}

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The guarded code points as inclusive ranges, sorted, adjacent ones merged."""
        merged: list[list[int]] = []
        for code in sorted(map(ord, self.found)):
            if merged and code == merged[-1][1] + 1:
                merged[-1][1] = code
            else:
                merged.append([code, code])
        return tuple((low, high) for low, high in merged)

    def pin(self, texts: Sequence[str]) -> None:
        """Find guards that cover all these texts. Raises _Refused when there are none."""
        before = len(self.found)
        single: dict[str, list[str]] = {}
        rest: list[str] = []
        for text in texts:
            suspects = self._suspects(text)
            if self.found.intersection(text):
                continue
            if len(suspects) == 1 and len(text) <= 64:
                single.setdefault(next(iter(suspects)), []).append(text)
            else:
                rest.append(text)
        # One rare character is to blame only if the text is wrong again, and right without it and with common
        # characters in its place.
        again = self._pair.wrong([t for ts in single.values() for t in ts])
        rest += [t for ts in single.values() for t in ts if t not in again]
        self.found.update(c for c, ts in single.items() if any(t in again for t in ts))
        rest += self._pair.wrong([t.replace(c, s) for c, ts in single.items() for t in ts for s in _STAND_INS])

        # Of several rare characters, those that differ away from the others.
        rest = [t for t in rest if not self.found.intersection(t)]
        several = {c: None for t in rest[: 16 * _SHRINKS] for c in sorted(self._suspects(t)) if c not in PARTNERS}
        forms = {form.replace("{}", c): c for c in several for form in _BATTERY}
        self.found.update(forms[form] for form in self._pair.wrong(list(forms)))

        # What is left takes shrinking.
        shrunk = 0
        for text in rest:
            if self.found.intersection(text):
                continue
            shrunk += 1
            if shrunk > _SHRINKS:
                self._pair.refuse(text, "guards")
            example = self._shrink(text)
            suspects = self._suspects(example)
            if not suspects:
                # A few characters that the vocabulary knows may be guarded, too, such as U+017F, which (?i:s) matches.
                suspects = {c for c in example if not c.isascii()}
                self._common_found |= suspects
                if not suspects or len(self._common_found) > _MOST_COMMON:
                    self._pair.refuse(example)
            self.found |= suspects
            self._log(f"  {short(example)} differs: guards {', '.join(f'U+{ord(c):04X}' for c in sorted(suspects))}")
        if len(self.ranges()) > MAX_RANGES:
            self._pair.refuse(min(texts, key=len), "guards")
        if len(self.found) != before:
            shortest = short(min(texts, key=len))
            self._log(f"  {len(self.found)} guarded code points in {len(self.ranges())} ranges so far; {shortest}")

    def _suspects(self, text: str) -> set[str]:
        """The characters to blame first: not ASCII, and not so common that the vocabulary has a token for them."""
        return {c for c in set(text) if not self._is_common(c)}

    def _is_common(self, character: str) -> bool:
        known = self._common.get(character)
        if known is None:
            known = character.isascii() or len(self._pair.reference.encode_each([character])[0]) == 1
            self._common[character] = known
        return known

    def _shrink(self, text: str) -> str:
        """A shortest text that still differs (delta debugging). Raises _Refused when it does not differ again."""
        if not any(self._pair.differs(text) for _ in range(3)):
            self._pair.refuse(text, "unstable")
        if len(text) > 256:  # most faults are local: one of these windows is then a quick start
            windows = self._pair.wrong([text[at : at + 64] for at in range(0, len(text), 32)])
            text = next(iter(windows), text)
        calls = 0
        size = max(1, len(text) // 2)
        while True:
            at, removed = 0, False
            while at < len(text) and calls < _SHRINK_CALLS:
                candidate = text[:at] + text[at + size :]
                calls += 1
                if self._pair.differs(candidate):
                    text, removed = candidate, True
                else:
                    at += size
            if size == 1 and (not removed or calls >= _SHRINK_CALLS):
                return text
            size = max(1, min(size // 2, len(text) // 2))
