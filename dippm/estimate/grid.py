"""`Grid`: the points of a question, from names of devices, slices, precisions and batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Unpack

from dippm.devices import Device, MigProfile, host_of
from dippm.errors import ConditionsError
from dippm.estimate.conditions import (
    PRECISIONS,
    USUAL,
    Conditions,
    Execution,
    Precision,
    RunOptions,
    Timer,
    precision_of,
    supported_precisions,
    unsupported,
)
from dippm.estimate.place import (
    ContextLike,
    DeviceLike,
    HostLike,
    MigLike,
    Place,
    device_of,
    slice_name,
    slice_of,
)

ALL_PRECISIONS = "all"


@dataclass(frozen=True, slots=True)
class Refused:
    """A precision that a device of a grid does not have.

    Attributes:
        device: device without the precision.
        precision: refused precision.
        error: reason for the refusal.
        asked: whether the precision was named; False if it is one of "all".
    """

    device: Device
    precision: Precision
    error: ConditionsError
    asked: bool


@dataclass(frozen=True, slots=True)
class Grid:
    """Points that differ in place, precision and batch, in this order, the batch fastest.

    Attributes:
        places: devices and slices that the model runs on.
        precisions: names; "all" stands for those that a device has hardware for.
        batches: batch sizes.
        execution: execution of every point, but for the precision.
        timer: timer of every point, see `Conditions`.
    """

    places: Sequence[Place]
    precisions: Sequence[str] = ("fp32",)
    batches: Sequence[int] = (1,)
    execution: Execution = USUAL
    timer: Timer = "wall"

    @classmethod
    def of(
        cls,
        device: DeviceLike | Iterable[DeviceLike],
        mig: MigLike | Iterable[MigLike] = None,
        precision: str | Iterable[str] = "fp32",
        batch: int | Iterable[int] = 1,
        **rest: Unpack[RunOptions],
    ) -> Grid:
        """Return the grid of names, each one or several.

        Raises:
            UnknownNameError: if a device is not known, or none of them has one of the slices.
            ConditionsError: if a list is empty, or another option cannot be predicted.
        """
        how: dict[str, Any] = {**rest}
        host, context_mb = how.pop("host", None), how.pop("context_mb", None)
        timer = how.pop("timer", "wall")
        asked = {
            "device": _several(device, str | os.PathLike | Device),
            "slice": _several(mig, str | MigProfile | None),
            "precision": _several(precision, str),
            "batch": _several(batch, int),
        }
        for kind, values in asked.items():
            if not values:
                raise ConditionsError(f"no {kind} was given", f"Give one {kind}, or leave it out.")
        gpus = [device_of(d) for d in asked["device"]]
        places = _places(gpus, asked["slice"], host, context_mb)
        rows = tuple(asked["precision"]), tuple(asked["batch"])
        return cls(places, *rows, Execution(**how), timer)

    def points(
        self,
        batches: Iterable[int] | None = None,
        *,
        supported: Callable[[Device], Iterable[Precision]],
    ) -> list[Conditions]:
        """Return every point that can be predicted, without those that `refused` returns.

        Args:
            batches: batch sizes in place of the grid's; None for the grid's.
            supported: function that returns the precisions that "all" stands for on a device.

        Raises:
            ConditionsError: if one of them cannot be predicted.
            UnsupportedPrecisionError: if none of the devices has one of the precisions.
        """
        sizes = self.batches if batches is None else tuple(batches)
        found = [
            Conditions(place, execution, batch=batch, timer=self.timer)
            for place in self.places
            for execution, batch in product(self._executions(place.device, supported), sizes)
        ]
        if not found:
            raise self.refused(supported)[0].error
        return found

    def refused(self, supported: Callable[[Device], Iterable[Precision]]) -> list[Refused]:
        """Return the precisions that devices of the grid do not have, each with its reason."""
        found = []
        for gpu in self._devices():
            has = supported_precisions(gpu, self.execution.runtime)
            lacking = {p: True for p in self._named() if p not in has}
            if any(map(_is_all, self.precisions)):
                answered = tuple(supported(gpu))
                others = (p for p in PRECISIONS if p not in answered and p not in self._named())
                lacking |= dict.fromkeys(others, False)
            for precision, asked in lacking.items():
                error: ConditionsError = unsupported(gpu, precision, self.execution.runtime)
                if precision in has:
                    error = _untrained(gpu, precision)
                found.append(Refused(gpu, precision, error, asked))
        return found

    def _executions(
        self, device: Device, supported: Callable[[Device], Iterable[Precision]]
    ) -> list[Execution]:
        found: list[Precision] = []
        for name in self.precisions:
            found += supported(device) if _is_all(name) else [precision_of(name)]
        has = supported_precisions(device, self.execution.runtime)
        return [replace(self.execution, precision=p) for p in dict.fromkeys(found) if p in has]

    def _named(self) -> list[Precision]:
        return [precision_of(name) for name in self.precisions if not _is_all(name)]

    def _devices(self) -> list[Device]:
        found: list[Device] = []
        found += (p.device for p in self.places if p.device not in found)
        return found


def _untrained(device: Device, precision: Precision) -> ConditionsError:
    return ConditionsError(
        f"the checkpoint for {device.name} was not trained for {precision}",
        "`dippm models` lists the checkpoints; name another one with checkpoint=...",
    )


def _is_all(name: str) -> bool:
    return name.strip().casefold() == ALL_PRECISIONS


def _several(value: Any, one: Any) -> list[Any]:
    return [value] if isinstance(value, one) else list(value)


def _places(
    gpus: Sequence[Device], migs: Sequence[MigLike], host: HostLike, context_mb: ContextLike
) -> list[Place]:
    places: list[Place] = []
    given: Any = {"host": host_of(host), "context_mb": context_mb}
    for mig in migs:
        name = slice_name(mig)
        owners = [g for g in gpus if name is None or name in {p.name for p in g.mig_profiles}]
        if not owners:
            slice_of(gpus[0], mig)
        places += [Place(gpu, slice_of(gpu, mig), **given) for gpu in owners]
    return sorted(places, key=lambda place: gpus.index(place.device))
