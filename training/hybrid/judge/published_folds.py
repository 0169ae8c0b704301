"""Held-out rows, asked of their fold's checkpoint as a user asks the shipped one.

A fold is written as `publish` writes what ships, loaded by `dippm.load` and asked through the same
door. So a held-out row knows nothing that a user's question does not: no offset of its own table,
no launch time of its machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

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
from training.hybrid.judge.shipped_answers import Question, askable_rows, shipped_answers
from training.hybrid.rows.examples import GraphLookup, Row, sampled_by

ANSWERS = "answers.parquet"
MOST_ASKED = 300
"""Rows of one table, precision, layout and kind of work that a fold is asked for: more of them say
the same, and an answer takes a tenth of a second."""
PREDICTOR = "published fold"
Key: TypeAlias = tuple[str, str]
"""Names of a split and of one of its folds."""
NO_WIDTHS = IntervalLaw((0.0,) * len(FEATURES), dict.fromkeys(GROUPS, 1.0))
"""Of a fold: how wide intervals are is learned from the answers of all folds."""


def published_held_out(
    runner: Runner,
    tasks: Mapping[str, Sequence[Task]],
    graph: GraphLookup,
    *,
    weight: float,
    memory: MemoryModel,
    power: PowerModel,
) -> dict[str, HeldOut]:
    """Return the answers of the published folds of each split.

    Rows that no question can state, see `askable_rows`, have no row. Of many alike MOST_ASKED are
    asked.

    Args:
        runner: with finished fits.
        tasks: tasks by split.
        graph: key → graph.
        weight: weight of the networks, see `publish_folds`.
        memory: model of memory.
        power: model of power.

    Returns:
        Rows of `ask_folds` by split.
    """
    rows, every = runner.examples.rows, [task for part in tasks.values() for task in part]
    tested = {(task.split, task.fold): task.asked for task in every}
    folders = publish_folds(runner, every, graph, weight=weight, memory=memory, power=power)
    held_out = [rows[i] for i in np.unique(np.concatenate(list(tested.values())))]
    known = {row.row_id for row in askable_rows(held_out, graph)}
    asked = {
        key: _sample_rows([rows[i] for i in tested[key] if rows[i].row_id in known])
        for key in folders
    }
    places = {key: {runner.position[row.row_id]: row for row in asked[key]} for key in folders}
    ask_folds({folder: places[key] for key, folder in folders.items()}, graph)
    answers = {key: kept_answers(folders[key], key[1], places[key]) for key in folders}
    return {
        name: HeldOut(
            PREDICTOR,
            name,
            pd.concat([found for key, found in answers.items() if key[0] == name]),
            0.0,
        )
        for name in tasks
    }


def _sample_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a fold that it is asked for, always the same ones."""
    return sampled_by(
        rows, lambda row: (row.table, row.precision, str(row.channels_last), row.kind), MOST_ASKED
    )


def publish_folds(
    runner: Runner,
    tasks: Sequence[Task],
    graph: GraphLookup,
    *,
    weight: float,
    memory: MemoryModel,
    power: PowerModel,
) -> dict[Key, Path]:
    """Return the checkpoint folder of each fold; what is not there is written.

    Args:
        runner: with finished fits.
        tasks: of any splits; those of one fold are the members of its checkpoint.
        graph: key → graph.
        weight: weight of the networks, against the trees, far from measured models.
        memory: model of memory of a checkpoint.
        power: model of power of a checkpoint.
    """
    folds: dict[Key, list[Task]] = {}
    for task in tasks:
        folds.setdefault((task.split, task.fold), []).append(task)
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


def ask_folds(rows: Mapping[Path, Mapping[int, Row]], graph: GraphLookup) -> None:
    """Ask the checkpoint of each fold for rows, and keep the answers in its folder.

    Args:
        rows: rows that each fold did not see, with their positions, by folder of its checkpoint.
        graph: key → graph.
    """
    folders = [folder for folder in rows if not (folder / ANSWERS).exists()]
    questions = [Question(row, at) for at, f in enumerate(folders) for row in rows[f].values()]
    answers = shipped_answers([dippm.load(folder) for folder in folders], questions, graph)
    of_folder = np.array([question.checkpoint for question in questions], np.int64)
    for at, folder in enumerate(folders):
        mine = answers[of_folder == at].assign(position=np.array(list(rows[folder]), np.int64))
        unfinished = (folder / ANSWERS).with_suffix(".part")
        mine.to_parquet(unfinished)
        unfinished.replace(folder / ANSWERS)


def kept_answers(folder: Path, fold: str, rows: Mapping[int, Row]) -> pd.DataFrame:
    """Return what the checkpoint of a fold answered, see `ask_folds`.

    Args:
        folder: folder of the checkpoint.
        fold: its name.
        rows: rows that it was asked for, with their positions.

    Returns:
        Rows as `training.evaluation.held_out.HeldOut` has them, with "position", "host_share", and
        "features", "group" and "beside_law" of the interval, see `dippm.estimate.models.intervals`.
        A row whose batch cannot be stated has none.
    """
    answers = pd.read_parquet(folder / ANSWERS).dropna(subset="predicted_ms")
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
