"""Draws docs/turn.svg from what the demo measured: `delta demo --json - | python docs/turn.py > docs/turn.svg`.

One dot a turn: how long the reference and Delta Tokenizer took for its prompt. Plain SVG, small enough for the
repository.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

WIDTH, HEIGHT = 760, 330  # px
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 40, 46  # px around the plot
LOWEST, HIGHEST = 0.1, 1000  # ms
STYLE = (
    "text{font-family:Helvetica,Arial,sans-serif;font-size:13px;fill:#444}.name{font-weight:600}.grid{stroke:#e2e2e2}"
    ".reference{fill:#b5541c}.delta{fill:#1f6feb}circle{fill-opacity:.75}"
)


def svg(report: dict[str, Any]) -> str:
    """The figure of a report as `delta demo --json` writes it."""
    turns, summary = report["turns"], report["summary"]
    shortest, longest = (of(turn["chars"] for turn in turns) // 1000 for of in (min, max))

    def x(number: int) -> float:
        return round(LEFT + number / len(turns) * (WIDTH - LEFT - RIGHT), 1)

    def y(ms: float) -> float:
        share: float = math.log10(min(max(ms, LOWEST), HIGHEST) / LOWEST) / math.log10(HIGHEST / LOWEST)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    def text(at_x: float, at_y: float, words: str, more: str = "") -> str:
        return f'<text x="{at_x}" y="{at_y}" {more}>{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Time to tokenize each turn of an agent session</title>",
        f'<style>{STYLE}</style><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        text(LEFT, 22, f"Time to tokenize one turn, ms (log scale): {report['setup']['model']}, {len(turns)} turns"),
    ]
    for power in range(round(math.log10(LOWEST)), round(math.log10(HIGHEST)) + 1):
        ms = 10.0**power
        parts.append(f'<path class="grid" d="M{LEFT} {y(ms)}H{WIDTH - RIGHT}"/>')
        parts.append(text(LEFT - 8, y(ms) + 4, f"{ms:g}", 'text-anchor="end"'))
    for number in (1, *range(20, len(turns) + 1, 20)):
        parts.append(text(x(number), HEIGHT - BOTTOM + 20, str(number), 'text-anchor="middle"'))
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    prompts = f"turn (the whole prompt: {shortest}K to {longest}K characters)"
    parts.append(text(middle, HEIGHT - 8, prompts, 'text-anchor="middle"'))

    for who, name in (("reference", "reference"), ("delta", "Delta Tokenizer")):
        times = (turn[f"{who}_s"] * 1000 for turn in turns)
        dots = (f'<circle cx="{x(number)}" cy="{y(ms)}" r="2.6"/>' for number, ms in enumerate(times, 1))
        parts.append(f'<g class="{who}">{"".join(dots)}</g>')
        median = summary[f"{who}_median_ms"]
        parts.append(text(WIDTH - RIGHT + 10, y(median), name, f'class="name {who}"'))
        parts.append(text(WIDTH - RIGHT + 10, y(median) + 17, f"median {median:.3g} ms"))
    parts.append(text(x(1) + 7, y(turns[0]["delta_s"] * 1000) + 4, "the first turn: nothing is known yet"))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(svg(json.load(sys.stdin)))
