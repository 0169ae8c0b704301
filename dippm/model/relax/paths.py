"""Which module of the model each Relax variable was bound for, and what else Relax cannot say.

Relax expressions have no place for it, but the names of bound variables are unique in a function
and survive every pass. The table from them to paths travels as an attribute of the function, and
`walk` reads it. So do the variables that hold what an in-place operator wrote, and the modules that
are called: what is in memory depends on both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tvm
from tvm import relax

from dippm.model.relax.holds import Held, joined

ATTRIBUTE = "dippm.paths"
IN_PLACE = "dippm.in_place"
CALLED = "dippm.called"
HELD = "dippm.held"
LONGEST = 400
"""Characters of a path that are kept: a name in a file can be of any length."""


class PathBuilder(relax.BlockBuilder):
    """A block builder that notes for which module it binds a variable.

    Attributes:
        path: of the module whose operators are being emitted, "" if unknown.
        paths: by name of a variable.
        in_place: names of the variables that hold what an in-place operator wrote.
        held: by name of a variable: when its operator ran and until when it is held.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = ""
        self.paths: dict[str, str] = {}
        self.in_place: set[str] = set()
        self.held: dict[str, Held] = {}

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression to a variable."""
        variable = super().emit(expr, name_hint)
        self.paths[variable.name] = self.path
        return variable

    def hold(self, name: str, held: Held) -> None:
        """Note how long a variable is held, of all that was said of it."""
        self.held[name] = joined(self.held.get(name), held)


def with_paths(module: tvm.IRModule, paths: Mapping[str, str]) -> tvm.IRModule:
    """Attach paths by variable name to the function "main"."""
    if any(paths.values()):
        kept = {name: path[:LONGEST] for name, path in paths.items()}
        module["main"] = module["main"].with_attr(ATTRIBUTE, kept)
    return module


def with_execution(
    module: tvm.IRModule, in_place: Iterable[str], called: Iterable[str]
) -> tvm.IRModule:
    """Attach the variables written in place, and the paths of the modules that are called."""
    attached = {IN_PLACE: sorted(in_place), CALLED: sorted({path[:LONGEST] for path in called})}
    for attribute, names in attached.items():
        if names:
            module["main"] = module["main"].with_attr(attribute, names)
    return module


def with_held(module: tvm.IRModule, held: Mapping[str, Held]) -> tvm.IRModule:
    """Attach how long the model's code holds variables."""
    if held:
        kept = {name: list(steps) for name, steps in held.items()}
        module["main"] = module["main"].with_attr(HELD, kept)
    return module


def held_of(function: relax.Function) -> dict[str, Held]:
    """Return how long the model's code holds variables, by name; empty if that is not known."""
    attached = function.attrs.get(HELD) if function.attrs else None
    return {str(name): (int(s[0]), int(s[1])) for name, s in (attached or {}).items()}


def in_place_of(function: relax.Function) -> frozenset[str]:
    """Return the names of the variables that an in-place operator wrote."""
    return frozenset(_texts(function, IN_PLACE))


def called_of(function: relax.Function) -> tuple[str, ...]:
    """Return the paths of the modules that are called; empty if they are not known."""
    return tuple(_texts(function, CALLED))


def _texts(function: relax.Function, attribute: str) -> list[str]:
    attached = function.attrs.get(attribute) if function.attrs else None
    return [str(text) for text in attached or ()]


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
