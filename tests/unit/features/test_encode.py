from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dippm.estimate.features import FEATURE_VERSION, collate, encode
from dippm.model.graph.model_graph import ModelGraph


def test_encode_gives_what_a_network_needs(residual: ModelGraph) -> None:
    tensors = encode(residual)
    assert tensors.x.shape == (6, 32)
    assert tensors.edge_index.tolist() == [[0, 0, 1, 2, 3, 4], [1, 3, 2, 3, 4, 5]]
    assert tensors.static.shape == (1, 5)
    assert tensors.version == FEATURE_VERSION


def test_collate_keeps_graphs_apart(residual: ModelGraph, recurrent: ModelGraph) -> None:
    both = collate([encode(residual), encode(recurrent)])
    assert both.num_graphs == 2
    assert both.batch.tolist() == [0] * 6 + [1] * 3
    assert both.edge_index[:, -1].tolist() == [7, 8]
    assert torch.equal(both.x[6:], encode(recurrent).x)


def test_collate_nests(residual: ModelGraph, recurrent: ModelGraph) -> None:
    flat = collate([encode(g) for g in (residual, recurrent, residual)])
    nested = collate([collate([encode(residual), encode(recurrent)]), encode(residual)])
    assert torch.equal(flat.batch, nested.batch)
    assert torch.equal(flat.edge_index, nested.edge_index)


def test_collate_refuses_other_layouts(residual: ModelGraph) -> None:
    tensors = encode(residual)
    with pytest.raises(ValueError, match="feature version"):
        collate([tensors, replace(tensors, version="0")])
    with pytest.raises(ValueError, match="feature version"):
        collate([])


def test_torch_geometric_reads_it(residual: ModelGraph) -> None:
    data = pytest.importorskip("torch_geometric.data")
    batch = data.Batch.from_data_list([encode(residual).to_data()] * 2)
    assert batch.num_graphs == 2
    assert batch.x.shape == (12, 32)
    assert batch.static.shape == (2, 5)
    assert data.Data.validate(encode(residual).to_data())
