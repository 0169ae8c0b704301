"""`RawGraph`: a Relax function as plain data, before any canonical rule.

It crosses the border of the conversion worker and is what the conversion cache stores, so it is
JSON and nothing else. It keeps operators as the exporter spelled them; `dippm.graph` makes
frameworks agree.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...]
ValueKind = Literal["input", "parameter", "constant", "operator"]

RAW_GRAPH_VERSION = "2"


@dataclass(frozen=True, slots=True)
class RawValue:
    """One tensor.

    Attributes:
        shape: static sizes; () for a scalar.
        dtype: for instance "float32", "int64", "bool".
        kind: where the value comes from.
        name: the exporter's name, empty for operator results.
        scalar: the number itself if this is a constant with one element, else None.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: ValueKind
    name: str = ""
    scalar: float | None = None


@dataclass(frozen=True, slots=True)
class RawOperator:
    """One call.

    Attributes:
        name: Relax name without the "relax." prefix ("nn.conv2d"), or, for operators carried
            through TVM as an opaque call, dialect and name ("aten.hardswish", "onnx.LSTM").
        inputs: positions in `RawGraph.values`, in argument order, tuples flattened.
        outputs: positions in `RawGraph.values`.
        attributes: call attributes; shape and scalar arguments appear as "arg<i>".
        path: of the module or layer that it belongs to, as the framework spells it
            ("layer1.0.conv2"); empty if the file does not tell.
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
        operators: calls, producers before consumers.
        inputs: positions of the user inputs in `values`.
        outputs: positions of the results in `values`.
        batch: the batch size that the conversion was made with.
        batch_is_symbolic: true if `batch` is a marker (see `InputSpec`), so that every size that
            it divides scales with the batch; false if the file fixes the batch.
        notes: what a user should know about the conversion ("the loop over the batch was unrolled
            at 4"); they become warnings of every prediction.
    """

    values: tuple[RawValue, ...]
    operators: tuple[RawOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    batch: int
    batch_is_symbolic: bool = True
    notes: tuple[str, ...] = ()

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
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> RawGraph:
        """Read what `to_json` wrote.

        Raises:
            ValueError: if the text is not a raw graph of this version.
        """
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("version") != RAW_GRAPH_VERSION:
            raise ValueError("not a raw graph of version " + RAW_GRAPH_VERSION)
        return cls(
            values=tuple(
                RawValue(tuple(shape), dtype, kind, name, scalar)
                for shape, dtype, kind, name, scalar in document["values"]
            ),
            operators=tuple(
                RawOperator(name, tuple(inputs), tuple(outputs), _attributes(attributes), path)
                for name, inputs, outputs, attributes, path in document["operators"]
            ),
            inputs=tuple(document["inputs"]),
            outputs=tuple(document["outputs"]),
            batch=document["batch"],
            batch_is_symbolic=document["batch_is_symbolic"],
            notes=tuple(document["notes"]),
        )


def _attributes(document: dict[str, Any]) -> dict[str, Attribute]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in document.items()}
