"""Parts of a design space: architectures, designs, and the axes of parameters.

An `Architecture` is a family of models, a `Design` one point of the space. An axis (`Ints`,
`Floats`, `Choices`) holds the values that one parameter may take.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dippm.base.written import is_finite
from dippm.decide.exploration.errors import ExploreError
from dippm.errors import shortened
from dippm.model.convert import Input, source_name
from dippm.model.frontends.registry import object_framework
from dippm.model.graph import ModelGraph

ARCHITECTURE, PLACE, BATCH, PRECISION = "architecture", "place", "batch", "precision"
RESERVED = (ARCHITECTURE, PLACE, BATCH, PRECISION, "device", "slice", "number", "state", "reason")
"""Columns of the answer, whose names parameters cannot have."""
Parameters = Mapping[str, Any]
InputOf = Input | Callable[[Parameters], Input]
"""Input sizes, or a function that computes them from the parameters."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A family of models of a space: a fixed model, or a function with parameters.

    Attributes:
        name: name in the answer.
        make: model as `dippm.predict` takes it, or a function that takes the parameters as keywords
            and returns one. A module may be built on the "meta" device, without weights.
        parameters: axis of each parameter, by keyword.
        input: sizes without the batch, see `dippm.predict`, or a function that computes them from
            the parameters; None takes those of the space.
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
            ExploreError: if a parameter has no valid axis or a reserved name, or if a fixed model
                or an `Architecture` is given with parameters.
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
        return cls(name or _architecture_name(make), make, axes, input)

    def build(self, design: Design) -> Any:
        """Return the model of a design as `dippm.predict` takes it.

        Raises:
            Exception: whatever the function raises.
        """
        return self.make(**design.parameters) if is_built(self.make) else self.make

    def input_of(self, design: Design, otherwise: InputOf) -> Input:
        """Return the input sizes of a design; `otherwise` holds those of the space."""
        given = otherwise if self.input is None else self.input
        return given(design.parameters) if callable(given) else given


@dataclass(frozen=True, slots=True)
class Design:
    """One point of a space.

    Attributes:
        architecture: name of the architecture.
        parameters: arguments from which the architecture is built.
        labels: labels of the parameters' values.
        device: name of the GPU.
        slice: MIG slice of the GPU; None for the whole GPU.
        batch: samples per pass.
        precision: number format.
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
        """Key of the design's graph, equal for designs that share one."""
        return (self.architecture, *sorted(self.labels.items()))

    @property
    def place(self) -> str:
        """Name of the device, followed by that of the slice."""
        return place_name(self.device, self.slice)

    def row(self) -> dict[str, Any]:
        """Return the columns of the design in the answer."""
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
    """Return whether an object is a function that returns a model, rather than a model."""
    if isinstance(make, str | os.PathLike | ModelGraph):
        return False
    return callable(make) and object_framework(make) is None


def place_name(device: str, profile: str | None) -> str:
    """Return the name of a device or of a slice of it."""
    return f"{device} {profile}" if profile else device


def _architecture_name(make: Any) -> str:
    if is_built(make):
        inner = getattr(make, "func", make)  # unwraps functools.partial
        return str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")
    return source_name(make)


# The axes of a design space: the values that a parameter may have.

Label = None | bool | int | float | str
"""Form in which a value is shown and stored."""
FORMS = (
    "Give a list of choices, a range, Ints(low, high) or Floats(low, high); one value alone is "
    "fixed."
)


@dataclass(frozen=True, slots=True)
class Ints:
    """Whole numbers from `low` to `high`, both included.

    Attributes:
        low: smallest number.
        high: largest number; with a step it must lie on it.
        step: distance between neighbours; 1 if `log`.
        log: whether numbers are sampled on a logarithmic scale.

    Raises:
        ExploreError: if the axis has no value.
    """

    low: int
    high: int
    step: int = 1
    log: bool = False

    def __post_init__(self) -> None:
        _check_ends(self, self.low, self.high, log=self.log, step=None if self.log else self.step)
        whole = all(isinstance(v, int) for v in (self.low, self.high, self.step))
        if not whole or self.step < 1 or (self.high - self.low) % self.step:
            raise ExploreError(
                f"{self} is not a range of whole numbers",
                "Give whole numbers, with high - low a multiple of the step.",
            )
        if self.log and self.step != 1:
            raise ExploreError(f"{self} has a step and is logarithmic", "Leave one of both out.")

    @property
    def count(self) -> int:
        """Number of values."""
        return (self.high - self.low) // self.step + 1

    def value(self, label: Label) -> int:
        """Return the number of a label."""
        assert isinstance(label, int)
        return label


