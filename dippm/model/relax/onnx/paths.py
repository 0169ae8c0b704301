"""The module path of an ONNX operator, from what its exporter left of it.

PyTorch's exporter notes the scopes in the node's metadata; its predecessor spells them in the
node's name ("/layer1/layer1.0/conv1/Conv"); before that only weights kept them
("layer1.0.conv1.weight"). Other exporters name nodes by their own rules: such a name is the path.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

import onnx

SCOPES = "pkg.torch.onnx.name_scopes"
REWRITTEN = "pkg.onnxscript.rewriter.rule_name"
"""What the exporter merged stands in the scope of the last: a convolution in its norm's."""
LONGEST_NAME = 4096
"""A longer name is not taken apart: nobody wrote it."""
_WEIGHT = re.compile(r"(.+)\.(weight|bias|running_mean|running_var|[wb]_\d+)")
"""How PyTorch and Paddle ("conv2d_0.w_0") name the weights of a layer."""


def path_of(node: onnx.NodeProto, weights: Sequence[str]) -> str:
    """Return the path of the module that a node belongs to; "" if nothing tells.

    Args:
        node: an operator.
        weights: names of the stored tensors among its inputs.
    """
    noted = {entry.key: entry.value for entry in node.metadata_props}
    owners = [owner[1] for weight in weights if (owner := _WEIGHT.fullmatch(weight))]
    if SCOPES in noted and not (REWRITTEN in noted and owners):
        return _from_metadata(noted[SCOPES])
    name = str(node.name)
    if len(name) > LONGEST_NAME:
        return name
    own = rf"{re.escape(node.op_type)}(_\d+)?"
    if name.startswith("/") and re.fullmatch(own, name.rpartition("/")[2]):
        return _joined(name.strip("/").split("/")[:-1])
    return owners[0] if owners else name


def _from_metadata(text: str) -> str:
    """Read "['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d']": the last is the operator."""
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ""
    if not isinstance(scopes, list) or len(scopes) < 2:
        return ""
    return str(scopes[-2])


def _joined(scopes: Sequence[str]) -> str:
    """Join scopes, where "layer1.0" in "layer1" repeats its parent: numbers do not stand alone."""
    path: list[str] = []
    for scope in scopes:
        parts = scope.split(".")
        repeated = next((n for n in range(len(parts) - 1, 0, -1) if path[-n:] == parts[:n]), 0)
        if not all(part.isdigit() for part in parts[repeated:]):
            repeated = 0
        path += parts[repeated:]
    return ".".join(path)
