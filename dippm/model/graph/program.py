"""`Program`: a model as its framework runs it, before any canonical rule joins operators.

The canonical graph says what a model computes. Its memory use also depends on how it is written: in
which order, in how many steps, and which module calls which. A program keeps that: steps in the
order of the file, and the memory (`Buffer`) that each step allocates and reads. Views allocate
none. Strides are followed as in eager execution, so a reshape or a batched product of a permuted
tensor makes a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from dippm.model.graph.draft import Draft, Node, Shape, Value
from dippm.model.graph.operators import FUSED_RANK, PARTIAL_WRITES, is_elementwise, operator
from dippm.model.graph.strides import (
    broadcast_strides,
    dense_strides,
    dense_strides_like,
    is_channels_last,
    view_strides,
)

Strides = tuple[int, ...]
_WEIGHTED = ("conv1d", "conv2d", "conv3d", "conv_transpose", "matmul", "batch_matmul")
_KEEPS_CHANNELS_LAST = ("conv2d", "batch_norm", "max_pool", "avg_pool", "resize")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of one tensor.

    Attributes:
        shape: sizes at the batch of the graph.
        dtype: element type in the file.
    """

    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """One operator as it is called.

    Attributes:
        op: canonical name of the operator by itself, before any rule.
        reads: position of each buffer read, and the shape read of it, in argument order.
        makes: positions of the buffers that hold the results.
        passing: positions of buffers that exist only during the step: copies of permuted operands,
            indices that no step reads.
        weights: position and number of elements of each parameter read.
        computed: positions of the parameters that are read through a value computed on every pass.
        groups: groups of a convolution, 0 for other operators.
        scores: shape of the scores of an attention, () for other operators.
        path: see `OpNode.path`.
        node: position in `ModelGraph.nodes` of the operator that it became part of.
        origin: position of the operator in the file, -1 if it has none.
    """

    op: str
    reads: tuple[tuple[int, Shape], ...]
    makes: tuple[int, ...]
    passing: tuple[int, ...] = ()
    weights: tuple[tuple[int, int], ...] = ()
    computed: frozenset[int] = frozenset()
    groups: int = 0
    scores: Shape = ()
    path: str = ""
    node: int = -1
    origin: int = -1


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in execution order, and their buffers.

    Attributes:
        buffers: all buffers; the first ones are the inputs.
        steps: the operators that write and read them.
        inputs: number of buffers that are inputs.
        batch: batch size of the shapes.
        outputs: positions of the buffers that hold the model's results.
        called: paths of the modules that are called; empty if the file does not say.
        held: position in the file of the last operator during which the model's own code refers to
            a buffer or a view of it, by buffer; missing where unknown.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[ProgramStep, ...]
    inputs: int
    batch: int
    outputs: tuple[int, ...]
    called: frozenset[str] = frozenset()
    held: Mapping[int, int] = field(default_factory=dict)


def record(
    draft: Draft, called: Iterable[str], spellings: Mapping[int, str]
) -> tuple[Program, list[Node]]:
    """Return the program of a draft before any rule has changed it, and the node of each step.

    Args:
        draft: result of `read`.
        called: see `Program.called`.
        spellings: names of the operators in the file, folded by `fold_name`, by position.
    """
    calls = frozenset(called)
    recorder = _Recorder(draft, spellings)
    for node in draft.nodes:
        recorder.add(node)
        recorder.hold(node)
    outputs = {recorder.buffer_of[id(v)] for v in draft.outputs if id(v) in recorder.buffer_of}
    program = Program(
        tuple(recorder.buffers),
        tuple(recorder.steps),
        len(draft.inputs),
        draft.batch,
        tuple(sorted(outputs)),
        calls,
        recorder.held,
    )
    return program, recorder.nodes


