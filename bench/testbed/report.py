"""JSON, Markdown tables and plots of one testbed run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .drive import Run
from .simulate import Costs, Simulated


@dataclass(slots=True)
class Record:
    """Everything of one invocation. machine: facts and settings. highest: (encoder, design, rate) of the rate search.
    calibration: P99 (ms) of documents with this machine's workers: measured, simulated, simulated once calibrated.
    """

    machine: dict[str, Any]
    runs: list[tuple[str, Run]] = field(default_factory=list)
    highest: list[tuple[str, str, float]] = field(default_factory=list)
    costs: dict[str, Costs] = field(default_factory=dict)
    simulated: list[tuple[str, Simulated]] = field(default_factory=list)
    calibration: list[tuple[str, float, float, float]] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        return sum(run.wrong for _, run in self.runs)


def write(record: Record, folder: Path) -> str:
    """Write testbed.json, testbed.md and, with matplotlib, the plots. Returns the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "testbed.json").write_text(json.dumps(asdict(record), indent=1, ensure_ascii=False))
    text = markdown(record)
    (folder / "testbed.md").write_text(text)
    try:
        import matplotlib
    except ImportError:
        return text
    matplotlib.use("Agg")
    _plot_rates(record, folder / "testbed_p99.png")
    _plot_latencies(record, folder / "testbed_latency.png")
    return text


def _ms(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def markdown(record: Record) -> str:
    limit = record.machine["limit_ms"]
    lines = [f"Latency = completion − due time; open loop. {record.machine['line']}", ""]
    if record.highest:
        lines += [f"### Highest rate with P99 ≤ {limit:g} ms (requests a second)", ""]
        rows = [[e, d, f"{rate:.0f}" if rate else "none"] for e, d, rate in record.highest]
        lines += _table(("encoder", "design", "rate"), rows)
    for scenario in dict.fromkeys(run.scenario for _, run in record.runs if run.scenario != "appends"):
        lines += [f"### {scenario.capitalize()}", ""]
        rows = []
        for encoder, run in record.runs:
            if run.scenario != scenario:
                continue
            k = run.kinds
            cells = [
                f"{_ms(k[kind].median_ms)} / {_ms(k[kind].p99_ms)}" if kind in k else "–"
                for kind in ("append", "stateless", "document", "start")
            ]
            late = "" if run.kept_up else f" (behind by {run.unfinished})"
            stalls = [_ms(run.stall_ms), _ms(run.idle_stall_ms)]
            rows.append([encoder, run.design + late, f"{run.rate:g}", *cells, *stalls])
        head = ("encoder", "design", "rate", "appends P50 / P99", "stateless", "documents", "starts", "stall", "idle")
        lines += _table(head, rows)
    checked = sum(run.checked for _, run in record.runs)
    lines += [f"{checked} answers were encoded again by the reference: {record.wrong} differ.", ""]
    if record.simulated:
        lines += [
            "### Simulation (not measured): more workers",
            "",
            "Queueing over service times measured here; bench/testbed/simulate.py says what it leaves out.",
            "",
        ]
        rows = [
            [e, str(s.workers), s.design, f"{s.rate:.0f}" if s.rate else "none", _ms(s.document_ms)]
            for e, s in record.simulated
        ]
        lines += _table(("encoder", "workers", "design", f"rate with P99 ≤ {limit:g} ms", "documents P99, ms"), rows)
        if not record.calibration:
            return "\n".join([*lines, "Not calibrated: no bursts were measured.", ""])
        lines += ["Calibration, P99 of documents in bursts with this machine's workers:", ""]
        head = ("design", "measured", "simulated", "calibrated")
        lines += _table(head, [[d, *map(_ms, values)] for d, *values in record.calibration])
    return "\n".join(lines)


def _plot_rates(record: Record, path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    of: dict[str, list[tuple[float, float]]] = {}
    for encoder, run in record.runs:
        if run.scenario == "appends" and math.isfinite(run.p99_ms):
            of.setdefault(f"{run.design} ({encoder})", []).append((run.rate, run.p99_ms))
    for name, points in of.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=name)
    axes.axhline(record.machine["limit_ms"], color="grey", linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="requests a second", ylabel="P99, ms")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _plot_latencies(record: Record, path: Path) -> None:
    from matplotlib import pyplot as plt

    runs = [(e, run) for e, run in record.runs if run.scenario != "appends" and "append" in run.kinds]
    if not runs:
        return
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for encoder, run in runs:
        values = run.kinds["append"].quantiles
        axes.plot(values, [q / 100 for q in range(101)], label=f"{run.design}, {run.scenario} ({encoder})")
    axes.set(xscale="log", xlabel="latency of appends, ms", ylabel="share of requests")
    axes.legend(fontsize=5)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
