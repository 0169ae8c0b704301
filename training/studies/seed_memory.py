"""D3.5's table 4 compared with our predictions: memory of forward passes without `torch.no_grad`.

    python -m training.studies.seed_memory --graphs GRAPHS [--checkpoint C]

Such a pass keeps the tensors of a backward pass: `autograd=True`. D3.5's measured memory is listed
with the prediction that a user gets, and with the smallest of D3.5's four slices for each: by Eq. 2
of the measurement, by the 99 % bound of the prediction. `--context-mb` states the context; that of
D3.5's installation follows from its own rows and is printed below the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

import dippm
from dataset.join.graph_store import GraphStore
from dippm.devices import find, seed_profile
from dippm.estimate.prediction import Prediction
from training.hybrid.rows.memory_samples import (
    INCONSISTENT_SEED,
    SEED_DEVICE,
    SEED_GRAPHS,
    SEED_TABLE,
)

SLICES = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")


@dataclass(frozen=True, slots=True)
class SeedRow:
    """A row of table 4.

    Attributes:
        model: name in D3.5.
        batch: samples per pass.
        predicted_mb: memory that D3.5 predicted.
        measured_mb: memory that D3.5 measured.
        under_autograd: our prediction of this pass.
        under_no_grad: our prediction of the pass under `torch.no_grad`.
    """

    model: str
    batch: int
    predicted_mb: float
    measured_mb: float
    under_autograd: Prediction
    under_no_grad: Prediction

    @property
    def is_consistent(self) -> bool:
        """Whether the measured memory agrees with the shares of slices that D3.5 prints."""
        return (self.model, self.batch) != INCONSISTENT_SEED

    @property
    def error(self) -> float:
        """Predicted over measured memory, minus 1."""
        return (self.under_autograd.memory_mb or 0.0) / self.measured_mb - 1

    @property
    def slice(self) -> str:
        """The smallest of D3.5's slices that holds our 99 % bound; "" if none does."""
        bound_mb = self.under_autograd.memory_bound_mb or 0.0
        profiles = {p.name: p for p in find(SEED_DEVICE).mig_profiles}
        return next((name for name in SLICES if profiles[name].memory_mb >= bound_mb), "")

    @property
    def context_mb(self) -> float:
        """Measured memory beyond the allocator's part of our prediction, in MiB."""
        parts = self.under_autograd.memory_parts
        assert parts is not None
        return self.measured_mb - parts.reserved_mb


def seed_rows(
    graphs: GraphStore, checkpoint: Path | None, context_mb: str | None = None
) -> list[SeedRow]:
    """Return every row of table 4 with our predictions, as a user gets them."""
    table = pd.read_csv(SEED_TABLE)
    loaded = dippm.load(checkpoint, device=SEED_DEVICE)
    found = []
    for row in table.itertuples():
        graph, batch = graphs[SEED_GRAPHS[row.model]], int(row.batch)
        with_it, without = (
            loaded.predict(graph, batch=batch, autograd=autograd, context_mb=context_mb)
            for autograd in (True, False)
        )
        numbers = float(row.predicted), float(row.actual)
        found.append(SeedRow(row.model, batch, *numbers, with_it, without))
    return found


def main(
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    checkpoint: Annotated[Path | None, typer.Option(help="folder of a checkpoint")] = None,
    context_mb: Annotated[str | None, typer.Option(help="as of `dippm predict`")] = None,
) -> None:
    """Print the table, in Markdown."""
    rows = seed_rows(GraphStore(graphs), checkpoint, context_mb)
    columns = (
        *("model", "batch", "measured MB", "its slice", "D3.5 predicted MB"),
        *("`autograd=True` MB", "error %", "99 % bound MB", "slice", "under `no_grad` MB"),
    )
    typer.echo("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for row in rows:
        its, ours = seed_profile(row.measured_mb), row.under_autograd
        cells = (
            row.model + " \\*" * (not row.is_consistent),
            f"{row.batch}",
            f"{row.measured_mb:,.0f}",
            its.name if its else "none",
            f"{row.predicted_mb:,.0f}",
            f"{ours.memory_mb or 0.0:,.0f}",
            f"{100 * row.error:+.1f}",
            f"{ours.memory_bound_mb or 0.0:,.0f}",
            row.slice or "none",
            f"{row.under_no_grad.memory_mb or 0.0:,.0f}",
        )
        typer.echo("| " + " | ".join(cells) + " |")
    contexts = [row.context_mb for row in rows if row.is_consistent]
    typer.echo(
        "\n\\* contradicts the shares of its slices, which mean 3.1 to 3.2 GB.\n"
        f"Context of D3.5's installation by the other rows: {np.mean(contexts):,.0f} MB, "
        f"{min(contexts):,.0f} to {max(contexts):,.0f}."
    )


if __name__ == "__main__":
    typer.run(main)
