"""What an ONNX graph must keep to, and what shape inference neither refuses nor survives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx
from onnx import AttributeProto

from dippm.relax.onnx.values import malformed, where

POSITIVE = frozenset({"dilations", "group", "kernel_shape", "strides"})
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
        for attribute in node.attribute:
            for inner in _graphs(attribute):
                check(inner)


def _check_window(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        numbers = attribute.ints or ([attribute.i] if attribute.type == AttributeProto.INT else [])
        if attribute.name in POSITIVE and any(number < 1 for number in numbers):
            what = f"{attribute.name} = {list(numbers)}"
            raise malformed(f"{where(node)}{what}, which must be positive")
        if attribute.name == "auto_pad" and attribute.s not in PADDINGS:
            raise malformed(
                f"{where(node)}its auto_pad is {attribute.s.decode(errors='replace')!r}"
            )


def _graphs(attribute: AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs
