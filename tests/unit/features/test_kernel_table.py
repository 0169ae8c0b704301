"""Kernels of a graph as columns: what differs between two batches."""

from __future__ import annotations

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
