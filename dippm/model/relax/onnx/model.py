"""Serialized ONNX → a model for tracing: functions inlined, small tensors loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto, external_data_helper

from dippm.base import files
from dippm.errors import ConversionError
from dippm.model.relax.onnx.contributed import write_standard
from dippm.model.relax.onnx.tracing import MAX_KNOWN_ELEMENTS, malformed_error, message_start
from dippm.model.relax.onnx.wire import without_weights

_MAX_BYTES = 8 * MAX_KNOWN_ELEMENTS
_INTEGERS = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)


def parse(data: bytes, file: Path | None = None) -> onnx.ModelProto:
    """Return the model without the contents of its large tensors.

    Args:
        data: the serialized model.
        file: path of the model, in whose folder small tensors are looked up; None for nowhere.

    Raises:
        ValueError: if the bytes are not an ONNX model.
        ModelFileError: if its graph breaks the rules of ONNX.
        ConversionError: if sizes are in an external file that is not in its folder.
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
    """Load tensors that shapes may depend on; leave weights unread."""
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


# Local functions of an ONNX file are inlined, within a limit on recursion and growth.


MAX_INLINED = 1_000_000
"""Maximum operators after inlining; a few functions that call each other twice reach any count."""

_Key = tuple[str, str]


def inline(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without functions.

    Raises:
        ValueError: if the functions cannot be inlined.
        ConversionError: if they are recursive, or expand to too many operators.
    """
    from onnx import inliner

    _check_growth(model)
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        raise ValueError(f"its functions cannot be inlined: {error}") from error


def _check_growth(model: onnx.ModelProto) -> None:
    """Raise if inlining would give too many operators, counted from callees to callers."""
    calls = {(f.domain, f.name): _called_operators(f.node) for f in model.functions}
    sizes: dict[_Key, int] = {}
    active: set[_Key] = set()
    stack = [(key, False) for key in calls]
    while stack:
        key, is_left = stack.pop()
        if is_left:
            active.discard(key)
            sizes[key] = sum(sizes.get(callee, 1) for callee in calls[key])
        elif key in active:
            raise ConversionError(
                f"the ONNX function {key[1]!r} calls itself",
                "Check the file with onnx.checker.check_model, or export it again.",
            )
        elif key not in sizes:
            active.add(key)
            stack.append((key, True))
            stack += [(callee, False) for callee in calls[key] if callee in calls]
    total = sum(sizes.get(callee, 1) for callee in _called_operators(model.graph.node))
    if total > MAX_INLINED:
        raise ConversionError(
            f"the ONNX functions become {total:,} operators when they are written out, more than "
            f"{MAX_INLINED:,}",
            "Export the model without functions, or check where the file comes from.",
        )


def _called_operators(nodes: Iterable[onnx.NodeProto]) -> list[_Key]:
    """Return the operators of nodes and of their inner graphs."""
    found: list[_Key] = []
    left = list(nodes)
    while left:
        node = left.pop()
        found.append((node.domain, node.op_type))
        for attribute in node.attribute:
            left += attribute.g.node
            for graph in attribute.graphs:
                left += graph.node
    return found


# Checks of an ONNX graph that shape inference does not make, or crashes without.


POSITIVE = frozenset({"dilations", "group", "kernel_shape", "output_shape", "strides"})
NOT_NEGATIVE = frozenset({"pads", "output_padding"})
LARGEST = (1 << 31) - 1
"""Maximum of a window's sizes and steps: ONNX's inference multiplies in 64 bits and overflows."""
POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
PADDINGS = frozenset({b"", b"NOTSET", b"SAME_LOWER", b"SAME_UPPER", b"VALID"})
WINDOWED = frozenset(
    """
    AveragePool Conv ConvInteger ConvTranspose DeformConv LpPool MaxPool MaxUnpool QLinearConv
    """.split()
)
"""Operators with a sliding window: a step of 0 crashes ONNX's own inference."""


def check(graph: onnx.GraphProto) -> None:
    """Check a graph and its inner graphs.

    Raises:
        ModelFileError: if two operators write the same value, or a window has no size or step.
    """
    names = [value.name for value in graph.input]
    written = {*names, *(tensor.name for tensor in graph.initializer)}
    for name, number in Counter(names).items():
        if number > 1:
            raise malformed_error(f"the ONNX graph has {number} inputs {name!r}")
    for node in graph.node:
        for name in filter(None, node.output):
            if name in written:
                raise malformed_error(
                    f"{message_start(node)}it writes {name!r}, which something else has written"
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
        what = f"{message_start(node)}{attribute.name} = {list(numbers)}"
        if attribute.name in POSITIVE and any(number < 1 for number in numbers):
            raise malformed_error(f"{what}, which must be positive")
        if attribute.name in NOT_NEGATIVE and any(number < 0 for number in numbers):
            raise malformed_error(f"{what}, which must not be negative")
        if attribute.name in POSITIVE | NOT_NEGATIVE and any(n > LARGEST for n in numbers):
            raise malformed_error(f"{what}, which is more than any window has")
        if attribute.name == "auto_pad" and attribute.s not in PADDINGS:
            raise malformed_error(
                f"{message_start(node)}its auto_pad is {attribute.s.decode(errors='replace')!r}"
            )


def _check_pool(node: onnx.NodeProto) -> None:
    """Refuse a pool with windows entirely in the padding, which have no value."""
    given = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    kernel, pads = given.get("kernel_shape", []), given.get("pads", [])
    dilations = given.get("dilations") or [1] * len(kernel)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=False)]
    if any(pad >= span for pad, span in zip(pads, spans * 2, strict=False)):
        raise malformed_error(
            f"{message_start(node)}pads = {pads} are not smaller than its window {kernel}"
        )


def _graphs(attribute: AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs
