"""Published measured labels: forward passes on a whole A100, each row with its graph.

    python -m dataset.d35.measured FOLDER

No public table has memory, latency and energy of one pass, so a row has the measured targets and
null for the others. The conditions are those of its table, not `labels.CONDITIONS`: without results
kept for a backward pass, some with the copy of the input in the time.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pandas as pd

from dataset.d35.graphs import RAW, row_of, schema, write_parquet
from dataset.join import raw_graphs, shipped_graphs
from dataset.join.grouping import family_of
from dataset.measured import sources
from dippm.errors import DippmError
from dippm.model.graph import build

FILE = "measured.parquet"
TABLES = ("pytorch_gpu_benchmark", "parvagpu", "migperf")
NAMES = {
    "migperf:resnet50": "torchvision:resnet50@224",
    "migperf:vision_transformer": "torchvision:vit_b_16@224",
}
"""Our names for models that a table names differently."""
WHOLE = ("7g.40gb", "7g.80gb")
PRECISIONS = ("fp32", "tf32")
CONDITIONS = ("source", "row_id", "gpu", "timer", "precision", "software")
TARGETS = ("memory_mb", "latency_ms", "energy_j")


def measured_rows(data: Path | None = None) -> pd.DataFrame:
    """Return forward passes on a whole A100 in float32 or TF32, with the name of their graph.

    Args:
        data: folder of the measured tables; missing tables give no rows.
    """
    tables = [t for name in TABLES if (t := sources.read_if_there(name, data)) is not None]
    if not tables:
        return pd.DataFrame(columns=["model", *CONDITIONS, "batch", *TARGETS])
    rows = pd.concat(tables, ignore_index=True)
    rows = rows.assign(model=rows["model"].replace(NAMES), energy_j=float("nan"))
    alone = rows["n_gpus"].fillna(1) == 1
    if "processes_mps" in rows:
        alone &= rows["processes_mps"].fillna(1) == 1
    return rows[
        rows["gpu"].fillna("").str.startswith("A100")
        & rows["precision"].isin(PRECISIONS)
        & (rows["mode"] == "eager")
        & (rows["phase"] == "inference")
        & (rows["mig_profile"].isna() | rows["mig_profile"].isin(WHOLE))
        & rows["model"].fillna("").str.startswith(("timm:", "torchvision:"))
        & alone
    ].reset_index(drop=True)


def join(folder: Path, data: Path | None = None) -> tuple[Any, int]:
    """Return the measured rows with their graphs as an Arrow table, and the count without one.

    Args:
        folder: folder with raw graphs below `RAW`, to which shipped graphs are added.
        data: folder of the measured tables.
    """
    import pyarrow as pa

    rows = measured_rows(data)
    raw = folder / RAW
    shipped_graphs.unpack(rows["model"].unique(), raw)
    found = []
    for model, group in rows.groupby("model", sort=False):
        if not raw_graphs.path_of(str(model), raw).is_file():
            continue
        graph = build(raw_graphs.read(str(model), raw))
        family = family_of(str(model))
        for row in group.to_dict("records"):
            of_graph = row_of(str(model), family, graph.at_batch(int(row["batch"])))
            known = {name: row[name] for name in (*CONDITIONS, *TARGETS)}
            found.append({**of_graph, **{k: None if pd.isna(v) else v for k, v in known.items()}})
    texts = [pa.field(name, pa.string()) for name in CONDITIONS]
    numbers = [pa.field(name, pa.float64()) for name in TARGETS]
    table = pa.Table.from_pylist(found, pa.schema([*schema(), *texts, *numbers]))
    return table, len(rows) - len(found)


def main() -> None:
    """Write the measured rows with their graphs."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-dir", type=Path, help="folder of the measured tables")
    arguments = parser.parse_args()
    table, without = join(arguments.folder, arguments.data_dir)
    write_parquet(table, arguments.folder / FILE)
    print(
        f"{table.num_rows:,} measured rows in {arguments.folder / FILE}, {without:,} without graph"
    )


if __name__ == "__main__":
    try:
        main()
    except DippmError as error:
        sys.exit(f"error: {error}")
