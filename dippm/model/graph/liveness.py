"""Peak activation memory: which tensors are alive while the nodes run in their order."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from dippm.model.graph.draft import item_bytes
from dippm.model.graph.model_graph import ModelGraph, OpNode, TensorSpec, is_view
from dippm.model.graph.operators import operator

_IN_PLACE_CATEGORIES = ("activation",)


@dataclass(frozen=True, slots=True)
class Peak:
    """The point of highest activation memory.

    Attributes:
        activation_bytes: bytes of live activations there, at the batch of the graph.
        node: position of the operator whose results reach it; None if the inputs alone do.
    """

    activation_bytes: int
    node: int | None


def peak_activation_bytes(graph: ModelGraph, *, in_place: bool = False) -> int:
    """Return the maximum bytes of activations that are alive at one time; see `peak`."""
    return peak(graph, in_place=in_place).activation_bytes


def peak(graph: ModelGraph, *, in_place: bool = False) -> Peak:
    """Return the first operator at which live activations take the most bytes.

    Views share the memory of their source. Inputs of the model live to the end, because the
    caller refers to them.

    Args:
        graph: graph at the batch of the run.
        in_place: whether activation functions overwrite an argument that nothing else reads.
    """
    owner, last_use = _lifetimes(graph, in_place=in_place)
    inputs = sum(_spec_bytes(spec) for spec in graph.inputs)
    freed_at: dict[int, list[int]] = {}
    for index, step in last_use.items():
        freed_at.setdefault(step, []).append(index)
    alive = most = inputs
    place = None
    for i, node in enumerate(graph.nodes):
        if owner[i] == i:
            alive += result_bytes(node)
            if alive > most:
                most, place = alive, i
        for dead in freed_at.get(i, ()):
            alive -= result_bytes(graph.nodes[dead])
    return Peak(most, place)


def result_bytes(node: OpNode) -> int:
    """Return the bytes of a node's results, also if they are views."""
    return sum(prod(shape) for shape in node.out_shapes) * item_bytes(node.dtype)


def _spec_bytes(spec: TensorSpec) -> int:
    return prod(spec.shape) * item_bytes(spec.dtype)


def _lifetimes(graph: ModelGraph, *, in_place: bool) -> tuple[list[int], dict[int, int]]:
    """Return the owner of each node's memory (-1: the inputs), and each owner's last read step."""
    count = len(graph.nodes)
    producers: list[list[int]] = [[] for _ in range(count)]
    readers = [0] * count
    for producer, consumer in graph.edges:
        producers[consumer].append(producer)
        readers[producer] += 1
    owner = list(range(count))
    last_use: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        owner[i] = _owner(i, node, producers[i], owner, readers=readers, in_place=in_place)
        for producer in producers[i]:
            last_use[owner[producer]] = i
        last_use[owner[i]] = max(last_use.get(owner[i], i), i)
    for node_index in graph.output_nodes:
        if node_index >= 0:
            last_use[owner[node_index]] = count
    last_use.pop(-1, None)
    return owner, last_use


def _owner(
    i: int, node: OpNode, before: list[int], owner: list[int], *, readers: list[int], in_place: bool
) -> int:
    if is_view(node.op, node.attributes):
        return owner[before[0]] if before else -1
    overwrites = operator(node.op).category in _IN_PLACE_CATEGORIES
    if in_place and overwrites and len(before) == 1 and readers[before[0]] == 1:
        return owner[before[0]]
    return i
