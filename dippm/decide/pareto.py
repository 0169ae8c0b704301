"""`pareto_front`: the points that no other point dominates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the positions of the points that no other point dominates, in lexical order.

    A point dominates another if it is nowhere larger and somewhere smaller (all quantities are
    minimised), so equal points are on the front together or not at all. In lexical order a point
    can only be dominated by an earlier one, and is compared with the front so far: the cost is
    about points times members of the front.

    Args:
        points: n points of m numbers each.
    """
    if not points:
        return []
    values = np.asarray(points, np.float64)
    members: list[int] = []
    kept = np.empty((0, values.shape[1]))
    for position in np.lexsort((np.arange(len(values)), *values.T[::-1])):
        point = values[position]
        if not ((kept <= point).all(axis=1) & (kept < point).any(axis=1)).any():
            members.append(int(position))
            kept = values[members]
    return members
