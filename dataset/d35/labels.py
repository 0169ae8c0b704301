"""Labels of the graphs by the default predictor: predicted, not measured.

    python -m dataset.d35.labels FOLDER

For an A100-40GB, eager float32 with the graph of the backward pass kept (`autograd`), as the
original was measured. Each part of graphs has a part of labels with the same name below
`labels/<checkpoint>-<version>-<digest>`, so labels of two checkpoints never mix. Existing parts are
kept, and a second call labels new graphs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from dataset.d35.graphs import RAW, Part, parts, write_parquet
from dataset.join import raw_graphs
from dippm.devices import find as find_device
from dippm.errors import DippmError
from dippm.estimate.conditions import Conditions
from dippm.estimate.pretrained import CheckpointInfo, find, load
from dippm.estimate.pretrained.store import CONFIG
from dippm.model.graph import build

LABELS = "labels"
TARGETS = ("memory_mb", "latency_ms", "energy_j")
PROVENANCE = "predicted, not measured"
CONDITIONS = {"device": "A100-40GB", "precision": "fp32", "mode": "eager", "autograd": True}
"""Conditions of the original: "a full A100 40GB GPU", and a forward pass that keeps its results,
which agrees with the memory in its Table 4."""


@dataclass(frozen=True, slots=True)
class LabelledPart:
    """A part of graphs with its labels.

    Attributes:
        path: path of the labels.
        part: part of the graphs.
        seconds: duration of the prediction; 0 for existing labels.
    """

    path: Path
    part: Part
    seconds: float = 0.0


def fits(memory_mb: Any) -> Any:
    """Return whether a pass with this memory would have run, for a number or an array."""
    return memory_mb <= find_device(str(CONDITIONS["device"])).memory_mb


def labels_folder(folder: Path, checkpoint: CheckpointInfo) -> Path:
    """Return the folder of a checkpoint's labels, named by everything its answers depend on."""
    digest = hashlib.sha256((checkpoint.path / CONFIG).read_bytes()).hexdigest()
    return folder / LABELS / f"{checkpoint.name}-{checkpoint.version}-{digest[:12]}"


def label(folder: Path, checkpoint: CheckpointInfo) -> Iterator[LabelledPart]:
    """Label the parts of a folder; yield each when it is done or found.

    Args:
        folder: folder written by `dataset.d35.graphs`.
        checkpoint: the predicting checkpoint.

    Raises:
        DippmError: if there is no part, or the checkpoint does not match the graphs.
    """
    import time

    found = parts(folder)
    if not found:
        raise DippmError(f"no graphs in {folder}", "Make them with `python -m dataset.d35.graphs`.")
    out = labels_folder(folder, checkpoint)
    for part in found:
        path = out / part.path.name
        begin = time.monotonic()
        if path.is_file():
            yield LabelledPart(path, part)
            continue
        write_parquet(_table(part, folder / RAW, checkpoint), path)
        yield LabelledPart(path, part, time.monotonic() - begin)


def _table(part: Part, raw: Path, checkpoint: CheckpointInfo) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pq.read_table(part.path, columns=["graph_id", "model", "batch"]).to_pylist()
    answers: list[dict[str, Any]] = []
    for model, group in groupby(rows, key=lambda row: row["model"]):
        of_model = list(group)
        predicted = predict(model, [row["batch"] for row in of_model], raw, checkpoint)
        answers += [
            {"graph_id": row["graph_id"], **values}
            for row, values in zip(of_model, predicted, strict=True)
        ]
    about = {
        "provenance": PROVENANCE,
        "checkpoint": f"{checkpoint.name} {checkpoint.version}",
        "sha256": checkpoint.config["sha256"],
        "conditions": CONDITIONS,
    }
    return pa.Table.from_pylist(answers, schema().with_metadata({"d35": json.dumps(about)}))


def predict(
    model: str, batches: list[int], raw: Path, checkpoint: CheckpointInfo
) -> Iterator[Mapping[str, float | None]]:
    """Yield the targets of a model at each batch, None for targets without an answer."""
    predictor = load(checkpoint.path).predictor
    device = find_device(str(CONDITIONS["device"]))
    points = [Conditions(device=device, batch=batch, autograd=True) for batch in batches]
    for estimates in predictor.predict_many(build(raw_graphs.read(model, raw)), points):
        yield {t: estimates.values[t].value if t in estimates.values else None for t in TARGETS}


def schema() -> Any:
    """Return the Arrow schema of a part of labels, with a description of each column."""
    import pyarrow as pa

    about = {
        "memory_mb": f"MiB that nvidia-smi would show, CUDA context included; {PROVENANCE}",
        "latency_ms": f"of a forward pass under torch.no_grad, wall time; {PROVENANCE}",
        "energy_j": f"of the board, in that pass; {PROVENANCE}",
    }
    named = pa.field("graph_id", pa.string(), nullable=False, metadata={"about": "of the graph"})
    return pa.schema(
        [named, *(pa.field(n, pa.float64(), metadata={"about": a}) for n, a in about.items())]
    )


def main() -> None:
    """Label the graphs that are there with predictions of a checkpoint."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--checkpoint", help="that predicts; the default one")
    arguments = parser.parse_args()
    done = 0
    for labelled in label(arguments.folder, find(arguments.checkpoint)):
        done += labelled.part.rows
        print(f"{labelled.path}: {done:,} labelled, {labelled.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    try:
        main()
    except DippmError as error:
        sys.exit(f"error: {error}")
