"""The layers of the operators in a Paddle program, carried through Paddle2ONNX.

Paddle records the classes of the layers around an operator: "/Sequential_1/Conv2D/". Paddle2ONNX
numbers the operators of a kind: the result of the second convolution is "p2o.pd_op.conv2d.1.0".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

_RESULT = "p2o.pd_op."


def outer_operators(document: Mapping[str, Any]) -> Any:
    """Return the operators outside nested blocks; in a damaged program, of any type.

    Raises:
        LookupError: if there are none.
        TypeError: if an enclosing part has another type.
    """
    return document["program"]["regions"][0]["blocks"][0]["ops"]


def layers_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the layers of each operator, by the name that Paddle2ONNX gives its results.

    Empty if the program has nested blocks, because their operators are numbered too.
    """
    counts: Counter[str] = Counter()
    found: dict[str, str] = {}
    for operator in outer_operators(document):
        if operator.get("regions"):
            return {}
        kind = str(operator["#"]).partition(".")[2]
        if layers := _layer_of(operator):
            found[f"{_RESULT}{kind}.{counts[kind]}"] = layers
        counts[kind] += 1
    return found


def _layer_of(operator: Mapping[str, Any]) -> str:
    for entry in operator.get("A", ()):
        if isinstance(entry, dict) and entry.get("N") == "struct_name":
            held = entry.get("AT")
            value = held.get("D") if isinstance(held, dict) else None
            return value.strip("/") if isinstance(value, str) else ""
    return ""


def name_nodes(model: onnx.ModelProto, layers: Mapping[str, str]) -> None:
    """Write the layers of each operator into its node's name, as PyTorch's exporter does.

    An operator of Paddle may become several nodes; the last one writes its result.
    """
    current = ""
    for node in reversed(model.graph.node):
        results = [name for name in node.output if name.startswith(_RESULT)]
        if results:
            current = layers.get(results[0].rpartition(".")[0], "")
        if current:
            node.name = f"/{current}/{node.op_type}"
