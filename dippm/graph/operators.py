"""The operator table: canonical names, the attributes kept for each, and what each costs.

The single truth about names. A node's MACs follow from its attributes and activation shapes alone,
so `ModelGraph.at_batch` can price a graph again without the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

Shape = tuple[int, ...]
Attributes = Mapping[str, int | float | str | tuple[int, ...]]
MacsFormula = Callable[[Attributes, tuple[Shape, ...], tuple[Shape, ...]], int]
Category = Literal[
    "compute", "recurrent", "pool", "norm", "activation", "elementwise", "reduction",
    "copy", "view", "other",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operator:
    """What DIPPM knows about one canonical operator.

    Attributes:
        name: canonical name.
        category: "view" operators move no data; "copy" operators only move data.
        attributes: the attributes that a node of this operator keeps.
        flops_per_output: element-wise operations for each element of the first result (of the
            first activation for reductions and pools), beside 2 · MACs.
        macs: multiply-accumulates from attributes, input and output shapes; None if always 0.
        commutative: whether the order of the arguments is of no meaning.
    """

    name: str
    category: Category
    attributes: tuple[str, ...] = ()
    flops_per_output: int = 0
    macs: MacsFormula | None = None
    commutative: bool = False


def _size(value: object) -> int:
    return value if isinstance(value, int) else 0


def _conv(a: Attributes, _: tuple[Shape, ...], out: tuple[Shape, ...]) -> int:
    kernel = a["kernel"]
    assert isinstance(kernel, tuple)
    return prod(out[0]) * prod(kernel) * _size(a["in_channels"]) // _size(a["groups"])


def _conv_transpose(a: Attributes, inputs: tuple[Shape, ...], _: tuple[Shape, ...]) -> int:
    kernel = a["kernel"]
    assert isinstance(kernel, tuple)
    return prod(inputs[0]) * prod(kernel) * _size(a["out_channels"]) // _size(a["groups"])


def _dense(a: Attributes, _: tuple[Shape, ...], out: tuple[Shape, ...]) -> int:
    return prod(out[0]) * _size(a["in_features"])


def _batch_matmul(a: Attributes, _: tuple[Shape, ...], out: tuple[Shape, ...]) -> int:
    return prod(out[0]) * _size(a["k"])


def _attention(a: Attributes, _: tuple[Shape, ...], out: tuple[Shape, ...]) -> int:
    head, value = _size(a["head_dim"]), _size(a["value_dim"])
    return prod(out[0]) * _size(a["key_length"]) * (head + value) // max(value, 1)


def _recurrent(gates: int) -> MacsFormula:
    def macs(a: Attributes, inputs: tuple[Shape, ...], _: tuple[Shape, ...]) -> int:
        size, hidden = _size(a["input_size"]), _size(a["hidden_size"])
        layers, directions = _size(a["layers"]), _size(a["directions"])
        projected = _size(a.get("projection_size", 0)) or hidden
        rows = prod(inputs[0]) // max(size, 1)
        widths = size + projected + (layers - 1) * (directions + 1) * projected
        projection = layers * hidden * projected if projected != hidden else 0
        return rows * directions * (gates * hidden * widths + projection)

    return macs


_CONV = ("kernel", "strides", "padding", "dilation", "groups", "in_channels", "out_channels")
_ARITHMETIC = ("add", "multiply", "subtract", "divide")
_OPERAND = ("parameter",)
"""1 if one operand is a parameter tensor: autocast widens the result to its float32."""
_POOL = ("kernel", "strides", "padding")
_RNN = ("input_size", "hidden_size", "layers", "directions", "steps", "projection_size")


def _named(category: Category, flops: int, names: str, *attributes: str) -> list[Operator]:
    return [Operator(name, category, attributes, flops) for name in names.split()]


_COMMUTATIVE = """
    add multiply maximum minimum equal not_equal
    logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor
