"""The 10,508 graphs of `table1`, in parts of Parquet.

    python -m dataset.d35.graphs FOLDER

A row is one model at one batch: the 32 features of each node in post-order, the data flow, and
equation 1. A model has a graph for each of `BATCHES` whose activations fit an A100-40GB, because
the original contains only runs that fit. Parts are written atomically, and a second call continues
where the first one ended; models that do not convert are skipped, with their reason.
"""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataset.d35.table1 import BATCHES, GRAPHS, models_of
from dataset.join import raw_graphs, shipped_graphs
from dataset.join.grouping import architecture_id
from dippm.errors import DippmError
from dippm.estimate.features import FEATURE_VERSION, encode
from dippm.estimate.features.encode import STATIC_COLUMNS
from dippm.model.graph import GRAPH_VERSION, ModelGraph, build

PARTS, RAW = "graphs", "raw"
MODELS_PER_PART = 40
CAPACITY_BYTES = 38 << 30
"""Maximum bytes of all operator results and parameters: an upper bound for a forward pass that
keeps everything, with 2 of the 40 GB reserved for the CUDA context."""
VERSIONS = {"graph_version": GRAPH_VERSION, "feature_version": FEATURE_VERSION}


@dataclass(frozen=True, slots=True)
class Part:
    """One file of graphs of a family.

    Attributes:
        path: path of the file.
        family: family of all of its graphs.
        number: number of the part within the family, from 0.
        following: first model of the next part, in the order of `models_of`.
        rows: number of graphs.
        failed: reason by name of a model that did not convert.
        versions: versions of the rules behind its graphs.
    """

    path: Path
    family: str
    number: int
    following: int
    rows: int
    failed: Mapping[str, str]
    versions: Mapping[str, str]


def make(
    folder: Path,
    graphs: Mapping[str, int] = GRAPHS,
    batches: Sequence[int] = BATCHES,
    *,
    models_per_part: int = MODELS_PER_PART,
    models: Callable[[str], Sequence[str]] = models_of,
) -> Iterator[Part]:
    """Write the missing parts of a folder; yield each part when it is done or found.

    Args:
        folder: folder with parts below `PARTS` and raw graphs below `RAW`.
        graphs: required number of graphs by family.
        batches: batches of each model.
        models_per_part: maximum number of models converted together.
        models: function from a family to its models, in order of use.

    Raises:
        DippmError: if the folder has parts of other versions, or a family has too few models.
    """
    shipped_graphs.unpack([m for name in graphs for m in models(name)], folder / RAW)
    for name, wanted in graphs.items():
        done = parts(folder, name)
        yield from done
        candidates, have = models(name), sum(part.rows for part in done)
        begin = done[-1].following if done else 0
        while have < wanted:
            if begin >= len(candidates):
                raise DippmError(
                    f"{name} has {have:,} of {wanted:,} graphs, and no further model",
                    "Give dataset/d35/table1.py more sizes or batches.",
                )
            needed = math.ceil((wanted - have) / len(batches))
            chosen = candidates[begin : begin + min(needed, models_per_part)]
            begin += len(chosen)
            part = _write(folder, name, len(done), chosen, begin, batches, wanted - have)
            done.append(part)
            have += part.rows
            yield part


def parts(folder: Path, family: str | None = None) -> list[Part]:
    """Return the parts of a folder in order, or those of one family.

    Raises:
        DippmError: if a part is of other versions.
    """
    import pyarrow.parquet as pq

    found = []
    for path in sorted((folder / PARTS).glob(f"{family or '*'}-*.parquet")):
        schema = pq.read_schema(path)
        about = json.loads(schema.metadata[b"d35"])
        part = Part(path, rows=pq.read_metadata(path).num_rows, **about)
        if part.versions != VERSIONS:
            raise DippmError(
                f"{path} was made with {part.versions}, this is {VERSIONS}",
                "Make the graphs in another folder.",
            )
        found.append(part)
    return found


def graphs_of(model: str, raw: Path, batches: Sequence[int] = BATCHES) -> Iterator[ModelGraph]:
    """Yield a model at each batch whose activations and parameters fit.

    Args:
        model: name of the model.
        raw: folder of raw graphs.
        batches: batches in ascending order.

    Raises:
        FileNotFoundError: if it was not converted.
        DippmError: if it has no graph.
    """
    graph = build(raw_graphs.read(model, raw))
    for batch in batches:
        at_batch = graph.at_batch(batch)
        written = sum(node.bytes_written for node in at_batch.nodes)
        if written + at_batch.param_bytes > CAPACITY_BYTES:
            return
        yield at_batch


