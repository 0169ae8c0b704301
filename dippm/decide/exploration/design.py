"""`Architecture` and `Design`: one kind of model of a space, and one point of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dippm.decide.exploration.axes import Axis, Label, axis_of
from dippm.decide.exploration.errors import ExploreError
from dippm.model.convert import Input, source_name
from dippm.model.frontends.registry import object_framework
from dippm.model.graph import ModelGraph

ARCHITECTURE, PLACE, BATCH, PRECISION = "architecture", "place", "batch", "precision"
RESERVED = (ARCHITECTURE, PLACE, BATCH, PRECISION, "device", "slice", "number", "state", "reason")
"""Columns of the answer, which are no names for parameters."""
Parameters = Mapping[str, Any]
InputOf = Input | Callable[[Parameters], Input]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A family of models of a space: a fixed model, or a function with parameters.

    Attributes:
        name: name in the answer.
        make: a model as `dippm.predict` takes it, or a function that returns one and takes the
            parameters as keywords. A module may be built on the "meta" device, without weights.
        parameters: axis of each keyword.
        input: sizes without the batch, see `dippm.predict`, or a function from the parameters to
            sizes; None takes those of the space.
    """

    name: str
    make: Any
    parameters: Mapping[str, Axis]
    input: InputOf = None

    @classmethod
    def of(
        cls,
        make: Any,
        parameters: Mapping[str, Any] | None = None,
        *,
        input: InputOf = None,
        name: str | None = None,
    ) -> Architecture:
        """Return an architecture; axes may be written as in `Space`.

        Raises:
            ExploreError: if a parameter has no axis, or a name that is taken.
        """
        given = parameters or {}
        if isinstance(make, cls):
            if given:
                raise ExploreError("parameters in addition to an Architecture", "Give them to it.")
            return make
        if given and not is_built(make):
            raise ExploreError(
                f"{source_name(make)} is a fixed model without parameters to search",
                "Give a function that returns the model for its parameters.",
            )
        taken = sorted(set(given).intersection(RESERVED))
        if taken:
            raise ExploreError(
                f"a parameter cannot be called {taken[0]}: that is a column of the answer",
                "batch=, precision=, device= and mig= are arguments of Space; rename others.",
            )
        axes = {key: axis_of(key, value) for key, value in given.items()}
        return cls(name or _name(make), make, axes, input)

    def build(self, design: Design) -> Any:
        """Return the model of a design as `dippm.predict` takes it; one that is built has weights.

        Raises:
            Exception: whatever the function raises.
        """
        return self.make(**design.parameters) if is_built(self.make) else self.make

    def input_of(self, design: Design, otherwise: InputOf) -> Input:
        """Return the sizes of a design's input."""
        given = otherwise if self.input is None else self.input
        return given(design.parameters) if callable(given) else given


@dataclass(frozen=True, slots=True)
class Design:
    """One point of a space.

    Attributes:
        architecture: name of the architecture.
        parameters: arguments that it is built with.
        labels: labels of the parameters.
        device: name of the GPU.
        slice: MIG slice of the GPU; None for the whole GPU.
        batch: samples per pass.
        precision: number formats.
    """

    architecture: str
    parameters: Parameters
    labels: Mapping[str, Label]
    device: str
    slice: str | None
    batch: int
    precision: str

    @property
    def built(self) -> tuple[Any, ...]:
        """Key of its graph: equal for designs that share one."""
        return (self.architecture, *sorted(self.labels.items()))

    @property
    def place(self) -> str:
        """Device and slice."""
        return place_name(self.device, self.slice)

    def row(self) -> dict[str, Any]:
        """Return its columns."""
        return {
            "architecture": self.architecture,
            **self.labels,
            "device": self.device,
            "slice": self.slice,
            "batch": self.batch,
            "precision": self.precision,
        }

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={value}" for key, value in self.labels.items())
        model = f"{self.architecture}({inside})" if inside else self.architecture
        return f"{model} · batch {self.batch} · {self.place} · {self.precision}"


def is_built(make: Any) -> bool:
    """Return whether this is a function that returns a model, rather than a model."""
    if isinstance(make, str | os.PathLike | ModelGraph):
        return False
    return callable(make) and object_framework(make) is None


def place_name(device: str, profile: str | None) -> str:
    """Return the name of a device or of a slice of it."""
    return f"{device} {profile}" if profile else device


def _name(make: Any) -> str:
    if is_built(make):
        inner = getattr(make, "func", make)  # unwraps functools.partial
        return str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")
    return source_name(make)
