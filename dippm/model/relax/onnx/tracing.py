"""What control flow, sequences and rebatching ask of the walk that meets them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import onnx

from dippm.model.relax.onnx.block import Block
from dippm.model.relax.onnx.values import Step, Tensor


class Tracing(Protocol):
    """A walk over a graph, from the inside; see `trace.Tracer`."""

    marker: int
    values: dict[str, Tensor]
    lists: dict[str, list[Tensor]]
    steps: list[Step]
    notes: dict[str, None]

    def walk(self, block: Block) -> None:
        """Trace the nodes of a block; what they write stays visible."""

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Forget inside names afterwards; `name` tells the runs of one block apart."""

    def write(self, name: str, value: Tensor | list[Tensor]) -> None:
        """Let a name stand for a tensor or a sequence."""

    def read(self, name: str, reader: str) -> Tensor | None:
        """Return the tensor that a name stands for; None for an absent optional argument."""

    def need(self, node: onnx.NodeProto, position: int) -> Tensor:
        """Return an argument that must be there."""

    def apply(
        self, operator: str, inputs: Sequence[Tensor | None], name: str, **attributes: Any
    ) -> Tensor:
        """Trace an operator that the file does not spell out; return its only result."""

    def apply_all(
        self,
        operator: str,
        inputs: Sequence[Tensor | None],
        name: str,
        count: int,
        **attributes: Any,
    ) -> list[Tensor]:
        """Trace an operator that the file does not spell out; return its results."""

    def opset(self) -> int:
        """Return the version of the operators that `apply` writes."""

    def is_read(self, name: str) -> bool:
        """Return whether an operator or the model's results read a name."""

    def note(self, text: str) -> None:
        """Say what is assumed."""

    def open_values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs that tensors depend on and that may be sizes, axes or the like."""
