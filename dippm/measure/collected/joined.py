"""The result of joining a collected set with graphs: graphs and totals by model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dippm.errors import DippmError
from dippm.model.graph import ModelGraph, build
from dippm.model.relax.packed import unpack
from dippm.model.relax.raw_graph import RawGraph

GRAPHS, MODELS, MANIFEST = "graphs.json", "models.jsonl", "manifest.json"
"""File of a graph by model; one line for each model; what was left out and why."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Models of a set by name; both mappings are empty if nothing was joined.

    Attributes:
        graphs: file of the raw graph by model.
        totals: "macs_per_sample", "param_bytes" and others by model.
    """

    graphs: Mapping[str, Path] = field(default_factory=dict)
    totals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def read_graph(self, model: str) -> ModelGraph | None:
        """Return the graph of a model; None if none was joined or its file is damaged."""
        file = self.graphs.get(model)
        if file is None:
            return None
        try:
            return build(RawGraph.from_json(unpack(file.read_bytes())))
        except (DippmError, OSError, ValueError):
            return None


def read_joined(folder: Path | None) -> Joined:
    """Read a joined folder.

    Args:
        folder: folder written by `dataset.build_collected`; None for nothing.

    Raises:
        DippmError: if the folder holds no joined set.
    """
    if folder is None:
        return Joined()
    try:
        files = json.loads((folder / GRAPHS).read_bytes())
        lines = (folder / MODELS).read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise DippmError(
            f"{folder} holds nothing joined: {error}",
            "Give the folder that `python -m dataset.build_collected DIR --out FOLDER` wrote.",
        ) from error
    totals = {record["model"]: record for record in records if record.get("arch_id")}
    return Joined({model: Path(file) for model, file in files.items()}, totals)
