"""An ONNX graph with every size known: one walk that infers shapes and folds shape arithmetic.

Sizes that the exporter computes at run time (Shape → Gather → Concat → Reshape) become numbers on
the way, so each later operator is inferred with them. No weight is needed and nothing from the
file is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from dippm.errors import ConversionError, ModelFileError
from dippm.progress import counted
from dippm.relax.onnx.fold import MAX_ELEMENTS, NUMPY_TYPES, Array, evaluate
from dippm.relax.onnx.paths import path_of
from dippm.relax.onnx.shapes import CONTRIBUTED, SHAPES, TRUTHS

MAX_KNOWN_ELEMENTS = 1024
"""Contents above this are weights or index tables: no size is computed from them."""

_DEFAULT_DOMAINS = ("", "ai.onnx")
_SKIPPED = ("Identity", "Dropout")
_SIZES = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
"""Types that sizes, axes and indices come in; small tensors of other types are weights."""


class ShapeMismatchError(Exception):
    """The sizes do not fit at one operator."""


class BatchFixedError(ShapeMismatchError):
    """The graph cannot be given another batch: some inner size fixes it."""


class _UnsupportedError(Exception):
    """An operator that has no static result."""

    def __init__(self, node: onnx.NodeProto, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why

    def told_with_count(self, model: onnx.ModelProto) -> ConversionError:
        node = self.node
        count = sum((n.op_type, n.domain) == (node.op_type, node.domain) for n in model.graph.node)
        domain = f"{node.domain}." if node.domain not in _DEFAULT_DOMAINS else ""
        times = f", {count} of them in the model" if count > 1 else ""
        result = next(iter(node.output), "")
        return ConversionError(
            f"ONNX operator {domain}{node.op_type} (node {node.name!r}, result {result!r}{times}): "
            + self.why,
            "Simplify the model with onnxsim, or export it with static sizes; a shape rule for "
            "the operator can be added in dippm/relax/onnx/shapes.py.",
        )


@dataclass(slots=True)
class Tensor:
    """One value.

    Attributes:
        name: unique in the graph.
        shape: static sizes.
        element_type: an ONNX tensor type.
        data: contents, if they are small and known.
        is_learned: whether it is a weight, or computed from weights only.
        is_parameter: whether it is stored in the file as a weight.
        producer: the step that computes it; None for inputs and stored tensors.
    """

    name: str
    shape: tuple[int, ...]
    element_type: int
    data: Array | None = None
    is_learned: bool = False
    is_parameter: bool = False
    producer: Step | None = None


@dataclass(slots=True, eq=False)
class Step:
    """One operator.

    Attributes:
        operator: ONNX name.
        name: of the node in the file.
        opset: version of its domain.
        inputs: values in argument order; None for an absent optional one.
        input_names: the formal names of the arguments.
        outputs: values; None for one that is not asked for.
        attributes: as Python values.
        path: of the module that it belongs to, "" if unknown.
    """

    operator: str
    name: str
    opset: int
    inputs: list[Tensor | None]
    input_names: list[str]
    outputs: list[Tensor | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    path: str = ""


@dataclass(slots=True)
class Trace:
    """A graph with static shapes.

    Attributes:
        inputs: user inputs in the order of the file.
        steps: the operators that the outputs depend on, producers first.
        outputs: results.
    """

    inputs: list[Tensor]
    steps: list[Step]
    outputs: list[Tensor]


def trace(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], marker: int) -> Trace:
    """Return the graph with static shapes.

    Args:
        model: without functions; large tensors may lack their contents.
        shapes: of each user input, batch included.
        marker: the batch in those shapes if it stands for any batch, else 0.

    Raises:
        ShapeMismatchError: if the sizes do not fit; `BatchFixedError` if the batch is to blame.
        ConversionError: if an operator's result has no static shape.
        ModelFileError: if the graph is not well formed.
    """
    try:
        return _Tracer(model, marker).run(model.graph, shapes)
    except _UnsupportedError as error:
        raise error.told_with_count(model) from error.__cause__


class _Tracer:
    def __init__(self, model: onnx.ModelProto, marker: int) -> None:
        self.opsets = {o.domain: o.version for o in model.opset_import}
        if "" not in self.opsets:
            self.opsets[""] = self.opsets.get("ai.onnx", 1)
        self.imports = [helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        self.ir_version = model.ir_version
        self.marker = marker
        self.values: dict[str, Tensor] = {}
        self.steps: list[Step] = []
        self.declared: dict[str, onnx.TypeProto] = {}
        self.schemas: dict[tuple[str, str], Any] = {}

    def run(self, graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> Trace:
        self.declared = {v.name: v.type for v in graph.value_info}
        self._store(graph)
        inputs = []
        for value in graph.input:
            if value.name in shapes:
                tensor = Tensor(value.name, shapes[value.name], value.type.tensor_type.elem_type)
                self.values[value.name] = tensor
                inputs.append(tensor)
        self._nodes(graph.node)
        outputs = [self._read(value.name, "the graph's outputs") for value in graph.output]
        found = [t for t in outputs if t is not None]
        if self.marker and not any(_scales(t.shape, self.marker) for t in found):
            raise BatchFixedError("no output depends on the batch size")
        return Trace(inputs, _needed(self.steps, found), found)

    def _store(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self.values[tensor.name] = stored(tensor)
        for sparse in graph.sparse_initializer:
            self.values[sparse.values.name] = Tensor(
                sparse.values.name, tuple(sparse.dims), sparse.values.data_type,
                is_learned=True, is_parameter=True,
            )  # fmt: skip

    def _nodes(self, nodes: Sequence[onnx.NodeProto]) -> None:
        for node in counted(nodes, len(nodes)):
            attributes = {a.name: _attribute(a) for a in node.attribute}
            if node.op_type == "If":
                self._if(node, attributes)
            elif node.op_type == "Constant":
                self.values[node.output[0]] = _constant(node)
            elif node.op_type in _SKIPPED and self._skips(node):
                self.values[node.output[0]] = self._need(node.input[0], node)
            else:
                self._step(node, attributes)

    @staticmethod
    def _skips(node: onnx.NodeProto) -> bool:
        return not any(node.output[1:])

    def _if(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
        """Take the branch that a constant condition selects."""
        condition = self._need(node.input[0], node)
        if condition.data is None:
            raise _UnsupportedError(node, "its condition depends on the data")
        branch = attributes["then_branch" if condition.data.reshape(-1)[0] else "else_branch"]
        hidden = dict(self.values)
        self._store(branch)
        self._nodes(branch.node)
        results = [self._need(value.name, node) for value in branch.output]
        self.values = hidden | dict(zip(node.output, results, strict=False))

    def _step(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
        if any(isinstance(v, onnx.GraphProto) for v in attributes.values()):
            raise _UnsupportedError(node, "loops over the data have no static graph")
        inputs = [self._read(name, node.name or node.op_type) for name in node.input]
        domain = "" if node.domain in _DEFAULT_DOMAINS else node.domain
        opset = self.opsets.get(domain, 1)
        schema = self._schema(node.op_type, domain, opset)
        if node.op_type == "Size" or node.op_type == "Shape":
            self._shape_of(node, attributes, inputs[0])
            return
        types = self._infer(node, inputs, attributes, schema)
        folded = _fold(node, inputs, attributes, opset)
        learned = bool(inputs) and all(i is None or i.is_learned or _is_known(i) for i in inputs)
        step = Step(
            node.op_type, node.name, opset, inputs, _formal_names(schema, len(inputs)), [],
            attributes, path_of(node, [t.name for t in inputs if t is not None and t.is_parameter]),
        )  # fmt: skip
        for position, name in enumerate(node.output):
            if not name:
                step.outputs.append(None)
                continue
            tensor = self._result(node, name, types, folded[position] if folded else None)
            tensor.producer = step
            tensor.is_learned = learned and any(i is not None and i.is_learned for i in inputs)
            step.outputs.append(tensor)
            self.values[name] = tensor
        self._check(step)
        self.steps.append(step)

    def _shape_of(
        self, node: onnx.NodeProto, attributes: Mapping[str, Any], tensor: Tensor | None
    ) -> None:
        if tensor is None:
            raise _malformed(f"ONNX operator {node.op_type} {node.name!r} has no input")
        if node.op_type == "Size":
            data = np.asarray(prod(tensor.shape), np.int64)
        else:
            part = slice(attributes.get("start", 0), attributes.get("end"))
            data = np.asarray(tensor.shape[part], np.int64)
        name = node.output[0]
        self.values[name] = Tensor(name, data.shape, TensorProto.INT64, data)

    def _schema(self, operator: str, domain: str, opset: int) -> Any:
        key = (domain, operator)
        if key not in self.schemas:
            try:
                self.schemas[key] = onnx.defs.get_schema(operator, opset, domain)
            except onnx.defs.SchemaError:
                self.schemas[key] = None
        return self.schemas[key]

    def _infer(
        self,
        node: onnx.NodeProto,
        inputs: list[Tensor | None],
        attributes: Mapping[str, Any],
        schema: Any,
    ) -> Mapping[str, tuple[tuple[int, ...], int]]:
        """Return shape and element type of each output that can be inferred."""
        present = [t for t in inputs if t is not None]
        rules = CONTRIBUTED if node.domain == "com.microsoft" else {}
        own = rules.get(node.op_type) or SHAPES.get(node.op_type)
        if own is not None and (schema is None or not schema.has_type_and_shape_inference_function):
            shapes = own([t.shape if t else None for t in inputs], attributes)
            first = present[0].element_type if present else TensorProto.FLOAT
            types = [TensorProto.BOOL if node.op_type in TRUTHS else first] * len(shapes)
            return dict(zip(node.output, zip(shapes, types, strict=True), strict=False))
        if schema is None:
            return {}
        named = {name: t for name, t in zip(node.input, inputs, strict=True) if t is not None}
        try:
            inferred = shape_inference.infer_node_outputs(
                schema,
                node,
                {k: helper.make_tensor_type_proto(t.element_type, t.shape)
                 for k, t in named.items()},
                {k: numpy_helper.from_array(t.data) for k, t in named.items()
                 if t.data is not None and t.data.size <= MAX_KNOWN_ELEMENTS
                 and t.element_type in NUMPY_TYPES},
                opset_imports=self.imports,
                ir_version=self.ir_version,
            )  # fmt: skip
        except (shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            raise ShapeMismatchError(_at(node) + str(error).strip()[-300:]) from error
        except (RuntimeError, ValueError, TypeError) as error:
            raise _malformed(_at(node) + str(error).strip()[-300:]) from error
        found = {name: _static(type_proto) for name, type_proto in inferred.items()}
        return {name: shape for name, shape in found.items() if shape is not None}

    def _result(
        self,
        node: onnx.NodeProto,
        name: str,
        types: Mapping[str, tuple[tuple[int, ...], int]],
        data: Array | None,
    ) -> Tensor:
        known = types.get(name)
        if data is not None and (known is None or data.shape != known[0]):
            declared = known[1] if known else helper.np_dtype_to_tensor_dtype(data.dtype)
            known = (data.shape, int(declared))
        if known is None and name in self.declared:
            known = _static(self.declared[name])
        if known is None:
            raise _UnsupportedError(node, "the shape of its result cannot be inferred")
        if self.marker and prod(known[0]) % self.marker**2 == 0 and prod(known[0]):
            raise BatchFixedError(_at(node) + "the batch gets mixed into another dimension")
        return Tensor(name, known[0], known[1], data)

    @staticmethod
    def _check(step: Step) -> None:
        """Check what ONNX's own inference lets pass."""
        shapes = [t.shape if t else () for t in step.inputs]
        out = step.outputs[0].shape if step.outputs and step.outputs[0] else ()
        operator, group = step.operator, int(step.attributes.get("group", 1))
        wrong = False
        if operator == "Reshape":
            wrong = prod(shapes[0]) != prod(out)
        elif operator == "Conv":
            wrong = shapes[0][1] != shapes[1][1] * group or min(out, default=1) < 1
        elif operator == "ConvTranspose":
            wrong = shapes[0][1] != shapes[1][0]
        elif operator == "Gemm":
            a = shapes[0][0 if step.attributes.get("transA") else 1]
            wrong = a != shapes[1][1 if step.attributes.get("transB") else 0]
        elif operator in ("MaxPool", "AveragePool"):
            wrong = min(out, default=1) < 1
        if wrong:
            where = f"operator {operator} {step.name!r}: "
            raise ShapeMismatchError(where + f"inputs {shapes[:2]} do not fit result {out}")

    def _read(self, name: str, where: str) -> Tensor | None:
        if not name:
            return None
        if name not in self.values:
            raise _malformed(f"the ONNX graph reads {name!r} in {where}, but nothing writes it")
        return self.values[name]

    def _need(self, name: str, node: onnx.NodeProto) -> Tensor:
        tensor = self._read(name, node.name or node.op_type)
        if tensor is None:
            raise _malformed(f"ONNX operator {node.op_type} {node.name!r} lacks an input")
        return tensor


