"""Trees walked for all rows at once, against a walk node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.errors import CheckpointError
from dippm.estimate.features.kernel_features import N_FEATURES, N_KINDS
from dippm.estimate.models.kernel_trees import ROWS_AT_ONCE, KernelTrees

COLUMN = N_KINDS + 5


def two_trees() -> dict[str, Any]:
    """A tree of three levels, one side of it a leaf, and a tree that is a leaf."""
    return {
        "trees.classes": np.linspace(-1, 1, N_KINDS, dtype=np.float32),
        "trees.roots": np.array([0, 5]),
        "trees.feature": np.array([COLUMN, -1, COLUMN + 1, -1, -1, -1]),
        "trees.threshold": np.array([0.5, 0, -0.5, 0, 0, 0], dtype=np.float32),
        "trees.left": np.array([1, 0, 3, 0, 0, 0]),
        "trees.value": np.array([0, 0.1, 0, 0.2, 0.3, 0.05], dtype=np.float32),
    }


@pytest.mark.parametrize("rows", [0, 1, ROWS_AT_ONCE + 3])
def test_every_row_arrives_at_its_leaf(rows: int) -> None:
    draw = np.random.default_rng(rows)
    x = draw.normal(size=(rows, N_FEATURES)).astype(np.float32)
    x[: rows // 2, COLUMN] = 0.5  # what equals a threshold goes right
    base = np.linspace(-1, 1, N_KINDS, dtype=np.float32)[x[:, :N_KINDS].argmax(axis=1)]
    right = np.where(x[:, COLUMN + 1] >= -0.5, 0.3, 0.2)
    expected = base + np.where(x[:, COLUMN] >= 0.5, right, 0.1) + 0.05
    found = KernelTrees.from_tensors(two_trees(), depth=3, reach=1.5).log_slowdown(x)
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_node_that_is_its_own_child_is_refused() -> None:
    looped = {**two_trees(), "trees.left": np.array([0, 0, 0, 0, 0, 0])}
    looped["trees.feature"] = np.full(6, COLUMN)
    with pytest.raises(CheckpointError, match="more than one parent"):
        KernelTrees.from_tensors(looped, depth=64, reach=1.5)
