"""Every tokenizer file that is at hand: admitted how, encoded by whom, exact over whole sessions, and how fast.

    python -m bench.models FILES.json [--only NAME ...] [--turns N] [--json FILE] [--write [FILE]]
    python -m bench.models FILES.json --page --write    # docs/models.md again, of what the JSON file has

FILES.json: {NAME: {"path": a tokenizer.json, "family": who has it, "source", "structure", "kind": what it is}}; the
last three are optional. Each file is measured in a process of its own, with nothing in the cache: what a server would
derive or certify beside itself is not there yet. With --only the other rows stay as the JSON file has them. The exit
code is 1 if any answer of this project differs from the live tokenizer's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, count, islice, pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from delta_core import DeltaTokenizer
from delta_core.tools.demo.session import generate
from delta_core.tools.demo.templates import family_by_markers, render_turn

from . import peers
from .measure import Case, Contestant, Record, Scene, machine, packed, run
from .ours import KEYED, Delta
from .page import conditions
from .report import machine_line
from .texts import transcript, turns
from .workloads import SEGMENT_CACHE, exact_peer, of

LIVE = "HF encode_batch_fast"
KIND = "mixed"
SAMPLED = 20_000  # characters in which cuts are counted
REPLAYED = 60_000  # characters of a replayed session at its end: 19 turns, edits and a trim among them


@dataclass(slots=True)
class Row:
    """What one tokenizer file gave.

    admitted: the config or the structure, empty when refused. refused: why, by section. encoder: who serves; note: why
    not another. cuts: for 1,000 characters. turns: replayed; answers: compared for them; different: of these.
    stock: requests of them that the stock path served, which would compare it with itself. chars, delta_ms, live_ms: of
    the warm turn; peer, peer_ms: the fastest exact one, or None. inexact: peers that gave wrong IDs in it. again: how
    often the row was measured anew, after the others. failed: what became of a process that gave no answer.
    """

    name: str
    family: str = ""
    file: str = ""
    structure: str = ""
    admitted: str = ""
    drift: str = ""
    refused: list[str] = field(default_factory=list)
    encoder: str = ""
    note: str | None = None
    cuts: float = 0.0
    turns: int = 0
    answers: int = 0
    different: int = 0
    stock: int = 0
    chars: int = 0
    delta_ms: float = 0.0
    live_ms: float = 0.0
    peer: str | None = None
    peer_ms: float = 0.0
    inexact: list[str] = field(default_factory=list)
    again: int = 0
    failed: str = ""

    @property
    def right(self) -> bool:
        """Refused, or compared without a difference and never with the stock path itself."""
        return not self.failed and (bool(self.refused) or (self.answers > 0 and not self.different and not self.stock))


# -- one file, in a process of its own --


def measure(name: str, entry: Mapping[str, Any], *, replayed: int, chars: int, rounds: int) -> Row:
    """All of one row. replayed: turns; chars: of history in the warm turn; rounds: of that turn."""
    file = str(entry.get("kind") or entry.get("source", ""))
    row = Row(name, str(entry["family"]), file, str(entry.get("structure", "")))
    path = Path(entry["path"])
    live = Tokenizer.from_file(str(path))
    tok = DeltaTokenizer(live, encoder="auto", background=False)
    admission = tok.admission
    if not admission.admitted:
        row.refused = list(map(str, admission.mismatches))
        return row
    row.admitted, row.drift = str(admission.config), admission.drift
    row.encoder, row.note = admission.encoder, admission.note
    row.cuts = cuts(tok)
    known = family_by_markers(lambda token: live.token_to_id(token) is not None)
    replay(row, tok, live, islice(sessions(known, _marker(live, known)), replayed))
    warm(row, tok, live, path, known, chars, rounds)
    return row


def cuts(tok: DeltaTokenizer) -> float:
    """Safe cuts in 1,000 characters of code, prose and several scripts, without an added token."""
    text = transcript(KIND, "plain", 2 * SAMPLED)[SAMPLED:]
    return 1000 * len(tok._rules.cuts(text, 0, len(text), 1)) / len(text)


def _marker(live: Tokenizer, known: str) -> str:
    """An added token to stand before each message of a plain transcript; empty where the family has markers."""
    added = [token.content for token in live.get_added_tokens_decoder().values()]
    return added[-1] if known == "plain" and added else ""


def sessions(known: str, marker: str) -> Iterator[tuple[str, str]]:
    """Session and text of each turn of generated agents' sessions, one session after the other."""
    for seed in count():
        for turn in generate(seed=seed, target_chars=REPLAYED):
            yield f"{seed}", render_turn(known, turn).replace("### ", f"{marker}### " if marker else "### ")


