"""Boosted trees for each kernel as numpy: arrays of nodes, walked level by level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.errors import CheckpointError
from dippm.estimate.features.kernel_features import N_FEATURES, N_KINDS

Array = NDArray[np.float32]
Positions = NDArray[np.intp]
ARRAYS = ("classes", "roots", "feature", "threshold", "left", "value")
ROWS_AT_ONCE = 256
"""Number of rows whose states for all trees fit the second-level cache of a core."""


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of all trees at one depth; a leaf above it stands here again.

    Attributes:
        feature: column that a node compares, shape (N,).
        threshold: values from here on go right; NaN in a leaf, which no value reaches, shape (N,).
        left: position of its left child in the next level, or of the leaf itself, shape (N,).
    """

    feature: Positions
    threshold: Array
    left: Positions


@dataclass(frozen=True, slots=True)
class KernelTrees:
    """Class multipliers, and trees that add to them in the log.

    Attributes:
        classes: log slow-down by class, shape (N_KINDS,).
        roots: node where each tree begins, shape (T,).
        feature: column that a node compares, -1 in a leaf, shape (N,).
        threshold: smaller values go to `left`, others to the node after it, shape (N,).
        left: position of the left child, shape (N,).
        value: value of a leaf, shape (N,).
        depth: length of the longest path.
        reach: largest log step away from the class.
        levels: the nodes again, by depth.
        leaves: value of each node below the last level.
    """

    classes: Array
    roots: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: Array
    left: NDArray[np.int32]
    value: Array
    depth: int
    reach: float
    levels: tuple[Level, ...] = field(init=False, repr=False)
    leaves: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        levels, here = [], self.roots.astype(np.intp)
        for _ in range(self.depth):
            is_leaf = self.feature[here] < 0
            children = np.where(is_leaf, 1, 2)
            if children.sum() > len(self.feature):
                raise _damaged("nodes of the trees have more than one parent")
            left = np.cumsum(children) - children
            levels.append(
                Level(
                    np.where(is_leaf, 0, self.feature[here]).astype(np.intp),
                    np.where(is_leaf, np.float32(np.nan), self.threshold[here]),
                    left.astype(np.intp),
                )
            )
            below = np.empty(int(children.sum()), dtype=np.intp)
            below[left] = np.where(is_leaf, here, self.left[here])
            below[left[~is_leaf] + 1] = self.left[here[~is_leaf]] + 1
            here = below
        object.__setattr__(self, "levels", tuple(levels))
        object.__setattr__(self, "leaves", self.value[here])

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Any],
        depth: int,
        reach: float,
        prefix: str = "trees",
        columns: int = N_FEATURES,
    ) -> KernelTrees:
        """Read the arrays "<prefix>.<name>" of trees that ask about so many columns.

        Raises:
            CheckpointError: if one is missing or names nodes or columns that do not exist.
        """
        try:
            a = {name: np.asarray(tensors[f"{prefix}.{name}"]) for name in ARRAYS}
        except KeyError as error:
            raise _damaged(f"the trees have no array {error}") from None
        if any(a[name].dtype.kind != "i" for name in ("roots", "feature", "left")):
            raise _damaged("positions of the trees are no whole numbers")
        nodes = len(a["feature"])
        fits = (
            a["classes"].shape == (N_KINDS,)
            and all(len(a[name]) == nodes for name in ("threshold", "left", "value"))
            and _inside(a["feature"], -1, columns)
            and _inside(a["roots"], 0, nodes)
            and _inside(a["left"], 0, nodes - 1)
        )
        if not fits:
            raise _damaged("the arrays of the trees do not fit together")
        return cls(
            a["classes"].astype(np.float32),
            a["roots"].astype(np.int32),
            a["feature"].astype(np.int32),
            a["threshold"].astype(np.float32),
            a["left"].astype(np.int32),
            a["value"].astype(np.float32),
            depth,
            reach,
        )

    def log_slowdown(self, features: Array) -> NDArray[np.float64]:
        """Return the log slow-down of each kernel, shape (K,).

        Args:
            features: shape (K, F), see `dippm.estimate.features.kernel_features`.
        """
        parts = range(0, len(features), ROWS_AT_ONCE)
        steps = [self._step(features[first : first + ROWS_AT_ONCE]) for first in parts]
        step = np.concatenate([np.zeros(0), *steps])
        base = self.classes[features[:, :N_KINDS].argmax(axis=1)]
        return np.asarray(base + np.clip(step, -self.reach, self.reach))

    def _step(self, features: Array) -> NDArray[np.float64]:
        """Return the sum of the leaves that each row arrives at, shape (K,)."""
        rows = len(features)
        row, values = np.arange(rows), np.ascontiguousarray(features.T).ravel()
        node = np.repeat(np.arange(len(self.roots))[:, None], rows, axis=1)
        asked, right = np.empty_like(node), np.empty(node.shape, dtype=bool)
        value = np.empty(node.shape, dtype=np.float32)
        threshold = np.empty_like(value)
        # "clip" lets take write into `out` without a copy; no position is outside.
        for level in self.levels:
            level.feature.take(node, out=asked, mode="clip")
            asked *= rows
            asked += row
            values.take(asked, out=value, mode="clip")
            level.threshold.take(node, out=threshold, mode="clip")
            np.greater_equal(value, threshold, out=right)
            level.left.take(node, out=asked, mode="clip")
            np.add(asked, right, out=node)
        return np.asarray(self.leaves.take(node).sum(axis=0, dtype=np.float64))


def _inside(values: NDArray[Any], low: int, high: int) -> bool:
    return bool(((values >= low) & (values < max(high, low + 1))).all())


def _damaged(what: str) -> CheckpointError:
    return CheckpointError(what, "Restore the checkpoint's folder from its release.")
