"""Flat TensorFlow graph → Relax, without weight values.

Operators are translated on demand, from the outputs backwards, so shape arithmetic, whose results
TensorFlow's shape inference already knows, is never reached. Operators without a Relax equivalent
become opaque calls "tf.<Name>" with TensorFlow's own output types (see `carried`). Layouts are kept
and named in the attributes.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tvm
from tvm import relax

from dippm.base.progress import tell
from dippm.errors import ConversionError
from dippm.model.relax.carried import opaque_call, with_paths
from dippm.model.relax.raw_graph import Attribute
from dippm.model.relax.tensorflow import layers, norms, operators, path_of, recurrent
from dippm.model.relax.tensorflow.call import Converter, Match, TensorFlowCall
from dippm.model.relax.tensorflow.control_flow import BRANCHES, LOOPS
from dippm.model.relax.tensorflow.graph import FlatGraph
from dippm.model.relax.tensorflow.static import Statics

CONVERTERS: dict[str, Converter] = {
    **operators.CONVERTERS,
    **layers.CONVERTERS,
    **recurrent.CONVERTERS,
}
VIEWS = frozenset({"Reshape", "Squeeze", "ExpandDims"})
PROGRAMS = {
    "XlaCallModule": "a compiled program of XLA (jax2tf and Keras on JAX write it)",
    "XlaLaunch": "a compiled program of XLA",
    "TRTEngineOp": "an engine of TensorRT",
}
"""Operators that contain a whole model, which would count as free if it were one operator."""

MAX_CONSTANT_ELEMENTS = 1024
"""Maximum elements of a constant; larger float constants are weights of a frozen graph."""


def import_graph(flat: FlatGraph) -> tvm.IRModule:
    """Return a module whose function "main" takes the user inputs, then the parameters.

    Raises:
        ConversionError: if an operator's result is not a tensor or has no static shape.
    """
    return _Importer(flat).module()


class _Importer:
    def __init__(self, flat: FlatGraph) -> None:
        self.flat = flat
        self.statics = Statics()
        self.layers = recurrent.Layers()
        self.builder = relax.BlockBuilder()
        self.bindings: list[relax.VarBinding] = []
        self.path, self.paths = "", dict[str, str]()
        self.expressions: dict[str, relax.Expr] = {}
        self.parameters: list[relax.Var] = []
        self.from_input = _reached_from(flat.inputs)
        self.matches: dict[str, Match | None] = {}

    def module(self) -> tvm.IRModule:
        inputs = [self._variable(t, t.op.name) for t in self.flat.inputs]
        needed = self._needed_operations()
        for i, operation in enumerate(needed):
            if i % 500 == 0:
                tell(f"operator {i:,} of {len(needed):,}")
            self._translate(operation)
        results = [self.expression(t) for t in self.flat.outputs]
        result = results[0] if len(results) == 1 else relax.Tuple(results)
        body = relax.SeqExpr([relax.BindingBlock(self.bindings)], self.builder.normalize(result))
        function = relax.Function([*inputs, *self.parameters], body, body.body.ty)
        module = tvm.IRModule({"main": function.with_attr("num_input", len(inputs))})
        return with_paths(module, self.paths)

    def expression(self, tensor: tf.Tensor) -> relax.Expr:
        """Return the Relax value of a tensor, creating it for leaves."""
        if tensor.name not in self.expressions:
            same = self._skip_reshapes(tensor)
            self.expressions[tensor.name] = (
                self._leaf(tensor) if same is tensor else self.expression(same)
            )
        return self.expressions[tensor.name]

    def emit(self, expression: relax.Expr) -> relax.Var:
        """Bind an expression, so that Relax infers its type."""
        value = self.builder.normalize(expression)
        variable = relax.Var(f"v{len(self.bindings)}", value.ty)
        self.bindings.append(relax.VarBinding(variable, value))
        self.paths[variable.name] = self.path
        return variable

    def depends_on_input(self, tensor: tf.Tensor) -> bool:
        """Return whether a tensor is an activation rather than computed from weights alone."""
        return tensor.op.name in self.from_input

    def _needed_operations(self) -> list[tf.Operation]:
        """Return the operations whose results are read as tensors, producers first."""
        needed: set[str] = {t.op.name for t in self.flat.outputs if not self._is_leaf(t)}
        chosen = []
        for operation in reversed(self.flat.graph.get_operations()):
            if operation.name in needed:
                chosen.append(operation)
                reads = (self._skip_reshapes(t) for t in self._reads(operation))
                needed.update(t.op.name for t in reads if not self._is_leaf(t))
        return chosen[::-1]

    def _reads(self, operation: tf.Operation) -> Sequence[tf.Tensor]:
        match = self._match(operation)
        if match is not None:
            return match.reads
        inputs: list[tf.Tensor] = list(operation.inputs)
        converter = CONVERTERS.get(operation.type)
        if converter is not None and converter.reads is not None:
            return [inputs[i] for i in converter.reads]
        return inputs

    def _match(self, operation: tf.Operation) -> Match | None:
        if operation.name not in self.matches:
            match = norms.match(operation, self.depends_on_input)
            if match is None:
                match = layers.match_convolution(operation, self.statics)
            if operation.type in LOOPS:
                match = recurrent.match(operation, self.flat, self.layers, self.depends_on_input)
            elif operation.type in BRANCHES:
                match = recurrent.carry_whole(operation, self.flat)
            self.matches[operation.name] = match
        return self.matches[operation.name]

    def _skip_reshapes(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return a weight without reshapes, if they end in its original shape."""
        source = found = tensor
        while source.op.type in VIEWS and not self.depends_on_input(source):
            source = source.op.inputs[0]
            found = source if source.shape.as_list() == tensor.shape.as_list() else found
        return found

    def _is_leaf(self, tensor: tf.Tensor) -> bool:
        tensor = self._skip_reshapes(tensor)
        if tensor.op.type in ("Placeholder", "Const", "VarHandleOp"):
            return True
        return not self.depends_on_input(tensor) and self.statics.value(tensor) is not None

    def _leaf(self, tensor: tf.Tensor) -> relax.Expr:
        if tensor.op.type == "Placeholder":
            variable = self._variable(tensor, tensor.op.name)
            self.parameters.append(variable)
            return variable
        value = self.statics.value(tensor)
        if tensor.op.type == "Const" and _is_weight(tensor):
            variable = self._variable(tensor, tensor.op.name)
            self.parameters.append(variable)
            return variable
        if value is None:
            raise ConversionError(
                f"{tensor.op.type} ({tensor.name}) has no result of a known size",
                "Export the model with static sizes apart from the batch.",
            )
        if value.dtype.kind in "OSU":
            raise ConversionError(
                f"{tensor.op.name} is text", "Export the model without its text processing."
            )
        return relax.const(value, tensor.dtype.name)

    def _variable(self, tensor: tf.Tensor, name: str) -> relax.Var:
        shape, dtype = static_type(tensor)
        variable = relax.Var(name, relax.TensorType(shape, dtype))
        self.expressions[tensor.name] = variable
        return variable

    def _translate(self, operation: tf.Operation) -> None:
        self.path = path_of(operation.name)
        call = TensorFlowCall(operation, self)
        match = self._match(operation)
        if match is not None:
            results = match.build(call)
        elif (converter := CONVERTERS.get(operation.type)) is not None:
            results = converter.build(call)
        else:
            results = None
        if results is None:
            results = _carry(self, operation)
        if isinstance(results, relax.Expr):
            results = [results]
        for tensor, result in zip(operation.outputs, results, strict=False):
            if result is not None:
                bound = result if isinstance(result, relax.Var) else self.emit(result)
                self.expressions[tensor.name] = bound


