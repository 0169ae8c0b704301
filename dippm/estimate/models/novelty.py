"""How far a model is from those that were measured, by where their time goes.

A model under its conditions is a point: the shares of its roofline time by class of kernels. Its
novelty is the distance to the nearest point that was measured, in total variation: the share of
time that would have to move to other classes to make the two alike. A sibling of a measured model
is near 0; a model that spends its time on what only came along in the others is far. What was
measured on the GPU in question is told apart from what was measured on any.

Whether a norm stands beside its convolution or was folded into it, which leaves a bias, one pass
over the result follows: both are one kind of work here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dippm.errors import CheckpointError
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES

Floats = NDArray[np.float64]
F = TypeVar("F", np.float32, np.float64)
TENSOR, GPUS_TENSOR = "measured.shares", "measured.on_gpus"
MOST_ROWS = 1 << 14
"""A prediction looks at all rows, so a checkpoint may not have any number of them."""
NORM, BIAS = (list(KERNEL_CLASSES).index(name) for name in ("batch_norm", "broadcast"))
TOLERANCE = 0.01
"""Of the sum of shares, which are stored in half precision."""


class Novelty(NamedTuple):
    """How far a model is from those that were measured, 0 to 1.

    Attributes:
        on_any: GPU.
        on_gpu: that was asked about; 1 if no model was measured there.
    """

    on_any: float
    on_gpu: float


@dataclass(frozen=True, slots=True)
class MeasuredModels:
    """The points that were measured.

    Attributes:
        shares: of roofline time by class in the order of KERNEL_CLASSES, shape (M, C), see
            `with_biases_as_norms`.
        on_gpus: by GPU, which points models that were measured there are near to, shape (M,); empty
            if GPUs are not told apart, and every model counts as measured on each.
    """

    shares: NDArray[np.float32]
    on_gpus: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any], gpus: Sequence[str] = ()) -> MeasuredModels:
        """Read the array `TENSOR` and, if GPUs are named, `GPUS_TENSOR`.

        Args:
            tensors: of a checkpoint.
            gpus: names of the columns of the latter; none of a checkpoint that tells no GPUs apart.

        Raises:
            CheckpointError: if one is missing, its rows are no shares, or it does not fit.
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
        shares = with_biases_as_norms(shares)
        return cls(shares, _on_gpus(tensors, gpus, len(shares)) if gpus else {})

    def novelty(self, shares: Floats, gpu: str = "") -> Novelty:
        """Return the distance of a model to the nearest of these.

        Args:
            shares: see `shares_of`, shape (C,).
            gpu: name of the GPU it is to run on.
        """
        away = np.abs(self.shares - shares.astype(np.float32)).sum(axis=1) / 2
        least = float(away.min())
        if not self.on_gpus:
            return Novelty(least, least)
        there = self.on_gpus.get(gpu)
        return Novelty(least, 1.0 if there is None else float(away[there].min()))


def shares_of(kind: NDArray[Any], roofline_ms: Floats) -> Floats:
    """Return the shares of roofline time by class of kernels, biases as norms, shape (C,).

    All are 0 if no kernel runs, or if a time is no finite number.

    Args:
        kind: class of each kernel, its place in KERNEL_CLASSES, shape (K,).
        roofline_ms: of each kernel, shape (K,).
    """
    by_class = np.bincount(kind, roofline_ms, len(KERNEL_CLASSES)).astype(np.float64)
    total = float(by_class.sum())
    if not 0.0 < total < np.inf:
        return np.zeros(len(KERNEL_CLASSES))
    return with_biases_as_norms(by_class / total)


def with_biases_as_norms(shares: NDArray[F]) -> NDArray[F]:
    """Return shares by class, shape (..., C), with broadcasts counted as batch norms.

    Biases of convolutions are most of the broadcasts; scales of layers, the others, are passes of
    the same kind.
    """
    found = shares.copy()
    found[..., NORM] += found[..., BIAS]
    found[..., BIAS] = 0.0
    return found


def _on_gpus(
    tensors: Mapping[str, Any], gpus: Sequence[str], points: int
) -> dict[str, NDArray[np.bool_]]:
    if GPUS_TENSOR not in tensors:
        raise _damaged(f"the checkpoint has no array '{GPUS_TENSOR}'")
    array = np.asarray(tensors[GPUS_TENSOR])
    if array.dtype != np.uint8 or array.shape != (points, len(gpus)):
        raise _damaged(f"{GPUS_TENSOR} does not say of {points:,} points on which GPUs they are")
    if array.max() > 1 or not array.any(axis=0).all():
        raise _damaged(f"{GPUS_TENSOR} has values besides 0 and 1, or a GPU without a point")
    return dict(zip(gpus, array.T.astype(bool), strict=True))


def _damaged(what: str) -> CheckpointError:
    return CheckpointError(what, "Restore the checkpoint's folder from its release.")
