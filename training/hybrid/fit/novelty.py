"""Which models a predictor has measured, and how far held-out rows are from those of their fold.

The same as `dippm.estimate.models.novelty` works out for a prediction, so that the interval law is
fitted on what it will be asked with: the shipped points are those of all rows, those of a fold are
of the rows that train in it, thinned alike.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor

from dippm.estimate.models.intervals import LEAST_NOVELTY
from dippm.estimate.models.novelty import GPUS_TENSOR, TENSOR, MeasuredModels, with_biases_as_norms
from training.hybrid.fit.batches import Indices
from training.hybrid.rows.examples import Examples

Floats = NDArray[np.float64]
MOST_POINTS = 4096


def row_shares(examples: Examples) -> Floats:
    """Return the shares of roofline time of each row as `shares_of` has them, shape (R, C)."""
    by_class = examples.class_roofline_ms()
    return with_biases_as_norms(by_class / np.maximum(by_class.sum(axis=1, keepdims=True), 1e-12))


def measured_models(shares: Floats, gpus: NDArray[np.str_]) -> MeasuredModels:
    """Return the models that were measured, thinned, and on which GPUs each was.

    Args:
        shares: shares of whole models, see `row_shares`, shape (R, C).
        gpus: GPUs on which they were measured, shape (R,).
    """
    points = thinned(shares)
    nearest = cdist(shares, points.astype(np.float64), "cityblock").argmin(axis=1)
    on_gpus = {}
    for gpu in np.unique(gpus):
        on_gpus[str(gpu)] = np.zeros(len(points), dtype=bool)
        on_gpus[str(gpu)][nearest[gpus == gpu]] = True
    return MeasuredModels(points.astype(np.float32), on_gpus)


def measured_tensors(found: MeasuredModels) -> dict[str, Tensor]:
    """Return what a checkpoint keeps of them; its configuration names the GPUs in order."""
    on_gpus = np.stack(list(found.on_gpus.values()), axis=1)
    return {
        TENSOR: torch.from_numpy(found.shares.astype(np.float16)),
        GPUS_TENSOR: torch.from_numpy(on_gpus.astype(np.uint8)),
    }


def novelties(shares: Floats, gpus: NDArray[np.str_], train: Indices, test: Indices) -> Floats:
    """Return the novelty of each row under test on any GPU and on its own, shape (len(test), 2).

    Args:
        shares: shares of all rows, see `row_shares`.
        gpus: GPUs of all rows, shape (R,).
        train: whole models that train; an architecture is among them where the split says so, and
            then a row under test is near its own, as a model that was measured is in a prediction.
        test: rows that do not.
    """
    found = np.ones((len(test), 2))
    if not len(train):
        return found
    measured = measured_models(shares[train], gpus[train])
    away = cdist(shares[test], measured.shares.astype(np.float64), "cityblock") / 2
    found[:, 0] = away.min(axis=1)
    for gpu, there in measured.on_gpus.items():
        mine = gpus[test] == gpu
        found[mine, 1] = away[mine][:, there].min(axis=1)
    return found


def thinned(shares: Floats, most: int = MOST_POINTS) -> NDArray[np.float16]:
    """Return points such that every other is near one of them, farthest first, (M, C).

    What lies nearer than half of LEAST_NOVELTY to one that is kept adds nothing.
    """
    points = np.unique(shares.astype(np.float16), axis=0)
    if not len(points):
        return points
    every = points.astype(np.float32)
    kept = [0]
    nearest = np.abs(every - every[0]).sum(axis=1) / 2
    while len(kept) < most and nearest.max() > LEAST_NOVELTY / 2:
        kept.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.abs(every - every[kept[-1]]).sum(axis=1) / 2)
    return points[kept]
