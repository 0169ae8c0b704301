"""Serialized ONNX → a model that can be traced: functions inlined, small tensors at hand."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, external_data_helper

from dippm.base import files
from dippm.errors import ConversionError
from dippm.model.relax.onnx.contributed import write_standard
from dippm.model.relax.onnx.functions import inline
from dippm.model.relax.onnx.values import MAX_KNOWN_ELEMENTS
from dippm.model.relax.onnx.well_formed import check
from dippm.model.relax.onnx.wire import without_weights

_MAX_BYTES = 8 * MAX_KNOWN_ELEMENTS
_INTEGERS = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)


def parse(data: bytes, file: Path | None = None) -> onnx.ModelProto:
    """Return the model without the contents of its large tensors.

    Args:
        data: a serialized model.
        file: the model's, beside which small tensors are looked for; None for nowhere.

    Raises:
        ValueError: if the bytes are no ONNX model.
        ModelFileError: if its graph breaks the rules of ONNX.
        ConversionError: if sizes stand in an external file that is not in its folder.
    """
    try:
        model = onnx.ModelProto.FromString(without_weights(data))
    except (DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not model.graph.node:
        raise ValueError("the graph has no operators")
    check(model.graph)
    if model.functions:
        model = inline(model)
    write_standard(model)
    _fetch_small_tensors(model.graph, file)
    return model


def _fetch_small_tensors(graph: onnx.GraphProto, file: Path | None) -> None:
    """Read what shapes may be computed from; weights stay where they are."""
    for tensor in graph.initializer:
        if (
            tensor.data_location != TensorProto.EXTERNAL
            or not tensor.external_data
            or (_size(tensor) > MAX_KNOWN_ELEMENTS)
        ):
            continue
        info = external_data_helper.ExternalDataInfo(tensor)
        try:
            external = file and files.companion(file, info.location)
            tensor.raw_data = _read(external, info.offset or 0, info.length or _MAX_BYTES)
            tensor.data_location = TensorProto.DEFAULT
        except Exception as error:
            if tensor.data_type in _INTEGERS:
                raise ConversionError(
                    f"tensor {tensor.name!r} holds sizes, and the external file that it is in "
                    f"cannot be read: {getattr(error, 'message', error)}",
                    "Put the external data next to the model, or save small tensors inside it "
                    "(size_threshold=1024).",
                ) from error


def _read(external: Path | None, offset: int, length: int) -> bytes:
    if external is None:
        raise FileNotFoundError("the model is in memory")
    with files.open_regular(external) as opened:
        opened.seek(offset)
        return opened.read(max(0, min(length, _MAX_BYTES)))


def _size(tensor: onnx.TensorProto) -> int:
    size = 1
    for dim in tensor.dims:
        size *= dim
    return size
