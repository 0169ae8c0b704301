"""`CallSequence`: a model as the calls that its framework makes, before any canonical rule.

The canonical graph says what a model computes. Which kernels run also depends on how it is written:
views and their copies, work on parameters alone, gates and norms spelled as several operators. So
every operator of the file is one call here, by its canonical name, in the order of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any

from dippm.model.graph.draft import Draft, Node, Shape, Value
from dippm.model.graph.macs import is_complex
from dippm.model.graph.operators import operator


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that calls read or write.

    Attributes:
        shape: sizes at the batch of the sequence.
        dtype: element type in the file.
        roots: positions of the parameters that it is computed from; () for activations.
        is_parameter: whether it is a parameter or a view of one, which no call produces.
        is_number: whether it is a single number, which needs no memory.
        is_named: whether the file names it as a parameter; constant tables have no names.
        size: number of elements.
        is_float: whether its width depends on the precision of the run.
    """

    shape: Shape
    dtype: str
    roots: tuple[int, ...] = ()
    is_parameter: bool = False
    is_number: bool = False
    is_named: bool = False
    size: int = field(init=False)
    is_float: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", prod(self.shape))
        object.__setattr__(self, "is_float", "float" in self.dtype)

    @property
    def is_continuous(self) -> bool:
        """Whether it holds real or complex numbers, which have gradients."""
        return self.is_float or is_complex(self.dtype)


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator.

    Attributes:
        op: canonical name.
        attributes: attributes as the dialect's reader returned them.
        inputs: positions of the tensors read, in argument order.
        outputs: positions of the tensors written.
        spelled: name in the file, folded by `fold_name`.
        in_place: whether it writes into the memory of its first argument.
        path: see `OpNode.path`.
        node: position in `ModelGraph.nodes` of the operator that it became part of.
    """

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    spelled: str = ""
    in_place: bool = False
    path: str = ""
    node: int = 0


@dataclass(frozen=True, slots=True)
class CallSequence:
    """Calls in execution order.

    Attributes:
        tensors: all tensors that calls read or write.
        calls: the calls in execution order.
        inputs: positions of the user inputs.
        batch: batch size of the shapes.
    """

    tensors: tuple[Tensor, ...]
    calls: tuple[OperatorCall, ...]
    inputs: tuple[int, ...]
    batch: int

    def at_batch(self, batch: int) -> CallSequence:
        """Return the sequence for another batch size; see `ModelGraph.at_batch`."""
        if batch == self.batch:
            return self
        size = batch_rescaler(self.batch, batch)

        @cache
        def shape(sizes: Shape) -> Shape:
            return tuple(map(size, sizes))

        def attribute(value: Any) -> Any:
            return size(value) if type(value) is int else value

        return replace(
            self,
            tensors=tuple(
                Tensor(shape(t.shape), t.dtype, t.roots, t.is_parameter, t.is_number, t.is_named)
                for t in self.tensors
            ),
            calls=tuple(
                replace(c, attributes={k: attribute(v) for k, v in c.attributes.items()})
                if any(type(v) is int for v in c.attributes.values())
                else c
                for c in self.calls
            ),
            batch=batch,
        )


def sequence_of(draft: Draft, spellings: Mapping[int, str]) -> CallSequence:
    """Return the calls of a draft before any rule has changed it, one for each node.

    Args:
        draft: result of `read` with `keep_static`.
        spellings: name of each raw operator by position.
    """
    return _Sequencer(draft, spellings).sequence()


def assign_nodes(
    sequence: CallSequence, origins: list[int], kept: Mapping[int, int]
) -> CallSequence:
    """Return the sequence with `node` set to the canonical operator that each call became part of.

    A call that a rule folded away belongs to the layer that produced its argument, if there is
    one, else to the next operator that remains.

    Args:
        sequence: calls of the same model.
        origins: position of the raw operator of each call.
        kept: position in `ModelGraph.nodes` by raw operator, for those that remain as nodes.
    """
    following, after = -1, [-1] * len(origins)
    for i in range(len(origins) - 1, -1, -1):
        following = kept.get(origins[i], following)
        after[i] = following
    last = max(kept.values(), default=0)
    maker: dict[int, int] = {}
    calls = []
    for call, origin, later in zip(sequence.calls, origins, after, strict=True):
        node = kept.get(origin, -1)
        if node < 0:
            source = next((maker[t] for t in call.inputs if t in maker), -1)
            folded = operator(call.op).category in ("norm", "elementwise", "activation")
            node = source if source >= 0 and folded else later
        node = node if node >= 0 else last
        if operator(call.op).category in ("compute", "recurrent") or call.op == "matmul":
            maker |= dict.fromkeys(call.outputs, node)
        elif call.inputs and call.inputs[0] in maker and kept.get(origin, -1) < 0:
            maker |= dict.fromkeys(call.outputs, maker[call.inputs[0]])
        calls.append(replace(call, node=node))
    return replace(sequence, calls=tuple(calls))


def _is_view(node: Node) -> bool:
    if node.op == "identity":
        return "copies" not in node.attributes
    return node.op == "transpose" or operator(node.op).category == "view"


class _Sequencer:
    def __init__(self, draft: Draft, spellings: Mapping[int, str]) -> None:
        self.draft, self.spellings = draft, spellings
        self.tensors: list[Tensor] = []
        self.position: dict[int, int] = {}
        self.held: list[Value] = []  # ids are only unique while values live

    def sequence(self) -> CallSequence:
        inputs = tuple(self._new(v) for v in self.draft.inputs)
        calls = [self._call(node) for node in self.draft.nodes]
        return CallSequence(tuple(self.tensors), tuple(calls), inputs, self.draft.batch)

    def _new(self, value: Value, *, is_parameter: bool = False) -> int:
        is_number = value.scalar is not None or not value.shape
        self.tensors.append(
            Tensor(
                value.shape,
                value.dtype,
                tuple(sorted(value.roots)),
                is_parameter,
                is_parameter and is_number,
                is_parameter and bool(value.name),
            )
        )
        self.held.append(value)
        self.position[id(value)] = len(self.tensors) - 1
        return len(self.tensors) - 1

    def _read(self, value: Value) -> int:
        if id(value) not in self.position:
            made = value.producer
            if made is not None and made.outputs and id(made.out) in self.position:
                return self.position[id(made.out)]  # a view, made while reading
            return self._new(value, is_parameter=True)
        return self.position[id(value)]

    def _call(self, node: Node) -> OperatorCall:
        inputs = tuple(self._read(v) for v in node.inputs)
        still = bool(inputs) and self.tensors[inputs[0]].is_parameter and _is_view(node)
        outputs = tuple(self._new(v, is_parameter=still) for v in node.outputs)
        return OperatorCall(
            op=node.op,
            attributes=node.attributes,
            inputs=inputs,
            outputs=outputs,
            spelled=self.spellings.get(node.origin, ""),
            in_place=node.in_place,
            path=node.path,
        )


def batch_rescaler(old: int, new: int) -> Callable[[int], int]:
    """Return the function that replaces each factor `old` of a size by `new`.

    With `old` 1 sizes stay as they are: every size has that factor, so it marks nothing.
    """
    if old in (1, new):
        return lambda n: n

    @cache
    def size(n: int) -> int:
        factor = 1
        while n and n % old == 0:
            n //= old
            factor *= new
        return n * factor

    return size
