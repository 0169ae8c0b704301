"""Why D3.5's memory labels lie far above ours: they fit a forward pass that keeps every result.

    python -m training.studies.seed_memory --data ../shared/data --graphs GRAPHS

Without `torch.no_grad`, PyTorch keeps what a backward pass would need. For each row of D3.5's
table 4 this prints the measured memory beside the sum of all results and beside the peak of what
inference keeps alive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from dataset.join.graph_store import GraphStore
from dippm.graph.liveness import peak_activation_bytes
from dippm.graph.model_graph import ModelGraph
from dippm.models.memory import MIB

MODELS = {
    "densenet121": "timm:densenet121@224",
    "swin_base_patch4": "timm:swin_base_patch4_window7_224@224",
    "convnext_base": "timm:convnext_base@224",
}


def kept_mb(graph: ModelGraph) -> float:
    """Return the sum of all results, folded batch norms included, and of the parameters, in MB."""
    results = sum(n.bytes_written * (1 + n.absorbed.count("batch_norm")) for n in graph.nodes)
    return (results + graph.param_bytes) / MIB


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
) -> None:
    """Print the table."""
    rows = pd.read_csv(data / "seeds_reported.csv")
    rows = rows[(rows["table"] == "T4") & (rows["quantity"] == "mem_MB_7g")]
    store = GraphStore(graphs)
    table = Table("model", "batch", "D3.5 measured MB", "every result kept MB", "alive at once MB")
    for row in rows.itertuples():
        graph = store[MODELS[row.model]].at_batch(int(row.batch))
        alive = (peak_activation_bytes(graph) + graph.param_bytes) / MIB
        cells = (row.actual, kept_mb(graph), alive)
        table.add_row(row.model, str(int(row.batch)), *(f"{cell:,.0f}" for cell in cells))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
