"""Reading an ONNX file without its weights, at the level of protobuf fields.

A model file is mostly weights, which a conversion does not need. So the file is memory-mapped, only
small fields are copied, and protobuf parses the remaining few hundred kilobytes. Files above
protobuf's limit of 2 GiB are read the same way.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

Buffer = bytes | memoryview

MAX_KEPT_BYTES = 8192
"""Maximum size of kept tensor contents: 1024 numbers of 8 bytes."""

_MODEL_GRAPH, _MODEL_FUNCTION = 7, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _FUNCTION_NODE = 1, 5, 7
_NODE_ATTRIBUTE = 5
_ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = (5, 10), (6, 11)
_TENSOR_CONTENT = frozenset((4, 5, 6, 7, 9, 10, 11))
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 24
_MOST_MODEL_FIELDS = 100_000
_MODEL_WIRE_TYPES = dict.fromkeys((2, 3, 4, 6, 7, 8, 14, 20, 25, 26), _BYTES) | {
    1: _VARINT,
    5: _VARINT,
}


def read_without_weights(path: Path) -> bytes:
    """Return the serialized model with the contents of large tensors left out.

    Args:
        path: an ONNX file.

    Raises:
        ValueError: if the bytes are not a protobuf message with a graph.
        OSError: if the file cannot be read.
    """
    if not path.stat().st_size:
        raise ValueError("the file is empty")
    return without_weights(map_file(path))


def map_file(path: Path) -> memoryview:
    """Return the memory-mapped bytes of a file, which stay mapped as long as they are referenced.

    There is no explicit close: tracebacks refer to parts of the map, so that closing would fail
    and hide the actual error.

    Raises:
        ValueError: if the file is empty.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def without_weights(model: Buffer) -> bytes:
    """Return a serialized model with the contents of large tensors left out.

    Raises:
        ValueError: if the bytes are not a protobuf message with a graph.
    """
    kept = bytearray()
    has_graph = False
    for number, wire, start, value, end in _fields(model):
        if number == _MODEL_GRAPH and wire == _BYTES:
            has_graph = True
            _append(kept, number, _strip_graph(model[value:end], _GRAPH_NODE, 0))
        elif number == _MODEL_FUNCTION and wire == _BYTES:
            _append(kept, number, _strip_graph(model[value:end], _FUNCTION_NODE, 0))
        else:
            kept += model[start:end]
    if not has_graph:
        raise ValueError("no graph inside")
    return bytes(kept)


def looks_like_onnx(file: Buffer) -> bool:
    """Return whether the fields are those of an ONNX model, even of a truncated file."""
    seen = set()
    try:
        for number, wire, *_ in islice(_fields(file), _MOST_MODEL_FIELDS):
            if _MODEL_WIRE_TYPES.get(number) != wire:
                return False
            seen.add(number)
    except _CutError as cut:
        seen.add(cut.number)
    except ValueError:
        return False
    return _MODEL_GRAPH in seen


class _CutError(ValueError):
    """A field extends beyond the end of the file."""

    def __init__(self, number: int) -> None:
        super().__init__(f"field {number} runs past the end: the file is cut short")
        self.number = number


def _strip_graph(graph: Buffer, node_field: int, depth: int) -> bytes:
    if depth > _MAX_DEPTH:
        raise ValueError("graphs are nested too deeply")
    kept = bytearray()
    for number, wire, start, value, end in _fields(graph):
        is_large = wire == _BYTES and end - value > MAX_KEPT_BYTES
        if is_large and number == node_field:
            _append(kept, number, _strip_node(graph[value:end], depth))
        elif is_large and number == _GRAPH_INITIALIZER and node_field == _GRAPH_NODE:
            _append(kept, number, _strip_tensor(graph[value:end]))
        else:
            kept += graph[start:end]
    return bytes(kept)


def _strip_node(node: Buffer, depth: int) -> bytes:
    kept = bytearray()
    for number, wire, start, value, end in _fields(node):
        if number == _NODE_ATTRIBUTE and wire == _BYTES and end - value > MAX_KEPT_BYTES:
            _append(kept, number, _strip_attribute(node[value:end], depth))
        else:
            kept += node[start:end]
    return bytes(kept)


def _strip_attribute(attribute: Buffer, depth: int) -> bytes:
    kept = bytearray()
    for number, wire, start, value, end in _fields(attribute):
        if number in _ATTRIBUTE_TENSORS and wire == _BYTES:
            _append(kept, number, _strip_tensor(attribute[value:end]))
        elif number in _ATTRIBUTE_GRAPHS and wire == _BYTES:
            _append(kept, number, _strip_graph(attribute[value:end], _GRAPH_NODE, depth + 1))
        else:
            kept += attribute[start:end]
    return bytes(kept)


def _strip_tensor(tensor: Buffer) -> bytes:
    kept = bytearray()
    for number, wire, start, value, end in _fields(tensor):
        is_content = number in _TENSOR_CONTENT and wire == _BYTES
        if not (is_content and end - value > MAX_KEPT_BYTES):
            kept += tensor[start:end]
    return bytes(kept)


def _fields(message: Buffer) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number, wire type, start of the tag, start of the value and end of each field."""
    position, size = 0, len(message)
    while position < size:
        start = position
        tag, position = _varint(message, position)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("not a protobuf message")
        value = position
        if wire == _VARINT:
            _, end = _varint(message, position)
        elif wire == _BYTES:
            length, value = _varint(message, position)
            end = value + length
        elif wire in (_FIXED32, _FIXED64):
            end = value + (4 if wire == _FIXED32 else 8)
        else:
            raise ValueError("not a protobuf message")
        if end > size:
            raise _CutError(number)
        yield number, wire, start, value, end
        position = end


def _varint(message: Buffer, position: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise ValueError("the file is cut short")
        byte = message[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
    raise ValueError("not a protobuf message")


def _append(kept: bytearray, number: int, payload: bytes) -> None:
    for value in (number << 3 | _BYTES, len(payload)):
        while value > 0x7F:
            kept.append(value & 0x7F | 0x80)
            value >>= 7
        kept.append(value)
    kept += payload
