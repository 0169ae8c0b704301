"""Small hand-written model graphs, one per thing that the first DIPPM code got wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import pytest

from dippm.model.graph.model_graph import Attribute, ModelGraph, OpNode, TensorSpec

Build = Callable[..., ModelGraph]


def node(
    op: str,
    out: tuple[int, ...],
    *,
    inputs: Sequence[tuple[int, ...]] = (),
    macs: int = 0,
    param_bytes: int = 0,
    **attributes: Attribute,
) -> OpNode:
    return OpNode(
        op=op,
        attributes=attributes,
        in_shapes=tuple(inputs),
        out_shapes=(out,),
        dtype="float32",
        macs=macs,
        flops=2 * macs,
        bytes_read=4 * sum(map(prod, inputs)),
        bytes_written=4 * prod(out),
        param_bytes=param_bytes,
    )


def conv(out: tuple[int, ...], source: tuple[int, ...], kernel: tuple[int, ...] = (3, 3)) -> OpNode:
    weights = out[1] * source[1] * prod(kernel)
    return node(
        "conv2d",
        out,
        inputs=(source,),
        macs=prod(out) * source[1] * prod(kernel),
        param_bytes=4 * weights,
        kernel=kernel,
        strides=(1, 1),
        padding=(1, 1, 1, 1),
        dilation=(1, 1),
        groups=1,
        in_channels=source[1],
        out_channels=out[1],
    )


def graph_of(nodes: Sequence[OpNode], edges: Sequence[tuple[int, int]], batch: int) -> ModelGraph:
    first, last = nodes[0], nodes[-1]
    source = first.in_shapes[0] if first.in_shapes else first.out_shapes[0]
    return ModelGraph(
        nodes=tuple(nodes),
        edges=tuple(edges),
        inputs=(TensorSpec("x", source, "float32"),),
        outputs=(TensorSpec("y", last.out_shapes[0], "float32"),),
        param_bytes=sum(n.param_bytes for n in nodes),
        unknown_ops={},
        version="test",
        batch=batch,
    )


@pytest.fixture
def residual() -> ModelGraph:
    """conv → relu → conv → add(with the first conv) → global pool → dense, batch 4."""
    image, maps = (4, 3, 8, 8), (4, 16, 8, 8)
    nodes = [
        conv(maps, image),
        node("relu", maps, inputs=(maps,)),
        conv(maps, maps),
        node("add", maps, inputs=(maps, maps)),
        node("global_avg_pool", (4, 16, 1, 1), inputs=(maps,)),
        node(
            "dense",
            (4, 10),
            inputs=((4, 16),),
            macs=640,
            param_bytes=640,
            in_features=16,
            out_features=10,
        ),
    ]
    return graph_of(nodes, [(0, 1), (0, 3), (1, 2), (2, 3), (3, 4), (4, 5)], batch=4)


@pytest.fixture
def recurrent() -> ModelGraph:
    """An LSTM over (2, 16, 32): no convolution, no dense, no image."""
    nodes = [
        node("embedding", (2, 16, 32), inputs=((2, 16),), rows=1000, width=32),
        node("lstm", (2, 16, 64), inputs=((2, 16, 32),), macs=2 * 16 * 4 * 64 * 96, steps=16),
        node("tanh", (2, 16, 64), inputs=((2, 16, 64),)),
    ]
    return graph_of(nodes, [(0, 1), (1, 2)], batch=2)


@pytest.fixture
def build() -> Build:
    """Make a graph of nodes, edges and a batch."""
    return graph_of
