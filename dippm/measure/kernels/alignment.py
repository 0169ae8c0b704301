"""The longest common order of two lists."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np


def aligned(
    names: Sequence[str], kinds: Sequence[Collection[str]], weights: Sequence[float]
) -> list[int | None]:
    """Return for each name the position of its like, in order and without crossings.

    The sum of the weights of what is matched is the largest possible; a longest common subsequence
    (Wagner and Fischer 1974), row by row.

    Args:
        names: of one list.
        kinds: what each entry of the other list may be called.
        weights: of each entry of the other list, positive.
    """
    like = np.array([[name in known for known in kinds] for name in names], dtype=bool)
    like = like.reshape(len(names), len(kinds))
    gains = np.where(like, np.asarray(weights, dtype=np.float64).reshape(1, -1), 0.0)
    best = np.zeros((len(names) + 1, len(kinds) + 1))
    for i in range(len(names)):
        taken = np.where(like[i], best[i, :-1] + gains[i], 0.0)
        best[i + 1, 1:] = np.maximum.accumulate(np.maximum(best[i, 1:], taken))
    found: list[int | None] = [None] * len(names)
    i, j = len(names), len(kinds)
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            found[i] = j
    return found
