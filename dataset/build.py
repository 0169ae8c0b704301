"""Raw graphs + labels → the training table, its splits, and a manifest of its origin.

    python -m dataset.build --graphs GRAPHS --out build/dataset

Written to the output folder:

* `models.jsonl`: one line per model: architecture, family, totals, or the reason for a missing
  graph. A second run keeps existing lines and adds missing ones.
* `rows.parquet`: every measured row of a model with a graph: the columns of
  `dataset.measured.table`, then the model's keys and totals.
* `splits/<name>.json`: S0, S1, S2 and S2-20 of the reference table (RTX 3090, torch 2.4, autocast,
  eager, nchw), S3a of one such table for each of three GPUs.
* `manifest.json`: sources with their SHA-256, counts, exclusions and their reasons.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from dataset.join import raw_graphs, splits
from dataset.join.grouping import family_version
from dataset.join.manifest import counts_of, sha256_of_file, write_json
from dataset.join.models import describe_all, join
from dataset.measured.location import data_dir
from dataset.measured.reference import gpu_rows, reference_rows
from dataset.measured.sources import all_sources
from dippm.model.graph.model_graph import GRAPH_VERSION

SOURCES = ("timm_infer", "timm_train", "pytorch_gpu_benchmark")


def standard_splits(table: pd.DataFrame) -> list[splits.Split]:
    """Return S0, S1, S2 and S2-20 of a table of whole models."""
    return [
        splits.random_split(table),
        splits.by_architecture(table),
        splits.family_out(table),
        splits.family_out(table, 20),
    ]


def manifest(
    rows: pd.DataFrame, models: pd.DataFrame, table: pd.DataFrame, folder: Path
) -> dict[str, Any]:
    """Return the manifest: sources, counts, exclusions and their reasons."""
    failed = models[models["arch_id"].isna()]
    reasons = Counter(str(error).split("could not be converted: ")[-1] for error in failed["error"])
    lost = rows[~rows["model"].isin(table["model"])]
    return {
        "schema": 1,
        "graph_version": GRAPH_VERSION,
        "families": family_version(),
        "sources": [
            {
                "id": name,
                "origin": source.origin,
                "licence": source.licence,
                "files": {path.name: sha256_of_file(path) for path in source.paths(folder)},
                "rows": int((rows["source"] == name).sum()),
                "rows_with_graph": int((table["source"] == name).sum()),
            }
            for name, source in all_sources().items()
            if name in set(rows["source"])
        ],
        **counts_of(models),
        "excluded": [{"reason": r, "models": n} for r, n in reasons.most_common()],
        "excluded_rows": len(lost),
        "excluded_models": sorted(failed["model"]),
    }


def main() -> None:
    """Build the training table of whole models."""
    from rich.progress import track

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--graphs", type=Path, default=raw_graphs.cache_dir())
    parser.add_argument("--data-dir", type=Path, help="folder of the measured tables")
    parser.add_argument("--out", type=Path, default=Path("build/dataset"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sources", nargs="+", default=SOURCES)
    arguments = parser.parse_args()
    folder = data_dir(arguments.data_dir)
    rows = pd.concat(
        [all_sources()[name].read(folder) for name in arguments.sources], ignore_index=True
    )
    specs = list(dict.fromkeys(rows["model"]))
    described = describe_all(
        specs, arguments.graphs, arguments.out / "models.jsonl", arguments.workers
    )
    models = pd.DataFrame(list(track(described, total=len(specs), description="graphs")))
    table = join(rows, models)
    table.to_parquet(arguments.out / "rows.parquet", compression="zstd")
    by_gpu = splits.one_out(gpu_rows(table), "S3a", "gpu")
    for split in [*standard_splits(reference_rows(table)), by_gpu]:
        split.save(arguments.out / "splits" / f"{split.name}.json")
    document = manifest(rows, models, table, folder)
    write_json(arguments.out / "manifest.json", document)
    print(
        f"{len(table):,} of {len(rows):,} rows, {document['models_with_graph']:,} models,"
        f" {document['architectures']:,} architectures in {arguments.out}"
    )


if __name__ == "__main__":
    main()
