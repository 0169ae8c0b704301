"""Measured whole models against their kernels at peak rates: do the kernels that we read fit?

    python -m training.studies.kernels_at_peak --data DATA --graphs GRAPHS --work WORK

WORK is the folder of the training's examples. The slow-down of a family of models over its kernels
at peak rates is about the same in every table. Where it is not, the models were measured under
conditions that the table does not state, or launch other kernels than those that we count; and
nothing is faster than its memory allows. So it was found that timm's tables of
the RTX 3090 and 4090 hold norms in half precision, where autocast widens them: one in six rows of
the 4090 was faster than its widened kernels can be, and one in a hundred of the 5090.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from training.hybrid.rows.examples import Examples
from training.hybrid.rows.sources import load_examples

BATCH = 16
"""Batch from which the GPU decides the time of most models."""
FEWEST = 4
"""Rows of a family in a table that say something."""
ODD = 1.25
"""Factor by which a family stands out."""


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    work: Annotated[Path, typer.Option(help="cache of the training's examples")] = Path("build"),
) -> None:
    """Print rows faster than their kernels at peak rates, and families that stand out."""
    found = slowdowns(load_examples(data, graphs, work))
    by_table = found.groupby("table")["slowdown"]
    tables = by_table.quantile([0.05, 0.5, 0.95]).unstack().round(2)
    tables["faster than at peak %"] = (100 * by_table.agg(lambda s: (s < 1).mean())).round(1)
    typer.echo(tables.to_string())
    typer.echo(f"\nFamilies off their median over tables by a factor of {ODD} and more:")
    typer.echo(odd_families(found).to_string(index=False))


def slowdowns(examples: Examples) -> pd.DataFrame:
    """Return the whole models at batches from BATCH on: table, mode, family, slow-down.

    The slow-down is the measured time over that of the kernels at peak rates.
    """
    rows = examples.rows
    peak_ms = examples.class_roofline_ms().sum(axis=1) + examples.serial_ms
    found = pd.DataFrame(
        {
            "table": [f"{r.table}{' nhwc' if r.channels_last else ''}" for r in rows],
            "mode": [r.mode for r in rows],
            "family": [r.family for r in rows],
            "slowdown": np.array([r.latency_ms for r in rows]) / peak_ms,
        }
    )
    asked = [r.is_model and r.mig is None and r.batch >= BATCH for r in rows]
    return found[asked].reset_index(drop=True)


def odd_families(found: pd.DataFrame) -> pd.DataFrame:
    """Return families of a table whose slow-down differs from that of other tables, worst first.

    Each is compared with the median over the tables of its mode, what all families of a table have
    in common left aside.

    Args:
        found: rows of `slowdowns`.

    Returns:
        Columns table, family, n, factor: above 1 slower than in other tables.
    """
    log = np.log(found["slowdown"])
    cells = log.groupby([found["mode"], found["table"], found["family"]]).agg(["median", "size"])
    cells = cells[cells["size"] >= FEWEST].reset_index()
    cells["own"] = cells["median"] - cells.groupby("table")["median"].transform("median")
    alike = cells.groupby(["mode", "family"])["own"]
    cells["factor"] = np.exp(cells["own"] - alike.transform("median")).round(2)
    shared = alike.transform("size") > 1
    odd = cells[shared & (np.abs(np.log(cells["factor"])) >= np.log(ODD))]
    odd = odd.iloc[np.argsort(-np.abs(np.log(odd["factor"])), kind="stable")]
    return odd.rename(columns={"size": "n"})[["table", "family", "n", "factor"]]


if __name__ == "__main__":
    typer.run(main)
