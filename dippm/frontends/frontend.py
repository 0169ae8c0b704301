"""`Frontend`: how a framework's model becomes a `RawGraph`.

To add a framework: write a module with `accepts` and `load`, list it in `registry.py` or register
it under the entry point group "dippm.frontends". `load` runs inside the conversion worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dippm.relax.raw_graph import RawGraph

MARKER_BATCHES = (1009, 1013, 1019, 1021, 1031)
"""Primes that stand for "the batch" during a conversion: any size that one divides scales with
the batch. The first that divides no size of the input and of the parameters is taken."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Shapes of the user inputs, without the batch.

    Attributes:
        shapes: by input name; the key "" stands for the only (or first) input. Empty if the
            model's own shapes shall be used.
    """

    shapes: Mapping[str, tuple[int, ...]]


class Frontend(Protocol):
    """One framework."""

    name: str

    def accepts(self, path: Path) -> bool:
        """Return whether this file is of this framework, by content rather than by suffix."""
        ...

    def load(self, path: Path, inputs: InputSpec, *, trust: bool) -> RawGraph:
        """Convert a file.

        Raises:
            ModelFileError: one of its subclasses, with the next step in `hint`.
        """
        ...
