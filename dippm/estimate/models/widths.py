"""How wide the elements of each tensor are: by the file's types, the precision, and autocast."""

from __future__ import annotations

from dippm.estimate.conditions import Precision
from dippm.model.graph.draft import Shape, item_bytes
from dippm.model.graph.operators import operator
from dippm.model.graph.program import Buffer, Program, Step


class Widths:
    """Bytes per element of every buffer, and the casts that autocast makes before each step.

    Args:
        program: the steps.
        precision: see `Conditions`.
        halves: buffers that are made in half precision whatever makes them.
    """

    def __init__(
        self, program: Program, precision: Precision, halves: frozenset[int] = frozenset()
    ) -> None:
        self._halves = halves
        self.autocast = precision in ("amp", "amp-bf16")
        self.full = 2.0 if precision in ("fp16", "bf16") else 4.0
        self.of: dict[int, float] = {}
        self.casts: list[list[tuple[Shape, float]]] = []
        for buffer in range(program.inputs):
            self.of[buffer] = self._as_stored(program.buffers[buffer])
        for step in program.steps:
            self._follow(step, program.buffers)

    def _as_stored(self, buffer: Buffer) -> float:
        return self.full if buffer.dtype == "float32" else float(item_bytes(buffer.dtype))

    def _follow(self, step: Step, buffers: tuple[Buffer, ...]) -> None:
        for buffer, _ in step.reads:
            self.of.setdefault(buffer, self._as_stored(buffers[buffer]))
        floats = [(b, s) for b, s in step.reads if "float" in buffers[b].dtype]
        width, casts = self.full, []
        if self.autocast:
            width = self._autocast(step, [self.of[b] for b, _ in floats])
            if operator(step.op).autocast != "promote":
                casts = [(s, width) for b, s in floats if self.of[b] != width]
        self.casts.append(casts)
        for buffer in (*step.makes, *step.passing):
            stored = self._as_stored(buffers[buffer])
            self.of[buffer] = width if buffers[buffer].dtype == "float32" else stored
            if buffer in self._halves:
                self.of[buffer] = 2.0

    def _autocast(self, step: Step, given: list[float]) -> float:
        row = operator(step.op)
        if row.autocast == "lower":
            return 2.0
        if row.autocast == "float32" or (step.weights and row.category == "elementwise"):
            return 4.0
        return max(given, default=4.0)
