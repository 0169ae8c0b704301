"""D3.5's Table 4 once more: memory of six forward passes, and the slice that it means by Eq. 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from dataset.d35.graphs import RAW
from dataset.d35.labels import TARGETS, predict
from dataset.join import raw_graphs, shipped_graphs
from dippm.devices import seed_profile
from dippm.estimate.features import encode
from dippm.estimate.pretrained import CheckpointInfo
from dippm.model.graph import build
from training.hybrid.rows.memory_samples import SEED_GRAPHS, SEED_TABLE
from training.pmgns.trainer import predictions


def table4(folder: Path, network: nn.Module, teacher: CheckpointInfo) -> list[dict[str, Any]]:
    """Return a line for each of its rows: memory in MB, as measured and as three methods say.

    Args:
        folder: with raw graphs below `RAW`; those that are missing are written there.
        network: the surrogate.
        teacher: predictor that gave its labels.
    """
    raw = folder / RAW
    shipped_graphs.unpack(SEED_GRAPHS.values(), raw)
    found = []
    for row in pd.read_csv(SEED_TABLE).to_dict("records"):
        model, batch = SEED_GRAPHS[row["model"]], int(row["batch"])
        graph = build(raw_graphs.read(model, raw)).at_batch(batch)
        answer = predictions(network, [encode(graph)])[0]  # type: ignore[arg-type]
        ours = answer[TARGETS.index("memory_mb")].item()
        (by_teacher,) = predict(model, [batch], raw, teacher)
        found.append(
            {
                "model": row["model"],
                "batch": batch,
                "measured": row["actual"],
                "D3.5": row["predicted"],
                "surrogate": round(ours),
                "teacher": round(by_teacher["memory_mb"] or 0),
                "slice, measured": _slice(row["actual"]),
                "slice, D3.5": _slice(row["predicted"]),
                "slice, surrogate": _slice(ours),
            }
        )
    return found


def _slice(memory_mb: float) -> str:
    profile = seed_profile(memory_mb)
    return profile.name if profile else "none"
