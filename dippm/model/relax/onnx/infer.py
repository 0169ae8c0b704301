"""Shape inference of single ONNX operators, with more checks than ONNX itself has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from dippm.model.relax.onnx.fold import NUMPY_TYPES
from dippm.model.relax.onnx.tracing import (
    DEFAULT_DOMAINS,
    MAX_KNOWN_ELEMENTS,
    ShapeMismatchError,
    Tensor,
    TracedStep,
    malformed_error,
    message_start,
)

Type = tuple[tuple[int, ...], int]
"""Shape and ONNX element type."""


class Inference:
    """Shape inference with the operator definitions of a file's opsets."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._opsets = {o.domain: o.version for o in model.opset_import}
        if "" not in self._opsets:
            self._opsets[""] = self._opsets.get("ai.onnx", 1)
        newest = onnx.defs.onnx_opset_version()
        self._known = {
            d: min(v, newest) if d in DEFAULT_DOMAINS else v for d, v in self._opsets.items()
        }
        self._imports = [helper.make_opsetid(d, v) for d, v in self._known.items()]
        self._ir_version = min(model.ir_version, onnx.IR_VERSION)
        self._schemas: dict[tuple[str, str], Any] = {}
        self._defaults: dict[tuple[str, str, int], list[onnx.AttributeProto]] = {}

    def opset(self, node: onnx.NodeProto) -> int:
        """Return the version of a node's domain."""
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        return int(self._opsets.get(domain, 1))

    def is_newer(self, node: onnx.NodeProto) -> bool:
        """Return whether the file's opset is newer than the installed `onnx`."""
        return node.domain in DEFAULT_DOMAINS and self._opsets[""] != self._known[""]

    def schema(self, node: onnx.NodeProto) -> Any:
        """Return the definition of an operator; None if there is none."""
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        key = (domain, node.op_type)
        if key not in self._schemas:
            try:
                version = self._known.get(domain, 1)
                self._schemas[key] = onnx.defs.get_schema(node.op_type, version, domain)
            except onnx.defs.SchemaError:
                self._schemas[key] = None
        return self._schemas[key]

    def formal_names(self, node: onnx.NodeProto, count: int) -> list[str]:
        """Return the names of the first arguments of an operator."""
        schema = self.schema(node)
        formal = [f.name for f in schema.inputs] if schema is not None else []
        return [formal[i] if i < len(formal) else f"input{i}" for i in range(count)]

    def infer(
        self, node: onnx.NodeProto, inputs: list[Tensor | None], attributes: Mapping[str, Any]
    ) -> Mapping[str, Type]:
        """Return shape and element type of each output that can be inferred.

        Raises:
            ShapeMismatchError: if the inputs do not fit each other.
            ModelFileError: if the node is not well formed.
        """
        schema = self.schema(node)
        present = [t for t in inputs if t is not None]
        rules = CONTRIBUTED if node.domain == "com.microsoft" else {}
        own = rules.get(node.op_type) or SHAPES.get(node.op_type)
        if own is not None and (schema is None or not schema.has_type_and_shape_inference_function):
            shapes = own([t.shape if t else None for t in inputs], attributes)
            first = present[0].element_type if present else TensorProto.FLOAT
            typed = TYPES.get(node.op_type)
            types = typed(inputs, attributes) if typed else [first]
            types = (types * len(shapes))[: len(shapes)]
            return dict(zip(node.output, zip(shapes, types, strict=True), strict=False))
        if schema is None:
            return {}
        if node.op_type == "MaxUnpool" and len(inputs) > 2 and inputs[2] is not None:
            return self._unpooled(node, inputs, attributes)
        if node.op_type == "Range":
            inputs = [_as_scalar(t) for t in inputs]
        named = {name: t for name, t in zip(node.input, inputs, strict=True) if t is not None}
        try:
            inferred = shape_inference.infer_node_outputs(
                schema,
                self._with_defaults(node, schema),
                {
                    k: helper.make_tensor_type_proto(t.element_type, t.shape)
                    for k, t in named.items()
                },
                {
                    k: numpy_helper.from_array(t.data)
                    for k, t in named.items()
                    if t.data is not None
                    and t.data.size <= MAX_KNOWN_ELEMENTS
                    and t.element_type in NUMPY_TYPES
                },
                opset_imports=self._imports,
                ir_version=self._ir_version,
            )
        except (shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            raise ShapeMismatchError(message_start(node) + str(error).strip()[-300:]) from error
        except (RuntimeError, ValueError, TypeError) as error:
            raise malformed_error(message_start(node) + str(error).strip()[-300:]) from error
        found = {name: static_type(type_proto, {}) for name, type_proto in inferred.items()}
        return {name: shape for name, shape in found.items() if shape is not None}

    def _unpooled(
        self, node: onnx.NodeProto, inputs: list[Tensor | None], attributes: Mapping[str, Any]
    ) -> Mapping[str, Type]:
        """Return the explicit output size of an unpooling, which ONNX's inference ignores.

        As in ONNX Runtime, it is complete, and not smaller than the windows imply.
        """
        stated, plain = inputs[2], onnx.NodeProto()
        if stated is None or stated.data is None:
            return {}
        plain.CopyFrom(node)
        del plain.input[2:]
        least, element_type = self.infer(plain, inputs[:2], attributes)[node.output[0]]
        shape = tuple(int(size) for size in stated.data.reshape(-1))
        fits = len(shape) == len(least) and shape[:2] == least[:2]
        if not fits or any(size < window for size, window in zip(shape, least, strict=True)):
            raise ShapeMismatchError(
                f"{message_start(node)}its output_shape is {shape}, and its windows give {least}"
            )
        return {node.output[0]: (shape, element_type)}

    def _with_defaults(self, node: onnx.NodeProto, schema: Any) -> onnx.NodeProto:
        """Return a node with explicit attributes, because ONNX's inference ignores some defaults.

        STFT without `onesided` is inferred with all frequencies, although the default is half.
        """
        key = schema.domain, schema.name, schema.since_version
        if key not in self._defaults:
            defaults = (attribute.default_value for attribute in schema.attributes.values())
            self._defaults[key] = [value for value in defaults if value.name and value.type]
        given = {attribute.name for attribute in node.attribute}
        absent = [value for value in self._defaults[key] if value.name not in given]
        if not absent:
            return node
        whole = onnx.NodeProto()
        whole.CopyFrom(node)
        whole.attribute.extend(absent)
        return whole


def _as_scalar(tensor: Tensor | None) -> Tensor | None:
    """Return a one-element row as a scalar: ONNX's inference refuses it, runtimes accept it."""
    if tensor is None or tensor.shape != (1,):
        return tensor
    data = None if tensor.data is None else tensor.data.reshape(())
    return Tensor(tensor.name, (), tensor.element_type, data)


def static_type(type_proto: onnx.TypeProto, symbols: Mapping[str, int]) -> Type | None:
    """Return a declared type with static sizes, None if a size is unknown.

    Args:
        type_proto: declared type of a value.
        symbols: values of named sizes.
    """
    if not type_proto.HasField("tensor_type") or not type_proto.tensor_type.HasField("shape"):
        return None
    sizes = []
    for dim in type_proto.tensor_type.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            sizes.append(int(dim.dim_value))
        elif dim.dim_param in symbols:
            sizes.append(symbols[dim.dim_param])
        else:
            return None
    return tuple(sizes), type_proto.tensor_type.elem_type


def check(step: TracedStep) -> None:
    """Check conditions that ONNX's own inference ignores.

    Raises:
        ShapeMismatchError: if the inputs do not fit each other.
    """
    shapes = [t.shape if t else () for t in step.inputs]
    out = step.outputs[0].shape if step.outputs and step.outputs[0] else ()
    operator, group = step.operator, int(step.attributes.get("group", 1))
    wrong = False
    if operator == "Reshape":
        wrong = prod(shapes[0]) != prod(out)
    elif operator == "Conv":
        wrong = shapes[0][1] != shapes[1][1] * group or _has_no_window(step, shapes, out)
    elif operator == "ConvTranspose":
        wrong = shapes[0][1] != shapes[1][0] or _has_no_window(step, shapes, out)
    elif operator == "Transpose":
        wrong = len(out) != len(shapes[0])
    elif operator == "Gemm":
        a = shapes[0][0 if step.attributes.get("transA") else 1]
        wrong = a != shapes[1][1 if step.attributes.get("transB") else 0]
    elif operator in ("MaxPool", "AveragePool", "LpPool"):
        wrong = min(out, default=1) < 1 or len(out) != len(shapes[0])
    if wrong:
        at = f"operator {operator} {step.name!r}: "
        raise ShapeMismatchError(at + f"inputs {shapes[:2]} do not fit result {out}")


def _has_no_window(step: TracedStep, shapes: list[tuple[int, ...]], out: tuple[int, ...]) -> bool:
    """Return whether the weights contradict the window, or the window fits nowhere."""
    stated = step.attributes.get("kernel_shape")
    other = stated is not None and tuple(stated) != shapes[1][2:]
    return other or min(out, default=1) < 1 or len(out) != len(shapes[0])


# Result shapes of operators unknown to the installed `onnx`: newer and contributed ones.
#
# To add one: a function from input shapes and attributes to the shapes of the outputs.


Shape = tuple[int, ...]
ShapeRule = Callable[[Sequence[Shape | None], Mapping[str, Any]], list[Shape]]
TypeRule = Callable[[Sequence[Tensor | None], Mapping[str, Any]], list[int]]


def _same(inputs: Sequence[Shape | None], _: Mapping[str, Any]) -> list[Shape]:
    return [inputs[0] or ()]


def _broadcast(inputs: Sequence[Shape | None], _: Mapping[str, Any]) -> list[Shape]:
    return [np.broadcast_shapes(*(shape or () for shape in inputs))]


def _attention(inputs: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Shape]:
    """Scaled dot-product attention of opset 23: (batch, heads, steps, size) or without heads."""
    query, value = inputs[0] or (), inputs[2] or ()
    if len(query) == 4:
        return [(*query[:3], value[3])]
    heads = int(attributes.get("q_num_heads", 1))
    key_heads = int(attributes.get("kv_num_heads", heads))
    return [(*query[:2], heads * (value[2] // max(key_heads, 1)))]


def _matmul(inputs: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Shape]:
    a, b = inputs[0] or (), inputs[1] or ()
    a = (*a[:-2], a[-1], a[-2]) if attributes.get("transA") else a
    b = (*b[:-2], b[-1], b[-2]) if attributes.get("transB") else b
    return [(*(a[:-2] if len(a) >= len(b) else b[:-2]), a[-2], b[-1])]


def _elementwise_of(*positions: int) -> ShapeRule:
    def rule(inputs: Sequence[Shape | None], _: Mapping[str, Any]) -> list[Shape]:
        return [np.broadcast_shapes(*(inputs[i] or () for i in positions))]

    return rule


def _quantized_product(
    inputs: Sequence[Shape | None], attributes: Mapping[str, Any]
) -> list[Shape]:
    """QGemm: a, its scale and zero point, b, ..."""
    return _matmul([inputs[0], inputs[3]], attributes)


def _recurrent(inputs: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Shape]:
    data, weight = inputs[0] or (), inputs[1] or ()
    steps, batch, _ = data
    directions, hidden = weight[0], int(attributes["hidden_size"])
    last = (directions, batch, hidden)
    return [(steps, directions, batch, hidden), last, last]


def _widened(inputs: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Shape]:
    """Low-bit blocks (N, blocks, bytes) as the matrix (K, N) that they contain."""
    return [(int(attributes["K"]), int(attributes["N"]))]


SHAPES: dict[str, ShapeRule] = {
    **dict.fromkeys(
        """
        RMSNormalization RotaryEmbedding SimplifiedLayerNormalization SkipLayerNormalization
        SkipSimplifiedLayerNormalization Gelu FastGelu QuickGelu BiasGelu Swish Silu
        MultiHeadAttention GroupQueryAttention LayerNormalization GroupNorm GroupNormalization
        MeanVarianceNormalization
        """.split(),
        _same,
    ),
    "GreaterOrEqual": _broadcast,
    "LessOrEqual": _broadcast,
    "Attention": _attention,
    "FusedMatMul": _matmul,
}
"""Rule by operator name, in any domain."""

CONTRIBUTED: dict[str, ShapeRule] = {
    "QLinearAdd": _elementwise_of(0, 3),
    "QLinearMul": _elementwise_of(0, 3),
    **dict.fromkeys("QLinearSigmoid QLinearLeakyRelu QLinearSoftmax".split(), _same),
    "QGemm": _quantized_product,
    "DynamicQuantizeLSTM": _recurrent,
    "DequantizeLinear": _widened,
}
"""Rules for the domain com.microsoft only."""


def _truths(_: Sequence[Tensor | None], __: Mapping[str, Any]) -> list[int]:
    return [TensorProto.BOOL]


def _of_product(inputs: Sequence[Tensor | None], _: Mapping[str, Any]) -> list[int]:
    """A product of bytes is bytes if it has a scale for its result, else a float."""
    scale = inputs[7] if len(inputs) > 7 else None
    first = inputs[0]
    return [first.element_type if scale is not None and first else TensorProto.FLOAT]


def _named(_: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[int]:
    return [int(attributes["element_type"])]


TYPES: dict[str, TypeRule] = {
    "GreaterOrEqual": _truths,
    "LessOrEqual": _truths,
    "QGemm": _of_product,
    "DequantizeLinear": _named,
}
"""Element types of the results of operators that do not keep the first input's type."""
