"""The sum of a model's measured operators compared with its measured time, as in the thesis.

    python -m training.studies.measured_operators dataset/data/DEVICE [--results FILE]

The folder is a collected set with kernel tables: one step of each point was profiled after all
timing, so that every operator (on a GPU every kernel) of the same network was measured, by part of
the step. The remaining time lies between them: dispatch and Python, on a GPU a device that waits
for the host. Profiling makes small operators slower, so a sum may exceed the whole. Shares are
medians over models, in percent of the mean time of a step; "off" is the mean absolute error of the
sum, "tenth" and "ninth" are its 10th and 90th percentile.

Energy is measured for whole steps only: no counter resolves operators of some microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from dippm.errors import DippmError
from dippm.measure.collected.rows import collected
from dippm.measure.kernels import Part

PARTS: tuple[str, ...] = get_args(Part)
KEY = ["device", "mode", "phase"]


@dataclass(frozen=True, slots=True)
class MeasuredSums:
    """Models of one device, mode and phase; all but `n` in percent of the measured time.

    Attributes:
        device: device of the measurements.
        mode: "eager" or "compiled".
        phase: "inference" or "train".
        n: number of points.
        parts: median time of the operators of each part of the step.
        operators: median time of all operators.
        tenth, ninth: 10th and 90th percentile of `operators`.
        between: median time between the operators.
        off: mean absolute error of the sum of operators.
    """

    device: str
    mode: str
    phase: str
    n: int
    parts: dict[str, float]
    operators: float
    tenth: float
    ninth: float
    between: float
    off: float


def parts_of(folder: Path) -> pd.DataFrame:
    """Return the time of all operators by row id and part of the step, in ms.

    Raises:
        DippmError: if the set has no kernel tables.
    """
    files = sorted(folder.glob("kernels-*.parquet"))
    if not files:
        raise DippmError(
            f"{folder} has no kernel tables in Parquet",
            "Sets of an early schema have none; `python -m dataset.collect` writes them.",
        )
    columns = ["row_id", "part", "ns"]
    kernels = pd.concat([pd.read_parquet(path, columns=columns) for path in files])
    sums = kernels.groupby(["row_id", "part"])["ns"].sum().unstack(fill_value=0) / 1e6
    return sums.reindex(columns=[part for part in PARTS if part in sums.columns])


def measured_sums(folder: Path) -> Iterator[MeasuredSums]:
    """Yield the sums of each device, mode and phase of a set."""
    rows = collected(folder).rows
    models = rows[(rows["status"] == "ok") & (rows["kind"] == "model")]
    parts = parts_of(folder)
    joined = models.set_index("row_id")[[*KEY, "latency_ms"]].join(parts, how="inner")
    shares = 100 * joined[list(parts.columns)].div(joined["latency_ms"], axis=0)
    for (device, mode, phase), places in joined.groupby(KEY).groups.items():
        mine = shares.loc[places]
        whole = mine.sum(axis=1)
        yield MeasuredSums(
            device=str(device),
            mode=str(mode),
            phase=str(phase),
            n=len(mine),
            parts={name: float(mine[name].median()) for name in parts.columns if mine[name].any()},
            operators=float(whole.median()),
            tenth=float(whole.quantile(0.1)),
            ninth=float(whole.quantile(0.9)),
            between=float((100 - whole).median()),
            off=float((whole - 100).abs().mean()),
        )


def table_of(found: list[MeasuredSums]) -> Table:
    """Return the sums for a terminal."""
    names = ("device", "mode", "phase", "n", "operators by part", "all", "10 % to 90 %", "between",
             "off")  # fmt: skip
    table = Table(*names, title="measured operators, percent of the measured time")
    for one in found:
        by_part = ", ".join(f"{name} {share:.1f}" for name, share in one.parts.items())
        spread = f"{one.tenth:.1f} to {one.ninth:.1f}"
        numbers = [f"{x:.1f}" for x in (one.operators, one.between, one.off)]
        table.add_row(one.device, one.mode, one.phase, str(one.n), by_part, numbers[0], spread,
                      *numbers[1:])  # fmt: skip
    return table


def main(
    folder: Annotated[Path, typer.Argument(help="a set of ours")],
    results: Annotated[Path | None, typer.Option(help="JSON file to write")] = None,
) -> None:
    """Print the sums."""
    console = Console(width=None if Console().is_terminal else 170, highlight=False)
    found = list(measured_sums(folder))
    console.print(table_of(found))
    if results is not None:
        lines = ",\n".join(f" {json.dumps(_rounded(one))}" for one in found)
        results.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _rounded(one: MeasuredSums) -> dict[str, Any]:
    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rounded(v) for name, v in value.items()}
        return round(value, 2) if isinstance(value, float) else value

    return {name: rounded(value) for name, value in asdict(one).items()}


if __name__ == "__main__":
    typer.run(main)
