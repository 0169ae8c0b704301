"""Held-out rows, asked of their fold's checkpoint as a user asks the shipped one.

A fold is written as `publish` writes what ships, loaded by `dippm.load` and asked through the same
door. So a held-out row knows nothing that a user's question does not: no offset of its own table,
no launch time of its machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

import dippm
from dippm.models.intervals import IntervalLaw
from dippm.models.memory import MemoryModel
from dippm.models.power import PowerModel
from dippm.pretrained.checkpoint import save_checkpoint
from training.hybrid.fit.checkpoint_law import checkpoint_law, configuration
from training.hybrid.fit.folds import Runner, Task
from training.hybrid.judge.shipped_answers import shipped_answers
from training.hybrid.rows.examples import GraphLookup, Row

ANSWERS = "answers.parquet"


def fold_answers(
    runner: Runner,
    members: Sequence[Task],
    graph: GraphLookup,
    *,
    weight: float,
    memory: MemoryModel,
    power: PowerModel,
    intervals: IntervalLaw,
) -> pd.DataFrame:
    """Return the answers for the rows under test of one fold; kept beside its fits.

    Operators amid a model are no question of a user and have no answer.

    Args:
        runner: of the fits.
        members: finished tasks of the fold, one for each member.
        graph: key → graph.
        weight: of the networks in the mean with the trees, far from what was measured.
        memory: of a checkpoint.
        power: likewise.
        intervals: likewise.
    """
    folder = runner.folder / f"{members[0].name}.checkpoint"
    kept = folder / ANSWERS
    if not kept.exists():
        if not (folder / "config.json").exists():
            law = checkpoint_law(runner, members, weight, graph)
            config = configuration(law, memory, power, intervals)
            save_checkpoint(folder, dict(law.tensors), {**config, "card": CARD}, METRICS)
        positions = [i for i in members[0].test if runner.examples.rows[i].node is None]
        rows: list[Row] = [runner.examples.rows[i] for i in positions]
        answers = shipped_answers(dippm.load(folder), rows, graph)
        unfinished = kept.with_suffix(".part")
        answers.assign(position=positions).to_parquet(unfinished)
        unfinished.replace(kept)
    return pd.read_parquet(kept)


CARD: dict[str, Any] = {
    "summary": "A fold of the default predictor, for its evaluation.",
    "use": "Predictions of the rows that the fold holds out.",
    "limits": ["It is no predictor for use: part of the measured rows did not train it."],
    "never_measured": [],
    "data": [],
    "command": "python -m training.hybrid.train",
}
METRICS: dict[str, Any] = {"summary": []}
