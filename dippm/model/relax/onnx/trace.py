"""Tracing of an ONNX graph: one walk infers all shapes and folds shape arithmetic.

Sizes that the file computes at run time (Shape → Gather → Concat → Reshape) become numbers on the
way, so each later operator is inferred with them. No weights are needed and no code from the file
runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dippm.base.progress import EACH, counted, tell
from dippm.errors import ConversionError
from dippm.model.relax.onnx import control_flow, data_dependent_sizes
from dippm.model.relax.onnx.classical import write_classical
from dippm.model.relax.onnx.contributed import BLOCKED, BLOCKED_HINT, BLOCKED_WHY
from dippm.model.relax.onnx.fold import MAX_ELEMENTS, NUMPY_TYPES, Array, evaluate
from dippm.model.relax.onnx.fused import write_fused
from dippm.model.relax.onnx.infer import Inference, Type, check, static_type
from dippm.model.relax.onnx.inputs import check_size
from dippm.model.relax.onnx.rebatch import Rebatch
from dippm.model.relax.onnx.tracing import (
    DEFAULT_DOMAINS,
    TEXT_HINT,
    BatchFixedError,
    BatchIsTimeError,
    Block,
    Tensor,
    Trace,
    TracedStep,
    UnsupportedError,
    how_to_give_values,
    malformed_error,
    may_be_sizes,
    message_start,
    path_of,
)
from dippm.model.relax.raw_graph import InputValue

MAX_UNROLLED = 200_000
"""Maximum operators that unrolled loops may add to the file's: about half a minute."""

_SKIPPED = ("Identity", "Dropout")
_RECURRENT = ("LSTM", "GRU", "RNN")


def trace(
    model: onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]],
    marker: int,
    *,
    values: Mapping[str, InputValue] | None = None,
    symbols: Mapping[str, int] | None = None,
    rebatch: Rebatch | None = None,
    is_assumed: bool = False,
) -> Trace:
    """Return the graph with static shapes.

    Args:
        model: model without functions; large tensors may lack their contents.
        shapes: shape of each user input, batch included.
        marker: the batch of those shapes if it stands for any batch, else 0.
        values: contents of inputs whose sizes do not suffice.
        symbols: values of named sizes, if the sizes that the file declares inside are valid;
            None if a batch other than the file's makes them wrong.
        rebatch: adjustment of literal sizes in a file with a fixed batch.
        is_assumed: whether the axis of the batch is an assumption.

    Raises:
        ShapeMismatchError: if the sizes do not fit; `BatchFixedError` if the batch is the reason,
            `BatchIsTimeError` if the assumed batch is the time axis.
        ConversionError: if an operator's result has no static shape, or there are too many.
        ModelFileError: if the graph is not well formed.
    """
    try:
        tracer = Tracer(model, marker, symbols=symbols, rebatch=rebatch, is_assumed=is_assumed)
        return tracer.run(model.graph, shapes, values or {})
    except UnsupportedError as error:
        raise error.to_conversion_error(model) from error.__cause__


