"""The sum of a model's operators compared with the whole model, with the difference by cause.

    python -m training.studies.operator_sums WORK [--results training/studies/results/X.json]

WORK is the folder with `held_out.parquet` that `training.hybrid.train` wrote. The question is that
of the thesis: which share of a network's time is the sum of its single operators? The operators are
predicted by fits without the architecture (S1) or its family (S2), the network is measured:

    measured = operators − fusion + host + left over

operators   Σ of the predicted times of all kernels as eager PyTorch launches them
fusion      time that torch.compile saves: Σ of the eager kernels minus Σ of the compiled ones, both
            predicted; 0 for a model in eager mode
host        wall time beyond the kernels: launches that the GPU waits for
left over   time that the prediction does not explain

Shares are of the measured time, means over models, so they add up; "off" is the mean absolute
error in percent, of the operators alone and of the whole prediction. Rows timed with the copy of
the input are left out, and those in which the time of the host hides that of the kernels. The law
is fitted to sums of whole models as well as to single operators: that sums agree in the mean is not
a result; their spread, the part of the host and the time saved by fusion are. For measured
operators see `measured_operators`. The forward pass and its time alone: no public table
has the backward pass of single operators, or the power of a network beside that of its operators.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from dippm.estimate.models.host import OVERLAP_POWER
from training.evaluation.held_out import read_held_out

SPLITS = {"S1": "architecture never seen", "S2-10": "family never seen"}
KEY = ["split", "gpu", "mig", "precision", "layout", "timer", "architecture", "model", "batch"]
FEWEST = 20
HIDDEN = 1e-6
"""Share of the kernels in the latency below which their time is hidden by that of the host."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Models of one GPU, mode and split; all but `n` in percent of the measured time.

    Attributes:
        question: property that was held out of the fits.
        gpu: GPU, with its slice if any.
        mode: "eager" or "compiled".
        n: number of models under their conditions.
        operators, fusion, host, left_over: means of the parts.
        operators_off: mean absolute error of the operators alone.
        whole_off: mean absolute error of the whole prediction.
    """

    question: str
    gpu: str
    mode: str
    n: int
    operators: float
    fusion: float
    host: float
    left_over: float
    operators_off: float
    whole_off: float


def parts_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per held-out model with its parts in ms; see the top of this module."""
    wanted = (rows["kind"] == "model") & rows["split"].isin(list(SPLITS))
    models = rows[wanted & (rows["timer"] != "wall+copy")].copy()
    models["mig"] = models["mig"].fillna("")
    launched = models["host_share"].to_numpy() * (models["timer"] != "kernel").to_numpy()
    rest = 1 - np.minimum(launched, 1.0) ** OVERLAP_POWER
    models["kernels_ms"] = models["predicted_ms"] * rest ** (1 / OVERLAP_POWER)
    models = models[rest > HIDDEN]
    columns = ["measured_ms", "predicted_ms", "kernels_ms"]
    found = models.groupby([*KEY, "mode"], as_index=False)[columns].mean()
    eager = found[found["mode"] == "eager"].assign(operators_ms=lambda t: t["kernels_ms"])
    fused = found[found["mode"] == "compiled"].merge(
        eager[[*KEY, "operators_ms"]], on=KEY, how="inner"
    )
    both = pd.concat([eager, fused], ignore_index=True)
    both["fusion_ms"] = both["operators_ms"] - both["kernels_ms"]
    both["host_ms"] = both["predicted_ms"] - both["kernels_ms"]
    both["left_over_ms"] = both["measured_ms"] - both["predicted_ms"]
    return both


def sums_of(rows: pd.DataFrame) -> Iterator[Sums]:
    """Yield the sums of each split, GPU and mode with enough models."""
    for (split, gpu, mig, mode), mine in parts_of(rows).groupby(["split", "gpu", "mig", "mode"]):
        if len(mine) < FEWEST:
            continue
        share = {
            name: 100 * mine[f"{name}_ms"] / mine["measured_ms"]
            for name in ("operators", "fusion", "host", "left_over", "predicted")
        }
        yield Sums(
            question=SPLITS[str(split)],
            gpu=f"{gpu} {mig}".strip(),
            mode=str(mode),
            n=len(mine),
            operators=float(share["operators"].mean()),
            fusion=float(share["fusion"].mean()),
            host=float(share["host"].mean()),
            left_over=float(share["left_over"].mean()),
            operators_off=float((share["operators"] - 100).abs().mean()),
            whole_off=float((share["predicted"] - 100).abs().mean()),
        )


def table_of(found: list[Sums]) -> Table:
    """Return the sums for a terminal."""
    names = [name.replace("_", " ") for name in Sums.__dataclass_fields__]
    table = Table(*names, title="percent of the measured time")
    for one in found:
        table.add_row(
            *(f"{v:.1f}" if isinstance(v, float) else str(v) for v in asdict(one).values())
        )
    return table


def main(
    work: Annotated[Path, typer.Argument(help="folder with held_out.parquet")],
    results: Annotated[Path | None, typer.Option(help="JSON file to write")] = None,
) -> None:
    """Print the sums."""
    console = Console(width=None if Console().is_terminal else 170, highlight=False)
    found = list(sums_of(read_held_out(work)))
    console.print(table_of(found))
    if results is not None:
        lines = ",\n".join(f" {json.dumps(_rounded(one))}" for one in found)
        results.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _rounded(one: Sums) -> dict[str, Any]:
    return {n: round(v, 2) if isinstance(v, float) else v for n, v in asdict(one).items()}


if __name__ == "__main__":
    typer.run(main)
