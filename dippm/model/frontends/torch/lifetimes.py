"""Tensor lifetimes: how long a module's Python code refers to each tensor during export.

Eager PyTorch frees a tensor when the last name, list or frame that refers to it is gone, which is
often long after its last use: results that a block collects in a list live until the block returns.
`torch.export` runs the same code on tensors without data, and appends each operator to a graph. So
the operators between a tensor's creation and its release are the steps during which it would be
in memory.
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

from dippm.model.relax.raw_graph import STEP, UNTIL

ANNOTATIONS = "custom"
"""Key of a node's metadata that `torch.export` keeps through passes and files."""
_NOTED_BY = "set_proxy_slot"
"""Private function of `proxy_tensor` that PyTorch calls with each tensor and its operator."""
_ONE_AT_A_TIME = RLock()
"""Serializes exports: concurrent patches would restore each other's function."""


@dataclass(slots=True)
class TensorLifetimes:
    """Creation and release of each tensor, on a clock that counts created tensors.

    Attributes:
        made: number of tensors created so far.
        died: time of release, when the last reference is gone, by time of creation.
    """

    made: int = 0
    died: dict[int, int] = field(default_factory=dict)

    def born(self, node: Node, tensor: torch.Tensor) -> None:
        """Record that an operator created a tensor."""
        self.made += 1
        known = node.meta.get(ANNOTATIONS, {})
        if STEP not in known:  # a traced graph that runs again creates nothing new
            node.meta[ANNOTATIONS] = {**known, STEP: self.made}
            weakref.finalize(tensor, self._die, self.made).atexit = False

    def until(self, step: int) -> int:
        """Return the time of a tensor's release, or the present time if it is alive."""
        return self.died.get(step, self.made)

    def _die(self, step: int) -> None:
        self.died[step] = self.made


@contextmanager
def watch_lifetimes(module: torch.nn.Module) -> Iterator[TensorLifetimes]:
    """Record tensor lifetimes while a module is exported.

    The record stays empty for modules without Python code of their own, and under a PyTorch version
    without the patched function.
    """
    lifetimes = TensorLifetimes()
    note = getattr(proxy_tensor, _NOTED_BY, None)
    if note is None or isinstance(module, GraphModule | torch.jit.ScriptModule):
        yield lifetimes
        return

    def noted(tensor: Any, tracer: Any, proxy: Any) -> None:
        note(tensor, tracer, proxy)
        node = getattr(getattr(proxy, "proxy", None), "node", None)
        if isinstance(tensor, torch.Tensor) and isinstance(node, Node):
            lifetimes.born(node, tensor)

    with _ONE_AT_A_TIME, patch.object(proxy_tensor, _NOTED_BY, noted):
        yield lifetimes


def annotate_lifetimes(program: ExportedProgram, lifetimes: TensorLifetimes) -> ExportedProgram:
    """Annotate operators in place with their step and the end of their result's lifetime."""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        parts = [node, *(user for user in node.users if _is_part(user))]
        steps = [part.meta.get(ANNOTATIONS, {}).get(STEP) for part in parts]
        made = [step for step in steps if step is not None]
        if made:
            known = {STEP: min(made), UNTIL: max(lifetimes.until(step) for step in made)}
            node.meta[ANNOTATIONS] = {**node.meta.get(ANNOTATIONS, {}), **known}
    return program


def _is_part(node: Node) -> bool:
    """Return whether a node is one of several results of an operator."""
    return getattr(node.target, "__name__", "") == "getitem"