def stored(tensor: onnx.TensorProto) -> Tensor:
    """Return a stored tensor, with its contents if they are small and there."""
    shape = tuple(int(size) for size in tensor.dims)
    if any(size < 0 for size in shape):
        raise _malformed(f"ONNX tensor {tensor.name!r} has a negative size")
    size = prod(shape)
    data = None
    if _has_contents(tensor, size):
        try:
            data = _plain(numpy_helper.to_array(tensor), tensor.data_type)
        except Exception as error:
            raise ModelFileError(
                f"ONNX tensor {tensor.name!r} cannot be read: {error}",
                "The file is damaged; export it again.",
            ) from error
    is_weight = data is None or (size > 1 and tensor.data_type not in _SIZES)
    return Tensor(
        tensor.name, shape, tensor.data_type, data, is_learned=is_weight, is_parameter=is_weight
    )


def _plain(data: Array, element_type: int) -> Array | None:
    """Return numbers that NumPy computes with; None for the types of less than 16 bits."""
    if element_type == TensorProto.BFLOAT16:
        bits = data.astype(np.uint16) if data.dtype.fields else data.view(np.uint16)
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return data if element_type in NUMPY_TYPES else None


def _has_contents(tensor: onnx.TensorProto, size: int) -> bool:
    return size <= MAX_KNOWN_ELEMENTS and tensor.data_location != TensorProto.EXTERNAL


