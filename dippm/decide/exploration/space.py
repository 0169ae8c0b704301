"""`Space`: the architectures, batches, precisions and places of a search.

Batch, precision, device and slice do not change the graph of an architecture, so they are separate
axes and never cost a conversion.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any, Unpack

from dippm.decide.exploration.design import (
    ARCHITECTURE,
    BATCH,
    PLACE,
    PRECISION,
    Architecture,
    Axis,
    Choices,
    Design,
    InputOf,
    Ints,
    Label,
    axis_of,
    describe_axis,
    place_name,
)
from dippm.decide.exploration.errors import ExploreError
from dippm.errors import UnsupportedPrecisionError
from dippm.estimate.conditions import (
    Conditions,
    Precision,
    RunOptions,
    check_options,
    precision_of,
    usual_values,
)
from dippm.estimate.grid import Grid
from dippm.estimate.place import DEFAULT_DEVICE, DeviceLike, MigLike, Place
from dippm.model.convert import Input
from dippm.model.frontends.registry import object_framework
from dippm.model.graph import ModelGraph

DESCRIBED = ("mode", "timer", "channels_last", "host", "attention")
"""Fields of every description; others are included only if they differ from their defaults."""


class Space:
    """A design space.

    Args:
        architectures: a function that returns a model for its keywords, a model as `dippm.predict`
            takes it ("timm:resnet50", a path, a module), an `Architecture`, or several of these.
        parameters: axis of each keyword: a list of choices, a range, `Ints`, `Floats`.
        input: sizes without the batch, as `dippm.predict` takes them, or a function from the
            parameters to sizes.
        batch: one size, several, a range, or `Ints`.
        precision: one or several precisions.
        device: one or several GPUs, each as `dippm.predict` takes it.
        mig: one or several slices; None is the whole GPU. A slice that a device does not have is
            left out for that device.
        **options: conditions of every design, see `dippm.Options`.

    Attributes:
        architectures: architecture by name.
        axes: axis by name, of those with more than one value.

    Raises:
        ExploreError: if an axis is not valid, or a name occurs twice.
        UnknownNameError: if a device, slice or host is not known.
        ConditionsError: if a batch, precision, mode, timer or attention cannot be predicted.
    """

    def __init__(
        self,
        architectures: Any,
        parameters: Mapping[str, Any] | None = None,
        *,
        input: InputOf = None,
        batch: int | Iterable[int] | Ints = 1,
        precision: str | Iterable[str] = "fp32",
        device: DeviceLike | Sequence[DeviceLike] = DEFAULT_DEVICE,
        mig: MigLike | Sequence[MigLike] = None,
        **options: Unpack[RunOptions],
    ) -> None:
        check_options(options, RunOptions)
        self.architectures = _architectures(architectures, parameters)
        self._input = input
        self._options = options
        self._grid = grid = Grid.of(device, mig, precision, 1, **options)
        self._places = {
            place_name(p.device.name, p.mig.name if p.mig else None): p for p in grid.places
        }
        self._precisions = tuple(dict.fromkeys(map(precision_of, grid.precisions)))
        self._roots: dict[str, Axis] = {
            ARCHITECTURE: Choices(tuple(self.architectures)),
            PLACE: Choices(tuple(self._places)),
            BATCH: axis_of(BATCH, batch),
            PRECISION: Choices(self._precisions),
        }
        self._check_batches()
        grid.points([1], supported=lambda _: ())  # raises: no place supports any precision
        self.axes: dict[str, Axis] = {n: a for n, a in self._roots.items() if a.count != 1}
        for architecture in self.architectures.values():
            for name, axis in architecture.parameters.items():
                if axis.count != 1:
                    self.axes[self.key(architecture, name)] = axis

    @property
    def size(self) -> int | None:
        """Number of designs; None if an axis is continuous."""
        total = 0
        for architecture in self.architectures.values():
            counts = [axis.count for axis in architecture.parameters.values()]
            if None in counts:
                return None
            total += prod(count for count in counts if count is not None)
        shared = (self._roots[name].count for name in (PLACE, BATCH, PRECISION))
        return total * prod(count or 1 for count in shared)

    @property
    def varied(self) -> frozenset[str]:
        """Columns of a design that the space varies, whatever a search tried of them."""
        open_ = {BATCH, PRECISION} & self.axes.keys()
        places = self._places.values()
        open_ |= {"device"} if len({str(place.device) for place in places}) > 1 else set()
        open_ |= {"slice"} if len({str(place.mig) for place in places}) > 1 else set()
        return frozenset(open_ | ({ARCHITECTURE} if len(self.architectures) > 1 else set()))

    @property
    def places(self) -> Mapping[str, Place]:
        """Places (devices and slices) by name."""
        return self._places

    @property
    def batches(self) -> tuple[int, int]:
        """Smallest and largest batch."""
        axis = self._roots[BATCH]
        if isinstance(axis, Choices):
            return min(axis.values), max(axis.values)
        return int(axis.low), int(axis.high)

    def key(self, architecture: Architecture, parameter: str) -> str:
        """Return the name of a parameter of an architecture in the search."""
        several = len(self.architectures) > 1
        return f"{architecture.name}.{parameter}" if several else parameter

    def axes_of(self, architecture: str) -> dict[str, Axis]:
        """Return the axes of an architecture with more than one value."""
        chosen = self.architectures[architecture]
        own = {self.key(chosen, name): axis for name, axis in chosen.parameters.items()}
        shared = {n: a for n, a in self._roots.items() if n != ARCHITECTURE}
        return {name: axis for name, axis in {**own, **shared}.items() if axis.count != 1}

    def design(self, chosen: Mapping[str, Label]) -> Design:
        """Return the design with the chosen labels.

        Raises:
            KeyError: if an axis is missing, or does not have the label.
        """
        architecture = self.architectures[str(self._label(ARCHITECTURE, chosen))]
        labels: dict[str, Label] = {}
        parameters: dict[str, Any] = {}
        for name, axis in architecture.parameters.items():
            key = self.key(architecture, name)
            labels[name] = chosen[key] if axis.count != 1 else _only(axis)
            parameters[name] = axis.value(labels[name])
        place = self._places[str(self._label(PLACE, chosen))]
        batch = self._label(BATCH, chosen)
        assert isinstance(batch, int)
        return Design(
            architecture.name,
            parameters,
            labels,
            place.device.name,
            place.mig.name if place.mig else None,
            batch,
            str(self._label(PRECISION, chosen)),
        )

    def conditions(self, design: Design) -> Conditions:
        """Return the conditions of a design.

        Raises:
            UnsupportedPrecisionError: if its device has no hardware for its precision.
        """
        return self._at(self._places[design.place], design.batch, precision_of(design.precision))

    def every_condition(self) -> Iterator[Conditions]:
        """Yield the conditions of each supported place and precision, at the smallest batch."""
        for place in self._places.values():
            for precision in self._precisions:
                with suppress(UnsupportedPrecisionError):
                    yield self._at(place, self.batches[0], precision)

    def _at(self, place: Place, batch: int, precision: Precision) -> Conditions:
        execution = replace(self._grid.execution, precision=precision)
        return Conditions(place, execution, batch=batch, timer=self._grid.timer)

    def input_of(self, design: Design) -> Input:
        """Return the sizes of a design's input."""
        return self.architectures[design.architecture].input_of(design, self._input)

    def describe(self) -> dict[str, Any]:
        """Describe the space as JSON-ready data, equal for equal spaces."""
        axes = {name: describe_axis(axis) for name, axis in self._roots.items()}
        usual = usual_values(RunOptions)
        same = {**usual, **self._options}
        same["host"] = self._grid.places[0].host
        rest = {n: str(v) for n, v in same.items() if n in DESCRIBED or v != usual[n]}
        own = {
            a.name: {name: describe_axis(axis) for name, axis in a.parameters.items()}
            for a in self.architectures.values()
        }
        given = "a function" if callable(self._input) else str(self._input)
        return {"architectures": own, **axes, **rest, "input": given}

    def _label(self, name: str, chosen: Mapping[str, Label]) -> Label:
        axis = self._roots[name]
        return chosen[name] if axis.count != 1 else _only(axis)

    def _check_batches(self) -> None:
        axis = self._roots[BATCH]
        values = axis.values if isinstance(axis, Choices) else (axis.low, axis.high)
        for batch in values:
            Conditions(batch=batch)


def _only(axis: Axis) -> Label:
    return axis.labels[0] if isinstance(axis, Choices) else axis.low


def _architectures(given: Any, parameters: Mapping[str, Any] | None) -> dict[str, Architecture]:
    one = isinstance(given, str | os.PathLike | ModelGraph | Architecture) or callable(given)
    one = one or object_framework(given) is not None
    listed = [given] if one else list(given)
    if not listed:
        raise ExploreError("a space without architectures", "Give a function, or names of models.")
    if parameters and len(listed) > 1:
        raise ExploreError(
            "parameters of several architectures at once",
            "Give each its own: Architecture.of(function, {...}).",
        )
    found: dict[str, Architecture] = {}
    for item in listed:
        architecture = Architecture.of(item, parameters)
        if architecture.name in found:
            raise ExploreError(
                f"two architectures are called {architecture.name}",
                'Name them: Architecture.of(function, {...}, name="...").',
            )
        found[architecture.name] = architecture
    return found
