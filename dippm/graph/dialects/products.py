"""Reading of matrix products and attention."""

from __future__ import annotations

from collections.abc import Callable

from dippm.graph.dialects.call import Call
from dippm.graph.draft import Shape, Value


def _swapped(call: Call, value: Value) -> Value:
    rank = len(value.shape)
    axes = (*range(rank - 2), rank - 1, rank - 2)
    shape = tuple(value.shape[a] for a in axes)
    return call.step("transpose", [value], shape, permutation=axes)


def _matmul(call: Call) -> bool:
    left, right = call.inputs[0], call.inputs[1]
    if call.attributes.get("adj_x") or call.attributes.get("transpose_a"):
        left = _swapped(call, left)
    if call.attributes.get("adj_y") or call.attributes.get("transpose_b"):
        right = _swapped(call, right)
    if len(call.inputs) > 2:
        product = call.step("matmul", [left, right], call.out_shape)
        return call.first("add", [product, call.inputs[2]])
    return call.first("matmul", [left, right])


def _linear(call: Call) -> bool:
    """`linear` and ONNX's Gemm with transB keep the weight as (out, in)."""
    weight = _swapped(call, call.inputs[1])
    if len(call.inputs) == 2:
        return call.first("matmul", [call.inputs[0], weight])
    product = call.step("matmul", [call.inputs[0], weight], call.out_shape)
    return call.first("add", [product, call.inputs[2]])


def _gemm(call: Call) -> bool:
    call.attributes = {
        "transpose_a": call.attributes.get("transA", 0),
        "transpose_b": call.attributes.get("transB", 0),
    }
    return _matmul(call)


def _addmm(call: Call) -> bool:
    bias, left, right = call.inputs[:3]
    product = call.step("matmul", [left, right], call.out_shape)
    return call.first("add", [product, bias])


def _sdpa(call: Call) -> bool:
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
    return True


def _einsum(call: Call) -> bool:
    """A two-operand contraction is a product after transposes; anything else stays an einsum."""
    equation = call.text("equation", "subscripts").replace(" ", "")
    if len(call.inputs) != 2 or equation.count(",") != 1 or "." in equation:
        return call.first("einsum", call.inputs, equation=equation)
    terms, _, out = equation.partition("->")
    left, right = terms.split(",")
    if len(set(left)) < len(left) or len(set(right)) < len(right) or not out:
        return call.first("einsum", call.inputs, equation=equation)
    return _contract(call, left, right, out)


def _contract(call: Call, left: str, right: str, out: str) -> bool:
    a, b = call.inputs
    sizes = {**dict(zip(left, a.shape, strict=True)), **dict(zip(right, b.shape, strict=True))}
    shared = [i for i in left if i in right and i in out]
    summed = [i for i in left if i in right and i not in out]
    rows = [i for i in left if i not in right and i in out]
    columns = [i for i in right if i not in left and i in out]
    if len(shared) + len(summed) + len(rows) != len(left) or not summed:
        return call.first("einsum", call.inputs, equation=f"{left},{right}->{out}")
    if len(shared) + len(summed) + len(columns) != len(right):
        return call.first("einsum", call.inputs, equation=f"{left},{right}->{out}")
    shared.sort(key=out.index)

    def size(*groups: list[str]) -> Shape:
        return tuple(sizes[i] for group in groups for i in group)

    def total(group: list[str]) -> int:
        product = 1
        for i in group:
            product *= sizes[i]
        return product

    batch = size(shared)
    keep = rows if not shared else []
    wide = size(keep) if keep else (total(rows),)
    x = _arranged(call, a, left, [*shared, *rows, *summed])
    x = _shaped(call, x, (*batch, *wide, total(summed)))
    y = _arranged(call, b, right, [*shared, *summed, *columns])
    y = _shaped(call, y, (*batch, total(summed), total(columns)))
    product = call.step("matmul", [x, y], (*batch, *wide, total(columns)))
    full = _shaped(call, product, size(shared, rows, columns))
    order = [*shared, *rows, *columns]
    permutation = tuple(order.index(i) for i in out)
    return call.first("transpose", [full], permutation=permutation)


def _arranged(call: Call, value: Value, letters: str, order: list[str]) -> Value:
    permutation = tuple(letters.index(i) for i in order)
    if permutation == tuple(range(len(letters))):
        return value
    shape = tuple(value.shape[a] for a in permutation)
    return call.step("transpose", [value], shape, permutation=permutation)


def _shaped(call: Call, value: Value, shape: Shape) -> Value:
    return value if value.shape == shape else call.step("reshape", [value], shape)


READERS: dict[str, Callable[[Call], bool]] = {
    "batch_matmul": _matmul,
    "linear": _linear,
    "gemm": _gemm,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "attention": _sdpa,
    "einsum": _einsum,
}
