"""`Space`: which architectures, batches, precisions and places are searched.

Batch, precision, device and slice change nothing in an architecture's graph, so they are axes of
their own and never cost a conversion.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

from dippm.decide.exploration.axes import Axis, Choices, Ints, Label, axis_of, described
from dippm.decide.exploration.design import (
    ARCHITECTURE,
    BATCH,
    PLACE,
    PRECISION,
    Architecture,
    Design,
    InputOf,
    place_name,
)
from dippm.decide.exploration.errors import ExploreError
from dippm.devices import Device, MigProfile, host_of
from dippm.errors import UnsupportedPrecisionError
from dippm.estimate.conditions import Attention, Conditions, Mode, Runtime, Timer, precision_of
from dippm.estimate.grid import DEFAULT_DEVICE, ContextLike, DeviceLike, Grid, HostLike
from dippm.model.convert import Input
from dippm.model.frontends.registry import object_framework
from dippm.model.graph import ModelGraph

LATER = ("autograd", "context_mb", "runtime")
"""Fields that a description has only where they are set: studies of before have none."""
UNSET = (None, False, "pytorch")


class Space:
    """What is searched.

    Args:
        architectures: a function that returns a model for its keywords, a model as `dippm.predict`
            takes it ("timm:resnet50", a path, a module), an `Architecture`, or several of these.
        parameters: axes of the function, by keyword: a list of choices, a range, `Ints`, `Floats`.
        input: sizes without the batch, as `dippm.predict` takes them, or a function from the
            parameters to them.
        batch: one size, several, a range, or `Ints`.
        precision: one or several.
        device: one GPU or several, each as `dippm.predict` takes it.
        mig: one slice or several; None is the whole GPU. A slice that one of the devices does not
            have is left out for that device.
        mode: see `Conditions`, as the next six.
        timer: what the latency includes.
        channels_last: memory layout of images.
        host: the machine that launches the kernels.
        attention: "fused" or "unfused".
        autograd: the forward pass keeps what a backward pass would need.
        context_mb: memory of the process beside the allocator.
        runtime: "pytorch", or the engine "tensorrt".

    Attributes:
        architectures: by name.
        axes: that the search varies, by name; what has one value only is none.

    Raises:
        ExploreError: if an axis is none, or names are taken twice.
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
        mig: str | MigProfile | Sequence[str | MigProfile | None] | None = None,
        mode: Mode = "eager",
        timer: Timer = "wall",
        channels_last: bool = False,
        host: HostLike = None,
        attention: Attention = "fused",
        autograd: bool = False,
        context_mb: ContextLike = None,
        runtime: Runtime = "pytorch",
    ) -> None:
        self.architectures = _architectures(architectures, parameters)
        self._input = input
        self._rest: dict[str, Any] = {
            "mode": mode,
            "timer": timer,
            "channels_last": channels_last,
            "host": host_of(host),
            "attention": attention,
            "autograd": autograd,
            "context_mb": context_mb,
            "runtime": runtime,
        }
        grid = Grid.of(device, mig, precision, 1, **self._rest)
        self._places = {place_name(d.name, m.name if m else None): (d, m) for d, m in grid.places}
        self._precisions = tuple(dict.fromkeys(map(precision_of, grid.precisions)))
        self._roots: dict[str, Axis] = {
            ARCHITECTURE: Choices(tuple(self.architectures)),
            PLACE: Choices(tuple(self._places)),
            BATCH: axis_of(BATCH, batch),
            PRECISION: Choices(self._precisions),
        }
        self._check_batches()
        grid.points([1], supported=lambda _: ())  # no place has any of the precisions: an error
        self.axes: dict[str, Axis] = {n: a for n, a in self._roots.items() if a.count != 1}
        for architecture in self.architectures.values():
            for name, axis in architecture.parameters.items():
                if axis.count != 1:
                    self.axes[self.key(architecture, name)] = axis

    @property
    def size(self) -> int | None:
        """How many designs there are; None if an axis has no end."""
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
        """Columns of a design that the space leaves open, whether or not a search tried several."""
        open_ = {BATCH, PRECISION} & self.axes.keys()
        devices, slices = ({str(place[part]) for place in self._places.values()} for part in (0, 1))
        open_ |= {"device"} if len(devices) > 1 else set()
        open_ |= {"slice"} if len(slices) > 1 else set()
        return frozenset(open_ | ({ARCHITECTURE} if len(self.architectures) > 1 else set()))

    @property
    def places(self) -> Mapping[str, tuple[Device, MigProfile | None]]:
        """Devices and slices by name."""
        return self._places

    @property
    def batches(self) -> tuple[int, int]:
        """The least and the greatest batch."""
        axis = self._roots[BATCH]
        if isinstance(axis, Choices):
            return min(axis.values), max(axis.values)
        return int(axis.low), int(axis.high)

    def key(self, architecture: Architecture, parameter: str) -> str:
        """Return what the search calls a parameter of an architecture."""
        several = len(self.architectures) > 1
        return f"{architecture.name}.{parameter}" if several else parameter

    def axes_of(self, architecture: str) -> dict[str, Axis]:
        """Return the axes that a design of an architecture has, those of one value left out."""
        chosen = self.architectures[architecture]
        own = {self.key(chosen, name): axis for name, axis in chosen.parameters.items()}
        shared = {n: a for n, a in self._roots.items() if n != ARCHITECTURE}
        return {name: axis for name, axis in {**own, **shared}.items() if axis.count != 1}

    def design(self, chosen: Mapping[str, Label]) -> Design:
        """Return the design of the labels that were chosen for axes.

        Raises:
            KeyError: if an axis is missing, or a label is none of it.
        """
        architecture = self.architectures[str(self._label(ARCHITECTURE, chosen))]
        labels: dict[str, Label] = {}
        parameters: dict[str, Any] = {}
        for name, axis in architecture.parameters.items():
            key = self.key(architecture, name)
            labels[name] = chosen[key] if axis.count != 1 else _only(axis)
            parameters[name] = axis.value(labels[name])
        device, profile = self._places[str(self._label(PLACE, chosen))]
        batch = self._label(BATCH, chosen)
        assert isinstance(batch, int)
        return Design(
            architecture.name,
            parameters,
            labels,
            device.name,
            profile.name if profile else None,
            batch,
            str(self._label(PRECISION, chosen)),
        )

    def conditions(self, design: Design) -> Conditions:
        """Return the conditions of a design.

        Raises:
            UnsupportedPrecisionError: if its device has no hardware for its precision.
        """
        device, profile = self._places[design.place]
        return Conditions(
            device,
            design.batch,
            precision_of(design.precision),
            mig=profile,
            **self._rest,
        )

    def every_condition(self) -> Iterator[Conditions]:
        """Yield the conditions of each place and precision that go together, at the least batch."""
        for device, profile in self._places.values():
            for precision in self._precisions:
                with suppress(UnsupportedPrecisionError):
                    yield Conditions(device, self.batches[0], precision, mig=profile, **self._rest)

    def input_of(self, design: Design) -> Input:
        """Return the sizes of a design's input."""
        return self.architectures[design.architecture].input_of(design, self._input)

    def describe(self) -> dict[str, Any]:
        """Return what is searched as JSON-ready data, equal for equal spaces."""
        axes = {name: described(axis) for name, axis in self._roots.items()}
        rest = {name: str(value) for name, value in self._rest.items() if name not in LATER}
        rest |= {name: str(self._rest[name]) for name in LATER if self._rest[name] not in UNSET}
        own = {
            a.name: {name: described(axis) for name, axis in a.parameters.items()}
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
        device = next(iter(self._places.values()))[0]
        for batch in values:
            Conditions(device, batch)


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
