"""Opaque calls: operators that TVM lacks or would decompose cross Relax as one packed call.

The symbol of the call contains the operator's name and attributes:
``dippm.aten.hardswish{"inplace":1}``. Output types come from the exporter's own shape
propagation, so no operator is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from dippm.model.relax.raw_graph import Attribute

PREFIX = "dippm."

COMPLEX = {"complex32": "float16x2", "complex64": "float32x2", "complex128": "float64x2"}
"""Relax types of complex numbers, which TVM lacks: vectors of two."""


def opaque_call(
    name: str,
    inputs: Sequence[relax.Expr],
    out_types: Sequence[tuple[Sequence[int], str]],
    attributes: Mapping[str, Attribute] | None = None,
) -> tvm.ir.Call:
    """Return the packed call for one operator.

    Args:
        name: dialect and operator, such as "onnx.LSTM".
        inputs: tensor arguments.
        out_types: (shape, dtype) of each output.
        attributes: attributes that its cost depends on in addition to shapes.
    """
    symbol = PREFIX + name + (json.dumps(attributes, sort_keys=True) if attributes else "")
    types = [relax.TensorType(tuple(shape), dtype) for shape, dtype in out_types]
    return relax.op.call_dps_packed(symbol, relax.Tuple(list(inputs)), types)


def read_symbol(symbol: str) -> tuple[str, dict[str, Attribute]] | None:
    """Return name and attributes from the symbol of a packed call; None if it is not ours."""
    if not symbol.startswith(PREFIX):
        return None
    name, brace, rest = symbol[len(PREFIX) :].partition("{")
    document = json.loads(brace + rest) if brace else {}
    return name, {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