def _constant(node: onnx.NodeProto) -> Tensor:
    name, attribute = node.output[0], node.attribute[0]
    if attribute.name == "sparse_value":
        raise _UnsupportedError(node, "sparse constants are not supported")
    value = _attribute(attribute)
    if isinstance(value, onnx.TensorProto):
        tensor = stored(value)
        tensor.name = name
        return tensor
    is_float = attribute.name in ("value_float", "value_floats")
    data = np.asarray(value, np.float32 if is_float else np.int64)
    return Tensor(name, data.shape, TensorProto.FLOAT if is_float else TensorProto.INT64, data)


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.GraphProto | onnx.TensorProto | int | float):
        return value
    try:
        items = list(value)
    except TypeError:
        return None
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in items]


def _fold(
    node: onnx.NodeProto, inputs: list[Tensor | None], attributes: Mapping[str, Any], opset: int
) -> list[Array] | None:
    if any(t is not None and t.data is None for t in inputs) or node.domain not in _DEFAULT_DOMAINS:
        return None
    values = dict(attributes)
    if isinstance(values.get("value"), onnx.TensorProto):
        values["value"] = numpy_helper.to_array(values["value"])
    results = evaluate(node.op_type, [t.data if t else None for t in inputs], values, opset)
    if results is None or len(results) < len(node.output):
        return None
    return None if any(r.size > MAX_ELEMENTS for r in results) else results


