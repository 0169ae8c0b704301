"""Operators of other libraries that the exporting process has and the worker lacks.

An exported program names them, and can only be read where they are declared. Their schemas suffice,
because the program contains all shapes and nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.export import ExportedProgram

from dippm.model.relax.torch_namespaces import is_foreign
from dippm.model.vision_operators import declare_vision_operators

VISION = "torchvision"
_libraries: list[Any] = []
"""Keeps the declarations alive; each ends with its object."""


def foreign_schemas(program: ExportedProgram) -> tuple[str, ...]:
    """Return the sorted schemas of a program's operators that are not part of torch.

    Those of torchvision are included: a worker that reads a program has not imported it.
    """
    found = set()
    for graph_module in program.graph_module.modules():
        graph = getattr(graph_module, "graph", None)
        for node in getattr(graph, "nodes", ()):
            if is_foreign(node.target) or getattr(node.target, "namespace", "") == VISION:
                found.add(str(node.target._schema))
    return tuple(sorted(found))


def declare(schemas: Iterable[str]) -> None:
    """Declare missing operators, for the life of the process.

    Those of torchvision are left to its own import if it is installed.
    """
    schemas = tuple(schemas)
    if any(schema.startswith(VISION + "::") for schema in schemas):
        declare_vision_operators()
    for schema in schemas:
        if _is_known(schema.partition("(")[0]):
            continue
        namespace, _, definition = schema.partition("::")
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(definition)
        _libraries.append(library)


def _is_known(name: str) -> bool:
    namespace, _, rest = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), rest.partition(".")[0], None)
    return packet is not None and (rest.partition(".")[2] or "default") in packet.overloads()
