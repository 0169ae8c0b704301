"""Program of a graph that no file was read for: its canonical operators, as they stand."""

from __future__ import annotations

from dippm.model.graph.draft import Shape, item_bytes
from dippm.model.graph.model_graph import ModelGraph, OpNode, is_view
from dippm.model.graph.operators import FUSED_RANK
from dippm.model.graph.program import Buffer, Program, Step


def program_of(graph: ModelGraph) -> Program:
    """Return one step for each operator that is no view; all of them in one module."""
    buffers = [Buffer(spec.shape, spec.dtype) for spec in graph.inputs]
    inputs = len(buffers)
    producers: dict[int, list[int]] = {}
    for producer, consumer in graph.edges:
        producers.setdefault(consumer, []).append(producer)
    made: dict[int, tuple[int, ...]] = {}
    steps = []
    for i, node in enumerate(graph.nodes):
        before = [b for p in producers.get(i, ()) for b in made[p]]
        if is_view(node.op, node.attributes):
            made[i] = tuple(before[:1] or range(inputs)[:1])
            continue
        buffers += [Buffer(shape, node.dtype) for shape in node.out_shapes]
        made[i] = tuple(range(len(buffers) - len(node.out_shapes), len(buffers)))
        reads = tuple((b, buffers[b].shape) for b in dict.fromkeys(before))
        elements = node.param_bytes // item_bytes(node.dtype)
        weights = ((-1 - i, elements),) if node.param_bytes else ()
        steps.append(Step(node.op, reads, made[i], (), weights, scores=_scores(node), node=i))
    outputs = {b for i in graph.output_nodes if i >= 0 for b in made[i]}
    return Program(
        tuple(buffers), tuple(steps), inputs, graph.batch, tuple(sorted(outputs)), frozenset({""})
    )


def _scores(node: OpNode) -> Shape:
    query = node.in_shapes[0] if node.op == "attention" and node.in_shapes else ()
    keys = node.attributes.get("key_length")
    return (*query[:-1], keys) if len(query) == FUSED_RANK and isinstance(keys, int) else ()
