"""Encoding of a `ModelGraph` as tensors: node features, edges, and features of the whole model.

Sections: layout of every feature vector and its version; `encode` and `collate`; node features and
adjacency; features of a whole model. A node row has 32 columns, as in D3.5 §4.2: one-hot(operator
class) ⊕ attributes ⊕ output shape.

    columns   content
     0 – 15   one-hot of `OPERATOR_CLASSES`; column 0 is an unknown operator
    16 – 25   `ATTRIBUTE_COLUMNS`, log(1 + value), 0 where an operator has no such attribute
    26 – 31   `SHAPE_COLUMNS`: sizes of the first result and its element count, log(1 + size)

The operator table states the class of each operator, as `feature`. Any change of a column, of its
meaning or of the class of an operator raises `FEATURE_VERSION`; checkpoints refuse other versions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dippm.model.graph.liveness import peak_activation_bytes
from dippm.model.graph.model_graph import Attribute, ModelGraph, OpNode
from dippm.model.graph.operators import OPERATORS

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data


FEATURE_VERSION = "1"

OPERATOR_CLASSES = (
    "unknown",
    "conv",
    "conv_transpose",
    "dense",
    "batch_matmul",
    "attention",
    "recurrent",
    "pool",
    "normalisation",
    "softmax",
    "activation",
    "elementwise",
    "reduction",
    "movement",
    "indexing",
    "resampling",
)

ATTRIBUTE_COLUMNS = (
    "kernel_height",
    "kernel_width",
    "stride_height",
    "stride_width",
    "padding_total",
    "dilation",
    "groups",
    "contraction",
    "parameters",
    "input_elements",
)

SHAPE_COLUMNS = ("size_0", "size_1", "size_2", "size_3", "size_4", "elements")

NODE_COLUMNS = (*(f"is_{name}" for name in OPERATOR_CLASSES), *ATTRIBUTE_COLUMNS, *SHAPE_COLUMNS)
NODE_FEATURES = len(NODE_COLUMNS)
FIRST_ATTRIBUTE = len(OPERATOR_CLASSES)
FIRST_SHAPE = FIRST_ATTRIBUTE + len(ATTRIBUTE_COLUMNS)

STATIC_COLUMNS = ("macs", "batch", "convs", "denses", "relus")
"""Equation 1 of D3.5, in its order."""

CLASS_OF_OPERATOR: dict[str, int] = {
    row.name: OPERATOR_CLASSES.index(row.feature) if row.feature in OPERATOR_CLASSES else 0
    for row in OPERATORS.values()
}
CONVOLUTIONS = frozenset(
    row.name for row in OPERATORS.values() if row.feature == "conv" and row.kernel == "convolution"
)
MAC_OPERATORS = frozenset(
    row.name for row in OPERATORS.values() if row.category == "compute" and row.kernel != "other"
)
"""Operators whose multiply-accumulates equation 1 counts.

A fused attention counts as the two batched products that it has in D3.5's IR.
"""


# `encode` turns a graph into tensors; `collate` joins several graphs.


@dataclass(frozen=True, slots=True)
class GraphTensors:
    """Tensors of one model, or of several as one disconnected graph.

    Attributes:
        x: (N, 32) float32 node features.
        edge_index: (2, E) int64, producers and consumers.
        static: (G, 5) float32, equation 1, unscaled.
        batch: (N,) int64, the graph of each node; G is 1 for a single model.
        version: version of the feature layout.
    """

    x: torch.Tensor
    edge_index: torch.Tensor
    static: torch.Tensor
    batch: torch.Tensor
    version: str = FEATURE_VERSION

    @property
    def num_graphs(self) -> int:
        """Number of graphs, G."""
        return self.static.shape[0]

    def to_data(self) -> Data:
        """Return a torch_geometric `Data` of the same tensors, for its loaders and explainers."""
        from torch_geometric.data import Data

        fields: dict[str, Any] = {"static": self.static}
        return Data(x=self.x, edge_index=self.edge_index, **fields)


def encode(graph: ModelGraph) -> GraphTensors:
    """Return a model's tensors."""
    import torch

    x = node_features(graph)
    return GraphTensors(
        x=x,
        edge_index=edge_index(graph),
        static=static_features(graph).float()[None],
        batch=torch.zeros(x.shape[0], dtype=torch.int64),
    )


def collate(graphs: Sequence[GraphTensors]) -> GraphTensors:
    """Return several graphs as one disconnected graph.

    Raises:
        ValueError: if there are no graphs, or if their layouts differ.
    """
    import torch

    versions = {graph.version for graph in graphs}
    if len(versions) != 1:
        raise ValueError(f"collate needs graphs of one feature version, got {sorted(versions)}")
    edges, owners, node, owner = [], [], 0, 0
    for graph in graphs:
        edges.append(graph.edge_index + node)
        owners.append(graph.batch + owner)
        node += graph.x.shape[0]
        owner += graph.num_graphs
    return GraphTensors(
        x=torch.cat([graph.x for graph in graphs]),
        edge_index=torch.cat(edges, dim=1),
        static=torch.cat([graph.static for graph in graphs]),
        batch=torch.cat(owners),
        version=versions.pop(),
    )


