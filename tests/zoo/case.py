"""`Case`: one model of a suite, how to make it, and what is known about it without us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dippm.model.graph.model_graph import ModelGraph, TensorSpec

Shape = tuple[int, ...]
Inputs = tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A model that DIPPM is to read.

    Attributes:
        name: unique in its suite.
        source: from an empty folder that it may write to, what `dippm.read_graph` takes: a path, a
            name or an object. It raises `NotBuiltError` if the framework itself cannot build it.
        input: as `input=` of `dippm.predict`; None for the model's own.
        then: another `input=`, tried if the first one is refused: what a user gives whom the
            refusal asks for the values of inputs.
        batch: samples that `macs` and `out_shapes` are for; may be read off the graph.
        macs: counts multiply-accumulates by other means than DIPPM's, for inputs of these shapes
            (batch included); None if there is no count, or if it answers None.
        tolerance: relative difference of MACs that is still the same (an exporter may drop or add
            a little); 0 demands equality.
        out_shapes: of the results in order, batch included; None if they are not known, or if it
            answers None.
        trust: whether the file may run code when it is read.
        not_numeric: reads off the model, not off what DIPPM says of it, why its inputs or results
            are no numbers that a GPU could work on; empty if they are. Such a model may be refused.
        own_error: runs the model on the inputs that its own library gives for it; what the library
            says if it fails there, which is no fault of DIPPM's. Empty if it runs.
    """

    name: str
    source: Callable[[Path], Any]
    input: Any = None
    then: Callable[[], Any] | None = None
    batch: int | Callable[[ModelGraph], int] = 1
    macs: Callable[[Inputs], int | None] | None = None
    tolerance: float = 0.001
    out_shapes: Callable[[], tuple[Shape, ...] | None] | None = None
    trust: bool = False
    not_numeric: Callable[[], str] | None = None
    own_error: Callable[[], str] | None = None


class NotBuiltError(Exception):
    """The framework itself cannot build or save this model, so it says nothing about DIPPM."""