class Tracer:
    """One walk over a graph.

    Attributes:
        marker: see `trace`.
        values: tensors by currently visible name.
        lists: sequences of tensors by name.
        steps: steps so far, in order.
        notes: assumptions, for the user.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        marker: int,
        *,
        symbols: Mapping[str, int] | None,
        rebatch: Rebatch | None,
        is_assumed: bool,
    ) -> None:
        self.marker = marker
        self.values: dict[str, Tensor] = {}
        self.lists: dict[str, list[Tensor]] = {}
        self.notes: dict[str, None] = {}
        self._inference = Inference(model)
        self._symbols, self._rebatch, self._is_assumed = symbols, rebatch, is_assumed
        self.steps: list[TracedStep] = []
        self._declared: dict[str, onnx.TypeProto] = {}
        self._read: set[str] = set()
        self._written: list[list[tuple[str, Tensor | None, list[Tensor] | None]]] = []
        self._scope = ""
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._walked, self._total = 0, 0
        self._stated: list[tuple[onnx.NodeProto, TracedStep]] = []

    def run(
        self,
        graph: onnx.GraphProto,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, InputValue],
    ) -> Trace:
        """Walk the whole graph."""
        if self._symbols is not None:
            self._declared = {v.name: v.type for v in [*graph.output, *graph.value_info]}
        block = Block(graph)
        self._read, self._total = block.names_read(), block.count()
        inputs = []
        for value in graph.input:
            if value.name in shapes:
                element_type = value.type.tensor_type.elem_type
                tensor = Tensor(value.name, shapes[value.name], element_type)
                if value.name in values:
                    numbers = np.full(tensor.shape, np.asarray(values[value.name]))
                    tensor.data = numbers.astype(NUMPY_TYPES.get(element_type, "float32"))
                self.write(value.name, tensor)
                inputs.append(tensor)
        self.walk(block)
        outputs = self._outputs(graph)
        if self.marker and not any(_scales(t.shape, self.marker) for t in outputs):
            raise BatchFixedError("no output depends on the batch size")
        steps = _prune_steps(self.steps, outputs)
        for text in data_dependent_sizes.notes(self._stated, steps):
            self.note(text)
        return Trace(inputs, steps, outputs, self._shapes, tuple(self.notes))

    def _outputs(self, graph: onnx.GraphProto) -> list[Tensor]:
        """Return the results, with the items of sequences."""
        found: list[Tensor] = []
        for value in graph.output:
            if value.name in self.lists:
                found += self.lists[value.name]
            elif (tensor := self.read(value.name, "the graph's outputs")) is not None:
                found.append(tensor)
        return found

    def walk(self, block: Block) -> None:
        """Trace the nodes of a block; names that they write stay visible."""
        for name, tensor in block.stored.items():
            self.write(name, tensor)
        for node, attributes in self._nodes(block):
            if node.domain == BLOCKED:
                raise UnsupportedError(node, BLOCKED_WHY, BLOCKED_HINT)
            if node.op_type in control_flow.TRACERS:
                control_flow.TRACERS[node.op_type](self, node, attributes)
            elif node.op_type in control_flow.SEQUENCE_TRACERS and node.domain in DEFAULT_DOMAINS:
                control_flow.SEQUENCE_TRACERS[node.op_type](self, node, attributes)
            elif write_fused(self, node, attributes) or write_classical(self, node, attributes):
                continue
            elif node.op_type in _SKIPPED and self._skips(node):
                self._pass_on(node)
            else:
                self._node(node, attributes)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Hide names of the block afterwards; `name` distinguishes runs of the same block."""
        outer = self._scope
        self._scope = f"{outer}{name}/"
        self._written.append([])
        try:
            yield
        finally:
            self._scope = outer
            for written, tensor, items in reversed(self._written.pop()):
                _restore(self.values, written, tensor)
                _restore(self.lists, written, items)

    def write(self, name: str, value: Tensor | list[Tensor]) -> None:
        """Bind a name to a tensor or a sequence."""
        if self._written:
            old = (name, self.values.get(name), self.lists.get(name))
            self._written[-1].append(old)
        if isinstance(value, Tensor):
            self.values[name] = value
            self.lists.pop(name, None)
        else:
            self.lists[name] = value
            self.values.pop(name, None)

    def read(self, name: str, reader: str) -> Tensor | None:
        """Return the tensor bound to a name; None for an absent optional argument."""
        if not name:
            return None
        if name in self.values:
            return self.values[name]
        if name in self.lists:
            raise ConversionError(
                f"{reader} reads {name!r}, a sequence of tensors, as if it were one tensor",
                "Export the model without sequences.",
            )
        raise malformed_error(f"the ONNX graph reads {name!r} in {reader}, but nothing writes it")

    def need(self, node: onnx.NodeProto, position: int) -> Tensor:
        """Return a required argument."""
        name = node.input[position] if position < len(node.input) else ""
        tensor = self.read(name, node.name or node.op_type)
        if tensor is None:
            raise malformed_error(f"ONNX operator {node.op_type} {node.name!r} lacks an input")
        return tensor

    def apply(
        self, operator: str, inputs: Sequence[Tensor | None], name: str, **attributes: Any
    ) -> Tensor:
        """Trace an operator that is not in the file; return its only result."""
        return self.apply_all(operator, inputs, name, 1, **attributes)[0]

    def apply_all(
        self,
        operator: str,
        inputs: Sequence[Tensor | None],
        name: str,
        count: int,
        *,
        domain: str = "",
        **attributes: Any,
    ) -> list[Tensor]:
        """Trace an operator that is not in the file; return its results."""
        arguments = ["" if t is None else f"{name}<{i}" for i, t in enumerate(inputs)]
        results = [name, *(f"{name}>{i}" for i in range(1, count))]
        node = helper.make_node(
            operator, arguments, results, name=name, domain=domain, **attributes
        )
        return self._emit(node, attributes, list(inputs))

    def opset(self) -> int:
        """Opset of the operators that `apply` writes."""
        return self._inference.opset(onnx.NodeProto())

    def is_read(self, name: str) -> bool:
        """Return whether an operator or the model's results read a name."""
        return name in self._read

    def note(self, text: str) -> None:
        """Add a note on an assumption."""
        self.notes[text] = None

    def _nodes(self, block: Block) -> Iterator[tuple[onnx.NodeProto, dict[str, Any]]]:
        """Yield the nodes of a block and report progress.

        Raises:
            ConversionError: if loops are too long.
        """
        if not self._written:
            self._walked += len(block.nodes)
            yield from counted(block.nodes, len(block.nodes))
            return
        for item in block.nodes:
            self._walked += 1
            if self._walked % EACH == 0:
                tell(f"operator {self._walked:,}, loops unrolled")
            if self._walked > self._total + MAX_UNROLLED:
                raise ConversionError(
                    f"the loops of the model have more than {MAX_UNROLLED:,} operators when they "
                    "are unrolled, which is more than a conversion walks",
                    "Export the part inside the loop, or with fewer rounds.",
                )
            yield item

    def _skips(self, node: onnx.NodeProto) -> bool:
        """Return whether a node only passes its input on, and has no second result that is read.

        Old exporters name the unread mask of a dropout.
        """
        return not any(self.is_read(name) for name in node.output[1:] if name)

    def _pass_on(self, node: onnx.NodeProto) -> None:
        items = self.lists.get(node.input[0]) if node.input else None
        self.write(node.output[0], items if items is not None else self.need(node, 0))

    def _node(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
        if any(isinstance(v, Block) for v in attributes.values()):
            raise UnsupportedError(node, "an operator with a graph inside has no static graph")
        inputs = [self.read(name, node.name or node.op_type) for name in node.input]
        if node.op_type == "Size" or node.op_type == "Shape":
            self._shape_of(node, attributes, inputs[0] if inputs else None)
            return
        if self._rebatch is not None:
            inputs = self._rebatch.adjust(self, node, inputs, attributes, self._scope)
        outputs = self._emit(node, attributes, inputs)
        if self._rebatch is not None:
            self._rebatch.check_kept(node, inputs, outputs)
        for name, tensor in zip((n for n in node.output if n), outputs, strict=True):
            self.write(name, tensor)

    def _emit(
        self, node: onnx.NodeProto, attributes: dict[str, Any], inputs: list[Tensor | None]
    ) -> list[Tensor]:
        """Append the step of a node; return its results, without omitted ones."""
        opset = self._inference.opset(node)
        types = self._inference.infer(node, inputs, attributes)
        folded = _fold(node, inputs, attributes, opset)
        bounds = self._bounds(node, inputs, attributes) if folded is None else {}
        learned = bool(inputs) and all(
            i is None or i.is_learned or i.data is not None for i in inputs
        )
        names = self._inference.formal_names(node, len(inputs))
        path = path_of(node, [t.name for t in inputs if t is not None and t.is_parameter])
        step = TracedStep(node.op_type, node.name, opset, inputs, names, [], attributes, path)
        found = []
        for position, name in enumerate(node.output):
            if not name:
                step.outputs.append(None)
                continue
            tensor = self._result(
                node, name, {**bounds, **types}, folded[position] if folded else None
            )
            tensor.producer = step
            tensor.is_learned = learned and any(i is not None and i.is_learned for i in inputs)
            step.outputs.append(tensor)
            found.append(tensor)
        check(step)
        if bounds and any(name not in types for name in node.output if name):
            self._stated.append((node, step))
        if self.marker and self._is_assumed:
            _check_time(step, self.marker)
        self.steps.append(step)
        return found

    def _bounds(
        self, node: onnx.NodeProto, inputs: list[Tensor | None], attributes: Mapping[str, Any]
    ) -> Mapping[str, Type]:
        """Return the bounds of a selection; none if values from the user would give exact sizes."""
        if node.op_type not in data_dependent_sizes.SELECTIONS:
            return {}
        known = [t for t in inputs if t is not None]
        is_open = node.op_type != data_dependent_sizes.BOXES and self.open_values(known)
        return {} if is_open else data_dependent_sizes.bound(node, inputs, attributes)

    def _shape_of(
        self, node: onnx.NodeProto, attributes: Mapping[str, Any], tensor: Tensor | None
    ) -> None:
        if tensor is None:
            raise malformed_error(f"ONNX operator {node.op_type} {node.name!r} has no input")
        if node.op_type == "Size":
            data = np.asarray(prod(tensor.shape), np.int64)
        else:
            part = slice(attributes.get("start", 0), attributes.get("end"))
            data = np.asarray(tensor.shape[part], np.int64)
        name = node.output[0]
        self.write(name, Tensor(name, data.shape, TensorProto.INT64, data))

    def _result(
        self, node: onnx.NodeProto, name: str, types: Mapping[str, Type], data: Array | None
    ) -> Tensor:
        known = types.get(name)
        if data is not None and (known is None or data.shape != known[0]):
            declared = known[1] if known else helper.np_dtype_to_tensor_dtype(data.dtype)
            known = (data.shape, int(declared))
        if known is None and name in self._declared:
            known = static_type(self._declared[name], self._symbols or {})
        if known is None:
            raise self._unknown_shape(node)
        shape, element_type = known
        if self.marker and prod(shape) % self.marker**2 == 0 and prod(shape):
            raise BatchFixedError(
                message_start(node) + "the batch gets mixed into another dimension"
            )
        check_size(shape, f"the result of {message_start(node)[:-2]}")
        if self._rebatch is not None:
            self._rebatch.check(node, self._scope + name, shape)
        self._shapes[self._scope + name] = shape
        return Tensor(name, shape, element_type, data)

    def _unknown_shape(self, node: onnx.NodeProto) -> UnsupportedError:
        tensors = [self.values[name] for name in node.input if name in self.values]
        if any(t.element_type == TensorProto.STRING for t in tensors):
            return UnsupportedError(node, "it works on text", TEXT_HINT)
        open_inputs = self.open_values(tensors)
        if open_inputs:
            names = ", ".join(sorted(t.name for t in open_inputs))
            return UnsupportedError(
                node,
                f"the shape of its result depends on the value of input {names}",
                how_to_give_values(open_inputs),
            )
        newer = ""
        if self._inference.schema(node) is None and self._inference.is_newer(node):
            newer = f" (the file's opset {self._inference.opset(node)} is newer than the installed "
            newer += f"onnx {onnx.__version__} knows)"
        return UnsupportedError(node, "the shape of its result cannot be inferred" + newer)

    def open_values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs that tensors depend on and that may contain sizes or axes."""
        found: dict[int, Tensor] = {}
        seen: set[int] = set()
        stack = list(tensors)
        while stack:
            tensor = stack.pop()
            if id(tensor) in seen or tensor.data is not None or tensor.is_parameter:
                continue
            seen.add(id(tensor))
            if tensor.producer is not None:
                stack += [t for t in tensor.producer.inputs if t is not None]
            elif may_be_sizes(tensor, self.marker):
                found[id(tensor)] = tensor
        return list(found.values())


def _check_time(step: TracedStep, marker: int) -> None:
    """Raise if a recurrent layer would run over the batch."""
    first = step.inputs[0] if step.inputs else None
    if step.operator not in _RECURRENT or first is None or len(first.shape) != 3:
        return
    time_axis = 1 if step.attributes.get("layout") else 0
    is_time = first.shape[time_axis] % marker == 0
    if is_time and first.shape[1 - time_axis] % marker:
        raise BatchIsTimeError(
            f"operator {step.operator} {step.name!r} takes the assumed batch for its time steps"
        )


def _restore(names: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        names.pop(name, None)
    else:
        names[name] = value


def _fold(
    node: onnx.NodeProto, inputs: list[Tensor | None], attributes: Mapping[str, Any], opset: int
) -> list[Array] | None:
    if any(t is not None and t.data is None for t in inputs) or node.domain not in DEFAULT_DOMAINS:
        return None
    values = dict(attributes)
    if isinstance(values.get("value"), onnx.TensorProto):
        values["value"] = numpy_helper.to_array(values["value"])
    results = evaluate(node.op_type, [t.data if t else None for t in inputs], values, opset)
    if results is None or len(results) < len(node.output):
        return None
    return None if any(r.size > MAX_ELEMENTS for r in results) else results


def _scales(shape: tuple[int, ...], marker: int) -> bool:
    return any(size and size % marker == 0 for size in shape)


def _prune_steps(steps: list[TracedStep], outputs: list[Tensor]) -> list[TracedStep]:
    """Return the steps that the outputs depend on; known values need none."""
    wanted: set[int] = set()
    stack = [t.producer for t in outputs]
    while stack:
        step = stack.pop()
        if step is None or id(step) in wanted:
            continue
        wanted.add(id(step))
        stack += [t.producer for t in step.inputs if t is not None and not t.is_constant]
    return [step for step in steps if id(step) in wanted]
