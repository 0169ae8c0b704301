"""Means of learners: the one that ships, and each learner alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.models.kernel_law import blend_factor, tree_share

Floats = NDArray[np.float64]
SAGE, ALONE, TREES = "GraphSAGE", "each kernel alone", "boosted trees"
GUARDED = "GraphSAGE, guarded by trees"
NEARBY = "left over of measured models nearby"
"""No learner: what is added to the networks, see `dippm.estimate.models.residuals`."""


class Mean(Protocol):
    """A mean of what learners predict for R rows, in the log."""

    def answers(self, log_ms: Mapping[str, Floats], novelty: Floats) -> Floats:
        """Return what each of A members predicts, shape (A, R)."""

    def shares(self, novelty: Floats) -> Floats:
        """Return their weights in the mean, shape (A, R)."""

    def everywhere(self) -> Floats:
        """Return their weights for the spread, whatever the novelty, shape (A,)."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The mean of graph network and trees that ships, see `dippm.estimate.models.kernel_law`.

    Attributes:
        network_weight: weight of the network far from measured models.
    """

    network_weight: float

    def answers(self, log_ms: Mapping[str, Floats], novelty: Floats) -> Floats:
        """Return the corrected answers of the network, and those of the trees."""
        far = blend_factor(novelty)
        network = (1.0 - far) * log_ms[SAGE] + far * log_ms[GUARDED] + log_ms[NEARBY]
        return np.stack([network, log_ms[TREES]])

    def shares(self, novelty: Floats) -> Floats:
        """Return the weights of the two."""
        of_trees = tree_share(novelty, self.network_weight)
        return np.stack([1.0 - of_trees, of_trees])

    def everywhere(self) -> Floats:
        """Return their weights far from measured models."""
        return np.array([self.network_weight, 1.0 - self.network_weight])


@dataclass(frozen=True, slots=True)
class Single:
    """One learner by its name."""

    learner: str

    def answers(self, log_ms: Mapping[str, Floats], novelty: Floats) -> Floats:
        """Return its answers."""
        return log_ms[self.learner][None]

    def shares(self, novelty: Floats) -> Floats:
        """Return 1 for each row."""
        return np.ones((1, len(novelty)))

    def everywhere(self) -> Floats:
        """Return 1."""
        return np.ones(1)