def _is_known(tensor: Tensor) -> bool:
    return tensor.data is not None


def _static(type_proto: onnx.TypeProto) -> tuple[tuple[int, ...], int] | None:
    if not type_proto.HasField("tensor_type") or not type_proto.tensor_type.HasField("shape"):
        return None
    dims = type_proto.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
        return None
    return tuple(int(dim.dim_value) for dim in dims), type_proto.tensor_type.elem_type


def _formal_names(schema: Any, count: int) -> list[str]:
    formal = [f.name for f in schema.inputs] if schema is not None else []
    return [formal[i] if i < len(formal) else f"input{i}" for i in range(count)]


def _scales(shape: tuple[int, ...], marker: int) -> bool:
    return any(size and size % marker == 0 for size in shape)


def _needed(steps: list[Step], outputs: list[Tensor]) -> list[Step]:
    """Return the steps that the outputs depend on; known values need no step."""
    wanted: set[int] = set()
    stack = [t.producer for t in outputs]
    while stack:
        step = stack.pop()
        if step is None or id(step) in wanted:
            continue
        wanted.add(id(step))
        stack += [t.producer for t in step.inputs if t is not None and not is_constant(t)]
    return [step for step in steps if id(step) in wanted]


def is_constant(tensor: Tensor) -> bool:
    """Return whether a value is a number of the graph rather than a weight or a result."""
    return tensor.data is not None and not tensor.is_learned


def _at(node: onnx.NodeProto) -> str:
    return f"operator {node.op_type} {node.name!r}: "


def _malformed(what: str) -> ModelFileError:
    return ModelFileError(
        what, "Check the file with onnx.checker.check_model, or export it again: it is damaged."
    )
