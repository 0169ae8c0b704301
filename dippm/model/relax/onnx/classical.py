"""Operators of ai.onnx.ml, as written by scikit-learn's converters → standard operators.

The steps around a network (scaling before it, labels after it) are a few element-wise operators;
linear models are a product. Forests and support vector machines are not networks: no measurements
exist, and they are refused by name. To add one: a function that applies standard operators, and a
line in `TRACERS`. Text labels are traced as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from dippm.model.relax.onnx.fold import NUMPY_TYPES
from dippm.model.relax.onnx.fused import Fused
from dippm.model.relax.onnx.tracing import (
    Tensor,
    Tracing,
    UnsupportedError,
    malformed_error,
    message_start,
)

DOMAIN = "ai.onnx.ml"
FOREST = "a forest of decision trees"
VECTORS = "a support vector machine"
NO_NETWORKS = {
    "TreeEnsemble": FOREST,
    "TreeEnsembleClassifier": FOREST,
    "TreeEnsembleRegressor": FOREST,
    "SVMClassifier": VECTORS,
    "SVMRegressor": VECTORS,
}
_NO_NETWORK = (
    "DIPPM predicts neural networks on a GPU; runtimes compute this on the CPU. Export the network "
    "of the pipeline alone."
)
_ACTIVATIONS = {"LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax", "SOFTMAX_ZERO": "Softmax"}


def _numbers(fused: Fused, name: str) -> list[Any]:
    value = fused.attributes.get(name)
    return list(value) if isinstance(value, list) else []


def _weight(fused: Fused, name: str, *shape: int) -> Tensor:
    """Return numbers in an attribute of the node as a stored tensor."""
    label = f"{fused.node.name or fused.node.output[0]}/{name}"
    return Tensor(label, shape, TensorProto.FLOAT, is_learned=True, is_parameter=True)


def _as_floats(fused: Fused) -> Tensor:
    data = fused.need(0)
    if data.element_type in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
        return data
    return fused.apply("Cast", data, to=TensorProto.FLOAT)


def _constant(data: Any, element_type: int) -> Tensor:
    array = np.asarray(data, NUMPY_TYPES[element_type])
    return Tensor("constant", array.shape, element_type, array)


def _scaler(fused: Fused) -> None:
    """(x - offset) * scale, with one number or one per feature."""
    data = _as_floats(fused)
    for operator, name in (("Sub", "offset"), ("Mul", "scale")):
        count = len(_numbers(fused, name))
        if count:
            data = fused.apply(operator, data, _like(fused, _weight(fused, name, count), data))
    fused.write(data)


def _like(fused: Fused, weight: Tensor, data: Tensor) -> Tensor:
    if weight.element_type == data.element_type:
        return weight
    return fused.apply("Cast", weight, to=data.element_type)


def _imputer(fused: Fused) -> None:
    data = fused.need(0)
    is_float = data.element_type in (TensorProto.FLOAT, TensorProto.DOUBLE)
    values = _numbers(fused, "imputed_value_floats") or _numbers(fused, "imputed_value_int64s")
    shape = (max(len(values), 1),)
    kind = TensorProto.FLOAT if is_float else data.element_type
    label = f"{fused.node.name or fused.node.output[0]}/values"
    instead = Tensor(label, shape, kind, is_learned=True, is_parameter=True)
    if is_float:
        missing = fused.apply("IsNaN", data)
    else:
        replaced = int(fused.attributes.get("replaced_value_int64", 0))
        missing = fused.apply("Equal", data, _constant(replaced, data.element_type))
    fused.write(fused.apply("Where", missing, _like(fused, instead, data), data))


def _normalizer(fused: Fused) -> None:
    data, norm = _as_floats(fused), str(fused.attributes.get("norm", "MAX"))
    operator = {"L1": "ReduceL1", "L2": "ReduceL2"}.get(norm, "ReduceMax")
    size = fused.apply("Abs", data) if operator == "ReduceMax" else data
    axes = fused.numbers([len(data.shape) - 1])
    by_attribute = fused.tracer.opset() < 18
    axis = {"axes": [len(data.shape) - 1]} if by_attribute else {}
    row = fused.apply(operator, size, *([] if by_attribute else [axes]), **axis)
    fused.write(fused.apply("Div", data, row))


def _binarizer(fused: Fused) -> None:
    data = fused.need(0)
    limit = _constant(float(fused.attributes.get("threshold", 0.0)), data.element_type)
    fused.write(fused.apply("Cast", fused.apply("Greater", data, limit), to=data.element_type))


def _extractor(fused: Fused) -> None:
    """ArrayFeatureExtractor: columns by number; in a one-row table, the labels of rows."""
    data, places = fused.need(0), fused.need(1)
    if not data.shape:
        raise malformed_error(message_start(fused.node) + "it takes columns of a number")
    if data.element_type == TensorProto.STRING:
        data = Tensor(data.name, data.shape, TensorProto.INT64, is_learned=True, is_parameter=True)
    count = int(np.prod(places.shape))
    flat = fused.reshape(places, count)
    found = fused.apply("Gather", data, flat, axis=len(data.shape) - 1)
    fused.write(fused.reshape(found, 1, count) if len(data.shape) == 1 else found)


def _columns(fused: Fused) -> None:
    parts = [fused.need(i) for i in range(len(fused.node.input))]
    parts = [
        p if p.element_type == TensorProto.FLOAT else fused.apply("Cast", p, to=TensorProto.FLOAT)
        for p in parts
    ]
    fused.write(fused.apply("Concat", *parts, axis=1))


def _one_hot(fused: Fused) -> None:
    data = fused.need(0)
    known = _numbers(fused, "cats_int64s") or _numbers(fused, "cats_strings")
    whole = fused.apply("Cast", data, to=TensorProto.INT64)
    depth, values = fused.numbers([max(len(known), 1)]), _constant([0, 1], TensorProto.FLOAT)
    fused.write(fused.apply("OneHot", whole, depth, values))


def _label_encoder(fused: Fused) -> None:
    """LabelEncoder: a lookup from numbers to numbers."""
    data = fused.need(0)
    floats = _numbers(fused, "values_floats") or _numbers(fused, "keys_floats")
    count = max(len(_numbers(fused, f"keys_{kind}")) for kind in ("int64s", "floats", "strings"))
    is_float = bool(_numbers(fused, "values_floats"))
    kind = TensorProto.FLOAT if floats and is_float else TensorProto.INT64
    label = f"{fused.node.name or fused.node.output[0]}/values"
    table = Tensor(label, (max(count, 1),), kind, is_learned=True, is_parameter=True)
    fused.write(fused.apply("Gather", table, fused.apply("Cast", data, to=TensorProto.INT64)))


def _regressor(fused: Fused) -> None:
    targets = fused.integer("targets", 1)
    if targets * fused.need(0).shape[-1] != len(_numbers(fused, "coefficients")):
        raise malformed_error(
            message_start(fused.node) + f"{targets:,} targets do not fit its coefficients"
        )
    fused.write(_linear(fused, targets))


def _linear(fused: Fused, outputs: int) -> Tensor:
    """Return features times coefficients, plus intercepts."""
    data = _as_floats(fused)
    if len(data.shape) == 1:
        data = fused.reshape(data, 1, *data.shape)
    weight = _like(fused, _weight(fused, "coefficients", data.shape[1], outputs), data)
    bias = _weight(fused, "intercepts", outputs) if _numbers(fused, "intercepts") else None
    return fused.apply("Gemm", data, weight, None if bias is None else _like(fused, bias, data))


def _classifier(fused: Fused) -> None:
    """Scores of the classes and the best class; two classes may share one score."""
    labels = _numbers(fused, "classlabels_ints") or _numbers(fused, "classlabels_strings")
    width = fused.need(0).shape[-1]
    rows = max(len(_numbers(fused, "coefficients")) // max(width, 1), 1)
    scores = _linear(fused, rows)
    activation = _ACTIVATIONS.get(str(fused.attributes.get("post_transform", "NONE")))
    if activation:
        scores = fused.apply(activation, scores)
    if rows == 1 and len(labels) == 2:
        scores = fused.apply("Concat", fused.apply("Neg", scores), scores, axis=1)
    best = fused.apply("ArgMax", scores, axis=1, keepdims=0)
    fused.write(best, scores)


def _zip_map(fused: Fused) -> None:
    """ZipMap: rows as dictionaries, with the numbers of the tensor."""
    fused.write(fused.need(0))


TRACERS: dict[str, Callable[[Fused], None]] = {
    "Scaler": _scaler,
    "Imputer": _imputer,
    "Normalizer": _normalizer,
    "Binarizer": _binarizer,
    "ArrayFeatureExtractor": _extractor,
    "FeatureVectorizer": _columns,
    "OneHotEncoder": _one_hot,
    "LabelEncoder": _label_encoder,
    "LinearRegressor": _regressor,
    "LinearClassifier": _classifier,
    "ZipMap": _zip_map,
}
"""Function by operator name."""


def write_classical(tracer: Tracing, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> bool:
    """Trace an operator of ai.onnx.ml as standard ones; return whether it is known.

    Raises:
        UnsupportedError: if it is not part of a network.
    """
    if node.domain != DOMAIN:
        return False
    if node.op_type in NO_NETWORKS:
        raise UnsupportedError(node, f"it is {NO_NETWORKS[node.op_type]}, no network", _NO_NETWORK)
    if node.op_type not in TRACERS:
        return False
    TRACERS[node.op_type](Fused(tracer, node, attributes))
    return True