def replay(row: Row, tok: DeltaTokenizer, live: Tokenizer, made: Iterator[tuple[str, str]]) -> None:
    """Four answers a turn: warm by session and by content, and cold, with the post-processor's tokens and without."""
    for session, text in made:
        row.turns += 1
        for special in (False, True):
            want = packed(live.encode(text, add_special_tokens=special).ids)
            calls: list[dict[str, str]] = [
                {"session": f"{session} {special}"} if special else {},
                {"namespace": f"cold {row.turns} {special}"},
            ]
            for where in calls:
                row.answers += 1
                row.different += packed(tok.encode(text, add_special_tokens=special, **where)) != want
    row.stock = tok.stats().by_path.get("stock", 0)


def warm(row: Row, tok: DeltaTokenizer, live: Tokenizer, path: Path, known: str, chars: int, rounds: int) -> None:
    """The conversation grows by 400 characters a turn; everyone makes the same calls, interleaved."""
    base = transcript(KIND, known, chars)
    texts = list(accumulate([base, *turns(KIND, known, 400, rounds + 1)]))
    # It goes on from case to case: the turn before is warm for everyone, and nothing is encoded anew for that.
    cases = [Case("warm", new, (("warm", old),), anew=False) for old, new in pairwise(texts)]
    scene = Scene("warm turn", row.name, KIND, chars, 400, cases)

    def reference(text: str) -> list[int]:
        ids: list[int] = live.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    everyone = [Delta(KEYED, tok), peers.Plain(LIVE, reference, again=False), *_peers(path)]
    results = run([(scene, who) for who in everyone], reference, rounds=rounds, seconds=60)
    ours, stock = of(results, KEYED), of(results, LIVE)
    row.chars, row.delta_ms, row.live_ms = chars, ours.median_ms, stock.median_ms
    row.answers += ours.calls
    row.different += ours.wrong
    row.stock = tok.stats().by_path.get("stock", 0)
    theirs = [r for r in results if r.row not in (KEYED, LIVE)]
    row.inexact = [r.row for r in theirs if r.wrong]
    best = exact_peer(theirs)
    if best is not None:
        row.peer, row.peer_ms = best.row, best.median_ms


def _peers(path: Path) -> list[Contestant]:
    """Those that take this tokenizer."""
    builders: list[Callable[[], Contestant]] = [
        lambda: peers.fastokens(path),
        lambda: peers.fastokens(path, SEGMENT_CACHE),
        lambda: peers.gigatoken(path, "list"),
    ]
    found = []
    for build in builders:
        try:
            peer = build()
            peer.encode(Case("", "A first text."))
            found.append(peer)
        except BaseException as error:  # not installed, or not for this tokenizer; a panic in Rust is no Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            print(f"{path}: a peer refused: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    return found


# -- all files --

_HEAD = """\
# Models

`python -m bench.models FILES.json --write` makes this page from what was measured; it is not written by hand. Each
tokenizer file in a process of its own, with an empty cache: what a server derives or certifies beside itself, and
keeps, is not there yet, so the reference encodes where no bundled record certifies a fast encoder.

- **File.** Shipped whole; rebuilt from a vocabulary as it is shipped elsewhere; or the sections that a family publishes
  over another family's vocabulary, for families whose own is not at hand: the cut rules rest on the sections alone.
  With the family's own, such a row would be admitted by structure, the encoder and the milliseconds may be others.
- **Admitted**: by the config of that name, or by structure: the table of its pre-tokenizer under this name.
- **Cuts**: safe cuts in 1,000 characters of code, prose and several scripts, without an added token.
- **Turns** of generated agents' sessions (edits, a trim and replaced think blocks among them): each compared with the
  live tokenizer's IDs four times, found by content or session and cold, with the post-processor's tokens and without;
  {rounds} warm turns more are compared as they are timed.
- **Warm turn**: 400 characters more at {chars:,} characters of mixed text, medians in milliseconds, all in one process,
  interleaved. Live is the live tokenizer's `encode_batch_fast`. The peer is the fastest of fastokens (with and
  without its segment cache) and gigatoken that took the tokenizer and gave the live IDs in each of these turns.

{machine} {conditions}"""


