"""Boosted trees for each kernel as numpy: arrays of nodes, walked level by level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.errors import CheckpointError
from dippm.features.kernel_features import N_FEATURES, N_KINDS

Array = NDArray[np.float32]
ARRAYS = ("classes", "roots", "feature", "threshold", "left", "value")


@dataclass(frozen=True, slots=True)
class KernelTrees:
    """Class multipliers, and trees that add to them in the log.

    Attributes:
        classes: log slow-down by class, shape (N_KINDS,).
        roots: node where each tree begins, shape (T,).
        feature: column that a node asks about, -1 in a leaf, shape (N,).
        threshold: smaller values go to `left`, others to the node after it, shape (N,).
        left: shape (N,).
        value: of a leaf, shape (N,).
        depth: longest path.
        reach: largest log step away from the class.
    """

    classes: Array
    roots: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: Array
    left: NDArray[np.int32]
    value: Array
    depth: int
    reach: float

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any], depth: int, reach: float) -> KernelTrees:
        """Read the arrays "trees.<name>".

        Raises:
            CheckpointError: if one is missing or names nodes or columns that do not exist.
        """
        try:
            a = {name: np.asarray(tensors[f"trees.{name}"]) for name in ARRAYS}
        except KeyError as error:
            raise _damaged(f"the trees have no array {error}") from None
        if any(a[name].dtype.kind != "i" for name in ("roots", "feature", "left")):
            raise _damaged("positions of the trees are no whole numbers")
        nodes = len(a["feature"])
        trees = cls(
            a["classes"].astype(np.float32), a["roots"].astype(np.int32),
            a["feature"].astype(np.int32), a["threshold"].astype(np.float32),
            a["left"].astype(np.int32), a["value"].astype(np.float32), depth, reach,
        )  # fmt: skip
        fits = (
            trees.classes.shape == (N_KINDS,)
            and all(len(a[name]) == nodes for name in ("threshold", "left", "value"))
            and _inside(trees.feature, -1, N_FEATURES)
            and _inside(trees.roots, 0, nodes)
            and _inside(trees.left, 0, nodes - 1)
        )
        if not fits:
            raise _damaged("the arrays of the trees do not fit together")
        return trees

    def log_slowdown(self, features: Array) -> NDArray[np.float64]:
        """Return the log slow-down of each kernel, shape (K,).

        Args:
            features: shape (K, F), see `dippm.features.kernel_features`.
        """
        kernels = np.arange(len(features))[:, None]
        node = np.broadcast_to(self.roots, (len(features), len(self.roots)))
        for _ in range(self.depth):
            asked = self.feature[node]
            right = features[kernels, asked] >= self.threshold[node]
            node = np.where(asked < 0, node, self.left[node] + right)
        step = self.value[node].sum(axis=1, dtype=np.float64)
        base = self.classes[features[:, :N_KINDS].argmax(axis=1)]
        return np.asarray(base + np.clip(step, -self.reach, self.reach))


def _inside(values: NDArray[np.int32], low: int, high: int) -> bool:
    return bool(((values >= low) & (values < max(high, low + 1))).all())


def _damaged(what: str) -> CheckpointError:
    return CheckpointError(what, "Restore the checkpoint's folder from its release.")
