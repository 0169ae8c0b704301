"""Gaussian-process regression on the residuals of measured models near a prediction.

The networks are one law for every table of measurements. What a table has of its own around a model
they leave over, and models of a kind leave over much the same. A model under its conditions is a
point: the mean of what the networks see of its kernels, weighted by their roofline time. Of the
residuals e of N rows that trained, the log of measured over predicted latency, at the points Z,

    mean(z) = n(z) · k(z, Z) (K + NOISE · I)⁻¹ e
    k(d) = (1 + √3 d / LENGTH) exp(-√3 d / LENGTH)      n(z) = exp(-(least d / CUT_OFF)⁴)

k is a Matérn kernel (Rasmussen and Williams 2006, equations 2.25 and 4.17 with ν = 3/2). n leaves
models alone that have no neighbour of their kind: what is left over of one family says little of
another, and a model of a new one is better off with nothing added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dippm.errors import CheckpointError
from dippm.estimate.conditions import Conditions, Mode, Precision
from dippm.estimate.features.kernel_features import N_DEVICE_FEATURES, N_FEATURES

Floats = NDArray[np.float64]
Group: TypeAlias = tuple[str, Mode, Precision, bool]
"""GPU, mode, precision and whether images are channels last: rows of others are not compared."""

POINTS, WEIGHTS = "residuals.points", "residuals.weights"
N_COORDINATES = N_FEATURES - N_DEVICE_FEATURES
"""Descriptors are the same for all rows of a GPU."""
LENGTH = 1.0
"""Length scale of the kernel, in standard deviations of the features of kernels."""
NOISE = 0.05
"""Noise variance of a residual, over the variance that neighbours share."""
CUT_OFF = 0.7
"""Distance beyond which neighbours say nothing. Within it lie the nearest neighbours of four
fifths of the models whose architecture is held out, and of an eighth of those whose family is."""
MOST_ROWS = 1 << 16
"""A prediction looks at all rows of a group, so a checkpoint may not have any number of them."""


@dataclass(frozen=True, slots=True)
class MeasuredResiduals:
    """The rows that trained, by group.

    Attributes:
        groups: points (N, N_COORDINATES) and dual weights (K + NOISE · I)⁻¹ e, (N,), by group.
        mean, scale: mean and standard deviation of the features of kernels, (N_FEATURES,).
    """

    groups: Mapping[Group, tuple[Floats, Floats]]
    mean: Floats
    scale: Floats

    @classmethod
    def from_checkpoint(
        cls,
        tensors: Mapping[str, Any],
        lines: Sequence[Mapping[str, Any]],
        mean: NDArray[Any],
        scale: NDArray[Any],
    ) -> MeasuredResiduals:
        """Read the arrays `POINTS` and `WEIGHTS`, whose rows `lines` name.

        Args:
            tensors: arrays of a checkpoint.
            lines: part "residuals" of its law: a group and its number of rows each, in order.
            mean: mean of the features of kernels, (N_FEATURES,).
            scale: their standard deviation, (N_FEATURES,).

        Raises:
            CheckpointError: if an array is missing, or does not fit.
        """
        total = sum(line["rows"] for line in lines)
        points = np.asarray(tensors.get(POINTS, np.zeros((0, N_COORDINATES))), dtype=np.float64)
        weights = np.asarray(tensors.get(WEIGHTS, np.zeros(0)), dtype=np.float64)
        fits = points.shape == (total, N_COORDINATES) and weights.shape == (total,)
        if not fits or total > MOST_ROWS:
            raise CheckpointError(
                "the residuals of measured models do not fit their list",
                "Restore the checkpoint's folder from its release.",
            )
        ends = np.cumsum([line["rows"] for line in lines])[:-1]
        parts = zip(lines, np.split(points, ends), np.split(weights, ends), strict=True)
        groups = {group_of(line): (p, w) for line, p, w in parts} if lines else {}
        return cls(groups, mean.astype(np.float64), scale.astype(np.float64))

    def log_correction(
        self, c: Conditions, device: str, features: NDArray[Any], times: Floats
    ) -> float:
        """Return the correction of the log slow-down of a model's kernels; 0 without neighbours.

        Args:
            c: the conditions.
            device: name of the GPU that rows were measured on.
            features: features of the kernels, (K, N_FEATURES).
            times: roofline time of each kernel, shape (K,).
        """
        group = (device, c.mode, c.precision, c.channels_last)
        if c.mig is not None or group not in self.groups:
            return 0.0
        total = float(times.sum())
        if not 0.0 < total < np.inf:
            return 0.0
        points, weights = self.groups[group]
        point = point_of(times @ features / total, self.mean, self.scale)
        return float(posterior_mean(point[None], points, weights)[0])


def group_of(line: Mapping[str, Any]) -> Group:
    """Return the group that a line of a configuration names."""
    return line["device"], line["mode"], line["precision"], line["channels_last"]


def point_of(mean_features: Floats, mean: Floats, scale: Floats) -> Floats:
    """Return the points of models, shape (..., N_COORDINATES), from mean features of kernels."""
    return np.asarray(((mean_features - mean) / scale)[..., :N_COORDINATES])


def posterior_mean(asked: Floats, points: Floats, weights: Floats) -> Floats:
    """Return the faded posterior mean of the log slow-down of models, shape (len(asked),).

    Args:
        asked: points of the models, (A, N_COORDINATES).
        points: points of the rows that trained, (N, N_COORDINATES), N at least 1.
        weights: dual weights of these rows, (N,).
    """
    away = distances(asked, points)
    fade = np.exp(-((away.min(axis=1) / CUT_OFF) ** 4))
    return np.asarray(fade * (matern32(away) @ weights))


def dual_weights(points: Floats, log_error: Floats) -> Floats:
    """Return the dual weights (K + NOISE · I)⁻¹ e, shape (N,)."""
    covariance = matern32(distances(points, points))
    return np.asarray(np.linalg.solve(covariance + NOISE * np.eye(len(points)), log_error))


def distances(points: Floats, others: Floats) -> Floats:
    """Return Euclidean distances, shape (len(points), len(others))."""
    squares = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)
    return np.asarray(np.sqrt(np.maximum(squares - 2.0 * points @ others.T, 0.0)))


def matern32(distance: Floats) -> Floats:
    """Return the Matérn kernel with ν = 3/2 at distances of any shape."""
    scaled = np.sqrt(3.0) * distance / LENGTH
    return np.asarray((1.0 + scaled) * np.exp(-scaled))
