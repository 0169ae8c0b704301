"""Held-out rows, asked of their fold's checkpoint as a user asks the shipped one.

A fold is written as `publish` writes what ships, loaded by `dippm.load` and asked through the same
door. So a held-out row knows nothing that a user's question does not: no offset of its own table,
no launch time of its machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dippm
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.intervals import FEATURES, GROUPS, IntervalLaw
from dippm.estimate.models.memory import MemoryModel
from dippm.estimate.models.power import PowerModel
from dippm.estimate.pretrained.checkpoint import save_checkpoint
from training.evaluation.held_out import HeldOut
from training.hybrid.fit.checkpoint_law import checkpoint_laws, configuration
from training.hybrid.fit.folds import Runner, Task
from training.hybrid.judge.shipped_answers import shipped_answers
from training.hybrid.rows.examples import GraphLookup, Row, sampled_by

ANSWERS = "answers.parquet"
MOST_ASKED = 300
"""Rows of one table, precision, layout and kind of work that a fold is asked for: more of them say
the same, and an answer takes a tenth of a second."""
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

    Operators amid a model, and rows whose batch cannot be stated, are no question of a user: they
    have no row. Of many alike MOST_ASKED are asked.

    Args:
        runner: with finished fits.
        tasks: tasks of one split.
        graph: key → graph.
        weight: weight of the networks, see `publish_folds`.
        memory: model of memory.
        power: model of power.

    Returns:
        Rows of `ask_fold`.
    """
    rows = runner.examples.rows
    tested = {task.fold: task.asked for task in tasks}
    parts = []
    for fold, folder in publish_folds(
        runner, tasks, graph, weight=weight, memory=memory, power=power
    ).items():
        asked = _sample_rows([rows[i] for i in tested[fold]])
        places = {runner.position[row.row_id]: row for row in asked}
        parts.append(ask_fold(folder, fold, places, graph))
    return HeldOut(PREDICTOR, tasks[0].split, pd.concat(parts, ignore_index=True), 0.0)


def _sample_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a fold that it is asked for, always the same ones."""
    return sampled_by(
        (row for row in rows if row.node is None),
        lambda row: (row.table, row.precision, str(row.channels_last), row.kind),
        MOST_ASKED,
    )


def publish_folds(
    runner: Runner,
    tasks: Sequence[Task],
    graph: GraphLookup,
    *,
    weight: float,
    memory: MemoryModel,
    power: PowerModel,
) -> dict[str, Path]:
    """Return the checkpoint folder of each fold of one split; what is not there is written.

    Args:
        runner: with finished fits.
        tasks: tasks of one split; those of one fold are the members of its checkpoint.
        graph: key → graph.
        weight: weight of the networks, against the trees, far from measured models.
        memory: model of memory of a checkpoint.
        power: model of power of a checkpoint.
    """
    folds: dict[str, list[Task]] = {}
    for task in tasks:
        folds.setdefault(task.fold, []).append(task)
    folders = {
        fold: fold_checkpoint(runner, members, weight, memory, power)
        for fold, members in folds.items()
    }
    unwritten = [fold for fold, folder in folders.items() if not (folder / "config.json").exists()]
    if not unwritten:
        return folders
    laws = checkpoint_laws(runner, [folds[fold] for fold in unwritten], weight, graph)
    for fold, law in zip(unwritten, laws, strict=True):
        config = configuration(law, memory, power, NO_WIDTHS)
        save_checkpoint(folders[fold], dict(law.tensors), {**config, "card": CARD}, METRICS)
    return folders


def ask_fold(folder: Path, fold: str, rows: Mapping[int, Row], graph: GraphLookup) -> pd.DataFrame:
    """Return what the checkpoint of a fold answers for rows; answers are kept in its folder.

    Args:
        folder: folder of the checkpoint.
        fold: its name.
        rows: positions of the rows that it did not see.
        graph: key → graph.

    Returns:
        Rows as `training.evaluation.held_out.HeldOut` has them, with "position", "host_share", and
        "features", "group" and "beside_law" of the interval, see `dippm.estimate.models.intervals`.
        A row whose batch cannot be stated has none.
    """
    kept = folder / ANSWERS
    if not kept.exists():
        answers = shipped_answers(dippm.load(folder), list(rows.values()), graph)
        unfinished = kept.with_suffix(".part")
        answers.assign(position=np.array(list(rows), np.int64)).to_parquet(unfinished)
        unfinished.replace(kept)
    answers = pd.read_parquet(kept).dropna(subset="predicted_ms")
    answers = answers[answers["position"].isin(list(rows))]
    mine = [rows[i] for i in answers["position"]]
    return pd.DataFrame(
        {
            "position": answers["position"].to_numpy(),
            "row_id": [row.row_id for row in mine],
            "arch_id": [row.architecture for row in mine],
            "family_id": [row.family for row in mine],
            "fold": fold,
            "latency_ms": answers["measured_ms"].to_numpy(),
            "predicted latency_ms": answers["predicted_ms"].to_numpy(),
            "host_share": answers["host_share"].to_numpy(),
            "features": [tuple(map(float, found)) for found in answers["features"]],
            "group": answers["group"].to_numpy(),
            "beside_law": answers["beside_law"].to_numpy(),
        }
    )


def fold_checkpoint(
    runner: Runner, members: Sequence[Task], weight: float, memory: MemoryModel, power: PowerModel
) -> Path:
    """Return the folder of a fold's checkpoint, named for what it depends on besides its fits."""
    own = [runner.examples.rows[i] for i in members[0].own_train]
    given = repr((weight, memory, power, Hybrid.feature_version, len(members), own)).encode()
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
