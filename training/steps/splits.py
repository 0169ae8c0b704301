"""Splits of measured training steps, each fold with the fit of inference that it starts from.

    S0      a random part of the steps; inference saw the models
    S1      whole architectures; neither steps nor inferences of them were fitted
    S2-10   whole families, likewise
    S3a     the steps of a GPU, with its variants; its inference was fitted, as that of a GPU is of
            which nobody measured a training step

The folds of S1 and S2-10 are those of inference. What inference never saw is dealt to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dataset.join.latency_splits import GPU_GROUPS
from training.hybrid.fit.folds import Task
from training.hybrid.rows.examples import Row
from training.steps.base import NOTHING, SHIPPED, InferenceFits

Indices = NDArray[np.int64]
RANDOM_PART = 0.15
HELD_OUT_GPUS = ("A100", "RTX-2080-Ti", "RTX-3090")
SEED = 42
_GROUP_OF = {gpu: group for group, gpus in GPU_GROUPS.items() for gpu in gpus}


@dataclass(frozen=True, slots=True)
class StepFold:
    """Rows that train and rows under test.

    Attributes:
        split, name: of the fold.
        inference: the task of inference whose fit is the start.
        train, test: positions.
    """

    split: str
    name: str
    inference: Task
    train: Indices
    test: Indices

    @property
    def file(self) -> str:
        """Return a file name."""
        return f"{self.split}-{self.name}".replace(" ", "+")[:150]


def step_folds(rows: Sequence[Row], fits: InferenceFits) -> list[StepFold]:
    """Return the folds of all splits."""
    drawn = np.random.default_rng(SEED).permutation(len(rows))[: round(RANDOM_PART * len(rows))]
    gpus = [_GROUP_OF.get(row.device.name, row.device.name) for row in rows]
    return [
        _fold("S0", "random", SHIPPED, rows, np.sort(drawn)),
        *_of_inference("S1", rows, fits, lambda row: row["architecture"]),
        *_of_inference("S2-10", rows, fits, lambda row: row["family"]),
        *(
            _fold("S3a", gpu, SHIPPED, rows, np.flatnonzero([g == gpu for g in gpus]))
            for gpu in HELD_OUT_GPUS
            if gpu in gpus
        ),
    ]


def _of_inference(
    name: str, rows: Sequence[Row], fits: InferenceFits, key: Callable[[dict[str, str]], str]
) -> Iterable[StepFold]:
    """Yield the folds of a split of inference, which hold a key out."""
    folds = fits.split(name).folds
    held = [{key(fits.rows[row_id]) for row_id in fold.test} for fold in folds]
    architectures = [{fits.rows[r]["architecture"] for r in fold.test} for fold in folds]
    keys = [key({"architecture": row.architecture, "family": row.family}) for row in rows]
    place = {k: i for i, part in enumerate(held) for k in part}
    dealt = [place.get(k, crc32(k.encode()) % len(folds)) for k in keys]
    for i, fold in enumerate(folds):
        test = np.flatnonzero([d == i for d in dealt])
        if not len(test):
            continue  # of a family of which no step was measured
        task = Task(name, fold.name, NOTHING, NOTHING, 0)
        away = {rows[p].architecture for p in test.tolist()} | architectures[i]
        yield _fold(name, fold.name, task, rows, test, away)


def _fold(
    split: str,
    name: str,
    task: Task,
    rows: Sequence[Row],
    test: Indices,
    away: Iterable[str] = (),
) -> StepFold:
    """Return a fold; architectures that are `away` do not train."""
    tested, kept_out = set(test.tolist()), set(away)
    train = [
        i for i, row in enumerate(rows) if i not in tested and row.architecture not in kept_out
    ]
    return StepFold(split, name, task, np.array(train, dtype=np.int64), test.astype(np.int64))
