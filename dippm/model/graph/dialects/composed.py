"""Readers of composed operators: distances, losses, shuffles, chains of products."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod

from dippm.model.graph.dialects.call import RawCall
from dippm.model.graph.dialects.products import contract
from dippm.model.graph.draft import Shape, Value

Reader = Callable[[RawCall], bool]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PRODUCT_FROM = 25
"""Number of rows from which torch computes distances by a matrix product."""


def _plus(terms: list[str], out: str) -> Reader:
    """A contraction of the second and third argument, added to the first."""

    def read(call: RawCall) -> bool:
        bias, left, right = call.inputs[:3]
        product = _contract(call, [left, right], terms, out, call.out_shape)
        return call.first("add", [product, bias])

    return read


def _contract(
    call: RawCall, operands: list[Value], terms: list[str], out: str, shape: Shape
) -> Value:
    result = Value(shape, call.outputs[0].dtype)
    contract(RawCall(call.draft, call.name, operands, [result], {}), terms, out)
    return result


def _inner(call: RawCall) -> bool:
    left, right = (len(v.shape) - 1 for v in call.inputs[:2])
    a, b = _LETTERS[:left], _LETTERS[left : left + right]
    return contract(call, [a + "z", b + "z"], a + b)


def _tensordot(call: RawCall) -> bool:
    left, right = call.inputs[:2]
    ours = [axis % len(left.shape) for axis in call.integers("dims_self") or ()]
    theirs = [axis % len(right.shape) for axis in call.integers("dims_other") or ()]
    a = list(_LETTERS[: len(left.shape)])
    b = list(_LETTERS[len(left.shape) :][: len(right.shape)])
    for i, j in zip(ours, theirs, strict=False):
        b[j] = a[i]
    kept = [letter for i, letter in enumerate(a) if i not in ours]
    kept += [letter for j, letter in enumerate(b) if j not in theirs]
    return contract(call, ["".join(a), "".join(b)], "".join(kept))


def _chain(call: RawCall) -> bool:
    """A chain of products: the cheapest pair first."""
    chain = list(call.inputs)
    while len(chain) > 2:
        costs = [a.size * b.shape[-1] for a, b in pairwise(chain)]
        i = costs.index(min(costs))
        a, b = chain[i : i + 2]
        shape = (a.shape[0], b.shape[-1])
        chain[i : i + 2] = [_contract(call, [a, b], ["ij", "jk"], "ik", shape)]
    call.inputs = chain
    return contract(call, ["ij", "jk"], "ik")


def _power(call: RawCall) -> bool:
    """Powers of a matrix by repeated squaring."""
    matrix, exponent = call.inputs[0], abs(call.integer("n", default=1))
    value = matrix
    for _ in range(max(exponent.bit_length() - 1 + exponent.bit_count() - 1, 0)):
        value = call.step("matmul", [value, matrix], matrix.shape)
    return call.first("reshape", [value])


def _grouped(call: RawCall) -> bool:
    """Products of groups of rows (or of the reduced axis), each with a matrix of its own."""
    left, right = call.inputs[:2]
    out = call.out_shape
    inner = left.shape[-1]
    if len(left.shape) == len(right.shape) == 2:
        inner = max(inner // max(out[0], 1), 1)
    attributes = {"m": out[-2], "n": out[-1], "k": inner}
    return call.first("batch_matmul", [left, right], **attributes)


def _cdist(call: RawCall) -> bool:
    left, right = call.inputs[:2]
    rows, width = max(left.shape[-2], right.shape[-2]), left.shape[-1]
    by_product = call.number("p", default=2.0) == 2.0 and (
        rows > _PRODUCT_FROM or call.integer("compute_mode", default=0) == 1
    )
    if not by_product or call.integer("compute_mode", default=0) == 2:
        return call.first("distance", [left, right], width=width)
    rank = len(right.shape)
    turned = (*right.shape[:-2], width, right.shape[-2])
    axes = (*range(rank - 2), rank - 1, rank - 2)
    key = call.view("transpose", right, turned, permutation=axes)
    product = call.step("matmul", [left, key], call.out_shape)
    return call.first("sqrt", [product])


def _cosine(call: RawCall) -> bool:
    left, right = call.inputs[:2]
    axes, shape = call.axes("dim"), call.out_shape
    product = call.step("multiply", [left, right], left.shape)
    total = call.step("reduce_sum", [product], shape, axes=axes, keepdims=0)
    norms = [call.step("reduce_norm", [v], shape, axes=axes, keepdims=0) for v in (left, right)]
    return call.first("divide", [total, call.step("multiply", norms, shape)])


def _pairwise_distance(call: RawCall) -> bool:
    difference = call.step("subtract", call.inputs[:2], call.inputs[0].shape)
    axes = (len(difference.shape) - 1,)
    keep = int(len(call.out_shape) == len(difference.shape))
    return call.first("reduce_norm", [difference], axes=axes, keepdims=keep)


def _loss(*steps: str) -> Reader:
    """Element-wise work of the first argument with the second, then a mean."""

    def read(call: RawCall) -> bool:
        value = call.inputs[0]
        for i, op in enumerate(steps):
            operands = [value, *call.inputs[1:2]] if i == 0 else [value]
            value = call.step(op, operands, value.shape)
        return _average(call, value)

    return read


def _cross_entropy(call: RawCall) -> bool:
    scores, target = call.inputs[:2]
    axis = min(1, len(scores.shape) - 1)
    value = call.step("log_softmax", [scores], scores.shape, axis=axis)
    if target.size == value.size:  # probabilities of all classes
        return _average(call, call.step("multiply", [value, target], value.shape))
    return _pick(call, value)


def _pick(call: RawCall, value: Value | None = None) -> bool:
    """The mean over samples of the value at the class that the second argument names."""
    value, target = value or call.inputs[0], call.inputs[1]
    return _average(call, call.step("gather", [value, target], target.shape, dtype=value.dtype))


def _average(call: RawCall, value: Value) -> bool:
    """The mean of all values, unless the call returns each of them."""
    if prod(call.out_shape) == value.size:
        return call.first("reshape", [value])
    axes = tuple(range(len(value.shape)))
    return call.first("reduce_mean", [value], axes=axes, keepdims=0)


def _scale_by_power(call: RawCall) -> bool:
    """``ldexp``: the first argument times two to the power of the second."""
    source, exponent = call.inputs[:2]
    power = call.step("power", [exponent], exponent.shape, dtype=source.dtype)
    return call.first("multiply", [source, power])


def _channel_shuffle(call: RawCall) -> bool:
    source, groups = call.inputs[0], call.integer("groups", default=1)
    batch, channels, *rest = source.shape
    split = (batch, groups, channels // groups, *rest)
    turned = (batch, channels // groups, groups, *rest)
    axes = (0, 2, 1, *range(3, len(split)))
    value = call.step("reshape", [source], split)
    value = call.step("transpose", [value], turned, permutation=axes)
    return call.first("reshape", [value])


def _embedding_bag(call: RawCall) -> bool:
    table, index = call.inputs[:2]
    rows, width = table.shape
    gathered = call.step(
        "embedding", [table, index], (index.size, width), dtype=table.dtype, rows=rows, width=width
    )
    op = ("reduce_sum", "reduce_mean", "reduce_max")[call.integer("mode", default=0) % 3]
    return call.first(op, [gathered], axes=(0,), keepdims=0)


def _difference(call: RawCall) -> bool:
    source, axis = call.inputs[0], call.axis("dim", default=-1)
    parts = [call.step("slice", [source], call.out_shape, axis=axis) for _ in range(2)]
    return call.first("subtract", parts)


def _overwrite(call: RawCall) -> bool:
    """The second argument, written into the memory of the first in its type and shape."""
    target, source = call.inputs[:2]
    if target.dtype != source.dtype:
        source = call.step("cast", [source], source.shape, dtype=target.dtype)
    if source.shape != call.out_shape:
        source = call.step("broadcast", [source], call.out_shape)
    return call.first("identity", [source], copies="overwrite")


def _each(op: str) -> Reader:
    """The same for each argument and its own result."""

    def read(call: RawCall) -> bool:
        for value, out in zip(call.inputs, call.outputs, strict=False):
            call.draft.emit(op, [value], outputs=[out])
        return True

    return read


def _matrix_transpose(call: RawCall) -> bool:
    rank = len(call.out_shape)
    return call.first(
        "transpose", call.inputs[:1], permutation=(*range(rank - 2), rank - 1, rank - 2)
    )


READERS: dict[str, Reader] = {
    "addmv": _plus(["ij", "j"], "i"),
    "addr": _plus(["i", "j"], "ij"),
    "addbmm": _plus(["bij", "bjk"], "ik"),
    "inner": _inner,
    "tensordot": _tensordot,
    "linalgmultidot": _chain,
    "linalgmatrixpower": _power,
    "groupedmm": _grouped,
    "scaledgroupedmm": _grouped,
    "transformers::groupedmmfallback": _grouped,
    "kron": lambda call: call.first("multiply", call.inputs[:2]),
    "deg2rad": lambda call: call.first("multiply", call.inputs[:1]),
    "rad2deg": lambda call: call.first("multiply", call.inputs[:1]),
    "ldexp": _scale_by_power,
    "blockdiag": lambda call: call.first("concat", call.inputs),
    "distance": _cdist,
    "pdist": lambda call: call.first(
        "distance", [call.inputs[0], call.inputs[0]], width=call.inputs[0].shape[-1]
    ),
    "cosinesimilarity": _cosine,
    "pairwisedistance": _pairwise_distance,
    "mseloss": _loss("subtract", "square"),
    "l1loss": _loss("subtract", "abs"),
    "smoothl1loss": _loss("subtract", "abs"),
    "huberloss": _loss("subtract", "abs"),
    "tripletmarginloss": _loss("subtract", "square"),
    "kldiv": _loss("subtract", "exp"),
    "crossentropyloss": _cross_entropy,
    "nllloss": _pick,
    "nlllossnd": _pick,
    "nllloss2d": _pick,
    "binarycrossentropywithlogits": _loss("multiply", "softplus"),
    "aten.copy": _overwrite,
    "channelshuffle": _channel_shuffle,
    "nativechannelshuffle": _channel_shuffle,
    "embeddingbag": _embedding_bag,
    "diff": _difference,
    "broadcasttensors": _each("broadcast"),
    "meshgrid": _each("broadcast"),
    "mt": _matrix_transpose,
    "mh": _matrix_transpose,
    "adjoint": _matrix_transpose,
}