@dataclass(frozen=True, slots=True)
class Floats:
    """Numbers from `low` to `high`, both included.

    Attributes:
        low: smallest number.
        high: largest number.
        step: distance between neighbours; None for a continuous axis.
        log: whether numbers are sampled on a logarithmic scale.

    Raises:
        ExploreError: if the axis has no value.
    """

    low: float
    high: float
    step: float | None = None
    log: bool = False

    def __post_init__(self) -> None:
        _check_ends(self, self.low, self.high, log=self.log, step=self.step)
        if self.log and self.step is not None:
            raise ExploreError(f"{self} has a step and is logarithmic", "Leave one of both out.")

    @property
    def count(self) -> int | None:
        """Number of values; None for a continuous axis."""
        if self.low == self.high:
            return 1
        return None if self.step is None else int((self.high - self.low) / self.step + 1e-9) + 1

    def value(self, label: Label) -> float:
        """Return the number of a label."""
        assert isinstance(label, int | float)
        return float(label)


@dataclass(frozen=True, slots=True)
class Choices:
    """Values without an order.

    Attributes:
        values: choices: text, numbers, True and False, None, lists of these, and objects with a
            name of their own, such as a class.

    Raises:
        ExploreError: if there is no value, or two have the same label.
    """

    values: tuple[Any, ...]
    _labels: Mapping[Label, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        labels = [label_of(value) for value in self.values]
        if not labels:
            raise ExploreError("an axis without choices", FORMS)
        if len(set(labels)) < len(labels):  # True and 1 are one key, too
            raise ExploreError(f"choices {labels} are not all different", "Give each once.")
        object.__setattr__(self, "_labels", dict(zip(labels, self.values, strict=True)))

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels of the values, in their order."""
        return tuple(self._labels)

    @property
    def count(self) -> int:
        """Number of values."""
        return len(self.values)

    def value(self, label: Label) -> Any:
        """Return the value of a label."""
        return self._labels[label]


Axis = Ints | Floats | Choices


def axis_of(name: str, given: Any) -> Axis:
    """Return the axis that a user specified.

    Args:
        name: name of the parameter, for messages.
        given: an axis, a range, a sequence of choices, or one fixed value.

    Raises:
        ExploreError: if it is none of these.
    """
    try:
        if isinstance(given, Ints | Floats | Choices):
            return given
        if isinstance(given, range):
            return _range_axis(given)
        if isinstance(given, Mapping):
            raise ExploreError("a mapping is no axis", FORMS)
        if isinstance(given, Iterable) and not isinstance(given, str | bytes | type):
            return Choices(tuple(given))
        return Choices((given,))
    except ExploreError as error:
        raise ExploreError(f"parameter {name}: {error.message}", error.hint) from None


def label_of(value: Any) -> Label:
    """Return the label by which a value is shown and stored.

    Raises:
        ExploreError: if values of its type have no short and stable name.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ExploreError(f"{value} is no choice", "Give finite numbers.")
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return json.dumps([label_of(item) for item in value])
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str) and "<lambda>" not in name:
        return name
    raise ExploreError(
        f"a {type(value).__name__} ({shortened(repr(value))}) cannot be a choice: it has no name",
        "Choose among names, and let the function that builds the model look them up.",
    )


def values_of(axis: Axis) -> list[Label]:
    """Return the labels of a finite axis in their order.

    Raises:
        ExploreError: if the axis is continuous.
    """
    if isinstance(axis, Choices):
        return list(axis.labels)
    if axis.count is None:
        raise ExploreError(f"{axis} has no end", "Give it a step.")
    if isinstance(axis, Ints):
        return list(range(axis.low, axis.high + 1, axis.step))
    return [axis.low + i * (axis.step or 0.0) for i in range(axis.count)]


def _range_axis(given: range) -> Axis:
    if not given:
        raise ExploreError(f"{given} is empty", FORMS)
    ends = sorted((given[0], given[-1]))
    return Ints(ends[0], ends[1], abs(given.step) if len(given) > 1 else 1)


def _check_ends(axis: Any, low: float, high: float, *, log: bool, step: float | None) -> None:
    numbers = [v for v in (low, high, step) if v is not None]
    if not all(is_finite(v) for v in numbers):
        raise ExploreError(f"{axis} does not consist of finite numbers", FORMS)
    if low > high or (step is not None and step <= 0):
        raise ExploreError(f"{axis} is empty", "Give the lower end first, and a step above 0.")
    if log and low <= 0:
        raise ExploreError(f"{axis} is logarithmic and begins at {low}", "Begin above 0.")


def describe_axis(axis: Axis) -> str:
    """Describe an axis in words; equal axes have equal descriptions, also across processes."""
    return str(list(axis.labels)) if isinstance(axis, Choices) else str(axis)
