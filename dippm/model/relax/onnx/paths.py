"""The module path of an ONNX operator, from the traces that exporters leave.

PyTorch's exporter writes scopes into the node's metadata; its predecessor put them in the node's
name ("/layer1/layer1.0/conv1/Conv"); before that only weights had them ("layer1.0.conv1.weight").
Other exporters name nodes by their own rules, and that name is the path.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

import onnx

SCOPES = "pkg.torch.onnx.name_scopes"
REWRITTEN = "pkg.onnxscript.rewriter.rule_name"
"""Mark of merged operators, which have the scope of the last: a convolution that of its norm."""
LONGEST_NAME = 4096
"""Maximum length of a name that is parsed."""
_WEIGHT = re.compile(r"(.+)\.(weight|bias|running_mean|running_var|[wb]_\d+)")
"""Names of a layer's weights in PyTorch and Paddle ("conv2d_0.w_0")."""


def path_of(node: onnx.NodeProto, weights: Sequence[str]) -> str:
    """Return the path of a node's module; "" if it is unknown.

    Args:
        node: the operator's node.
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
        return _join_scopes(name.strip("/").split("/")[:-1])
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


def _join_scopes(scopes: Sequence[str]) -> str:
    """Join scopes, dropping the repeated parent in "layer1", "layer1.0"."""
    path: list[str] = []
    for scope in scopes:
        parts = scope.split(".")
        repeated = next((n for n in range(len(parts) - 1, 0, -1) if path[-n:] == parts[:n]), 0)
        if not all(part.isdigit() for part in parts[repeated:]):
            repeated = 0
        path += parts[repeated:]
    return ".".join(path)
