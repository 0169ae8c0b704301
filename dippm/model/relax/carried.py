"""What is carried through Relax beside its expressions: opaque calls, module paths, memory facts.

Operators that TVM lacks or would decompose cross Relax as one packed call. The symbol of the call
contains the operator's name and attributes: ``dippm.aten.hardswish{"inplace":1}``. Output types
come from the exporter's own shape propagation, so no operator is lost.

The names of bound variables are unique in a function and survive every pass. So the table from
names to paths travels as an attribute of the function, and `walk` reads it. The variables written
in place and the called modules travel the same way, because memory use depends on both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import tvm
from tvm import relax

from dippm.model.relax.raw_graph import Attribute, Lifetime, merge_lifetimes

PREFIX = "dippm."

COMPLEX = {"complex32": "float16x2", "complex64": "float32x2", "complex128": "float64x2"}
"""Relax types of complex numbers, which TVM lacks: vectors of two."""


def opaque_call(
    name: str,
    inputs: Sequence[relax.Expr],
    out_types: Sequence[tuple[Sequence[int], str]],
    attributes: Mapping[str, Attribute] | None = None,
) -> tvm.ir.Call:
    """Return the packed call for one operator.

    Args:
        name: dialect and operator, such as "onnx.LSTM".
        inputs: tensor arguments.
        out_types: (shape, dtype) of each output.
        attributes: attributes that its cost depends on in addition to shapes.
    """
    symbol = PREFIX + name + (json.dumps(attributes, sort_keys=True) if attributes else "")
    types = [relax.TensorType(tuple(shape), dtype) for shape, dtype in out_types]
    return relax.op.call_dps_packed(symbol, relax.Tuple(list(inputs)), types)


def read_symbol(symbol: str) -> tuple[str, dict[str, Attribute]] | None:
    """Return name and attributes from the symbol of a packed call; None if it is not ours."""
    if not symbol.startswith(PREFIX):
        return None
    name, brace, rest = symbol[len(PREFIX) :].partition("{")
    document = json.loads(brace + rest) if brace else {}
    return name, {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}


# Module paths of variables, and other facts for which expressions have no place.

ATTRIBUTE = "dippm.paths"
IN_PLACE = "dippm.in_place"
CALLED = "dippm.called"
HELD = "dippm.held"
LONGEST = 400
"""Maximum length of a kept path in characters, because names in a file have no limit."""


class PathBuilder(relax.BlockBuilder):
    """A block builder that records the module for which it binds each variable.

    Attributes:
        path: path of the module whose operators are being emitted, "" if unknown.
        paths: module path by variable name.
        in_place: names of the variables that hold the result of an in-place operator.
        held: lifetime by variable name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = ""
        self.paths: dict[str, str] = {}
        self.in_place: set[str] = set()
        self.held: dict[str, Lifetime] = {}

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression to a variable."""
        variable = super().emit(expr, name_hint)
        self.paths[variable.name] = self.path
        return variable

    def hold(self, name: str, held: Lifetime) -> None:
        """Extend the recorded lifetime of a variable."""
        self.held[name] = merge_lifetimes(self.held.get(name), held)


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


def with_lifetimes(module: tvm.IRModule, held: Mapping[str, Lifetime]) -> tvm.IRModule:
    """Attach the lifetimes of variables, by name."""
    if held:
        kept = {name: list(steps) for name, steps in held.items()}
        module["main"] = module["main"].with_attr(HELD, kept)
    return module


def lifetimes_of(function: relax.Function) -> dict[str, Lifetime]:
    """Return the lifetimes of variables by name; empty if they are not known."""
    attached = function.attrs.get(HELD) if function.attrs else None
    return {str(name): (int(s[0]), int(s[1])) for name, s in (attached or {}).items()}


def in_place_of(function: relax.Function) -> frozenset[str]:
    """Return the names of the variables that are results of in-place operators."""
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
