"""`build`: raw graph → model graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from dippm.base.progress import EACH, counted, tell
from dippm.errors import ConversionError, DippmError, InputShapeError, ModelFileError
from dippm.model.graph import calls
from dippm.model.graph.calls import CallSequence
from dippm.model.graph.dialects import read
from dippm.model.graph.draft import Draft, Node, Value, item_bytes
from dippm.model.graph.macs import is_complex
from dippm.model.graph.model_graph import (
    GRAPH_VERSION,
    STATIC,
    Attribute,
    ModelGraph,
    OpNode,
    Shape,
    TensorSpec,
    price,
)
from dippm.model.graph.operators import GUESSED, OPERATORS, operator, split_name
from dippm.model.graph.program import Program, assign_nodes, record
from dippm.model.graph.rules import COMPOSITES, EXPORTED_COMPOSITES, RULES
from dippm.model.graph.rules.products import BYTES
from dippm.model.graph.strides import mark_copies
from dippm.model.relax.raw_graph import RawGraph

_WEIGHTED = ("compute", "recurrent")
_ALWAYS_WEIGHTED = ("embedding", "gather")

NO_OPERATORS = (
    "the model has no operators: its results are its inputs or numbers known beforehand; check "
    "that it is the whole model"
)
"""Note for a model that computes nothing, usually because the wrong object was saved."""

_CONTRADICTIONS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def build(raw: RawGraph) -> ModelGraph:
    """Return the canonical graph of a model, at the batch that it was converted with.

    Args:
        raw: operators of a model file, as a frontend read them.

    Raises:
        ModelFileError: if sizes exceed those of any machine.
        ConversionError: if operators contradict their attributes or inputs.
    """
    try:
        graph = _build(raw)
    except DippmError:
        raise
    except _CONTRADICTIONS as error:
        raise ConversionError(
            f"the operators of the model do not fit together ({type(error).__name__}: {error})",
            "Report the model, to the plug-in if one reads it; perhaps an export to ONNX works.",
        ) from error
    refuse_absurd_sizes(graph)
    return graph


def _build(raw: RawGraph) -> ModelGraph:
    draft = read(raw)
    spellings = {i: split_name(operator.name)[1] for i, operator in enumerate(raw.operators)}
    joined = None if raw.is_of_pytorch else _with_composites(raw)
    program, nodes = record(joined or draft, raw.called, spellings)
    for number, rule in enumerate(RULES, 1):
        if len(draft.nodes) > EACH:
            tell(f"rule {number} of {len(RULES)}")
        rule(draft)
    draft.nodes = post_order(draft)
    mark_copies(draft)
    if joined is not None:
        canonical = {node.origin: node for node in draft.nodes if node.origin >= 0}
        nodes = [canonical.get(node.origin, node) for node in nodes]
    # Eager PyTorch repeats work on parameters alone on every pass; other frameworks do it once.
    sequence = _calls(joined or read(raw, keep_static=True), draft, spellings)
    return _freeze(draft, raw, assign_nodes(program, nodes, draft), sequence)


def _with_composites(raw: RawGraph) -> Draft:
    """Return a draft of what PyTorch calls to run a model that another format spells out."""
    draft = read(raw)
    for rule in EXPORTED_COMPOSITES if raw.is_exported_by_pytorch else COMPOSITES:
        rule(draft)
    return draft


def _calls(written: Draft, draft: Draft, spellings: dict[int, str]) -> CallSequence:
    """Return the calls of a draft, each with the canonical operator that it became part of."""
    sequence = calls.sequence_of(written, spellings)
    kept = {node.origin: i for i, node in enumerate(draft.nodes) if node.origin >= 0}
    return calls.assign_nodes(sequence, [node.origin for node in written.nodes], kept)


def _freeze(draft: Draft, raw: RawGraph, program: Program, sequence: CallSequence) -> ModelGraph:
    position = {id(node): i for i, node in enumerate(draft.nodes)}
    claimed: set[int] = set()
    pricing = counted(draft.nodes, len(draft.nodes), "pricing operator")
    nodes = tuple(_freeze_node(node, draft, claimed) for node in pricing)
    edges = sorted(
        {
            (position[id(v.producer)], i)
            for i, node in enumerate(draft.nodes)
            for v in node.inputs
            if v.producer is not None and id(v.producer) in position
        }
    )
    makers = [
        position.get(id(v.producer), -1) if v.producer is not None else -1 for v in draft.outputs
    ]
    unknown = Counter(node.op for node in draft.nodes if node.op not in OPERATORS)
    found = {node.op for node in draft.nodes}
    said = [words for op, words in GUESSED.items() if op in found]
    if not nodes:
        said.append(NO_OPERATORS)
    return ModelGraph(
        nodes=nodes,
        edges=tuple(edges),
        inputs=tuple(_spec(v, v.name or f"input_{i}") for i, v in enumerate(draft.inputs)),
        outputs=tuple(_spec(v, f"output_{i}") for i, v in enumerate(draft.outputs)),
        param_bytes=_parameter_bytes(draft, raw),
        unknown_ops=dict(sorted(unknown.items())),
        version=GRAPH_VERSION,
        batch=raw.batch,
        batch_is_symbolic=raw.batch_is_symbolic,
        output_nodes=tuple(makers),
        notes=(*raw.notes, *said),
        program=program,
        calls=sequence,
    )


def _spec(value: Value, name: str) -> TensorSpec:
    return TensorSpec(name, value.shape, value.dtype)


def _freeze_node(node: Node, draft: Draft, claimed: set[int]) -> OpNode:
    data = node.data_inputs
    static = [v for v in node.inputs if v.is_static]
    work: list[str] = []
    for value in node.inputs:
        if value.static_work and id(value) not in claimed:
            claimed.add(id(value))
            work.extend(STATIC + name for name in value.static_work)
    return price(
        node.op,
        _kept_attributes(node),
        in_shapes=tuple(v.shape for v in data),
        in_dtypes=tuple(v.dtype for v in data),
        out_shapes=tuple(v.shape for v in node.outputs),
        dtype=node.out.dtype,
        param_bytes=_weight_bytes(node, static, draft),
        absorbed=(*work, *node.absorbed),
        path=node.path,
    )


def _kept_attributes(node: Node) -> dict[str, Attribute]:
    names = operator(node.op).attributes
    if node.op not in OPERATORS:
        return {}
    kept = {name: node.attributes[name] for name in names if name in node.attributes}
    if "parameter" in names and any(v.is_static and v.size > 1 for v in node.inputs):
        kept["parameter"] = 1
    return kept


def _weight_bytes(node: Node, static: list[Value], draft: Draft) -> int:
    """Return the bytes of the parameters that a node reads, of rank 2 and more.

    Each argument counts: two arguments with equal values may be one tensor in the file.
    """
    always = operator(node.op).category in _WEIGHTED or node.op in _ALWAYS_WEIGHTED
    total = 0
    for root in (root for value in static for root in value.roots):
        shape, dtype = draft.parameters[root]
        wide = len(shape) >= 2 if always else sum(size > 1 for size in shape) >= 2
        if wide:
            total += prod(shape) * item_bytes(dtype)
    return total


def _parameter_bytes(draft: Draft, raw: RawGraph) -> int:
    """Return the bytes of all parameters and constant tensors of numbers that are read.

    Numbers are real and complex floats, and 8-bit integers that stand for floats.

    Some exporters list a tied parameter under each of its names but read it under one.
    """
    read = {i for call in raw.operators for i in call.inputs} | set(raw.outputs)
    return sum(
        prod(shape) * item_bytes(dtype)
        for i, (shape, dtype) in draft.parameters.items()
        if i in read
        and ("float" in dtype or is_complex(dtype) or (dtype in BYTES and len(shape) >= 2))
    )


# R9: post-order with a tie-break that depends on structure only.


def post_order(draft: Draft) -> list[Node]:
    """Return the live nodes in post-order of a walk back from the results: producers first.

    Arguments are visited in order, those of commutative operators deepest first, so that
    `a + b` and `b + a` give the same order.
    """
    draft.compact()
    depth: dict[int, int] = {}
    for node in draft.nodes:
        before = [depth.get(id(v.producer), 0) for v in node.inputs if v.producer]
        depth[id(node)] = 1 + max(before, default=0)
    ordered: list[Node] = []
    seen: set[int] = set()
    roots = [v.producer for v in (*draft.unread, *draft.outputs) if v.producer is not None]
    for root in roots:
        _visit(root, depth, seen, ordered)
    return ordered


def _visit(root: Node, depth: dict[int, int], seen: set[int], ordered: list[Node]) -> None:
    if id(root) in seen:
        return
    stack = [(root, iter(_arguments(root, depth)))]
    seen.add(id(root))
    while stack:
        node, pending = stack[-1]
        child = next((c for c in pending if id(c) not in seen), None)
        if child is None:
            ordered.append(node)
            stack.pop()
        else:
            seen.add(id(child))
            stack.append((child, iter(_arguments(child, depth))))


def _arguments(node: Node, depth: dict[int, int]) -> list[Node]:
    producers = [v.producer for v in node.inputs if v.producer is not None]
    if operator(node.op).commutative:
        producers.sort(key=lambda p: -depth[id(p)])
    return producers


# Sizes that no machine has are refused rather than turned into figures with fifty digits.
#
# The largest device of the catalogue has 2³⁸ bytes. A tensor of 2⁴⁰ elements, a model of 2⁴⁸ bytes
# of weights, and a pass of 2⁷⁰ multiply-accumulates for one sample (a month on a thousand GPUs) lie
# far beyond any real workload, and far below the limits of the arithmetic. A file with such sizes
# is damaged or hostile, or was requested with inputs of the wrong size.


MAX_ELEMENTS = 1 << 40
MAX_PARAMETER_BYTES = 1 << 48
MAX_MACS = 1 << 70


def refuse_absurd_sizes(graph: ModelGraph) -> None:
    """Raise if sizes of a finished graph exceed those of any machine.

    Raises:
        InputShapeError: if one sample of an input has too many elements.
        ModelFileError: if a tensor of an operator has, or if weights or MACs are too many.
    """
    batch = graph.batch if graph.batch_is_symbolic else 1
    for spec in graph.inputs:
        if _is_absurd(spec.shape, batch):
            raise InputShapeError(
                f"input {spec.name!r} has the sizes {_sizes(spec.shape, batch)}: no machine holds "
                "a tensor of that many elements",
                "Give the sizes that you mean with input=..., or export the model again.",
            )
    for what, shape in _tensors(graph):
        if _is_absurd(shape, batch):
            raise ModelFileError(
                f"{what} has a tensor of sizes {_sizes(shape, batch)}: no machine holds that many "
                "elements",
                "Give smaller sizes with input=...; if the file itself states them, export the "
                "model again.",
            )
    if graph.param_bytes > MAX_PARAMETER_BYTES:
        raise ModelFileError(
            f"the model has {graph.param_bytes >> 40:,} TiB of weights", "Export the model again."
        )
    if graph.macs > MAX_MACS and graph.macs // batch > MAX_MACS:
        raise ModelFileError(
            f"one sample takes about 2^{(graph.macs // batch).bit_length()} multiply-accumulates, "
            "which no machine finishes",
            "Give smaller sizes with input=..., or export the model again.",
        )


def _tensors(graph: ModelGraph) -> Iterator[tuple[str, Shape]]:
    for node in graph.nodes:
        for shape in (*node.in_shapes, *node.out_shapes):
            yield f"operator {node.op}", shape
    for spec in graph.outputs:
        yield f"output {spec.name!r}", spec.shape


def _is_absurd(shape: Shape, batch: int) -> bool:
    if prod(shape) <= MAX_ELEMENTS and all(size <= MAX_ELEMENTS for size in shape):
        return False
    sample = _per_sample(shape, batch)
    return prod(sample) > MAX_ELEMENTS or max(sample) > MAX_ELEMENTS


def _per_sample(shape: Shape, batch: int) -> Shape:
    """Return the sizes for a batch of one, without the factor that stands for the batch."""
    return tuple(_without(size, batch) for size in shape)


def _without(size: int, factor: int) -> int:
    while factor > 1 and size and size % factor == 0:
        size //= factor
    return size


def _sizes(shape: Shape, batch: int) -> str:
    return " × ".join(f"{size:,}" for size in _per_sample(shape, batch)) or "1"
