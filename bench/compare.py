"""An old checkout beside a new one: turn, replaced tail, edit and cold text, in one process, interleaved.

    python -m bench.compare OLD [NEW] [--model qwen3] [--tokens 100000] [--encoders fastokens reference] [--rounds 30]

NEW is this checkout unless it is given. Both packages are loaded under names of their own, over one live tokenizer. In
every round both make the same call, one right after the other, in random order; the ratio of the two is what counts:
whatever else the machine does meets both. Shown are medians, and of the ratios the median with its 95% interval
(bootstrap over the rounds); the ratio of CPU time is of the whole process, and what others do on the machine is hardly
in it. The same checkout given twice shows what the machine alone makes of it.

All IDs are compared with the reference's; the exit code is 1 if one differs. Writes compare.json and compare.md. About
five minutes; most of it is the reference encoding the conversation before each turn.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib.util
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from delta_core.errors import DeltaError

from .measure import Answers, Cell, Record, Scene, machine
from .ours import Delta
from .peers import ROOT
from .report import number, table
from .texts import transcript
from .workloads import MAIN, QUICK, Bench, BenchError, edits, unseen

SCENES = {"append": "turn of 400 characters", "tail replaced": "tail replaced", "edit at 50%": "edit in the middle"}
OLD, NEW = "old", "new"
DRAWS = 2_000  # of the bootstrap


def load(checkout: Path, name: str) -> ModuleType:
    """The delta_core of a checkout as a package of that name.

    Raises BenchError where there is none, or where it imports itself by its full name: it would get another's modules.
    """
    folder = checkout.resolve() / "delta_core"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not (folder / "__init__.py").is_file():
        raise BenchError(f"{checkout}: no delta_core in it")
    for known in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        del sys.modules[known]
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    for module in [m for known, m in sys.modules.items() if known.split(".")[0] == name]:
        path = Path(module.__file__ or "")
        if any(map(_by_full_name, ast.walk(ast.parse(path.read_bytes())))):
            raise BenchError(f"{path}: imports delta_core by its full name")
    return package


def _by_full_name(node: ast.AST) -> bool:
    names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    return any(name.split(".")[0] == "delta_core" for name in names)


def described(checkout: Path) -> str:
    """The commit that is checked out, and whether files differ from it."""
    done = subprocess.run(
        ["git", "-C", str(checkout), "describe", "--always", "--dirty=, with changes"], capture_output=True, text=True
    )
    return done.stdout.strip() or "no git checkout"


@dataclass(frozen=True, slots=True)
class Compared:
    """One scene with one encoder. Milliseconds; ratios are new to old: below 1 the new one is faster.

    ratio: the median of the rounds' ratios, low and high: its 95% interval. cpu_ratio: as ratio, of CPU time.
    old_wrong, new_wrong: calls with wrong IDs.
    """

    scene: str
    mode: str
    encoder: str
    tokens: int
    rounds: int
    old_ms: float
    new_ms: float
    ratio: float
    low: float
    high: float
    cpu_ratio: float
    old_wrong: int
    new_wrong: int


@dataclass(slots=True)
class Comparison:
    """One invocation. old, new: the commits."""

    machine: dict[str, Any]
    model: str
    old: str
    new: str
    rows: list[Compared] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        return sum(row.old_wrong + row.new_wrong for row in self.rows)


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of the median, by bootstrap; the same one every time."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return medians[DRAWS * 25 // 1000], medians[DRAWS * 975 // 1000 - 1]


def scenes_of(b: Bench, tokens: int) -> list[Scene]:
    """What is measured: on a conversation of so many tokens, and a cold text as long, in both modes."""
    source = transcript(MAIN, b.family, tokens * 6)
    ends = [end for _, end in b.live.encode(source, add_special_tokens=False).offsets]
    chars = ends[min(tokens, len(ends)) - 1]
    made = [replace(s, name=SCENES[s.name]) for s in edits(b, MAIN, chars) if s.name in SCENES]
    return [s for scene in (*made, unseen(b, "cold text", MAIN, chars)) for s in scene.in_both_modes()]


def measure(b: Bench, scenes: Sequence[Scene], encoder: str, pair: Sequence[Delta], rounds: int) -> list[Compared]:
    """The rows of one encoder. The first round warms up; its times are thrown away, its IDs compared."""
    answers, rng = Answers(b.reference), random.Random(0)
    cells = [[Cell(scene, delta) for delta in pair] for scene in scenes]
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()  # where it strikes is chance
    try:
        for n in range(rounds + 1):
            for both in rng.sample(cells, len(cells)):
                for cell in rng.sample(both, 2):
                    cell.call(cell.scene.cases[n % len(cell.scene.cases)], answers, count=n > 0)
    finally:
        if enabled:
            gc.enable()
    return [_row(encoder, *both) for both in cells]


def _row(encoder: str, old: Cell, new: Cell) -> Compared:
    scene = new.scene
    ratios = [b / a for a, b in zip(old.walls, new.walls, strict=True)]
    cpu_ratio = statistics.median(b / a for a, b in zip(old.cpus, new.cpus, strict=True))
    return Compared(
        scene.name, scene.mode, encoder, new.tokens, len(ratios), statistics.median(old.walls) * 1e3,
        statistics.median(new.walls) * 1e3, statistics.median(ratios), *interval(ratios), cpu_ratio,
        old.wrong, new.wrong,
    )  # fmt: skip


def compare(old: Path, new: Path, model: str, tokens: int, encoders: Sequence[str], rounds: int) -> Comparison:
    """Raises BenchError, FetchError."""
    packages = {OLD: load(old, "delta_core_old"), NEW: load(new, "delta_core_new")}
    b = Bench(model, None, Record("compare", {}), QUICK)
    found = Comparison(machine(), b.path.parent.name, described(old), described(new))
    scenes = scenes_of(b, tokens)
    for encoder in encoders:
        pair = []
        for name, package in packages.items():
            tok = package.DeltaTokenizer(b.live, encoder=encoder)
            if not tok.admission.admitted or tok.admission.encoder != encoder:
                found.notes.append(f"{encoder} left out, it does not serve in the {name} checkout: {tok.describe()}")
                break
            tok.prepare()
            pair.append(Delta(name, tok))
        else:
            found.rows += measure(b, scenes, encoder, pair, rounds)
    return found


def markdown(found: Comparison) -> str:
    m = found.machine
    versions = ", ".join(f"{k} {v}" for k, v in m["versions"].items() if v)
    lines = []
    for r in found.rows:
        verdict = "faster" if r.high < 1 else "slower" if r.low > 1 else ""
        wrong = " ".join(f"{n} WRONG: {w}" for n, w in ((OLD, r.old_wrong), (NEW, r.new_wrong)) if w)
        ratio = f"{r.ratio:.2f} ({r.low:.2f} to {r.high:.2f})"
        lines.append(
            [
                r.scene,
                r.encoder,
                r.mode,
                number(r.old_ms),
                number(r.new_ms),
                ratio,
                number(r.cpu_ratio),
                wrong or verdict,
            ]
        )
    head = [f"{found.model}, {found.rows[0].tokens if found.rows else 0:,} tokens", "encoder", "", "old, ms", "new, ms",
            "new / old (95%)", "of CPU", ""]  # fmt: skip
    parts = [
        f"Old {found.old}, new {found.new}; {m['cpu']}, {m['cores']} cores, load at the start {m['load_average'][0]}; "
        f"Python {m['python']}, {versions}; {m['date']}. {found.rows[0].rounds if found.rows else 0} rounds, "
        f"{'all IDs equal to the reference’s' if not found.wrong else f'{found.wrong} CALLS WITH WRONG IDS'}.",
        table(head, lines),
        *(f"- {note}" for note in found.notes),
    ]
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, nargs="?", default=ROOT, help="default: this one")
    parser.add_argument("--model", default="qwen3", help="a name or a tokenizer.json")
    parser.add_argument("--tokens", type=int, default=100_000, help="of the conversation")
    parser.add_argument("--encoders", nargs="+", default=["fastokens", "reference"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", metavar="DIR")
    args = parser.parse_args(argv)
    try:
        found = compare(args.old, args.new, args.model, args.tokens, args.encoders, args.rounds)
    except DeltaError as error:
        print(f"bench.compare: {error}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "compare.json").write_text(json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n")
    text = markdown(found)
    (args.out / "compare.md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if found.wrong else 0 if found.rows else 2


if __name__ == "__main__":
    raise SystemExit(main())
