"""Training examples of `pmgns`: our graphs of timm models, with the latency that was measured.

No public table has memory and energy of vision graphs, so their targets are missing (NaN) and the
joint loss leaves them out.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch
from rich.progress import track
from safetensors import safe_open
from safetensors.torch import save_file

from dataset.join.grouping import architecture_id, family_of
from dataset.measured.location import DataNotFoundError, data_dir
from dataset.measured.sources.timm import SOURCES
from dippm.estimate.features import FEATURE_VERSION, GraphTensors
from dippm.estimate.models.pmgns import network_inputs
from dippm.estimate.models.pmgns_network import PmgnsConfig
from dippm.model.graph import GRAPH_VERSION, build
from dippm.model.relax.raw_graph import RawGraph

GPU = "RTX-3090"
SOFTWARE = "torch 2.4.0"
SAVED_TOGETHER = 100


@dataclass(frozen=True, slots=True)
class Examples:
    """Graphs and labels, position by position.

    Attributes:
        graphs: encoded at the measured batch.
        targets: (G, T) float32 in physical units, NaN where there is no label.
        rows: row ids of the measured table, see `dataset.measured.table`.
        models: row names, for instance "timm:resnet50@224".
        architectures: architecture ids, see `dataset.join.grouping.architecture_id`.
        families: family ids, see `dataset.join.grouping.family_of`.
        operators: every canonical operator that occurs.
        graph_version: version of the canonical rules.
    """

    graphs: list[GraphTensors]
    targets: torch.Tensor
    rows: tuple[str, ...]
    models: tuple[str, ...]
    architectures: tuple[str, ...]
    families: tuple[str, ...]
    operators: tuple[str, ...]
    graph_version: str

    def __len__(self) -> int:
        return len(self.graphs)

    def part(self, rows: Sequence[str]) -> tuple[list[GraphTensors], torch.Tensor]:
        """Return graphs and targets of some row ids."""
        place = {row: i for i, row in enumerate(self.rows)}
        chosen = [place[row] for row in rows]
        return [self.graphs[i] for i in chosen], self.targets[chosen]

    def table(self) -> pd.DataFrame:
        """Return what the splits of `dataset.join.splits` need."""
        columns = {
            "row_id": self.rows,
            "source": "timm_infer",
            "model": self.models,
            "arch_id": self.architectures,
            "family_id": self.families,
        }
        return pd.DataFrame(columns)


def measured_rows(folder: Path | None = None) -> pd.DataFrame:
    """Return the timm rows that Table 3 is run on: one GPU, autocast, NCHW, eager, torch 2.4."""
    source = next(source for source in SOURCES if source.name == "timm_infer")
    rows = source.read(data_dir(folder))
    chosen = (
        (rows["gpu"] == GPU)
        & (rows["precision"] == "amp")
        & (rows["layout"] == "nchw")
        & (rows["mode"] == "eager")
        & rows["software"].str.startswith(SOFTWARE)
    )
    return rows[chosen].drop_duplicates(["model", "batch"]).reset_index(drop=True)


def load_examples(
    raw_folder: Path, cache_folder: Path, config: PmgnsConfig, *, data: Path | None = None
) -> Examples:
    """Return all measured rows that have a converted graph; each graph is encoded once.

    Args:
        raw_folder: raw graphs, `<model>@<size>.json.gz`.
        cache_folder: where encoded examples are kept, so that an interrupted call goes on.
        config: its switches decide what the network sees.
        data: folder of the measured tables.
    """
    rows = measured_rows(data)
    rows["file"] = [raw_folder / f"{name.removeprefix('timm:')}.json.gz" for name in rows["model"]]
    rows = rows[[file.is_file() for file in rows["file"]]]
    examples = encoded(rows, cache_folder, config)
    if examples is None:
        raise DataNotFoundError(
            f"no raw graph of a measured model in {raw_folder}",
            "Make them with `python -m dataset.raw_graphs`.",
        )
    return examples


def encoded(rows: pd.DataFrame, cache_folder: Path, config: PmgnsConfig) -> Examples | None:
    """Return rows as examples, in their order; None if there is no row.

    Args:
        rows: with "row_id", "model", "batch", "precision", "layout", "file" (the raw graph), and a
            column for each target that was measured.
        cache_folder: folder of encoded graphs, see `load_examples`.
        config: configuration, see `load_examples`.
    """
    cached = cache_folder / f"pmgns-{_settings(config)}.safetensors"
    examples = _load(cached) if cached.is_file() else None
    missing = rows if examples is None else rows[~rows["row_id"].isin(examples.rows)]
    starts: Iterable[int] = range(0, len(missing), SAVED_TOGETHER)
    for start in track(starts, description="graphs", disable=missing.empty):
        more = _encode_rows(missing.iloc[start : start + SAVED_TOGETHER], config)
        examples = more if examples is None else _joined(examples, more)
        cache_folder.mkdir(parents=True, exist_ok=True)
        _save(examples, cached)
    return None if examples is None else _in_order(examples, rows["row_id"].tolist())


def _encode_rows(rows: pd.DataFrame, config: PmgnsConfig) -> Examples:
    graphs, targets, architectures = [], [], []
    operators: set[str] = set()
    for row in rows.itertuples():
        raw = RawGraph.from_json(gzip.decompress(row.file.read_bytes()))
        graph = build(raw).at_batch(int(row.batch))
        operators |= {node.op for node in graph.nodes}
        regime = {"precision": row.precision, "channels_last": row.layout == "nhwc"}
        graphs.append(network_inputs(graph, config, **regime))
        architectures.append(architecture_id(graph))
        targets.append([float(getattr(row, t, float("nan"))) for t in config.targets])
    models = tuple(rows["model"])
    return Examples(
        graphs=graphs,
        targets=torch.tensor(targets, dtype=torch.float32),
        rows=tuple(rows["row_id"]),
        models=models,
        architectures=tuple(architectures),
        families=tuple(map(family_of, models)),
        operators=tuple(sorted(operators)),
        graph_version=GRAPH_VERSION,
    )


def _joined(first: Examples, second: Examples) -> Examples:
    return Examples(
        graphs=first.graphs + second.graphs,
        targets=torch.cat([first.targets, second.targets]),
        rows=first.rows + second.rows,
        models=first.models + second.models,
        architectures=first.architectures + second.architectures,
        families=first.families + second.families,
        operators=tuple(sorted({*first.operators, *second.operators})),
        graph_version=first.graph_version,
    )


def _in_order(examples: Examples, rows: Sequence[str]) -> Examples:
    """Return the examples of some row ids, in that order, on which the splits depend."""
    place = {row: i for i, row in enumerate(examples.rows)}
    chosen = [place[row] for row in rows]
    return replace(
        examples,
        graphs=[examples.graphs[i] for i in chosen],
        targets=examples.targets[chosen],
        rows=tuple(rows),
        models=tuple(examples.models[i] for i in chosen),
        architectures=tuple(examples.architectures[i] for i in chosen),
        families=tuple(examples.families[i] for i in chosen),
    )


def _settings(config: PmgnsConfig) -> str:
    """Return a name for everything that an encoding depends on, besides the graphs."""
    switches = [config.nodes, config.edges, config.shape]
    document = [FEATURE_VERSION, GRAPH_VERSION, config.targets, switches, config.precisions]
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:16]


def _save(examples: Examples, path: Path) -> None:
    graphs = examples.graphs
    tensors = {
        "x": torch.cat([g.x for g in graphs]),
        "edge_index": torch.cat([g.edge_index for g in graphs], dim=1),
        "static": torch.cat([g.static for g in graphs]),
        "nodes": torch.tensor([g.x.shape[0] for g in graphs]),
        "edges": torch.tensor([g.edge_index.shape[1] for g in graphs]),
        "targets": examples.targets,
    }
    names = ("rows", "models", "architectures", "families", "operators", "graph_version")
    metadata = {name: json.dumps(getattr(examples, name)) for name in names}
    unfinished = path.with_suffix(".part")
    save_file(tensors, unfinished, metadata)
    unfinished.replace(path)


def _load(path: Path) -> Examples:
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = {name: json.loads(text) for name, text in file.metadata().items()}
    nodes, edges = tensors["nodes"].tolist(), tensors["edges"].tolist()
    graphs = [
        GraphTensors(x, e, s, torch.zeros(x.shape[0], dtype=torch.int64))
        for x, e, s in zip(
            tensors["x"].split(nodes),
            tensors["edge_index"].split(edges, dim=1),
            tensors["static"].split(1),
            strict=True,
        )
    ]
    version = metadata.pop("graph_version")
    lists = {name: tuple(value) for name, value in metadata.items()}
    return Examples(graphs, tensors["targets"], **lists, graph_version=version)
