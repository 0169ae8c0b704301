"""What an ONNX graph must keep to, and what shape inference neither refuses nor survives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx
from onnx import AttributeProto

from dippm.model.relax.onnx.values import malformed, where

POSITIVE = frozenset({"dilations", "group", "kernel_shape", "output_shape", "strides"})
NOT_NEGATIVE = frozenset({"pads", "output_padding"})
LARGEST = (1 << 31) - 1
"""Of a window's sizes and steps: ONNX's inference multiplies them in 64 bits, and wraps around."""
POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
PADDINGS = frozenset({b"", b"NOTSET", b"SAME_LOWER", b"SAME_UPPER", b"VALID"})
WINDOWED = frozenset(
    """
    AveragePool Conv ConvInteger ConvTranspose DeformConv LpPool MaxPool MaxUnpool QLinearConv
    """.split()
)
"""Operators that move a window: a step of nothing ends ONNX's own inference in a division."""


def check(graph: onnx.GraphProto) -> None:
    """Check a graph and those inside of it.

    Raises:
        ModelFileError: if two operators write one value, or a window has no size or step.
    """
    names = [value.name for value in graph.input]
    written = {*names, *(tensor.name for tensor in graph.initializer)}
    for name, number in Counter(names).items():
        if number > 1:
            raise malformed(f"the ONNX graph has {number} inputs {name!r}")
    for node in graph.node:
        for name in filter(None, node.output):
            if name in written:
                raise malformed(
                    f"{where(node)}it writes {name!r}, which something else has written"
                )
            written.add(name)
        if node.op_type in WINDOWED and not node.domain:
            _check_window(node)
            if node.op_type in POOLS:
                _check_pool(node)
        for attribute in node.attribute:
            for inner in _graphs(attribute):
                check(inner)


def _check_window(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        numbers = attribute.ints or ([attribute.i] if attribute.type == AttributeProto.INT else [])
        what = f"{where(node)}{attribute.name} = {list(numbers)}"
        if attribute.name in POSITIVE and any(number < 1 for number in numbers):
            raise malformed(f"{what}, which must be positive")
        if attribute.name in NOT_NEGATIVE and any(number < 0 for number in numbers):
            raise malformed(f"{what}, which must not be negative")
        if attribute.name in POSITIVE | NOT_NEGATIVE and any(n > LARGEST for n in numbers):
            raise malformed(f"{what}, which is more than any window has")
        if attribute.name == "auto_pad" and attribute.s not in PADDINGS:
            raise malformed(
                f"{where(node)}its auto_pad is {attribute.s.decode(errors='replace')!r}"
            )


def _check_pool(node: onnx.NodeProto) -> None:
    """Refuse a pool with windows in the padding alone, which have nothing to take a value of."""
    given = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    kernel, pads = given.get("kernel_shape", []), given.get("pads", [])
    dilations = given.get("dilations") or [1] * len(kernel)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=False)]
    if any(pad >= span for pad, span in zip(pads, spans * 2, strict=False)):
        raise malformed(f"{where(node)}pads = {pads} are not smaller than its window {kernel}")


def _graphs(attribute: AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs
