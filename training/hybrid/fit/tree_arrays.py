"""A booster of xgboost → the arrays that `dippm.estimate.models.kernel_trees` walks."""

from __future__ import annotations

from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray


def tree_arrays(booster: xgboost.Booster) -> dict[str, NDArray[Any]]:
    """Return "roots", "feature", "threshold", "left" and "value"; see `KernelTrees`.

    A node's children stand side by side: what is smaller goes left, the rest to the node after it.
    """
    table = booster.trees_to_dataframe().sort_values(["Tree", "Node"])
    roots: list[int] = []
    feature: list[int] = []
    threshold, left, value = [], [], []
    for _, tree in table.groupby("Tree", sort=True):
        rows = tree.set_index("ID")
        base = len(feature)
        place = {rows.index[0]: 0}
        order = [rows.index[0]]
        for name in order:
            if rows.at[name, "Feature"] != "Leaf":
                for side in ("Yes", "No"):
                    child = rows.at[name, side]
                    place[child] = len(order)
                    order.append(child)
        roots.append(base)
        for name in order:
            row = rows.loc[name]
            leaf = row["Feature"] == "Leaf"
            feature.append(-1 if leaf else int(row["Feature"].removeprefix("f")))
            threshold.append(0.0 if leaf else float(row["Split"]))
            left.append(0 if leaf else base + place[row["Yes"]])
            value.append(float(row["Gain"]) if leaf else 0.0)
    return {
        "roots": np.array(roots, dtype=np.int32),
        "feature": np.array(feature, dtype=np.int32),
        "threshold": np.array(threshold, dtype=np.float32),
        "left": np.array(left, dtype=np.int32),
        "value": np.array(value, dtype=np.float32),
    }
