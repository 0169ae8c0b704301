"""`adjacency` and `node_features`: the A and X of D3.5, algorithm 1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dippm.estimate.features.feature_spec import (
    CLASS_OF_OPERATOR,
    FIRST_ATTRIBUTE,
    NODE_FEATURES,
    SHAPE_COLUMNS,
)
from dippm.model.graph.model_graph import Attribute, ModelGraph, OpNode

if TYPE_CHECKING:
    import torch

_SIZES = len(SHAPE_COLUMNS) - 1
_ITEM_BYTES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}
_ITEM_BYTES |= {"int16": 2, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1}


def edge_index(graph: ModelGraph) -> torch.Tensor:
    """Return the data flow as (2, E) int64: row 0 producers, row 1 consumers."""
    import torch

    if not graph.edges:
        return torch.empty((2, 0), dtype=torch.int64)
    return torch.from_numpy(np.array(graph.edges, dtype=np.int64).T.copy())


def adjacency(graph: ModelGraph) -> torch.Tensor:
    """Return A, sparse COO (N, N) float32: A[i, j] = 1 if node j reads what node i produces."""
    import torch

    count = len(graph.nodes)
    edges = edge_index(graph)
    ones = torch.ones(edges.shape[1])
    return torch.sparse_coo_tensor(edges, ones, (count, count), check_invariants=True).coalesce()


def node_features(graph: ModelGraph) -> torch.Tensor:
    """Return X, (N, 32) float32, laid out as `dippm.estimate.features.feature_spec` says.

    Every operator has a row. One without a known class has its one-hot in column 0.
    """
    import torch

    count = len(graph.nodes)
    features = np.zeros((count, NODE_FEATURES), dtype=np.float32)
    if count:
        classes = [CLASS_OF_OPERATOR.get(node.op, 0) for node in graph.nodes]
        features[np.arange(count), classes] = 1.0
        sizes = np.array([_sizes(node) for node in graph.nodes], dtype=np.float64)
        features[:, FIRST_ATTRIBUTE:] = np.log1p(np.maximum(sizes, 0.0))
    return torch.from_numpy(features)


def _sizes(node: OpNode) -> tuple[float, ...]:
    """Return the attribute and shape columns before the logarithm."""
    attributes = node.attributes
    kernel = _spatial(attributes.get("kernel"))
    stride = _spatial(attributes.get("strides"))
    shape = node.out_shapes[0] if node.out_shapes else ()
    elements = math.prod(shape)
    return (
        *kernel,
        *stride,
        _total(attributes.get("padding")),
        max(_spatial(attributes.get("dilation"))),
        _total(attributes.get("groups", attributes.get("heads"))),
        node.macs / elements if elements else 0.0,
        node.param_bytes / _ITEM_BYTES.get(node.dtype, 4),
        sum(map(math.prod, node.in_shapes)),
        *_padded(shape),
        elements,
    )


def _spatial(value: Attribute | None) -> tuple[float, float]:
    """Return height and width; of one number both, of three the last two."""
    match value:
        case int() | float():
            return float(value), float(value)
        case (single,):
            return 1.0, float(single)
        case (*_, height, width):
            return float(height), float(width)
        case _:
            return 0.0, 0.0


def _total(value: Attribute | None) -> float:
    if isinstance(value, tuple):
        return float(sum(value))
    return float(value) if isinstance(value, int | float) else 0.0


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the first five sizes; what a longer shape has beyond goes into the fifth."""
    if len(shape) > _SIZES:
        shape = (*shape[: _SIZES - 1], math.prod(shape[_SIZES - 1 :]))
    return shape + (0,) * (_SIZES - len(shape))
