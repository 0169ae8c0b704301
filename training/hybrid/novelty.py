"""Which models a predictor has measured, and how far held-out rows are from those of their fold.

The same as `dippm.models.novelty` works out for a prediction, so that the interval law is fitted on
what it will be asked with: the shipped points are those of all rows, those of a fold are of the
rows that train in it, thinned alike.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor

from dippm.models.intervals import LEAST_NOVELTY
from dippm.models.novelty import TENSOR
from training.hybrid.batches import Indices
from training.hybrid.examples import Examples

Floats = NDArray[np.float64]
MOST_POINTS = 1500


def row_shares(examples: Examples) -> Floats:
    """Return the shares of roofline time by kernel class of each row, shape (R, C)."""
    by_class = examples.class_roofline_ms()
    return np.asarray(by_class / np.maximum(by_class.sum(axis=1, keepdims=True), 1e-12))


def measured_tensors(examples: Examples) -> dict[str, Tensor]:
    """Return what a checkpoint says of the models that were measured."""
    points = thinned(row_shares(examples)[examples.is_model])
    return {TENSOR: torch.from_numpy(points)}


def novelties(shares: Floats, is_model: NDArray[np.bool_], train: Indices, test: Indices) -> Floats:
    """Return the distance of each row under test to the models that train, shape (len(test),).

    Args:
        shares: of all rows, see `row_shares`.
        is_model: which rows are whole models, shape (R,).
        train: rows that train; an architecture is among them where the split says so, and then a
            row under test is near its own, as a model that was measured is in a prediction.
        test: rows that do not.
    """
    points = thinned(shares[train[is_model[train]]]).astype(np.float64)
    distance = cdist(shares[test], points, "cityblock") / 2
    return np.asarray(distance.min(axis=1, initial=1.0))


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
