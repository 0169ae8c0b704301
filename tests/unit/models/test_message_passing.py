"""Means over neighbours, against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.estimate.models.law_kernels import MOST_TURNS, Neighbours


@pytest.mark.parametrize("most", [0, 1, 3, MOST_TURNS, 3 * MOST_TURNS])
def test_the_mean_over_neighbours_is_that_of_a_loop(most: int) -> None:
    size, draw = 40, np.random.default_rng(most)
    lists = [draw.integers(0, size, draw.integers(0, most + 1)) for _ in range(size)]
    lists[7] = draw.integers(0, size, most)
    pairs = [(source, kernel) for kernel, heard in enumerate(lists) for source in heard]
    flows = draw.permutation(np.array(pairs, dtype=np.int64).reshape(-1, 2)).T
    x = draw.normal(size=(2, size, 5)).astype(np.float32)
    expected = np.stack(
        [x[:, heard].mean(axis=1) if len(heard) else np.zeros((2, 5)) for heard in lists], axis=1
    )
    assert Neighbours.of(flows, size).mean(x) == pytest.approx(expected, abs=1e-6)
