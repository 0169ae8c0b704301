"""Collected rows + graphs → one training table per device, its splits and its manifest.

    python -m dataset.build_collected dataset/data/<device> --out build/collected/<device>

Models are converted here, on a machine without a GPU, by the names in the rows; a second run
converts only missing ones. Written to the output folder:

* `rows.parquet`: usable rows of models with a graph: the columns of `dataset.measured.table`, then
  the collector's, then the model's keys and totals.
* `models.jsonl`: one line per model: architecture, family, totals, or the reason for a missing
  graph.
* `graphs.json`: model → file of its raw graph.
* `splits/<phase>/S0.json`, `S1.json`, `S2.json`, `S2-5.json`.
* `manifest.json`: counts, exclusions with reasons, failures, noise floor, SHA-256 of the shards.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dataset.collected.join import build
from dataset.join import raw_graphs
from dippm.errors import DippmError


def main() -> None:
    """Join a collected folder with graphs, and write table, splits and manifest."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="that the collector wrote")
    parser.add_argument("--graphs", type=Path, default=raw_graphs.cache_dir())
    parser.add_argument("--out", type=Path, help="build/collected/<name of the folder>")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    out = arguments.out or Path("build/collected") / arguments.folder.resolve().name
    try:
        document = build(arguments.folder, arguments.graphs, out, arguments.workers)
    except DippmError as error:
        sys.exit(f"error: {error}")
    print(
        f"{document['rows_joined']:,} of {document['rows']:,} rows,"
        f" {document['models_with_graph']:,} of {document['models']:,} models with a graph,"
        f" {document['architectures']:,} architectures,"
        f" {document['families_present']} families in {out}"
    )
    for excluded in document["excluded"]:
        print(f"left out: {excluded['rows']:,} rows: {excluded['reason']}")


if __name__ == "__main__":
    main()
