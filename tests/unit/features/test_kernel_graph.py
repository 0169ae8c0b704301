from __future__ import annotations

import numpy as np
import pytest

from dippm.estimate.features.kernel_table import KernelGraph, KernelTable, refined
from tests.unit.training.test_hybrid import residual_graph


def test_kernels_of_repeated_blocks_are_merged():
    table = KernelTable.of(residual_graph(blocks=12), "fp16")
    kernels = KernelGraph.of(table, rounds=3)
    longer = KernelGraph.of(KernelTable.of(residual_graph(blocks=24), "fp16"), rounds=3)
    assert len(kernels.count) < len(table.node) / 2
    assert len(longer.count) == len(kernels.count)
    assert kernels.count.sum() == len(table.node) == len(kernels.class_of)
    assert kernels.launches == table.launches


def test_only_kernels_with_equal_work_are_merged():
    table = KernelTable.of(residual_graph(blocks=6), "fp16")
    kernels = KernelGraph.of(table, rounds=3)
    merged = kernels.table.quantities(7)[kernels.class_of]
    assert np.array_equal(merged, table.quantities(7))
    assert np.array_equal(kernels.table.kind[kernels.class_of], table.kind)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_means_over_neighbours_are_those_of_the_whole_graph(rounds):
    table = KernelTable.of(residual_graph(blocks=8), "fp16")
    kernels = KernelGraph.of(table, rounds)
    random = np.random.default_rng(0)
    kinds = random.normal(size=64)[table.kind]
    whole, small = kinds, kinds[_first_of(kernels)]
    for _ in range(rounds):
        whole = whole + _mean(whole, table.edges) + 2 * _mean(whole, table.edges[::-1])
        small = small + _mean(small, kernels.inward) + 2 * _mean(small, kernels.outward)
    assert small[kernels.class_of] == pytest.approx(whole)


def test_looks_alone_decide_without_rounds():
    looks = np.array([[1.0], [2.0], [1.0]])
    edges = np.array([[0, 1], [1, 2]])
    assert refined(looks, edges, 0).tolist() == [0, 1, 0]
    assert len(set(refined(looks, edges, 1).tolist())) == 3


def _first_of(kernels: KernelGraph) -> np.ndarray:
    return np.unique(kernels.class_of, return_index=True)[1]


def _mean(values: np.ndarray, flows: np.ndarray) -> np.ndarray:
    size = len(values)
    sums = np.bincount(flows[1], values[flows[0]], size)
    return sums / np.maximum(np.bincount(flows[1], minlength=size), 1)
