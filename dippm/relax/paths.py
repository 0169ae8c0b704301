"""Which module of the model each Relax variable was bound for.

Relax expressions have no place for it, but the names of bound variables are unique in a function
and survive every pass. The table from them to paths travels as an attribute of the function, and
`walk` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax

ATTRIBUTE = "dippm.paths"
LONGEST = 400
"""Characters of a path that are kept: a name in a file can be of any length."""


class PathBuilder(relax.BlockBuilder):
    """A block builder that notes for which module it binds a variable.

    Attributes:
        path: of the module whose operators are being emitted, "" if unknown.
        paths: by name of a variable.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = ""
        self.paths: dict[str, str] = {}

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression to a variable."""
        variable = super().emit(expr, name_hint)
        self.paths[variable.name] = self.path
        return variable


def with_paths(module: tvm.IRModule, paths: Mapping[str, str]) -> tvm.IRModule:
    """Attach paths by variable name to the function "main"."""
    if any(paths.values()):
        kept = {name: path[:LONGEST] for name, path in paths.items()}
        module["main"] = module["main"].with_attr(ATTRIBUTE, kept)
    return module


def paths_of(function: relax.Function) -> dict[str, str]:
    """Return the paths that were attached to a function, by variable name.

    Relax binds the inner calls of a nested expression by itself, before the expression: they get
    the path of the next binding that has one.
    """
    attached = function.attrs.get(ATTRIBUTE) if function.attrs else None
    if not attached:
        return {}
    held = {str(name): str(path) for name, path in attached.items()}
    paths, path = {}, ""
    for block in reversed(function.body.blocks):
        for binding in reversed(block.bindings):
            path = held.get(binding.var.name, path)
            paths[binding.var.name] = path
    return paths
