"""Operators that TVM has no converter for, or would break apart, cross Relax as one packed call.

The symbol of the call holds the operator's name and its attributes:
``dippm.aten.hardswish{"inplace":1}``. Output types come from the exporter's own shape
propagation, so nothing is lost and nothing is dropped in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from dippm.model.relax.raw_graph import Attribute

PREFIX = "dippm."

COMPLEX = {"complex32": "float16x2", "complex64": "float32x2", "complex128": "float64x2"}
"""How complex numbers, which TVM lacks, cross Relax: as vectors of two."""


def opaque_call(
    name: str,
    inputs: Sequence[relax.Expr],
    out_types: Sequence[tuple[Sequence[int], str]],
    attributes: Mapping[str, Attribute] | None = None,
) -> tvm.ir.Call:
    """Return a packed call that stands for one operator.

    Args:
        name: dialect and operator, for instance "onnx.LSTM".
        inputs: tensor arguments.
        out_types: (shape, dtype) of each output.
        attributes: what the cost of the operator depends on beyond its shapes.
    """
    symbol = PREFIX + name + (json.dumps(attributes, sort_keys=True) if attributes else "")
    types = [relax.TensorType(tuple(shape), dtype) for shape, dtype in out_types]
    return relax.op.call_dps_packed(symbol, relax.Tuple(list(inputs)), types)


def read_symbol(symbol: str) -> tuple[str, dict[str, Attribute]] | None:
    """Split the symbol of a packed call into name and attributes; None if it is not ours."""
    if not symbol.startswith(PREFIX):
        return None
    name, brace, rest = symbol[len(PREFIX) :].partition("{")
    document = json.loads(brace + rest) if brace else {}
    return name, {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