def page(rows: Sequence[Row], head: Mapping[str, Any]) -> str:
    """The page of these rows."""
    served, refused = [r for r in rows if r.admitted], [r for r in rows if r.refused]
    record, wrong = Record("models", dict(head)), sum(r.different for r in rows)
    total = (
        f"{len(rows)} files: {len(served)} served, {len(refused)} refused. "
        f"{sum(r.turns for r in rows):,} turns replayed; "
        f"{sum(r.answers for r in rows):,} answers compared, {wrong:,} different; "
        f"{sum(r.stock for r in rows):,} requests by the stock path."
    )
    parts = [
        _HEAD.format(
            machine=machine_line(record), conditions=conditions(record), chars=head["chars"], rounds=head["rounds"]
        ).strip(),
        "## Served",
        total,
        _table(
            "name|family|file|admitted|encoder|cuts|turns|different|Delta ms|live ms|fastest exact peer ms",
            [
                (
                    f"`{r.name}`", r.family, r.file, r.admitted, r.encoder, f"{r.cuts:.0f}", f"{r.turns}",
                    f"{r.different}", f"{r.delta_ms:.2f}", _times(r.live_ms, r.delta_ms),
                    "none" if r.peer is None else f"{r.peer} {_times(r.peer_ms, r.delta_ms)}",
                )
                for r in served
            ],
        ),
    ]  # fmt: skip
    if refused:
        parts += ["## Refused", "These go to the engine's own path, with the section that stands against them."]
        parts.append(
            _table("name|family|file|by", [(f"`{r.name}`", r.family, r.file, "; ".join(r.refused)) for r in refused])
        )
    notes = [
        *(f"{r.family} ({r.name}): not exact in the warm turn: {', '.join(r.inexact)}" for r in served if r.inexact),
        *(f"{r.family} ({r.name}): FAILED: {r.failed}" for r in rows if r.failed),
        *(f"{r.family} ({r.name}): {r.stock} requests took the stock path" for r in rows if r.stock),
    ]
    again = [f"`{r.name}`" for r in rows if r.again]
    if again:
        notes.append(f"measured again, after the others: {', '.join(again)}")
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _times(ms: float, ours: float) -> str:
    return f"{ms:.1f} ({ms / ours:.0f}x)" if ms >= 10 * ours else f"{ms:.2f} ({ms / ours:.1f}x)"


def _table(head: str, rows: Sequence[Sequence[str]]) -> str:
    columns = head.split("|")
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def apart(files: Path, name: str, options: Sequence[str], cache: Path) -> Row:
    """The row of one file, measured in another process."""
    paths = os.pathsep.join(filter(None, (str(peers.ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "bench.models", str(files), "--row", name, *options],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "DELTA_CACHE": str(cache), "DELTA_CONFIGS": str(cache / "configs")},
        check=False,
    )
    try:
        return Row(**json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        return Row(name, failed=f"no answer, exit code {done.returncode}")


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="python -m bench.models", description=__doc__.partition("\n")[0])
    root.add_argument("files", type=Path, metavar="FILES.json")
    root.add_argument("--only", action="append", default=[], metavar="NAME", help="measure this one anew")
    root.add_argument("--page", action="store_true", help="measure nothing, show what the JSON file has")
    root.add_argument("--row", metavar="NAME", help=argparse.SUPPRESS)  # what the processes are asked
    root.add_argument("--turns", type=int, default=38, help="turns replayed (default: %(default)s, two sessions)")
    root.add_argument("--chars", type=int, default=400_000, help="history of the warm turn (default: %(default)s)")
    root.add_argument("--rounds", type=int, default=9, help="warm turns timed (default: %(default)s)")
    root.add_argument("--json", type=Path, default=peers.ROOT / "build" / "bench" / "models.json", metavar="FILE")
    target = peers.ROOT / "docs" / "models.md"
    root.add_argument(
        "--write", type=Path, nargs="?", const=target, metavar="FILE", help=f"default: docs/{target.name}"
    )
    return root


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    files: dict[str, Any] = json.loads(args.files.read_text(encoding="utf-8"))
    if args.row:
        row = measure(args.row, files[args.row], replayed=args.turns, chars=args.chars, rounds=args.rounds)
        print(json.dumps(asdict(row)))
        return 0
    unknown = [name for name in args.only if name not in files]
    if unknown:
        print(f"bench.models: not in {args.files}: {', '.join(unknown)}", file=sys.stderr)
        return 2
    rows: dict[str, Row] = {}
    head = machine(apart=None, chars=args.chars, rounds=args.rounds)
    if args.page or (args.only and args.json.exists()):
        kept = json.loads(args.json.read_text(encoding="utf-8"))
        rows = {row["name"]: Row(**row) for row in kept["rows"] if row["name"] in files}
        head = kept["machine"] if args.page else head
    args.json.parent.mkdir(parents=True, exist_ok=True)
    options = ["--turns", f"{args.turns}", "--chars", f"{args.chars}", "--rounds", f"{args.rounds}"]
    for name in [] if args.page else args.only or files:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="bench-models-") as cache:
            row = apart(args.files, name, options, Path(cache))
        row.again = rows[name].again + 1 if name in rows else 0
        rows[name] = row
        row.family = row.family or str(files[name]["family"])
        said = "FAILED" if not row.right else f"refused: {'; '.join(row.refused)}" if row.refused else row.admitted
        print(
            f"{name}: {said}, {row.encoder}, {row.answers} answers, {row.different} different, {row.delta_ms:.2f} ms "
            f"({time.perf_counter() - start:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
        made = {"machine": head, "rows": [asdict(rows[n]) for n in files if n in rows]}
        args.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    done = [rows[n] for n in files if n in rows]
    text = page(done, head)
    if args.write is None:
        print(text)
    else:
        args.write.write_text(text, encoding="utf-8")
    return 0 if all(row.right for row in done) else 1


if __name__ == "__main__":
    raise SystemExit(main())
