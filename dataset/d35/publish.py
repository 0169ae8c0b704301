"""The datasheet and the Croissant description of the folder, both generated.

python -m dataset.d35.publish FOLDER
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from dataset.cards.croissant import (
    CONFORMS_TO,
    CONTEXT,
    LICENCE_URL,
    file_object,
    record_set,
    text_of,
)
from dataset.d35 import labels, measured
from dataset.d35.graphs import VERSIONS, parts
from dataset.d35.graphs import schema as graph_schema
from dataset.d35.labels import fits
from dataset.d35.table1 import BATCHES, GRAPHS
from dataset.join.shipped_graphs import recorded_versions
from dippm import __version__
from dippm.errors import DippmError
from dippm.estimate.pretrained.model_card import table
from dippm.measure.columns import Column

KINDS = {
    "string": "text",
    "int32": "integer",
    "int64": "integer",
    "float": "real",
    "double": "real",
    "list<item: string>": "texts",
    "list<item: int32>": "integers",
    "list<item: float>": "reals",
    "list<element: string>": "texts",
    "list<element: int32>": "integers",
    "list<element: float>": "reals",
}
NAME = "dippm-d35-graphs"
DESCRIPTION = (
    "Graphs of neural networks of ten families in the proportions of deliverable D3.5 of MAELSTROM "
    "(its Table 1): 32 node features in post-order, data flow, and five static features. Labels "
    "for an A100-40GB are predicted, not measured; measured passes stand in a file of their own."
)


def files(folder: Path) -> dict[str, list[Path]]:
    """Return the Parquet files of a folder by content: graphs, labels, measured passes.

    Raises:
        DippmError: if there is no graph.
    """
    graphs = [part.path for part in parts(folder)]
    if not graphs:
        raise DippmError(f"no graphs in {folder}", "Make them with `python -m dataset.d35.graphs`.")
    return {
        "graphs": graphs,
        "labels": sorted((folder / labels.LABELS).glob("*/*.parquet")),
        "measured": sorted(folder.glob(measured.FILE)),
    }


def croissant(folder: Path) -> dict[str, Any]:
    """Return the Croissant document of a folder."""
    import pyarrow.parquet as pq

    found = files(folder)
    whats = {"graphs": "Graphs", "labels": labels.PROVENANCE.capitalize(), "measured": "Measured"}
    distribution = [
        file_object(path, folder, whats[kind]) for kind, paths in found.items() for path in paths
    ]
    records = []
    for kind, paths in found.items():
        for path in paths:
            of_file = columns(pq.read_schema(path))
            records.append(record_set(f"{kind}:{path.parent.name}/{path.name}", path, of_file))
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": NAME,
        "description": DESCRIPTION,
        "conformsTo": CONFORMS_TO,
        "license": LICENCE_URL,
        "citeAs": "The DIPPM authors: DIPPM, graphs of D3.5's families. See CITATION.cff.",
        "creator": {"@type": "sc:Organization", "name": "The DIPPM authors"},
        "keywords": ["deep learning", "performance", "graphs", "latency", "energy", "memory"],
        "version": __version__,
        "distribution": distribution,
        "recordSet": records,
    }


def columns(schema: Any) -> list[Column]:
    """Return the columns of an Arrow schema, with the meaning stored in each field."""
    return [
        Column(
            field.name,
            KINDS[str(field.type)],  # type: ignore[arg-type]
            (field.metadata or {}).get(b"about", b"as the source has it").decode(),
        )
        for field in schema
    ]


def datasheet(folder: Path) -> str:
    """Return the datasheet in Markdown."""
    import pyarrow.parquet as pq

    found = files(folder)
    keys = ["family", "model", "arch_id", "batch", "nodes"]
    rows = pd.concat(pd.read_parquet(path, columns=keys) for path in found["graphs"])
    failed = {model: why for part in parts(folder) for model, why in part.failed.items()}
    own = rows["model"].str.startswith("own:")
    lines = [
        {
            "family": name,
            "graphs": len(group := rows[rows["family"] == name]),
            "of D3.5": wanted,
            "architectures": group["arch_id"].nunique(),
            "models with their image size": group["model"].nunique(),
            "nodes": f"{group['nodes'].min()} to {group['nodes'].max()}" if len(group) else "–",
        }
        for name, wanted in GRAPHS.items()
    ]
    parts_of_text = [
        f"# {NAME} {__version__}",
        DESCRIPTION,
        f"## Composition\n\n{len(rows):,} of {sum(GRAPHS.values()):,} graphs. {own.mean():.0%} are "
        "members of `dataset.families`, the others models of timm "
        f"{recorded_versions()['timm']}, at batches {', '.join(map(str, BATCHES))} as far as their "
        "activations would fit into 40 GB. D3.5 says how many graphs each family has, not which; "
        f"the choice is ours (`dataset/d35/table1.py`).\n\n{table(lines)}",
        "## How it was made\n\nModels were built on PyTorch's meta device, without weights, and "
        "converted by TVM Relax; "
        + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in VERSIONS.items())
        + ". `python -m dataset.d35.graphs FOLDER`.",
        f"## Columns of graphs\n\n{_meanings(columns(graph_schema()))}",
        f"## Columns of labels\n\n{_meanings(columns(labels.schema()))}",
        f"## Labels\n\n{_about_labels(found['labels'])}",
    ]
    if found["measured"]:
        count = pq.read_metadata(found["measured"][0]).num_rows
        parts_of_text.append(
            f"## Measured passes\n\n{count:,} rows of {', '.join(measured.TABLES)}: forward passes "
            "on a whole A100 in float32 or TF32, with their graphs. Null is what nobody measured."
        )
    if failed:
        listed = [{"model": model, "reason": why.splitlines()[0]} for model, why in failed.items()]
        parts_of_text.append(f"## Not converted\n\n{table(listed)}")
    parts_of_text.append(
        "## Uses and limits\n\nComparing graph networks, and training surrogates of a predictor. "
        "An error against the labels says how well a network imitates the predictor that gave "
        "them, nothing of a GPU. Graphs of one model at several batches are near copies: a random "
        "split puts them on both sides; `arch_id` and `family` say what belongs together.\n\n"
        "Licence: CC-BY-4.0. This file is generated (`python -m dataset.d35.publish`)."
    )
    return "\n\n".join(parts_of_text) + "\n"


def _meanings(of_columns: Iterable[Column]) -> str:
    return table(
        [{"column": f"`{c.name}`", "type": c.kind, "meaning": c.about} for c in of_columns]
    )


def _about_labels(paths: list[Path]) -> str:
    import pyarrow.parquet as pq

    if not paths:
        return "None yet: `python -m dataset.d35.labels FOLDER`."
    lines = []
    for folder in sorted({path.parent for path in paths}):
        of_folder = [path for path in paths if path.parent == folder]
        about = json.loads(pq.read_schema(of_folder[0]).metadata[b"d35"])
        asked = ", ".join(f"{name} {value}" for name, value in about["conditions"].items())
        count = sum(pq.read_metadata(path).num_rows for path in of_folder)
        memory = pd.concat(pd.read_parquet(path, columns=["memory_mb"]) for path in of_folder)
        lines.append(
            f"* `{folder.name}`: {count:,} graphs, **{about['provenance']}**, by "
            f"{about['checkpoint']} ({asked}). By their label {(~fits(memory)).sum().iloc[0]:,} of "
            "them would not fit the GPU; training leaves those out"
        )
    return "\n".join(lines)


def main() -> None:
    """Write README.md and croissant.json into the folder."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    (folder / "README.md").write_text(datasheet(folder), encoding="utf-8")
    (folder / "croissant.json").write_text(text_of(croissant(folder)), encoding="utf-8")
    print(f"{folder / 'README.md'}, {folder / 'croissant.json'}")


if __name__ == "__main__":
    try:
        main()
    except DippmError as error:
        sys.exit(f"error: {error}")
