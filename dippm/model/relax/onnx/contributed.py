"""Operators of ONNX Runtime's optimizer (domain com.microsoft) → standard operators.

The optimizer fuses operators that other exporters write separately. They are separated again, so
that a model's graph does not depend on its exporter. To add one: a function from the node to
standard nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, NodeProto, helper

DOMAIN = "com.microsoft"
BLOCKED = "com.microsoft.nchwc"
BLOCKED_WHY = (
    "ONNX Runtime laid its weights out for the CPU that wrote the file, in blocks that hide how "
    "many channels it has"
)
BLOCKED_HINT = (
    "Give the file that it was made from, or optimize that without changes of layout: "
    "`options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED`."
)
_SPLIT_COUNTS_FROM = 18


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Context of a rewrite in addition to its node: the opset, and the producer of each value."""

    opset: int
    operators: Mapping[str, str]


Rewrite = Callable[[NodeProto, Surroundings], list[NodeProto]]


def write_standard(model: ModelProto) -> None:
    """Replace contributed operators by standard ones, in place; unknown ones remain."""
    graph = model.graph
    if not any(node.domain == DOMAIN or node.op_type in _ANYWHERE for node in graph.node):
        return
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    operators = {name: node.op_type for node in graph.node for name in node.output}
    around = Surroundings(opset, operators)
    nodes: list[NodeProto] = []
    for node in graph.node:
        is_ours = node.domain == DOMAIN or node.op_type in _ANYWHERE
        rewrite = _REWRITES.get(node.op_type) if is_ours else None
        nodes += rewrite(node, around) if rewrite else [node]
    del graph.node[:]
    graph.node.extend(nodes)


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _input(node: NodeProto, position: int) -> str:
    return str(node.input[position]) if position < len(node.input) else ""


def _output(node: NodeProto, position: int) -> str:
    return str(node.output[position]) if position < len(node.output) else ""


def _add(first: str, second: str, result: str, node: NodeProto) -> NodeProto:
    return helper.make_node("Add", [first, second], [result], name=node.name)


def _gelu(node: NodeProto, around: Surroundings) -> list[NodeProto]:
    data, bias, result = _input(node, 0), _input(node, 1), _output(node, 0)
    approximate = "none" if node.op_type in ("Gelu", "BiasGelu") else "tanh"
    nodes = []
    if bias:
        nodes.append(_add(data, bias, f"{result}/biased", node))
        data = f"{result}/biased"
    last = helper.make_node("Gelu", [data], [result], name=node.name, approximate=approximate)
    return [*nodes, last]


def _skip_norm(node: NodeProto, around: Surroundings) -> list[NodeProto]:
    """A residual add, then a norm; the sum may be a result too."""
    is_rms = node.op_type == "SkipSimplifiedLayerNormalization"
    bias = _input(node, 3 if is_rms else 4)
    total = _output(node, 3) or f"{_output(node, 0)}/sum"
    nodes = []
    left, right = _input(node, 0), _input(node, 1)
    if bias:
        if "MatMul" in around.operators.get(right, ""):  # the bias belongs to the product
            left, right = right, left
        nodes.append(_add(left, bias, f"{_output(node, 0)}/biased", node))
        left = f"{_output(node, 0)}/biased"
    nodes.append(_add(left, right, total, node))
    weights = [_input(node, 2)] + ([] if is_rms else [_input(node, 3)])
    epsilon = float(_attributes(node).get("epsilon", 1e-5))
    norm = "RMSNormalization" if is_rms else "LayerNormalization"
    return [
        *nodes,
        helper.make_node(
            norm,
            [total, *filter(None, weights)],
            [_output(node, 0)],
            name=node.name,
            axis=-1,
            epsilon=epsilon,
        ),
    ]


def _rms_norm(node: NodeProto, around: Surroundings) -> list[NodeProto]:
    attributes = {k: v for k, v in _attributes(node).items() if k in ("axis", "epsilon")}
    result = [_output(node, 0)]
    return [
        helper.make_node("RMSNormalization", node.input[:2], result, name=node.name, **attributes)
    ]


def _fused(operator: str, residual: int | None) -> Rewrite:
    """Return the rewrite of an operator with an activation, and optionally an add before it."""

    def rewrite(node: NodeProto, around: Surroundings) -> list[NodeProto]:
        attributes, result = _attributes(node), _output(node, 0)
        activation = attributes.pop("activation", b"").decode()
        numbers = [float(v) for v in attributes.pop("activation_params", [])]
        for name in [n for n in attributes if n.startswith("activation_")]:
            numbers.append(float(attributes.pop(name)))
        added = _input(node, residual) if residual is not None else ""
        steps = [operator] + ["Add"] * bool(added) + [activation] * bool(activation)
        names = [f"{result}/{i}" for i in range(len(steps) - 1)] + [result]
        nodes = [
            helper.make_node(operator, node.input[:3], [names[0]], name=node.name, **attributes)
        ]
        if added:
            nodes.append(_add(names[0], added, names[1], node))
        if activation:
            last = names[-2]
            nodes += _activation(activation, numbers, last, result, node)
        return nodes

    return rewrite


