"""Which kernel reads what which other kernel wrote."""

from __future__ import annotations

import pytest

from dataset.measured.nodes import GraphBuilder
from dippm.estimate.conditions import Mode, Precision
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_table import KernelTable
from dippm.model.graph.model_graph import ModelGraph


def block() -> ModelGraph:
    b = GraphBuilder(batch=1)
    shape = (1, 8, 32)
    x = b.input(shape)
    weights = {"in_features": 32, "out_features": 32}
    first = b.add("dense", [x], shape, attributes=weights, weights=32 * 32)
    split = b.add("reshape", [first], (1, 8, 4, 8))
    joined = b.add("reshape", [split], shape)
    relu = b.add("relu", [joined], shape)
    b.add("add", [relu, first], shape)
    return b.graph()


def named_edges(precision: Precision, mode: Mode = "eager") -> set[tuple[str, str]]:
    table = KernelTable.of(block(), precision, mode)
    names = [tuple(KERNEL_CLASSES)[kind] for kind in table.kind]
    assert table.edges.shape[0] == 2
    return {(names[a], names[b]) for a, b in table.edges.T}


def test_views_pass_on_what_they_read() -> None:
    assert named_edges("fp32") == {
        ("gemm", "activation"), ("gemm", "elementwise"), ("activation", "elementwise"),
    }  # fmt: skip


def test_casts_of_activations_and_of_weights_lead_to_the_product() -> None:
    table = KernelTable.of(block(), "amp")
    names = [tuple(KERNEL_CLASSES)[kind] for kind in table.kind]
    product = names.index("gemm")
    sources = [names[a] for a, b in table.edges.T if b == product]
    assert sources == ["cast", "cast"]
    assert not [a for a, b in table.edges.T if names[b] == "cast"], "they read input and weights"


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_edges_stay_inside_the_list(mode: Mode) -> None:
    table = KernelTable.of(block(), "amp", mode)
    assert table.edges.max() < len(table.kind)
    assert (table.edges[0] != table.edges[1]).all()


def test_a_compiled_group_reads_what_its_members_read() -> None:
    assert named_edges("fp32", "compiled") == {("gemm", "elementwise")}
