"""Raw graphs + labels → the training table, its splits, and a manifest of how it came about.

    python -m dataset.build --graphs GRAPHS --out build/dataset

Written to the output folder:

* `models.jsonl`: one line for each model: architecture, family, totals, or why it has no graph.
  A second run reads what is there and adds what is missing.
* `rows.parquet`: every measured row of a model that has a graph, with the columns of
  `dataset.table` first and the model's keys and totals behind.
* `splits/<name>.json`: S0, S1, S2 and S2-20 of the reference table (RTX 3090, torch 2.4, autocast,
  eager, nchw), S3a of one such table for each of three GPUs.
* `manifest.json`: sources with their SHA-256, counts, what was excluded and why.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from dataset import raw_graphs, splits
from dataset.kinship import architecture_id, family_of, family_version
from dataset.location import data_dir
from dataset.sources import all_sources
from dippm.errors import DippmError
from dippm.graph import build as build_graph
from dippm.graph.model_graph import GRAPH_VERSION, ModelGraph
from dippm.graph.operators import operator
from dippm.relax.raw_graph import RawGraph

SOURCES = ("timm_infer", "timm_train", "pytorch_gpu_benchmark")
TOTALS = (
    "macs_per_sample",
    "flops_per_sample",
    "elements_per_sample",
    "param_bytes",
    "n_operators",
    "n_compute",
    "n_conv",
    "n_dense",
    "n_relu",
)
REFERENCE = {
    "source": "timm_infer",
    "gpu": "RTX-3090",
    "software": "torch 2.4.0, cuda 12.4",
    "mode": "eager",
    "layout": "nchw",
}
"""The table on which predictors are compared: 1,443 rows, one batch for each model and size."""

GPU_SOFTWARE = {
    "RTX-3090": "torch 2.4.0, cuda 12.4",
    "RTX-4090": "torch 2.4.0, cuda 12.4",
    "RTX-5090": "torch 2.9.1, cuda 13.0",
}


def describe(spec: str, graphs: Path) -> dict[str, Any]:
    """Return the keys and totals of a model, or the reason why there are none.

    Args:
        spec: for instance "timm:resnet50@224".
        graphs: folder that `dataset.raw_graphs` filled.
    """
    record: dict[str, Any] = {"model": spec, "graph_version": GRAPH_VERSION}
    try:
        raw = raw_graphs.read(spec, graphs)
        graph = build_graph(raw)
    except (DippmError, FileNotFoundError) as error:
        return {**record, "error": str(error).splitlines()[0]}
    return {
        **record,
        "arch_id": architecture_id(graph),
        "family_id": family_of(spec),
        **totals(graph),
        "unknown_ops": dict(graph.unknown_ops),
        "graph_sha256": _sha256_of_graph(raw),
    }


def totals(graph: ModelGraph) -> dict[str, float]:
    """Return the sums that predictors without a graph see, for one sample."""
    written = sum(node.bytes_written for node in graph.nodes)
    compute = sum(operator(node.op).category == "compute" for node in graph.nodes)
    count = graph.histogram()
    return {
        "macs_per_sample": graph.macs / graph.batch,
        "flops_per_sample": graph.flops / graph.batch,
        "elements_per_sample": written / 4 / graph.batch,
        "param_bytes": graph.param_bytes,
        "n_operators": len(graph.nodes),
        "n_compute": compute,
        "n_conv": sum(n for op, n in count.items() if op.startswith("conv")),
        "n_dense": count.get("dense", 0),
        "n_relu": count.get("relu", 0),
    }


def describe_all(
    specs: Iterable[str], graphs: Path, cache: Path, workers: int = 2
) -> Iterator[dict[str, Any]]:
    """Describe models, keeping results in a file of JSON lines; yields each as it is known.

    Results of another graph version, and models that had no raw graph, are made again.
    """
    known = {}
    if cache.is_file():
        lines = (json.loads(line) for line in cache.read_text(encoding="utf-8").splitlines())
        known = {r["model"]: r for r in lines if _is_current(r)}
    todo = [spec for spec in specs if spec not in known]
    yield from (known[spec] for spec in specs if spec in known)
    cache.parent.mkdir(parents=True, exist_ok=True)
    with cache.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in known.values())
        file.flush()
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            for record in pool.imap_unordered(partial(describe, graphs=graphs), todo, chunksize=4):
                file.write(json.dumps(record) + "\n")
                file.flush()
                yield record


def join(rows: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """Return the measured rows whose model has a graph, with its keys and totals."""
    usable = models[models["arch_id"].notna()]
    columns = ["model", "arch_id", "family_id", *TOTALS]
    return rows.merge(usable[columns], on="model", how="inner", validate="many_to_one")


def reference_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the reference table, in a fixed order."""
    chosen = pd.Series(True, index=table.index)
    for column, value in REFERENCE.items():
        chosen &= table[column] == value
    return table[chosen].sort_values("row_id").reset_index(drop=True)


def gpu_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return one eager nchw table for each GPU of timm, its software as recent as the others'."""
    recent = pd.Series(
        list(zip(table["gpu"], table["software"], strict=True)), index=table.index
    ).isin(GPU_SOFTWARE.items())
    chosen = recent & (table["source"] == "timm_infer") & (table["mode"] == "eager")
    chosen &= table["layout"] == "nchw"
    return table[chosen].sort_values("row_id").reset_index(drop=True)


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
    """Return what the table was made of, with what was left out and why."""
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
        "models": len(models),
        "models_with_graph": int(models["arch_id"].notna().sum()),
        "architectures": int(models["arch_id"].nunique()),
        "families_present": int(models["family_id"].nunique()),
        "excluded": [{"reason": r, "models": n} for r, n in reasons.most_common()],
        "excluded_rows": len(lost),
        "excluded_models": sorted(failed["model"]),
    }


def _is_current(record: dict[str, Any]) -> bool:
    current = record.get("graph_version") == GRAPH_VERSION and "error" not in record
    return current and set(TOTALS) <= set(record)


def _sha256_of_graph(raw: RawGraph) -> str:
    return hashlib.sha256(raw.to_json().encode()).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    (arguments.out / "manifest.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    print(
        f"{len(table):,} of {len(rows):,} rows, {document['models_with_graph']:,} models,"
        f" {document['architectures']:,} architectures in {arguments.out}"
    )


if __name__ == "__main__":
    main()
