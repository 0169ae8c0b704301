"""How long each class of kernels would take at peak rates, for every measured row of a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dataset.join import raw_graphs
from dippm.devices import find
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import DeviceView, roofline_ms
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.features.kernels import KERNEL_VERSION
from dippm.model.graph import build
from dippm.model.graph.model_graph import GRAPH_VERSION

Floats = NDArray[np.float64]


def class_rooflines(
    table: pd.DataFrame, graphs: Path, cache: Path, advance: Callable[[], None] = lambda: None
) -> Floats:
    """Return the roofline time of each row by kernel class, shape (rows, KERNEL_CLASSES), in ms.

    Args:
        table: with model, gpu, precision, mode and batch.
        graphs: folder of raw graphs.
        cache: file that keeps the result for these rows and versions; missing rows are computed.
        advance: called after each row that had to be computed.
    """
    version = f"{GRAPH_VERSION}-{KERNEL_VERSION}"
    known = _load(cache, version)
    missing = table[~table["row_id"].isin(known)].sort_values("model")
    current, kernels = ("", "", ""), None
    for row in missing.to_dict("records"):
        key = (row["model"], row["precision"], row["mode"])
        if key != current or kernels is None:
            graph = build(raw_graphs.read(row["model"], graphs))
            current, kernels = key, KernelTable.of(graph, row["precision"], row["mode"])
        times = roofline_ms(kernels, int(row["batch"]), DeviceView.of(find(row["gpu"])))
        sums = np.bincount(kernels.kind, weights=times, minlength=len(KERNEL_CLASSES))
        known[row["row_id"]] = sums.astype(np.float64)
        advance()
    if len(missing):
        _save(cache, version, known)
    return np.array([known[row] for row in table["row_id"]])


def _load(cache: Path, version: str) -> dict[str, Floats]:
    if not cache.is_file():
        return {}
    with np.load(cache) as file:
        if str(file["version"]) != version:
            return {}
        return dict(zip(file["rows"].tolist(), file["times"], strict=True))


def _save(cache: Path, version: str, known: dict[str, Floats]) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        cache,
        version=np.array(version),
        rows=np.array(list(known), dtype=str),
        times=np.array(list(known.values())),
    )
