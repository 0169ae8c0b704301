"""How far the shipped checkpoint is from what it is meant to reach.

    python -m training.hybrid.judge.goals [CHECKPOINT]

Every figure comes from the checkpoint's own metrics, which published folds gave, and from the
committed table of `fit_gate`. What was not measured is said to be so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dippm.estimate.pretrained import find
from dippm.estimate.pretrained.store import read_metrics
from training.hybrid.judge.fit_gate import FEWEST_ROWS, MOST_LOG_ERROR, TABLE

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a group of lines of the metrics shall reach.

    Attributes:
        what, protocol: descriptions for people.
        target, split: target and split of the lines; the split by a prefix of its name.
        data: words, all of which the name of the data holds.
        typical: highest median, over GPUs, of their median errors, in percent; None for no bound.
        worst: highest median error of a GPU, in percent.
        gpus: how the names of the GPUs begin; empty for all.
    """

    what: str
    protocol: str
    target: str
    split: str
    data: tuple[str, ...] = ()
    typical: float | None = None
    worst: float | None = None
    gpus: tuple[str, ...] = ()

    def lines(self, summary: Iterable[Line]) -> list[Line]:
        """Return the lines that tell of it."""
        return [
            line
            for line in summary
            if line["target"] == self.target
            and str(line["split"]).startswith(self.split)
            and all(word in str(line["data"]) for word in self.data)
            and (not self.gpus or str(line["gpu"]).startswith(self.gpus))
        ]

    @property
    def bound(self) -> str:
        """Return the goal in words."""
        typical = f"≤ {self.typical:g}" if self.typical is not None else ""
        worst = f"none above {self.worst:g}" if self.worst is not None else ""
        return ", ".join(filter(None, (typical, worst)))


GOALS = (
    Goal("whole models, another laboratory", "L", "latency_ms", "L ", ("whole models",), 10, 15),
    Goal("A100 CNNs over batch", "S2", "latency_ms", "S2", ("parvagpu", "7g.80gb"), 8),
    Goal("U-Nets", "S2", "latency_ms", "S2", ("sd_webui",), 12),
    Goal("the same, GPU held out", "S3a", "latency_ms", "S3a", ("sd_webui",), 12),
    Goal("GeForce, families out", "S2", "latency_ms", "S2", ("timm tables", "eager"), 6),
    Goal("the same, compiled", "S2", "latency_ms", "S2", ("timm tables", "compiled"), 8),
    Goal("GPU never measured", "S3a", "latency_ms", "S3a", ("timm tables", "eager"), 8),
    Goal("the same, compiled", "S3a", "latency_ms", "S3a", ("timm tables", "compiled"), 7),
    Goal("MIG slices", "S2", "latency_ms", "S2", (", MIG slices",), 10),
    Goal("memory, another laboratory", "L", "memory_mb", "laboratory", (), 6),
    Goal("power of CNNs", "cells out", "power_w", "operators and models", ("ecnas",), 8),
    Goal("power, another laboratory", "L", "power_w", "source", (), 10, 15),
    Goal("energy of whole models", "L", "energy_j", "", (), 15),
)


def goal_rows(summary: Sequence[Line]) -> list[dict[str, str]]:
    """Return a row for each goal: the result over GPUs, and the goal."""
    return [_row(goal, goal.lines(summary)) for goal in GOALS]


def gate_row(cells: Iterable[Line]) -> dict[str, str]:
    """Return the row of how the checkpoint fits the rows that trained it."""
    errors = [abs(cell["log_error"]) for cell in cells if cell["n"] >= FEWEST_ROWS]
    beyond = sum(error > MOST_LOG_ERROR for error in errors)
    return {
        "what": f"fit, cells of {FEWEST_ROWS} rows and more",
        "protocol": "median |log error|",
        "goal": f"none above {MOST_LOG_ERROR:g}",
        "seen": f"median {np.median(errors):.3f}, worst {max(errors):.2f}",
        "reached": "yes" if not beyond else f"{beyond} of {len(errors)} beyond",
        "n": f"{len(errors)} cells",
        "coverage": "",
    }


def _row(goal: Goal, lines: Sequence[Line]) -> dict[str, str]:
    row = {"what": goal.what, "protocol": goal.protocol, "goal": goal.bound}
    if not lines:
        return row | {"seen": "not measured", "reached": "", "n": "", "coverage": ""}
    of_gpu: dict[str, list[Line]] = {}
    for line in lines:
        of_gpu.setdefault(str(line["gpu"]), []).append(line)
    errors = {
        gpu: float(np.average([x["median_ape"] for x in mine], weights=[x["n"] for x in mine]))
        for gpu, mine in of_gpu.items()
    }
    typical, worst = float(np.median(list(errors.values()))), max(errors, key=errors.__getitem__)
    reached = (goal.typical is None or typical <= goal.typical) and (
        goal.worst is None or errors[worst] <= goal.worst
    )
    held = [float(line["coverage"]) for line in lines if line.get("coverage") is not None]
    return row | {
        "seen": f"median {typical:.1f}, worst {errors[worst]:.1f} ({worst}), {len(errors)} GPUs",
        "reached": "yes" if reached else "no",
        "n": f"{sum(line['n'] for line in lines):,}",
        "coverage": f"{min(held):.0f}–{max(held):.0f}" if held else "",
    }


def main(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="folder; the shipped one unless named")
    ] = None,
) -> None:
    """Print the table."""
    from dippm.estimate.pretrained.model_card import table

    info = find(checkpoint)
    summary = read_metrics(info.path)["summary"]
    cells = json.loads(TABLE.read_text(encoding="utf-8"))["cells"]
    typer.echo(f"{info.name} {info.version}\n")
    typer.echo(table([gate_row(cells), *goal_rows(summary)]))


if __name__ == "__main__":
    typer.run(main)
