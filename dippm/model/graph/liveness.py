"""Liveness analysis: which tensors are in memory at each step of a graph or a program.

`peak` computes the peak of a graph's activations from the order of its nodes. `eager_lifetimes` and
`compiled_lifetimes` compute the lifetimes of a program's buffers.

Eager PyTorch frees a tensor when nothing refers to it any more: after its last reader, and not
before the module call that received it returns, because the caller refers to the arguments of a
call. So the input of a block lives as long as the block runs, whatever the block does with it.
Lists, and local names that are never rebound, keep more tensors alive. Such references are known
for modules that DIPPM exports itself (`dippm.model.frontends.torch.lifetimes`), but not for most
files.

A compiler frees a buffer after its last reader, and creates none for values that only pass between
element-wise operators.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import prod

from dippm.model.graph.draft import item_bytes
from dippm.model.graph.model_graph import ModelGraph, OpNode, is_view
from dippm.model.graph.operators import ELEMENTWISE_CATEGORIES, operator
from dippm.model.graph.program import Program, ProgramStep

_IN_PLACE_CATEGORIES = ("activation",)


@dataclass(frozen=True, slots=True)
class Peak:
    """The point of highest activation memory.

    Attributes:
        activation_bytes: bytes of live activations at this point, at the batch of the graph.
        node: position of the operator whose results reach the peak; None if the inputs alone do.
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
    owner, last_use = _last_uses(graph, in_place=in_place)
    inputs = sum(prod(spec.shape) * item_bytes(spec.dtype) for spec in graph.inputs)
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
    """Return the bytes of a node's results, even if they are views."""
    return sum(prod(shape) for shape in node.out_shapes) * item_bytes(node.dtype)


def _last_uses(graph: ModelGraph, *, in_place: bool) -> tuple[list[int], dict[int, int]]:
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
        owner[i] = _memory_owner(i, node, producers[i], owner, readers=readers, in_place=in_place)
        for producer in producers[i]:
            last_use[owner[producer]] = i
        last_use[owner[i]] = max(last_use.get(owner[i], i), i)
    for node_index in graph.output_nodes:
        if node_index >= 0:
            last_use[owner[node_index]] = count
    last_use.pop(-1, None)
    return owner, last_use


def _memory_owner(
    i: int, node: OpNode, before: list[int], owner: list[int], *, readers: list[int], in_place: bool
) -> int:
    """Return the node whose memory holds a node's results: itself unless it is a view or in place.

    Args:
        i: position of the node.
        node: node in question.
        before: positions of its producers.
        owner: owner of each earlier node's memory.
        readers: number of readers of each node.
        in_place: see `peak`.
    """
    if is_view(node.op, node.attributes):
        return owner[before[0]] if before else -1
    overwrites = operator(node.op).category in _IN_PLACE_CATEGORIES
    if in_place and overwrites and len(before) == 1 and readers[before[0]] == 1:
        return owner[before[0]]
    return i


# Lifetimes of a program's buffers, in eager and in compiled execution.

MAX_DEPTH = 64
"""Maximum nesting of modules that is followed; a name in a file may have any number of dots."""

INLINED_READS = 3
"""Maximum number of buffers that an inlined result reads; with more, a compiler stores it."""
_FUSED_INTO = ("norm", "reduction", *ELEMENTWISE_CATEGORIES)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """First and last step at which a buffer is in memory, both included.

    Inputs are alive from step -1, before the first; inputs and results until `len(steps)`.
    """

    first: int
    last: int


def eager_lifetimes(program: Program) -> dict[int, Lifetime]:
    """Return the lifetime of every buffer in eager execution, step by step."""
    first, last = _read_lifetimes(program)
    for start, end in _calls(program):
        for step in program.steps[start : end + 1]:
            for buffer, _ in step.reads:
                if first[buffer] < start and buffer not in program.held:
                    last[buffer] = max(last[buffer], end)
    for buffer in last.keys() & program.held.keys():
        last[buffer] = max(last[buffer], _last_step(program, program.held[buffer]))
    return {buffer: Lifetime(first[buffer], last[buffer]) for buffer in first}


def compiled_lifetimes(
    program: Program, stored: frozenset[int] = frozenset()
) -> dict[int, Lifetime]:
    """Return the lifetime of every buffer that compiled execution still stores.

    A buffer that is inlined is recomputed by its readers, so its own arguments live on.

    Args:
        program: steps and their buffers.
        stored: buffers that are stored in any case, with all others that their steps make.
    """
    readers: dict[int, list[ProgramStep]] = {}
    for step in program.steps:
        for buffer, _ in step.reads:
            readers.setdefault(buffer, []).append(step)
    sources: dict[int, tuple[int, ...]] = {}
    for step in program.steps:
        if stored.intersection(step.makes):
            continue
        read = tuple(dict.fromkeys(s for b, _ in step.reads for s in sources.get(b, (b,))))
        if len(read) > INLINED_READS or operator(step.op).category not in (
            "norm",
            *ELEMENTWISE_CATEGORIES,
        ):
            continue
        for buffer in step.makes:
            joins = readers.get(buffer, ())
            fused = all(operator(r.op).category in _FUSED_INTO for r in joins)
            if joins and fused and buffer not in program.outputs:
                sources[buffer] = read
    first, last = _read_lifetimes(program, sources)
    return {b: Lifetime(first[b], last[b]) for b in first if b not in sources}


def _last_step(program: Program, origin: int) -> int:
    """Return the last step among the operators up to a position in the file."""
    return bisect_right(program.steps, origin, key=lambda step: step.origin) - 1


def _read_lifetimes(
    program: Program, inlined: dict[int, tuple[int, ...]] | None = None
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the first and the last step of every buffer, from its producer and readers.

    Args:
        program: steps and their buffers.
        inlined: for each inlined buffer, the stored ones that its readers read instead.
    """
    count = len(program.steps)
    first = dict.fromkeys(range(program.inputs), -1)
    last = dict.fromkeys(range(program.inputs), count)
    for i, step in enumerate(program.steps):
        for buffer in (*step.makes, *step.passing):
            first[buffer], last[buffer] = i, i
        for buffer, _ in step.reads:
            for source in (inlined or {}).get(buffer, (buffer,)):
                first.setdefault(source, i)
                last[source] = max(last.get(source, i), i)
    for buffer in program.outputs:
        first.setdefault(buffer, count)
        last[buffer] = count
    return first, last


def _calls(program: Program) -> list[tuple[int, int]]:
    """Return the first and last step of every module call, a contiguous run of its steps."""
    calls: list[tuple[int, int]] = []
    running: dict[str, int] = {}
    for i, step in enumerate(program.steps):
        callers = _callers(step.path, program.called)
        for path in [p for p in running if p not in callers]:
            calls.append((running.pop(path), i - 1))
        for path in callers:
            running.setdefault(path, i)
    return calls + [(start, len(program.steps) - 1) for start in running.values()]


def _callers(path: str, called: frozenset[str]) -> list[str]:
    """Return the paths of all modules whose call encloses an operator of a module.

    If the file does not say which modules are called, every enclosing module counts.
    """
    parts = path.split(".", MAX_DEPTH) if path else []
    paths = ["", *(".".join(parts[: n + 1]) for n in range(len(parts)))]
    return [p for p in paths if not called or p in called]
