"""Arithmetic on raw graphs, independent of `dippm.model.graph`."""

from __future__ import annotations

from collections import Counter
from math import prod

from dippm.model.relax.raw_graph import RawGraph

GATES = {"tf.LSTM": 4, "tf.GRU": 3, "tf.RNN": 1}


def read(result) -> RawGraph:
    """Return the graph that the child sent; fail with the error that it met."""
    assert isinstance(result, str), result
    return RawGraph.from_json(result)


def histogram(graph: RawGraph) -> Counter:
    return Counter(operator.name for operator in graph.operators)


def macs(graph: RawGraph) -> int:
    """Count multiply-accumulates for one sample, independently of `dippm.model.graph`."""
    return sum(_macs(graph, operator) for operator in graph.operators) // graph.batch


def _macs(graph, operator) -> int:
    shapes = [graph.values[i].shape for i in operator.inputs]
    name, attributes = operator.name, operator.attributes
    if name.startswith("nn.conv"):
        transposed = name.endswith("transpose")
        moved = shapes[0] if transposed else graph.values[operator.outputs[0]].shape
        axis = attributes["kernel_layout"].index("I" if transposed else "O")
        return prod(moved) * prod(shapes[1]) // shapes[1][axis]
    if name == "matmul":
        return prod(graph.values[operator.outputs[0]].shape) * shapes[0][-1]
    if name in GATES:
        hidden = attributes["hidden_size"]
        per_step = GATES[name] * hidden * (hidden + attributes["input_size"])
        return graph.batch * attributes["steps"] * per_step
    return 0


def parameter_count(graph: RawGraph) -> int:
    return sum(prod(value.shape) for value in graph.values if value.kind == "parameter")
