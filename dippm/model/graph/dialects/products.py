"""Readers of matrix products, attention and `einsum`.

Any equation of `einsum` becomes products, sums and views, as frameworks execute it. Operands are
contracted in pairs from the left, or in the order of the exporter's path. An axis of one operand
only that the result lacks is summed first. An axis of both operands that the result and all other
operands lack is the inner axis of a product; without one, the product is element-wise.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from string import ascii_letters

from dippm.model.graph.dialects.call import RawCall
from dippm.model.graph.draft import Shape, Value


def _transpose_last(call: RawCall, value: Value) -> Value:
    """Return a value with its last two axes exchanged."""
    rank = len(value.shape)
    axes = (*range(rank - 2), rank - 1, rank - 2)
    shape = tuple(value.shape[a] for a in axes)
    return call.view("transpose", value, shape, permutation=axes)


def _matmul(call: RawCall) -> bool:
    left, right = call.inputs[0], call.inputs[1]
    if call.attributes.get("adj_x") or call.attributes.get("transpose_a"):
        left = _transpose_last(call, left)
    if call.attributes.get("adj_y") or call.attributes.get("transpose_b"):
        right = _transpose_last(call, right)
    if len(call.inputs) > 2:
        product = call.step("matmul", [left, right], call.out_shape)
        return call.first("add", [product, call.inputs[2]])
    return call.first("matmul", [left, right])


def _linear(call: RawCall) -> bool:
    """Read a linear layer, whose weight has the shape (out, in)."""
    weight = _transpose_last(call, call.inputs[1])
    if len(call.inputs) == 2:
        return call.first("matmul", [call.inputs[0], weight])
    product = call.step("matmul", [call.inputs[0], weight], call.out_shape)
    return call.first("add", [product, call.inputs[2]])


def _gemm(call: RawCall) -> bool:
    call.attributes = {
        "transpose_a": call.attributes.get("transA", 0),
        "transpose_b": call.attributes.get("transB", 0),
    }
    return _matmul(call)


def _addmm(call: RawCall) -> bool:
    bias, left, right = call.inputs[:3]
    product = call.step("matmul", [left, right], call.out_shape)
    return call.first("add", [product, bias])


_CAUSAL = ("is_causal", "causal_mask", "use_causal_mask", "unidirectional")
"""Names of the attribute that restricts a query to the keys up to its own position."""


def _sdpa(call: RawCall) -> bool:
    query, key, value = call.inputs[:3]
    batch_first_heads = call.name.startswith("nn.")  # Relax: batch, length, heads, width
    heads, length = (2, 1) if batch_first_heads and len(query.shape) == 4 else (1, 2)
    rank = len(query.shape)
    node = call.draft.emit(
        "attention",
        [query, key, value, *call.inputs[3:]],
        outputs=call.outputs[:1],
        heads=query.shape[heads] if rank == 4 else 1,
        query_length=query.shape[length] if rank == 4 else query.shape[-2],
        key_length=key.shape[length] if rank == 4 else key.shape[-2],
        head_dim=query.shape[-1],
        value_dim=value.shape[-1],
    )
    node.absorbed = ["sdpa"]
    if any(map(call.attributes.get, _CAUSAL)):
        node.attributes = {**node.attributes, "causal": 1}
    return True


def _vector(call: RawCall) -> bool:
    """Read the product of a matrix and a vector."""
    return contract(call, ["ij", "j"], "i")


def _dot(call: RawCall) -> bool:
    return contract(call, ["i", "i"], "")


def _outer(call: RawCall) -> bool:
    return contract(call, ["i", "j"], "ij")


def _bilinear(call: RawCall) -> bool:
    """Read `x₁ᵀ W x₂`: a linear layer on the first argument, then one product for each sample."""
    left, right, weight = call.inputs[:3]
    rows = prod(left.shape[:-1])
    outs, width, _ = weight.shape
    wide = outs * right.shape[-1]
    flat = call.view("reshape", left, (rows, width))
    weight = call.view("reshape", weight, (width, wide))
    mixed = call.step("matmul", [flat, weight], (rows, wide))
    mixed = call.view("reshape", mixed, (rows, outs, right.shape[-1]))
    column = call.view("reshape", right, (rows, right.shape[-1], 1))
    product = call.step("matmul", [mixed, column], (rows, outs, 1))
    return call.first("reshape", [product])


# Contractions: `einsum`, and products that are a special case of it.

Operand = tuple[Value, str]
"""A value, and a letter for each of its axes."""


def contract(call: RawCall, terms: list[str], out: str) -> bool:
    """Read a contraction of the first arguments.

    Args:
        call: call that is read.
        terms: letters of the axes of each argument.
        out: letters of the axes of the result.
    """
    operands = [(v, term) for v, term in zip(call.inputs, terms, strict=False)]
    operands = [_diagonal(call, *operand) for operand in operands]
    sizes: dict[str, int] = {}
    for value, letters in operands:
        for letter, size in zip(letters, value.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 0))
    path = list(call.integers("path") or ())
    while len(operands) > 1:
        first, second = sorted((path.pop(0), path.pop(0))) if len(path) > 1 else (0, 1)
        right, left = operands.pop(second), operands.pop(first)
        rest = out + "".join(letters for _, letters in operands)
        operands.append(_pair(call, left, right, rest, sizes))
        if not path:  # torch appends the result, but without a path it continues from the left
            operands.insert(0, operands.pop())
    value, letters = _sum(call, operands[0], out)
    order = tuple(letters.index(i) for i in out if i in letters)
    if len(order) == len(call.out_shape):
        return call.first("transpose", [value], permutation=order)
    return call.first("broadcast", [value])


def sums_products(equation: str) -> bool:
    """Return whether operands of an equation share an axis that the result lacks."""
    left, arrow, out = equation.partition("->")
    terms = left.replace(".", "").replace(" ", "").split(",")
    shared = {i for n, term in enumerate(terms) for i in term if i in "".join(terms[n + 1 :])}
    return bool(shared - set(out) if arrow else shared)


def _einsum(call: RawCall) -> bool:
    equation = call.text("equation", "subscripts").replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(call.inputs):
        return call.first("einsum", call.inputs, equation=equation)
    if not arrow:
        given = left.replace("...", "").replace(",", "")
        single = sorted(i for i in set(given) if given.count(i) == 1)
        out = ("..." if "..." in left else "") + "".join(single)
    free = [i for i in ascii_letters if i not in equation]
    ranks = [
        len(v.shape) - len(t.replace("...", ""))
        for v, t in zip(call.inputs, terms, strict=True)
        if "..." in t
    ]
    spread = "".join(free[: max(ranks, default=0)])
    full = []
    for value, term in zip(call.inputs, terms, strict=True):
        count = len(value.shape) - len(term.replace("...", ""))
        full.append(term.replace("...", spread[len(spread) - count :]))
    out = out.replace("...", spread)
    if any(len(t) != len(v.shape) for t, v in zip(full, call.inputs, strict=True)):
        return call.first("einsum", call.inputs, equation=equation)
    return contract(call, full, out)


def _diagonal(call: RawCall, value: Value, letters: str) -> Operand:
    """Return an operand without repeated axes: a repetition is the diagonal, a view."""
    kept = "".join(dict.fromkeys(letters))
    if kept == letters:
        return value, letters
    shape = tuple(value.shape[letters.index(i)] for i in kept)
    return call.view("slice", value, shape, axis=0), kept


def _sum(call: RawCall, operand: Operand, wanted: str) -> Operand:
    """Sum over the axes that neither the result nor another operand has."""
    value, letters = operand
    axes = tuple(i for i, letter in enumerate(letters) if letter not in wanted)
    if not axes:
        return operand
    kept = "".join(i for i in letters if i in wanted)
    shape = tuple(value.shape[letters.index(i)] for i in kept)
    if all(value.shape[axis] == 1 for axis in axes):
        return call.view("reshape", value, shape), kept
    return call.step("reduce_sum", [value], shape, axes=axes, keepdims=0), kept


def _pair(
    call: RawCall, left: Operand, right: Operand, rest: str, sizes: dict[str, int]
) -> Operand:
    """Contract two operands.

    Axes are grouped: shared ones that remain form the batch of the product, other ones of the left
    operand its rows and of the right operand its columns, and summed ones the inner axis.

    Args:
        call: call that is read.
        left: first operand.
        right: second operand.
        rest: letters of the result and of all other operands.
        sizes: size of each axis by letter.
    """
    left = _sum(call, _drop_broadcast_axes(call, left, sizes), rest + right[1])
    right = _sum(call, _drop_broadcast_axes(call, right, sizes), rest + left[1])
    (a, ours), (b, theirs) = left, right
    summed = [i for i in ours if i in theirs and i not in rest]
    shared = [i for i in ours if i in theirs and i in rest]
    shared.sort(key=rest.index)
    rows = [i for i in ours if i not in theirs]
    columns = [i for i in theirs if i not in ours]
    if not summed:
        return _multiply(call, left, right, sizes)

    def size(*groups: list[str]) -> Shape:
        return tuple(sizes[i] for group in groups for i in group)

    batch = size(shared)
    wide = size(rows) if rows and not shared else (prod(size(rows)),)
    inner, width = prod(size(summed)), prod(size(columns))
    x = _arrange(call, a, ours, [*shared, *rows, *summed])
    x = _reshape(call, x, (*batch, *wide, inner))
    y = _arrange(call, b, theirs, [*shared, *summed, *columns])
    y = _reshape(call, y, (*batch, inner, width))
    product = call.step("matmul", [x, y], (*batch, *wide, width))
    full = _reshape(call, product, size(shared, rows, columns))
    return full, "".join([*shared, *rows, *columns])


def _drop_broadcast_axes(call: RawCall, operand: Operand, sizes: dict[str, int]) -> Operand:
    """Drop axes of size 1 along which another operand is larger, so that they broadcast."""
    value, letters = operand
    kept = "".join(i for i, n in zip(letters, value.shape, strict=True) if n == sizes[i])
    shape = tuple(sizes[i] for i in kept)
    return (call.view("reshape", value, shape), kept) if kept != letters else operand


def _multiply(call: RawCall, left: Operand, right: Operand, sizes: dict[str, int]) -> Operand:
    letters = [*left[1], *(i for i in right[1] if i not in left[1])]
    factors = []
    for value, own in (left, right):
        arranged = _arrange(call, value, own, [i for i in letters if i in own])
        shape = tuple(sizes[i] if i in own else 1 for i in letters)
        factors.append(_reshape(call, arranged, shape))
    product = call.step("multiply", factors, tuple(sizes[i] for i in letters))
    return product, "".join(letters)


def _arrange(call: RawCall, value: Value, letters: str, order: list[str]) -> Value:
    permutation = tuple(letters.index(i) for i in order)
    if permutation == tuple(range(len(letters))):
        return value
    shape = tuple(value.shape[a] for a in permutation)
    return call.view("transpose", value, shape, permutation=permutation)


def _reshape(call: RawCall, value: Value, shape: Shape) -> Value:
    return value if value.shape == shape else call.view("reshape", value, shape)


READERS: dict[str, Callable[[RawCall], bool]] = {
    "batch_matmul": _matmul,
    "linear": _linear,
    "gemm": _gemm,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "attention": _sdpa,
    "mv": _vector,
    "dot": _dot,
    "vdot": _dot,
    "outer": _outer,
    "ger": _outer,
    "bilinear": _bilinear,
    "einsum": _einsum,
}
"""Reader by name of the call; it returns whether the call was read."""