def row_of(model: str, family: str, graph: ModelGraph) -> dict[str, Any]:
    """Return the row of a graph, see `schema`."""
    tensors = encode(graph)
    static = tensors.static[0].tolist()
    return {
        "graph_id": f"{model}/{graph.batch}",
        "family": family,
        "model": model,
        "arch_id": architecture_id(graph),
        "batch": graph.batch,
        "nodes": len(graph.nodes),
        "operators": [node.op for node in graph.nodes],
        "x": tensors.x.flatten().numpy(),
        "edge_from": tensors.edge_index[0].int().numpy(),
        "edge_to": tensors.edge_index[1].int().numpy(),
        **dict(zip(STATIC_COLUMNS, static, strict=True)),
        "param_bytes": graph.param_bytes,
    } | {"batch": graph.batch}


def schema() -> Any:
    """Return the Arrow schema of a part, with a description of each column."""
    import pyarrow as pa

    def column(name: str, kind: Any, about: str) -> Any:
        return pa.field(name, kind, nullable=False, metadata={"about": about})

    return pa.schema(
        [
            column("graph_id", pa.string(), "model and batch"),
            column("family", pa.string(), "of D3.5's Table 1"),
            column("model", pa.string(), "name and image size: timm's, or own:family(...)@sizes"),
            column("arch_id", pa.string(), "same for graphs that differ in sizes of input only"),
            column("batch", pa.int32(), "samples of a forward pass; also in equation 1"),
            column("nodes", pa.int32(), "operators, N"),
            column("operators", pa.list_(pa.string()), "canonical operator of each node, (N,)"),
            column("x", pa.list_(pa.float32()), "node features in post-order, (N, 32) by rows"),
            column("edge_from", pa.list_(pa.int32()), "producer of each data flow, (E,)"),
            column("edge_to", pa.list_(pa.int32()), "consumer of each data flow, (E,)"),
            column("macs", pa.float64(), "equation 1: multiply-accumulates"),
            column("convs", pa.float64(), "equation 1: convolutions"),
            column("denses", pa.float64(), "equation 1: dense layers"),
            column("relus", pa.float64(), "equation 1: ReLUs"),
            column("param_bytes", pa.int64(), "of the weights"),
        ]
    )


def _write(
    folder: Path,
    family: str,
    number: int,
    models: Sequence[str],
    following: int,
    batches: Sequence[int],
    most: int,
) -> Part:
    import pyarrow as pa
    import pyarrow.parquet as pq

    failed = {o.spec: o.error for o in raw_graphs.build(models, folder / RAW, 1) if o.error}
    rows: list[dict[str, Any]] = []
    for model in models:
        if model in failed or len(rows) >= most:
            continue
        try:
            rows += [
                row_of(model, family, graph) for graph in graphs_of(model, folder / RAW, batches)
            ]
        except DippmError as error:
            failed[model] = error.message
    del rows[most:]
    about = {
        "family": family,
        "number": number,
        "following": following,
        "failed": failed,
        "versions": VERSIONS,
    }
    path = folder / PARTS / f"{family}-{number:04d}.parquet"
    table = pa.Table.from_pylist(rows, schema().with_metadata({"d35": json.dumps(about)}))
    write_parquet(table, path)
    return Part(path, rows=pq.read_metadata(path).num_rows, **about)  # type: ignore[arg-type]


def write_parquet(table: Any, path: Path) -> None:
    """Write a table under a temporary name and rename it, so that a file is never partial."""
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    pq.write_table(table, unfinished, compression="zstd", compression_level=9)
    unfinished.replace(path)


def main() -> None:
    """Make the graphs of D3.5's Table 1, or those that are missing in the folder."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    done: dict[str, int] = {}
    total = sum(GRAPHS.values())
    for part in make(arguments.folder):
        done[part.family] = done.get(part.family, 0) + part.rows
        print(
            f"{part.family}: {done[part.family]:,} of {GRAPHS[part.family]:,} graphs;"
            f" {sum(done.values()):,} of {total:,} in all",
            flush=True,
        )
        for model, reason in part.failed.items():
            print(f"not converted: {model}: {reason.splitlines()[0][:120]}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except DippmError as error:
        sys.exit(f"error: {error}")