def _activation(
    name: str, numbers: list[float], data: str, result: str, node: NodeProto
) -> list[NodeProto]:
    if name != "Clip":
        names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(name, ())
        return [
            helper.make_node(
                name, [data], [result], name=node.name, **dict(zip(names, numbers, strict=False))
            )
        ]
    bounds = [f"{result}/bound{i}" for i in range(len(numbers))]
    constants = [
        helper.make_node("Constant", [], [bound], value_float=number)
        for bound, number in zip(bounds, numbers, strict=True)
    ]
    return [*constants, helper.make_node("Clip", [data, *bounds], [result], name=node.name)]


def _packed_attention(node: NodeProto, around: Surroundings) -> list[NodeProto]:
    """A projection to queries, keys and values in one product, then attention."""
    attributes, result = _attributes(node), _output(node, 0)
    if attributes.get("qkv_hidden_sizes") or _input(node, 4) or any(node.output[1:]):
        return [node]  # see `fused`
    product, packed = f"{result}/product", f"{result}/packed"
    parts = [f"{result}/{name}" for name in ("query", "key", "value")]
    heads = int(attributes.get("num_heads", 1))
    thirds = {"num_outputs": 3} if around.opset >= _SPLIT_COUNTS_FROM else {}
    bias = _input(node, 2)
    nodes = [helper.make_node("MatMul", node.input[:2], [product], name=node.name)]
    if bias:
        nodes.append(_add(product, bias, packed, node))
    return [
        *nodes,
        helper.make_node("Split", [packed if bias else product], parts, axis=-1, **thirds),
        helper.make_node(
            "Attention", parts, [result], name=node.name, q_num_heads=heads, kv_num_heads=heads
        ),
    ]


def _multi_head_attention(node: NodeProto, around: Surroundings) -> list[NodeProto]:
    data = list(node.input[:3])
    is_more = any(_input(node, i) for i in (3, 6, 7)) or any(node.output[1:])
    if len(data) < 3 or not all(data) or is_more:
        return [node]  # see `fused`
    heads = int(_attributes(node).get("num_heads", 1))
    return [
        helper.make_node(
            "Attention",
            data,
            node.output[:1],
            name=node.name,
            q_num_heads=heads,
            kv_num_heads=heads,
        )
    ]


def _plain(operator: str, *positions: int) -> Rewrite:
    """Return the rewrite of an 8-bit operator with the cost of the standard one on bytes."""

    def rewrite(node: NodeProto, around: Surroundings) -> list[NodeProto]:
        attributes = _attributes(node)
        if attributes.pop("channels_last", 0):
            return [node]
        data = [name for i in positions if (name := _input(node, i))]
        return [helper.make_node(operator, data, [_output(node, 0)], name=node.name, **attributes)]

    return rewrite


def _quantized_concat(node: NodeProto, around: Surroundings) -> list[NodeProto]:
    """Concat of tensors with scales and zero points, after those of the result."""
    axis = int(_attributes(node).get("axis", 0))
    return [
        helper.make_node(
            "Concat", list(node.input[2::3]), [_output(node, 0)], name=node.name, axis=axis
        )
    ]


def _bias_add(node: NodeProto, around: Surroundings) -> list[NodeProto]:
    result, data = _output(node, 0), _input(node, 0)
    nodes = [_add(data, _input(node, 1), f"{result}/biased", node)]
    if node.op_type == "BiasSoftmax":
        axis = int(_attributes(node).get("axis", -1))
        last = helper.make_node(
            "Softmax", [f"{result}/biased"], [result], name=node.name, axis=axis
        )
        return [*nodes, last]
    return [*nodes, _add(f"{result}/biased", _input(node, 2), result, node)]


_REWRITES: dict[str, Rewrite] = {
    "Gelu": _gelu,
    "BiasGelu": _gelu,
    "FastGelu": _gelu,
    "QuickGelu": _gelu,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "SimplifiedLayerNormalization": _rms_norm,
    "FusedConv": _fused("Conv", 3),
    "FusedGemm": _fused("Gemm", None),
    "Attention": _packed_attention,
    "MultiHeadAttention": _multi_head_attention,
    "TransposeMatMul": _plain("FusedMatMul", 0, 1),
    "QuantizeLinear": _plain("QuantizeLinear", 0, 1, 2),
    "DequantizeLinear": _plain("DequantizeLinear", 0, 1, 2),
    "QLinearAveragePool": _plain("AveragePool", 0),
    "QLinearGlobalAveragePool": _plain("GlobalAveragePool", 0),
    "QLinearReduceMean": _plain("ReduceMean", 0),
    "QLinearWhere": _plain("Where", 0, 1, 4),
    "QLinearConcat": _quantized_concat,
    "BiasAdd": _bias_add,
    "BiasSoftmax": _bias_add,
}

_ANYWHERE = ("SimplifiedLayerNormalization",)
"""Operators in the default domain that are in no standard."""
