"""`RawGraph`: a Relax function as plain data, before any canonical rule.

It leaves the conversion worker and is stored in the conversion cache, so it consists of JSON types
only. Operators keep the exporter's spelling; `dippm.model.graph` unifies frameworks.
"""

from __future__ import annotations

import gzip
import json
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...]
InputValue = int | float | tuple["InputValue", ...]
"""Contents of an input whose sizes do not suffice: a number, or numbers nested like its
dimensions."""

ValueKind = Literal["input", "parameter", "constant", "operator"]

RAW_GRAPH_VERSION = "3"

IN_PLACE = "in_place"
"""Attribute of an operator that writes its result into its first argument."""

HELD_UNTIL = "held_until"
"""Attribute of an operator: position of the last operator during which the model's own code refers
to its result. Missing if the file does not say."""


@dataclass(frozen=True, slots=True)
class RawValue:
    """One tensor.

    Attributes:
        shape: static sizes; () for a scalar.
        dtype: element type, such as "float32", "int64", "bool".
        kind: origin of the value.
        name: the exporter's name, "" for operator results.
        scalar: value of a constant with one element, else None.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: ValueKind
    name: str = ""
    scalar: float | None = None


@dataclass(frozen=True, slots=True)
class RawOperator:
    """One operator call.

    Attributes:
        name: Relax name without the "relax." prefix ("nn.conv2d"), or, for operators carried
            through TVM as an opaque call, dialect and name ("aten.hardswish", "onnx.LSTM").
        inputs: positions in `RawGraph.values`, in argument order, tuples flattened.
        outputs: positions in `RawGraph.values`.
        attributes: call attributes; shape and scalar arguments appear as "arg<i>".
        path: path of its module or layer in the framework's spelling ("layer1.0.conv2"); "" if the
            file does not say.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, Attribute] = field(default_factory=dict)
    path: str = ""


@dataclass(frozen=True, slots=True)
class RawGraph:
    """A function: values, and operators in an order that respects data flow.

    Attributes:
        values: all tensors.
        operators: the operator calls, producers before consumers.
        inputs: positions of the user inputs in `values`.
        outputs: positions of the results in `values`.
        batch: batch size of the conversion.
        batch_is_symbolic: whether `batch` is a marker (see `InputSpec`), so that every size that it
            divides scales with the batch; false if the file fixes the batch.
        notes: remarks on the conversion for the user ("the loop over the batch was unrolled at 4"),
            which become warnings of every prediction.
        called: paths of the modules that are called, as opposed to mere containers: a caller refers
            to the arguments of a call. Empty if the file does not say.
        is_exported_by_pytorch: whether PyTorch wrote the operators into a file of another format.
    """

    values: tuple[RawValue, ...]
    operators: tuple[RawOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    batch: int
    batch_is_symbolic: bool = True
    notes: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    is_exported_by_pytorch: bool = False

    @property
    def is_of_pytorch(self) -> bool:
        """Whether they are PyTorch's own calls; eager mode runs also those that nobody reads."""
        return bool(self.called)

    def to_json(self) -> str:
        """Return the graph as one JSON document."""
        document = {
            "version": RAW_GRAPH_VERSION,
            "batch": self.batch,
            "batch_is_symbolic": self.batch_is_symbolic,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "values": [[list(v.shape), v.dtype, v.kind, v.name, v.scalar] for v in self.values],
            "operators": [
                [o.name, list(o.inputs), list(o.outputs), o.attributes, o.path]
                for o in self.operators
            ],
            "notes": self.notes,
            "called": self.called,
            "is_exported_by_pytorch": self.is_exported_by_pytorch,
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> RawGraph:
        """Return the graph from the result of `to_json`.

        The text is not trusted: it comes from another process, or from a file.

        Raises:
            ValueError: if the text is not a raw graph of this version, or inconsistent: negative
                sizes, missing positions, operators before their arguments.
        """
        try:
            document = json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(document, dict) or document.get("version") != RAW_GRAPH_VERSION:
            raise ValueError("not a raw graph of version " + RAW_GRAPH_VERSION)
        try:
            graph = cls(
                values=tuple(_value(*row) for row in document["values"]),
                operators=tuple(_operator(*row) for row in document["operators"]),
                inputs=_positions(document["inputs"]),
                outputs=_positions(document["outputs"]),
                batch=document["batch"],
                batch_is_symbolic=document["batch_is_symbolic"],
                notes=_texts(document["notes"], "notes"),
                called=_texts(document.get("called", []), "called"),
                is_exported_by_pytorch=document.get("is_exported_by_pytorch") is True,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"a part of the raw graph is missing or not as it should be: {error}"
            ) from None
        _check(graph)
        return graph


_KINDS = frozenset(get_args(ValueKind))
_INT64 = 1 << 63


def _value(shape: Any, dtype: Any, kind: Any, name: Any, scalar: Any) -> RawValue:
    texts = isinstance(dtype, str) and isinstance(name, str) and kind in _KINDS
    if not (texts and (scalar is None or isinstance(scalar, float) or _is_int64(scalar))):
        raise ValueError(f"not a value: {name!r}")
    return RawValue(_positions(shape), dtype, kind, name, scalar)


def _operator(name: Any, inputs: Any, outputs: Any, attributes: Any, path: Any) -> RawOperator:
    if not (isinstance(name, str) and isinstance(path, str) and isinstance(attributes, dict)):
        raise ValueError(f"not an operator: {name!r}")
    known = {key: _attribute(key, value) for key, value in attributes.items()}
    return RawOperator(name, _positions(inputs), _positions(outputs), known, path)


def _positions(numbers: Any) -> tuple[int, ...]:
    """Return sizes or positions; refuse True and 1.0."""
    if type(numbers) is not list or not all(type(n) is int and 0 <= n < _INT64 for n in numbers):
        raise ValueError(f"not a list of sizes or positions: {str(numbers)[:80]}")
    return tuple(numbers)


def _texts(texts: Any, what: str) -> tuple[str, ...]:
    if type(texts) is not list or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{what}: no list of texts")
    return tuple(texts)


def _attribute(key: str, value: Any) -> Attribute:
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, float | str) or _is_int64(part) for part in parts):
        raise ValueError(f"not an attribute: {key!r}")
    return tuple(value) if isinstance(value, list) else cast(Attribute, value)


