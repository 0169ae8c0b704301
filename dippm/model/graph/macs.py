"""Multiply-accumulates of operators, from attributes and activation shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

Shape = tuple[int, ...]
Attributes = Mapping[str, int | float | str | tuple[int, ...]]
MacsFormula = Callable[[Attributes, tuple[Shape, ...], tuple[Shape, ...]], int]


REAL_PRODUCTS = 4
"""Real multiply-accumulates in a complex one: (a + bi)(c + di) = (ac − bd) + (ad + bc)i
has four real products and as many additions into the two sums, as BLAS's cgemm counts (8 m n k
operations, Golub and Van Loan, Matrix Computations, 1.1; the form with three products is rounded
in another way and not what cuBLAS runs unless it is asked to)."""


def is_complex(dtype: str) -> bool:
    """Return whether elements of this type have a real and an imaginary part."""
    return dtype.startswith("complex")


def real_macs(dtype: str) -> int:
    """Return the real multiply-accumulates in one multiply-accumulate of this type."""
    return REAL_PRODUCTS if is_complex(dtype) else 1


def real_flops(op: str, dtype: str) -> int:
    """Return the real operations in one element-wise operation on this type.

    A complex product is 4 multiplications and 2 additions; others work on both parts.
    """
    if not is_complex(dtype):
        return 1
    return 6 if op == "multiply" else 2


def _size(value: object) -> int:
    return value if isinstance(value, int) else 0


def convolution(a: Attributes, _: tuple[Shape, ...], out: tuple[Shape, ...]) -> int:
    """Every output element reads one window of its group's channels."""
    kernel = a["kernel"]
    assert isinstance(kernel, tuple)
    return prod(out[0]) * prod(kernel) * _size(a["in_channels"]) // _size(a["groups"])


def transposed_convolution(a: Attributes, inputs: tuple[Shape, ...], _: tuple[Shape, ...]) -> int:
    """Every input element writes one window of its group's channels."""
    kernel = a["kernel"]
    assert isinstance(kernel, tuple)
    return prod(inputs[0]) * prod(kernel) * _size(a["out_channels"]) // _size(a["groups"])


def dense(a: Attributes, _: tuple[Shape, ...], out: tuple[Shape, ...]) -> int:
    """Every output element reads one row."""
    return prod(out[0]) * _size(a["in_features"])


def batched_product(a: Attributes, _: tuple[Shape, ...], out: tuple[Shape, ...]) -> int:
    """Every output element sums over `k`."""
    return prod(out[0]) * _size(a["k"])


def attention(a: Attributes, _: tuple[Shape, ...], out: tuple[Shape, ...]) -> int:
    """Two batched products: queries with keys, weights with values."""
    head, value = _size(a["head_dim"]), _size(a["value_dim"])
    return prod(out[0]) * _size(a["key_length"]) * (head + value) // max(value, 1)


def recurrent(gates: int) -> MacsFormula:
    """Return the formula of a recurrent layer with this number of gates."""

    def macs(a: Attributes, inputs: tuple[Shape, ...], _: tuple[Shape, ...]) -> int:
        size, hidden = _size(a["input_size"]), _size(a["hidden_size"])
        layers, directions = _size(a["layers"]), _size(a["directions"])
        projected = _size(a.get("projection_size", 0)) or hidden
        rows = prod(inputs[0]) // max(size, 1)
        widths = size + projected + (layers - 1) * (directions + 1) * projected
        projection = layers * hidden * projected if projected != hidden else 0
        return rows * directions * (gates * hidden * widths + projection)

    return macs
