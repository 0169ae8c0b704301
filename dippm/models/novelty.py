"""How far a model is from those that were measured, by where their time goes.

A model under its conditions is a point: the shares of its roofline time by class of kernels. Its
novelty is the distance to the nearest point that was measured, in total variation: the share of
time that would have to move to other classes to make the two alike. A sibling of a measured model
is near 0; a model that spends its time on what only came along in the others is far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.errors import CheckpointError
from dippm.features.kernel_classes import KERNEL_CLASSES

Floats = NDArray[np.float64]
TENSOR = "measured.shares"
MOST_ROWS = 1 << 14
"""A prediction looks at all rows, so a checkpoint may not have any number of them."""
TOLERANCE = 0.01
"""Of the sum of shares, which are stored in half precision."""


@dataclass(frozen=True, slots=True)
class MeasuredModels:
    """The points that were measured.

    Attributes:
        shares: of roofline time by class in the order of KERNEL_CLASSES, shape (M, C).
    """

    shares: NDArray[np.float32]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> MeasuredModels:
        """Read the array `TENSOR`.

        Raises:
            CheckpointError: if it is missing, or its rows are no shares.
        """
        if TENSOR not in tensors:
            raise _damaged(f"the checkpoint has no array '{TENSOR}'")
        array = np.asarray(tensors[TENSOR])
        if array.dtype.kind != "f" or array.ndim != 2 or array.shape[1] != len(KERNEL_CLASSES):
            raise _damaged(f"{TENSOR} is no table of shares by kernel class")
        if not 1 <= len(array) <= MOST_ROWS:
            raise _damaged(f"{TENSOR} has {len(array):,} rows, not 1 to {MOST_ROWS:,}")
        shares = array.astype(np.float32)
        sums = shares.sum(axis=1)
        if not (np.isfinite(sums).all() and (shares >= 0).all()):
            raise _damaged(f"{TENSOR} has values that are no shares")
        if np.abs(sums - 1).max() > TOLERANCE:
            raise _damaged(f"the rows of {TENSOR} do not sum to 1")
        return cls(shares)

    def novelty(self, shares: Floats) -> float:
        """Return the distance of a model to the nearest of these, 0 to 1.

        Args:
            shares: see `shares_of`, shape (C,).
        """
        away = np.abs(self.shares - shares.astype(np.float32))
        return float(away.sum(axis=1).min() / 2)


def shares_of(kind: NDArray[Any], roofline_ms: Floats) -> Floats:
    """Return the shares of roofline time by class of kernels, shape (C,).

    All are 0 if no kernel runs, or if a time is no finite number.

    Args:
        kind: class of each kernel, its place in KERNEL_CLASSES, shape (K,).
        roofline_ms: of each kernel, shape (K,).
    """
    by_class = np.bincount(kind, roofline_ms, len(KERNEL_CLASSES)).astype(np.float64)
    total = float(by_class.sum())
    return by_class / total if 0.0 < total < np.inf else np.zeros(len(KERNEL_CLASSES))


def _damaged(what: str) -> CheckpointError:
    return CheckpointError(what, "Restore the checkpoint's folder from its release.")
