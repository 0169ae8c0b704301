"""Kernels of a graph as columns: what differs between two batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from dippm.errors import ConversionError
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.features.kernels import launched_by
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.pytorch import convert_module
from dippm.model.graph import build


@pytest.fixture(scope="module")
def graph():
    return build(convert_module(nn.Linear(8, 4).eval(), InputSpec.parse("8")))


def test_a_batch_as_large_as_another_size_is_no_probe(graph) -> None:
    def kernels_of(sequence):
        kernels = launched_by(sequence)
        return kernels[:-1] if sequence.batch == 2 else kernels

    table = KernelTable._expanded(graph, kernels_of)
    plain = KernelTable.of(graph)
    for batch in (1, 2, 64):
        assert np.array_equal(table.quantities(batch), plain.quantities(batch))


def test_kernels_that_differ_at_every_batch_are_an_error_of_ours(graph) -> None:
    def kernels_of(sequence):
        return launched_by(sequence) * min(sequence.batch, 1500)

    with pytest.raises(ConversionError, match=r"launches \d+ kernels at batch 1,009"):
        KernelTable._expanded(graph, kernels_of)


class Contrastive(nn.Module):
    """Compares every sample with every other one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 4)

    def forward(self, x):
        embedded = self.embed(x)
        return (embedded @ embedded.t()).softmax(dim=1)


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_what_grows_with_the_square_of_the_batch(phase) -> None:
    graph = build(convert_module(Contrastive().eval(), InputSpec.parse("8")))
    assert graph.batch_is_symbolic
    expand = KernelTable.of if phase == "inference" else KernelTable.of_training
    table = expand(graph)
    assert table.squared is not None
    for batch in (2, 7, 64, 4096):
        fixed = replace(graph.at_batch(batch), batch_is_symbolic=False)
        expected = expand(fixed).quantities(batch)
        np.testing.assert_allclose(table.quantities(batch), expected, rtol=1e-9, atol=1e-6)


def test_what_does_not_has_no_square(graph) -> None:
    assert KernelTable.of(graph).squared is None
