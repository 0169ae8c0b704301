"""Relax names of ONNX element types."""

from __future__ import annotations

from dippm.errors import ConversionError
from dippm.model.relax.onnx.values import Tensor

_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
    21: "uint4", 22: "int4", 23: "float4_e2m1fn",
}  # fmt: skip


def dtype_of(tensor: Tensor) -> str:
    """Return the Relax name of a tensor's type.

    Raises:
        ConversionError: if there is none (text, complex numbers).
    """
    try:
        return _DTYPES[tensor.element_type]
    except KeyError:
        raise ConversionError(
            f"ONNX tensor {tensor.name!r} has element type {tensor.element_type}, which is no "
            "number that DIPPM can price (text or complex)",
            "Cut preprocessing of text out of the model before the export.",
        ) from None