"""

_OPERATORS: list[Operator] = [
    *(Operator(f"conv{rank}d", "compute", _CONV, 0, _conv) for rank in (1, 2, 3)),
    Operator("conv_transpose", "compute", _CONV, 0, _conv_transpose),
    Operator("deform_conv2d", "compute", _CONV, 8, _conv),
    Operator("dense", "compute", ("in_features", "out_features"), 0, _dense),
    Operator("batch_matmul", "compute", ("m", "n", "k"), 0, _batch_matmul),
    Operator(
        "attention",
        "compute",
        ("heads", "query_length", "key_length", "head_dim", "value_dim"),
        0,
        _attention,
    ),
    Operator("lstm", "recurrent", _RNN, 0, _recurrent(4)),
    Operator("gru", "recurrent", _RNN, 0, _recurrent(3)),
    Operator("rnn", "recurrent", _RNN, 0, _recurrent(1)),
    *_named("pool", 1, "max_pool avg_pool lp_pool", *_POOL),
    *_named("pool", 1, "global_avg_pool global_max_pool"),
    *_named("norm", 2, "batch_norm"),
    *_named("norm", 6, "layer_norm rms_norm instance_norm", "normalized_size"),
    *_named("norm", 6, "group_norm", "normalized_size", "groups"),
    *_named("norm", 3, "l2_normalize", "axes"),
    *_named("activation", 4, "softmax log_softmax", "axis"),
    *_named("activation", 1, "relu leaky_relu prelu threshold"),
    *_named("activation", 2, "relu6 clip"),
    *_named("activation", 4, "hard_sigmoid hard_swish sigmoid tanh elu selu celu silu"),
    *_named("activation", 8, "gelu mish softplus softsign log_sigmoid"),
    *_named("activation", 5, "glu"),
    *(
        Operator(
            name, "elementwise", _OPERAND if name in _ARITHMETIC else (), 1, None, commutative=True
        )
        for name in _COMMUTATIVE.split()
    ),
    *_named("elementwise", 1, "subtract divide", *_OPERAND),
    *_named("elementwise", 1, "floor_divide mod remainder fill_like"),
    *_named("elementwise", 1, "abs neg sign floor ceil round trunc square reciprocal"),
    *_named("elementwise", 1, "greater greater_equal less less_equal logical_not bitwise_not"),
    *_named("elementwise", 1, "where cast is_nan is_inf is_finite masked_fill one_hot"),
    *_named("elementwise", 2, "multiply_add lerp"),
    *_named("elementwise", 4, "power exp log log2 log1p expm1 sqrt rsqrt"),
    *_named("elementwise", 8, "erf erfc sin cos tan asin acos atan atan2 sinh cosh"),
    *_named(
        "reduction",
        1,
        "reduce_mean reduce_sum reduce_max reduce_min reduce_prod reduce_variance reduce_std "
        "reduce_norm reduce_logsumexp reduce_any reduce_all argmax argmin",
        "axes",
    ),
    *_named("reduction", 1, "cumsum cumprod", "axes"),
    *_named("reduction", 8, "top_k sort argsort", "axis"),
    *_named("copy", 0, "concat", "axis"),
    *_named("copy", 0, "transpose", "permutation", "copies"),
    *_named("copy", 0, "embedding", "rows", "width"),
    *_named("copy", 0, "pad gather scatter roll tile repeat flip space_to_depth depth_to_space"),
    *_named("copy", 0, "unfold im2col col2im triangle nonzero dynamic_slice"),
    *_named("copy", 4, "resize grid_sample", "mode"),
    *_named("copy", 0, "create random"),
    *_named("view", 0, "reshape", "copies"),
    *_named("view", 0, "broadcast"),
    *_named("view", 0, "split slice", "axis"),
    *_named("other", 8, "einsum", "equation"),
    *_named("other", 8, "fft"),
    *_named("other", 1, "moe_dispatch"),
]  # fmt: skip

OPERATORS: Mapping[str, Operator] = {operator.name: operator for operator in _OPERATORS}
"""Canonical operators by name."""

UNKNOWN = Operator("unknown", "other", (), 1)
"""What is assumed of an operator that has no canonical name."""

ELEMENTWISE_CATEGORIES = ("activation", "elementwise")


def operator(name: str) -> Operator:
    """Return the table's row for a canonical name, `UNKNOWN` if there is none."""
    return OPERATORS.get(name, UNKNOWN)


def is_elementwise(name: str) -> bool:
    """Return whether every output element depends on the same element of each input only."""
    return operator(name).category in ELEMENTWISE_CATEGORIES and name not in _ALONG_AN_AXIS


_ALONG_AN_AXIS = frozenset({"softmax", "log_softmax", "glu", "one_hot"})