# `adjacency` and `node_features`: the A and X of D3.5, algorithm 1.

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
    """Return X, (N, 32) float32, with the columns `NODE_COLUMNS`.

    Every operator has a row. Column 0 marks an operator without a known class.
    """
    import torch

    count = len(graph.nodes)
    features = np.zeros((count, NODE_FEATURES), dtype=np.float32)
    if count:
        classes = [CLASS_OF_OPERATOR.get(node.op, 0) for node in graph.nodes]
        features[np.arange(count), classes] = 1.0
        sizes = np.array([_node_quantities(node) for node in graph.nodes], dtype=np.float64)
        features[:, FIRST_ATTRIBUTE:] = np.log1p(np.maximum(sizes, 0.0))
    return torch.from_numpy(features)


def _node_quantities(node: OpNode) -> tuple[float, ...]:
    """Return the attribute and shape columns before the logarithm."""
    attributes = node.attributes
    kernel = _height_width(attributes.get("kernel"))
    stride = _height_width(attributes.get("strides"))
    shape = node.out_shapes[0] if node.out_shapes else ()
    elements = math.prod(shape)
    return (
        *kernel,
        *stride,
        _sum_of(attributes.get("padding")),
        max(_height_width(attributes.get("dilation"))),
        _sum_of(attributes.get("groups", attributes.get("heads"))),
        node.macs / elements if elements else 0.0,
        node.param_bytes / _ITEM_BYTES.get(node.dtype, 4),
        sum(map(math.prod, node.in_shapes)),
        *_five_sizes(shape),
        elements,
    )


def _height_width(value: Attribute | None) -> tuple[float, float]:
    """Return height and width: a single number twice, the last two of three numbers."""
    match value:
        case int() | float():
            return float(value), float(value)
        case (single,):
            return 1.0, float(single)
        case (*_, height, width):
            return float(height), float(width)
        case _:
            return 0.0, 0.0


def _sum_of(value: Attribute | None) -> float:
    if isinstance(value, tuple):
        return float(sum(value))
    return float(value) if isinstance(value, int | float) else 0.0


def _five_sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return five sizes: a shorter shape padded with 0, further sizes multiplied into the fifth."""
    if len(shape) > _SIZES:
        shape = (*shape[: _SIZES - 1], math.prod(shape[_SIZES - 1 :]))
    return shape + (0,) * (_SIZES - len(shape))


# Features of a whole model: the five of D3.5's equation 1, and a wider named vector.

_WIDE_TOTALS = (
    "batch",
    "macs",
    "flops",
    "bytes_read",
    "bytes_written",
    "param_bytes",
    "peak_activation_bytes",
    "input_elements",
    "output_elements",
    "operators",
    "edges",
    "depth",
    "max_width",
    "relus",
    "unknown_operators",
)
WIDE_STATIC_COLUMNS = (
    *_WIDE_TOTALS,
    *(f"count_{name}" for name in OPERATOR_CLASSES),
    *(f"macs_{name}" for name in OPERATOR_CLASSES[1:7]),
)


def static_features(graph: ModelGraph) -> torch.Tensor:
    """Return the features of equation 1, (5,) float64: MACs, batch, convolutions, dense, ReLU.

    MACs are those of convolutions, transposed convolutions, dense layers and batched products only
    (a fused attention is two of the latter). The last three are numbers of operators.
    """
    import torch

    counts = Counter(node.op for node in graph.nodes)
    macs = sum(node.macs for node in graph.nodes if node.op in MAC_OPERATORS)
    convolutions = sum(counts[op] for op in CONVOLUTIONS)
    return torch.tensor(
        [macs, graph.batch, convolutions, counts["dense"], counts["relu"]], dtype=torch.float64
    )


def wide_static_features(graph: ModelGraph) -> dict[str, float]:
    """Return totals of the model by name, in the order of `WIDE_STATIC_COLUMNS`.

    Nothing is scaled: sizes are in bytes, all others are counts.
    """
    levels = _depths(graph)
    counts = Counter(CLASS_OF_OPERATOR.get(node.op, 0) for node in graph.nodes)
    totals = (
        graph.batch,
        sum(node.macs for node in graph.nodes),
        sum(node.flops for node in graph.nodes),
        sum(node.bytes_read for node in graph.nodes),
        sum(node.bytes_written for node in graph.nodes),
        graph.param_bytes,
        peak_activation_bytes(graph),
        sum(math.prod(tensor.shape) for tensor in graph.inputs),
        sum(math.prod(tensor.shape) for tensor in graph.outputs),
        len(graph.nodes),
        len(graph.edges),
        max(levels, default=0),
        max(Counter(levels).values(), default=0),
        sum(node.op == "relu" for node in graph.nodes),
        sum(graph.unknown_ops.values()),
    )
    macs = Counter[int]()
    for node in graph.nodes:
        macs[CLASS_OF_OPERATOR.get(node.op, 0)] += node.macs
    values = (
        *totals,
        *(counts[i] for i in range(len(OPERATOR_CLASSES))),
        *(macs[i] for i in range(1, 7)),
    )
    return dict(zip(WIDE_STATIC_COLUMNS, map(float, values), strict=True))


def _depths(graph: ModelGraph) -> list[int]:
    """Return per node the longest path to it, in operators (post-order makes one pass enough)."""
    levels = [1] * len(graph.nodes)
    for producer, consumer in graph.edges:
        levels[consumer] = max(levels[consumer], levels[producer] + 1)
    return levels
