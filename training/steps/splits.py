"""Splits of measured training steps, each fold with the checkpoint of inference it starts from.

    S2-10   whole families; neither steps nor inferences of them were fitted
    S3a     the steps of a GPU, with its variants; its inference was fitted, as that of a GPU is of
            which nobody measured a training step

The folds of S2-10 are those of inference. What inference never saw is dealt to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dataset.join.latency_splits import gpu_group
from dataset.join.splits import file_name
from training.hybrid.rows.examples import Row

Indices = NDArray[np.int64]
FAMILIES = "S2-10"
"""Split of inference whose folds are those of steps."""
HELD_OUT_GPUS = ("A100", "RTX-2080-Ti", "RTX-3090")
"""Besides those of sets of our own."""


@dataclass(frozen=True, slots=True)
class InferenceFold:
    """A published fold of inference.

    Attributes:
        name: of the fold.
        checkpoint: its folder.
        families, architectures: that it did not see.
    """

    name: str
    checkpoint: Path
    families: frozenset[str]
    architectures: frozenset[str]


@dataclass(frozen=True, slots=True)
class StepFold:
    """Rows that train and rows under test.

    Attributes:
        split, name: of the fold.
        inference: folder of the checkpoint that is the start.
        train, test: positions.
    """

    split: str
    name: str
    inference: Path
    train: Indices
    test: Indices

    @property
    def file(self) -> str:
        """Return a file name."""
        return file_name(f"{self.split}-{self.name}")[:150]


def step_folds(
    rows: Sequence[Row], shipped: Path, folds: Sequence[InferenceFold]
) -> dict[str, list[StepFold]]:
    """Return the folds of each split.

    Args:
        rows: measured steps.
        shipped: checkpoint of inference that saw all of them.
        folds: of inference, families held out.
    """
    gpus = [gpu_group(row.device.name) for row in rows]
    ours = {gpu for gpu, row in zip(gpus, rows, strict=True) if row.is_own}
    return {
        FAMILIES: list(_families_out(rows, folds)),
        "S3a": [
            _fold("S3a", gpu, shipped, rows, np.flatnonzero([g == gpu for g in gpus]))
            for gpu in sorted({*HELD_OUT_GPUS, *ours})
            if gpu in gpus
        ],
    }


def _families_out(rows: Sequence[Row], folds: Sequence[InferenceFold]) -> Iterable[StepFold]:
    place = {family: i for i, fold in enumerate(folds) for family in fold.families}
    dealt = [
        place.get(row.family, crc32(row.family.encode()) % len(folds)) if row.node is None else None
        for row in rows  # an operator is held out with the architecture of its model
    ]
    for i, fold in enumerate(folds):
        test = np.flatnonzero([d == i for d in dealt])
        if not len(test):
            continue  # of a family of which no step was measured
        away = {rows[p].architecture for p in test.tolist()} | fold.architectures
        yield _fold(FAMILIES, fold.name, fold.checkpoint, rows, test, away)


def _fold(
    split: str,
    name: str,
    inference: Path,
    rows: Sequence[Row],
    test: Indices,
    away: Iterable[str] = (),
) -> StepFold:
    """Return a fold; architectures that are `away` do not train, operators are no test."""
    tested, kept_out = set(test.tolist()), set(away)
    test = np.array([i for i in test.tolist() if rows[i].node is None])
    train = [
        i for i, row in enumerate(rows) if i not in tested and row.architecture not in kept_out
    ]
    return StepFold(split, name, inference, np.array(train, dtype=np.int64), test.astype(np.int64))