def _carry(importer: _Importer, operation: tf.Operation) -> list[relax.Expr | None]:
    """Emit an operator that Relax lacks as one opaque call over its tensor arguments."""
    if operation.type in PROGRAMS:
        raise ConversionError(
            f"{operation.type} ({operation.name}) holds {PROGRAMS[operation.type]}, whose layers "
            "cannot be seen",
            "Export what it was made from: a JAX function to ONNX, for instance with "
            "`jax2onnx.to_onnx(function, [(1, 224, 224, 3)], return_mode='file', "
            "output_path='model.onnx')`; a Keras model on the backend tensorflow.",
        )
    arguments = [t for t in operation.inputs if _is_tensor(t)]
    outputs = [t for t in operation.outputs if _is_tensor(t)]
    if not outputs:
        raise ConversionError(
            f"the model's result depends on {operation.type} ({operation.name}), "
            "which makes no tensor",
            "Export the model's inference signature only.",
        )
    call = opaque_call(
        "tf." + operation.type,
        [importer.expression(t) for t in arguments],
        [static_type(t) for t in outputs],
        attributes(operation),
    )
    bound = importer.emit(call)
    if len(outputs) == 1:
        return [bound if t is outputs[0] else None for t in operation.outputs]
    items = iter(range(len(outputs)))
    return [
        importer.emit(relax.TupleGetItem(bound, next(items))) if _is_tensor(t) else None
        for t in operation.outputs
    ]


def static_type(tensor: tf.Tensor) -> tuple[tuple[int, ...], str]:
    """Return a tensor's shape and dtype.

    Raises:
        ConversionError: if the shape is not static, or the tensor is complex.
    """
    if not tensor.shape.is_fully_defined():
        raise ConversionError(
            f"the shape of {tensor.op.type} ({tensor.name}) depends on data: {tensor.shape}",
            "Export the model with static sizes apart from the batch.",
        )
    if tensor.dtype.is_complex:
        raise ConversionError(
            f"{tensor.op.type} ({tensor.op.name}) makes complex numbers, which have no price here",
            "Export the part of the model that works on real numbers.",
        )
    return tuple(tensor.shape.as_list()), tensor.dtype.name.removeprefix("q")


def attributes(operation: tf.Operation) -> dict[str, Attribute]:
    """Return the numbers and texts among an operation's attributes."""
    found: dict[str, Attribute] = {}
    for name, value in operation.node_def.attr.items():
        kind = value.WhichOneof("value")
        if kind in ("i", "f", "b"):
            number = getattr(value, kind)
            found[name] = int(number) if kind == "b" else number
        elif kind == "s" and len(value.s) < 64:
            found[name] = value.s.decode(errors="replace")
        elif kind == "list" and value.list.i:
            found[name] = tuple(value.list.i)
    return found


def _is_tensor(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in (tf.resource, tf.variant, tf.string)


def _is_weight(tensor: tf.Tensor) -> bool:
    elements = tensor.shape.num_elements() or 0
    return bool(tensor.dtype.is_floating and elements > MAX_CONSTANT_ELEMENTS)


SHAPE_ONLY = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})


def _reached_from(inputs: Sequence[tf.Tensor]) -> set[str]:
    """Return the names of operations whose results depend on the values of the inputs."""
    reached = {t.op.name for t in inputs}
    operations = inputs[0].graph.get_operations() if inputs else []
    for operation in operations:
        by_value = operation.type not in SHAPE_ONLY
        if by_value and any(t.op.name in reached for t in operation.inputs):
            reached.add(operation.name)
    return reached
