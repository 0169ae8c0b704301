"""How long a module's own Python code holds each tensor, watched while it is exported.

Eager PyTorch frees a tensor when the last name, list or frame that refers to it is gone, which is
often long after its last reader: the results of a block that are collected in a list live until the
block returns. `torch.export` runs the same code, on tensors without data, and appends each operator
to a graph. So the operators between the birth of a tensor and its death are the steps for which it
would be in memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.experimental import proxy_tensor

from dippm.model.relax.holds import STEP, UNTIL

ANNOTATIONS = "custom"
"""Key of a node's metadata that `torch.export` keeps through passes and files."""
_NOTED_BY = "set_proxy_slot"
"""The function of `proxy_tensor` that is told which operator made a tensor; private to PyTorch."""
_ONE_AT_A_TIME = RLock()
"""Threads that export would put back each other's function."""


@dataclass(slots=True)
class Holds:
    """When tensors were born and died, in tensors that had been made by then.

    Attributes:
        made: tensors so far.
        died: by when a tensor was born, when nothing referred to it any more.
    """

    made: int = 0
    died: dict[int, int] = field(default_factory=dict)

    def born(self, node: Node, tensor: torch.Tensor) -> None:
        """Note that an operator made a tensor."""
        self.made += 1
        known = node.meta.get(ANNOTATIONS, {})
        if STEP not in known:  # what runs a traced graph again holds nothing
            node.meta[ANNOTATIONS] = {**known, STEP: self.made}
            weakref.finalize(tensor, self._die, self.made).atexit = False

    def until(self, step: int) -> int:
        """Return when a tensor died; the end if it still lives."""
        return self.died.get(step, self.made)

    def _die(self, step: int) -> None:
        self.died[step] = self.made


@contextmanager
def watched_holds(module: torch.nn.Module) -> Iterator[Holds]:
    """Watch what the code of a module holds while it is exported.

    Nothing is seen of modules that have no Python code of their own, and with a PyTorch that notes
    tensors in another way.
    """
    holds = Holds()
    note = getattr(proxy_tensor, _NOTED_BY, None)
    if note is None or isinstance(module, GraphModule | torch.jit.ScriptModule):
        yield holds
        return

    def noted(tensor: Any, tracer: Any, proxy: Any) -> None:
        note(tensor, tracer, proxy)
        node = getattr(getattr(proxy, "proxy", None), "node", None)
        if isinstance(tensor, torch.Tensor) and isinstance(node, Node):
            holds.born(node, tensor)

    with _ONE_AT_A_TIME, patch.object(proxy_tensor, _NOTED_BY, noted):
        yield holds


def note_holds(program: ExportedProgram, holds: Holds) -> ExportedProgram:
    """Annotate operators with what was seen, in place: when each ran, and until when it is held."""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        parts = [node, *(user for user in node.users if _is_part(user))]
        steps = [part.meta.get(ANNOTATIONS, {}).get(STEP) for part in parts]
        made = [step for step in steps if step is not None]
        if made:
            known = {STEP: min(made), UNTIL: max(holds.until(step) for step in made)}
            node.meta[ANNOTATIONS] = {**node.meta.get(ANNOTATIONS, {}), **known}
    return program


def _is_part(node: Node) -> bool:
    """Tell whether a node is one of several results of an operator."""
    return getattr(node.target, "__name__", "") == "getitem"