def assign_nodes(program: Program, nodes: list[Node], draft: Draft) -> Program:
    """Return the program with `node` set to the node that each step became part of.

    A step whose node a rule removed belongs to the next node that remains.
    """
    position = {id(node): i for i, node in enumerate(draft.nodes)}
    steps, following = [], -1
    for step, node in zip(reversed(program.steps), reversed(nodes), strict=True):
        following = position.get(id(node), following)
        steps.append(replace(step, node=following))
    return replace(program, steps=tuple(reversed(steps)))


class _Recorder:
    def __init__(self, draft: Draft, spellings: Mapping[int, str]) -> None:
        self.draft, self.spellings = draft, spellings
        self.buffers: list[Buffer] = []
        self.steps: list[ProgramStep] = []
        self.nodes: list[Node] = []
        self.buffer_of: dict[int, int] = {}
        self.strides: dict[int, Strides] = {}
        self.held: dict[int, int] = {}
        for value in draft.inputs:
            self.buffer_of[id(value)] = self._new(value)

    def add(self, node: Node) -> None:
        source = next((v for v in node.inputs if not v.is_static), None)
        if self._is_view(node, source):
            assert source is not None
            for out in node.outputs:
                self.buffer_of[id(out)] = self._buffer(source)
            return
        if source is not None and self._is_in_place(node, source):
            self._step(node, makes=[])
            self.buffer_of[id(node.out)] = self._buffer(source)
            self.strides[id(node.out)] = self._strides(source)
            return
        passing = self._operand_copies(node)
        if node.op == "max_pool":
            passing.append(self._keep(Buffer(node.out.shape, "int64")))
        makes = []
        for out in node.outputs:
            self.buffer_of[id(out)] = self._new(out)
            makes.append(self.buffer_of[id(out)])
        self._lay_out(node, source)
        self._step(node, makes, passing)

    def hold(self, node: Node) -> None:
        """Record how long the model's own code refers to the results of a node."""
        known = (self.buffer_of[id(out)] for out in node.outputs if id(out) in self.buffer_of)
        for buffer in known if node.held_until >= 0 else ():
            self.held[buffer] = max(self.held.get(buffer, -1), node.held_until)

    def _step(self, node: Node, makes: Sequence[int], passing: Sequence[int] = ()) -> None:
        reads = tuple((self._buffer(v), v.shape) for v in node.inputs if not v.is_static)
        weights = tuple(
            (root, prod(self.draft.parameters[root][0]))
            for v in node.inputs
            if v.is_static
            for root in v.roots
        )
        computed = frozenset(
            root for v in node.inputs if v.is_static and v.static_work for root in v.roots
        )
        scores: Shape = ()
        if node.op == "attention":
            scores = (*node.inputs[0].shape[:-1], int(node.attributes["key_length"]))
        self.steps.append(
            ProgramStep(
                _name(node),
                reads,
                tuple(makes),
                tuple(passing),
                weights,
                computed,
                groups=int(node.attributes.get("groups", 0)) if node.op.startswith("conv") else 0,
                scores=scores,
                path=node.path,
                origin=node.origin,
            )
        )
        self.nodes.append(node)

    def _keep(self, buffer: Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def _new(self, value: Value) -> int:
        return self._keep(Buffer(value.shape, value.dtype))

    def _buffer(self, value: Value) -> int:
        if id(value) not in self.buffer_of:  # computed from parameters alone
            self.buffer_of[id(value)] = self._new(value)
        return self.buffer_of[id(value)]

    def _strides(self, value: Value) -> Strides:
        return self.strides.get(id(value)) or dense_strides(value.shape)

    def _is_view(self, node: Node, source: Value | None) -> bool:
        """Return whether the results share the memory of an argument, and record their strides."""
        if source is None or not node.inputs or node.inputs[0].is_static:
            return False
        out, given = node.out, self._strides(source)
        if node.op == "transpose":
            if not node.attributes.get("layout"):
                self.strides[id(out)] = tuple(given[a] for a in node.attributes["permutation"])
            return True
        if node.op == "reshape":
            result = view_strides(source.shape, given, out.shape)
            if result is not None:
                self.strides[id(out)] = result
            return result is not None
        if node.op == "broadcast":
            self.strides[id(out)] = broadcast_strides(source.shape, given, out.shape)
            return True
        if operator(node.op).category == "view":
            for part in node.outputs:
                if len(part.shape) == len(source.shape):
                    self.strides[id(part)] = given
            return True
        if node.op == "cast":
            return source.dtype == out.dtype
        if node.op == "identity":
            return not _is_copied(node, given, source.shape)
        return self._is_bias(node, source)

    def _is_in_place(self, node: Node, source: Value) -> bool:
        """Return whether the result is written into the first argument."""
        if source.shape != node.out.shape:
            return False
        if self.spellings.get(node.origin) in PARTIAL_WRITES:
            return source is node.inputs[0]
        return node.in_place

    def _is_bias(self, node: Node, source: Value) -> bool:
        """Return whether the product before the node adds this bias itself."""
        maker = source.producer
        other = next((v for v in node.inputs if v.is_static), None)
        if node.op != "add" or maker is None or other is None or maker.path != node.path:
            return False
        wide = [size for size in other.shape if size != 1]
        channels = source.shape[1 if maker.op.startswith("conv") else -1] if source.shape else 0
        return (
            maker.op in _WEIGHTED
            and any(v.is_static for v in maker.inputs)
            and wide == [channels]
            and len(source.uses) == 1
        )

    def _operand_copies(self, node: Node) -> list[int]:
        """Return the buffers for copies of operands whose strides a product cannot read."""
        if node.op not in ("matmul", "batch_matmul"):
            return []
        copies = []
        left, right = node.inputs[:2]
        # A product with a parameter flattens its activation to (rows, width); a product of two
        # activations flattens the broadcast leading axes of each to one batch.
        if right.is_static or left.is_static:
            if not left.is_static and len(left.shape) > 2:
                rows = (prod(left.shape[:-1]), left.shape[-1])
                if view_strides(left.shape, self._strides(left), rows) is None:
                    copies.append(self._new(left))
            return copies
        batch = node.out.shape[:-2]
        for value in (left, right):
            full = (*batch, *value.shape[-2:])
            strides = broadcast_strides(value.shape, self._strides(value), full)
            if len(full) > 3 and view_strides(batch, strides[:-2], (prod(batch),)) is None:
                copies.append(self._keep(Buffer(full, value.dtype)))
        return copies

    def _lay_out(self, node: Node, source: Value | None) -> None:
        """Record the memory order of axes for operators that preserve it."""
        if source is None:
            return
        if node.op in _KEEPS_CHANNELS_LAST:
            given = self._strides(source)
            if is_channels_last(source.shape, given):
                self.strides[id(node.out)] = dense_strides_like(node.out.shape, given)
        elif node.op == "attention" and len(node.out.shape) == FUSED_RANK:
            # Fused attention writes (batch, rows, heads, width) and returns a permuted view of it.
            _, heads, rows, width = node.out.shape
            self.strides[id(node.out)] = (heads * rows * width, width, heads * width, 1)
        elif is_elementwise(node.op):
            full = next(
                (v for v in node.inputs if v.shape == node.out.shape and not v.is_static), None
            )
            if full is not None:
                self.strides[id(node.out)] = dense_strides_like(full.shape, self._strides(full))


def _is_copied(node: Node, strides: Strides, shape: Shape) -> bool:
    """Return whether eager execution makes a copy in a node that computes nothing."""
    how, order = node.attributes.get("copies"), node.attributes.get("order", "")
    if how == "contiguous" and order in ("", "contiguous_format"):
        return strides != dense_strides(shape)
    return how in ("clone", "contiguous") and not is_channels_last(shape, strides)


def _name(node: Node) -> str:
    """Return the canonical name; rules name matrix products only later."""
    if node.op != "matmul":
        return node.op
    return "dense" if any(v.is_static for v in node.inputs) else "batch_matmul"