def _is_int64(part: Any) -> bool:
    return isinstance(part, int) and -_INT64 <= part <= _INT64


def _check(graph: RawGraph) -> None:
    if type(graph.batch) is not int or not 1 <= graph.batch < _INT64:
        raise ValueError("the batch is no positive number")
    if type(graph.batch_is_symbolic) is not bool:
        raise ValueError("batch_is_symbolic is neither true nor false")
    count = len(graph.values)
    known = {i for i, value in enumerate(graph.values) if value.kind != "operator"}
    for operator in graph.operators:
        if not known.issuperset(operator.inputs):
            raise ValueError(f"operator {operator.name!r} reads what no one made before it")
        if any(i >= count for i in operator.outputs):
            raise ValueError(f"operator {operator.name!r} writes a value that does not exist")
        known.update(operator.outputs)
    if not known.issuperset(graph.inputs) or not known.issuperset(graph.outputs):
        raise ValueError("an input or output is a value that does not exist")


# Lifetimes: how long the code of a model refers to each result, in steps of the program.

STEP, UNTIL = "dippm_step", "dippm_held_until"
"""Metadata keys of an operator: its step, and the step after which its result is unreferenced."""

Lifetime = tuple[int, int]
"""STEP and UNTIL of one result."""


def merge_lifetimes(known: Lifetime | None, held: Lifetime) -> Lifetime:
    """Return the union of two lifetimes, of names for the same memory: views, parts, aliases."""
    return (min(known[0], held[0]), max(known[1], held[1])) if known else held


def last_operators(held: Sequence[Lifetime | None]) -> list[int | None]:
    """Return the last operator during which each result is alive; None where that is unknown.

    Args:
        held: lifetime of each operator's result in execution order. None if unknown; such an
            operator counts as run together with the next one whose lifetime is known.
    """
    steps, following = [0] * len(held), max((h[0] for h in held if h), default=0)
    for i in range(len(held) - 1, -1, -1):
        known = held[i]
        following = min(following, known[0]) if known else following
        steps[i] = following
    return [
        max(i, bisect_right(steps, known[1]) - 1) if known else None for i, known in enumerate(held)
    ]


# Raw graphs as files: gzipped JSON, read with a size limit.

MAX_TEXT_BYTES = 1 << 29
"""Size limit: a graph of a million operators takes about 2²⁸ bytes; more is a gzip bomb."""


def pack(text: str) -> bytes:
    """Return text as the bytes of a gzip file."""
    return gzip.compress(text.encode(), compresslevel=1)


def unpack(data: bytes) -> bytes:
    """Return the text of a gzip file, as bytes.

    Raises:
        ValueError: if the data is damaged, or the text exceeds `MAX_TEXT_BYTES`.
    """
    stream = zlib.decompressobj(wbits=31)
    try:
        text = stream.decompress(data, MAX_TEXT_BYTES)
    except zlib.error as error:
        raise ValueError(f"not gzip, or damaged: {error}") from None
    if not stream.eof:
        raise ValueError("cut short, or larger than a graph can be")
    return text
