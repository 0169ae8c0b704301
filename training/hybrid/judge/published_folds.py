"""Held-out rows, asked of their fold's checkpoint as a user asks the shipped one.

A fold is written as `publish` writes what ships, loaded by `dippm.load` and asked through the same
door. So a held-out row knows nothing that a user's question does not: no offset of its own table,
no launch time of its machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dippm
from dippm.models.hybrid import Hybrid
from dippm.models.intervals import FEATURES, GROUPS, IntervalLaw
from dippm.models.memory import MemoryModel
from dippm.models.power import PowerModel
from dippm.pretrained.checkpoint import save_checkpoint
from training.evaluation.held_out import HeldOut
from training.hybrid.fit.batches import Indices
from training.hybrid.fit.checkpoint_law import checkpoint_laws, configuration
from training.hybrid.fit.folds import Runner, Task
from training.hybrid.judge.shipped_answers import shipped_answers
from training.hybrid.rows.examples import GraphLookup, Row

ANSWERS = "answers.parquet"
PREDICTOR = "published fold"
NO_WIDTHS = IntervalLaw((0.0,) * len(FEATURES), dict.fromkeys(GROUPS, 1.0))
"""Of a fold: how wide intervals are is learned from the answers of all folds."""


def published_held_out(
    runner: Runner,
    tasks: Sequence[Task],
    graph: GraphLookup,
    *,
    weight: float,
    memory: MemoryModel,
    power: PowerModel,
) -> HeldOut:
    """Return the answers of the published folds of one split.

    Operators amid a model, and rows whose batch nobody can state, are no question of a user: they
    have no row.

    Args:
        runner: with finished fits.
        tasks: of one split; those of one fold are the members of its checkpoint.
        graph: key → graph.
        weight: of the networks in the mean with the trees, far from what was measured.
        memory: of a checkpoint.
        power: likewise.

    Returns:
        Rows as `Runner.held_out` has them, with "features", "group" and "beside_law" of the
        interval, see `dippm.models.intervals`, in place of what those are made of.
    """
    folds: dict[str, list[Task]] = {}
    for task in tasks:
        folds.setdefault(task.fold, []).append(task)
    folders = {
        fold: fold_checkpoint(runner, members, weight, memory, power)
        for fold, members in folds.items()
    }
    unwritten = [fold for fold, folder in folders.items() if not (folder / "config.json").exists()]
    laws = checkpoint_laws(runner, [folds[fold] for fold in unwritten], weight, graph)
    for fold, law in zip(unwritten, laws, strict=True):
        config = configuration(law, memory, power, NO_WIDTHS)
        save_checkpoint(folders[fold], dict(law.tensors), {**config, "card": CARD}, METRICS)
    parts = []
    for fold, folder in folders.items():
        answers = fold_answers(runner, folder, folds[fold][0].test, graph)
        answers = answers.dropna(subset="predicted_ms")
        rows = [runner.examples.rows[i] for i in answers["position"]]
        part = {
            "position": answers["position"].to_numpy(),
            "row_id": [row.row_id for row in rows],
            "arch_id": [row.architecture for row in rows],
            "family_id": [row.family for row in rows],
            "fold": fold,
            "latency_ms": answers["measured_ms"].to_numpy(),
            "predicted latency_ms": answers["predicted_ms"].to_numpy(),
            "host_share": answers["host_share"].to_numpy(),
            "features": [tuple(map(float, found)) for found in answers["features"]],
            "group": answers["group"].to_numpy(),
            "beside_law": answers["beside_law"].to_numpy(),
        }
        parts.append(pd.DataFrame(part))
    return HeldOut(PREDICTOR, tasks[0].split, pd.concat(parts, ignore_index=True), 0.0)


def fold_answers(runner: Runner, folder: Path, test: Indices, graph: GraphLookup) -> pd.DataFrame:
    """Return the answers of a fold for its rows under test; they are kept in its folder.

    Operators amid a model are no question of a user and have no answer.

    Args:
        runner: of the fits.
        folder: of the fold's checkpoint.
        test: positions of rows.
        graph: key → graph.

    Returns:
        Columns of `Answer`, and "position" in the examples.
    """
    kept = folder / ANSWERS
    if not kept.exists():
        asked = [i for i in test if runner.examples.rows[i].node is None]
        rows: list[Row] = [runner.examples.rows[i] for i in asked]
        answers = shipped_answers(dippm.load(folder), rows, graph)
        unfinished = kept.with_suffix(".part")
        answers.assign(position=np.array(asked, np.int64)).to_parquet(unfinished)
        unfinished.replace(kept)
    return pd.read_parquet(kept)


def fold_checkpoint(
    runner: Runner, members: Sequence[Task], weight: float, memory: MemoryModel, power: PowerModel
) -> Path:
    """Return the folder of a fold's checkpoint, whose name says what it is of beside its fits."""
    given = repr((weight, memory, power, Hybrid.feature_version, len(members))).encode()
    digest = hashlib.sha256(given).hexdigest()[:8]
    return runner.folder / f"{members[0].name}-{digest}.checkpoint" / "0.0.0"


CARD: dict[str, Any] = {
    "summary": "A fold of the default predictor, for its evaluation.",
    "use": "Predictions of the rows that the fold holds out.",
    "limits": ["It is no predictor for use: part of the measured rows did not train it."],
    "never_measured": [],
    "data": [],
    "command": "python -m training.hybrid.train",
}
METRICS: dict[str, Any] = {"summary": []}
