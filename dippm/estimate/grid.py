"""Which points a question has: devices, slices, precisions and batches, from their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from dippm import devices
from dippm.devices import Device, HostMachine, MigProfile, host_of
from dippm.devices.device_file import is_device_file
from dippm.devices.imported import find_imported
from dippm.errors import ConditionsError, UnknownNameError
from dippm.estimate.conditions import (
    PRECISIONS,
    Attention,
    Conditions,
    Mode,
    Optimizer,
    Phase,
    Precision,
    Runtime,
    Timer,
    precision_of,
    supported_precisions,
    unsupported,
)

DEFAULT_DEVICE = "A100"
HostLike = str | float | HostMachine | None
"""A class of machines, microseconds per launch as a number or text, or none named."""
ContextLike = str | float | None
"""Memory in MiB as a number or text, a class of software, or none named, see `Conditions`."""
DeviceLike = str | os.PathLike[str] | Device
"""A name of the catalogue, the path of a device file (text that ends in .toml is one), a device."""
ALL_PRECISIONS = "all"


@dataclass(frozen=True, slots=True)
class Refused:
    """A precision that a device of a grid does not have.

    Attributes:
        device: that lacks it.
        precision: that was wanted.
        error: why not.
        asked: False if it was not named, but "all" of them.
    """

    device: Device
    precision: Precision
    error: ConditionsError
    asked: bool


@dataclass(frozen=True, slots=True)
class Grid:
    """Points that differ in place, precision and batch, in this order, the batch fastest.

    Attributes:
        places: devices with None, or with a slice.
        precisions: names; "all" stands for what a device has hardware for.
        batches: sizes.
        mode: of all points, as the next two.
        timer: see `Conditions`.
        channels_last: see `Conditions`.
        host: see `Conditions`.
        attention: see `Conditions`.
        phase: see `Conditions`, as the next two.
        optimizer: of training steps.
        checkpointing: of training steps.
        autograd: see `Conditions`, as the next.
        context_mb: beside the allocator.
        runtime: see `Conditions`.
    """

    places: Sequence[tuple[Device, MigProfile | None]]
    precisions: Sequence[str] = ("fp32",)
    batches: Sequence[int] = (1,)
    mode: Mode = "eager"
    timer: Timer = "wall"
    channels_last: bool = False
    host: HostMachine | None = None
    attention: Attention = "fused"
    phase: Phase = "inference"
    optimizer: Optimizer = "sgd"
    checkpointing: bool = False
    autograd: bool = False
    context_mb: ContextLike = None
    runtime: Runtime = "pytorch"

    @classmethod
    def of(
        cls,
        device: DeviceLike | Iterable[DeviceLike],
        mig: str | MigProfile | Iterable[str | MigProfile | None] | None,
        precision: str | Iterable[str],
        batch: int | Iterable[int],
        **rest: Any,
    ) -> Grid:
        """Return the grid of names, each one or several.

        Raises:
            UnknownNameError: if a device is not known, or none of them has one of the slices.
            ConditionsError: if there is none of a kind.
        """
        asked = {
            "device": _several(device, str | os.PathLike | Device),
            "slice": _several(mig, str | MigProfile | None),
            "precision": _several(precision, str),
            "batch": _several(batch, int),
        }
        for kind, values in asked.items():
            if not values:
                raise ConditionsError(f"no {kind} was given", f"Give one {kind}, or leave it out.")
        places = _places([device_of(d) for d in asked["device"]], asked["slice"])
        return cls(places, tuple(asked["precision"]), tuple(asked["batch"]), **rest)

    def points(
        self,
        batches: Iterable[int] | None = None,
        *,
        supported: Callable[[Device], Iterable[Precision]],
    ) -> list[Conditions]:
        """Return every point that there is; what `refused` returns is none.

        Args:
            batches: others than those of the grid.
            supported: what "all" stands for on a device.

        Raises:
            ConditionsError: if one of them cannot be predicted.
            UnsupportedPrecisionError: if none of the devices has one of the precisions.
        """
        sizes = self.batches if batches is None else tuple(batches)
        found = [
            Conditions(
                gpu,
                batch,
                precision,
                self.mode,
                self.timer,
                mig,
                self.channels_last,
                self.host,
                self.attention,
                self.phase,
                self.optimizer,
                self.checkpointing,
                self.autograd,
                self.context_mb,
                self.runtime,
            )
            for gpu, mig in self.places
            for precision, batch in product(self._precisions(gpu, supported), sizes)
        ]
        if not found:
            raise self.refused(supported)[0].error
        return found

    def refused(self, supported: Callable[[Device], Iterable[Precision]]) -> list[Refused]:
        """Return the precisions that devices of the grid do not have, each with its reason."""
        found = []
        for gpu in self._devices():
            has = supported_precisions(gpu)
            lacking = {p: True for p in self._named() if p not in has}
            if any(map(_is_all, self.precisions)):
                answered = tuple(supported(gpu))
                others = (p for p in PRECISIONS if p not in answered and p not in self._named())
                lacking |= dict.fromkeys(others, False)
            for precision, asked in lacking.items():
                error = _untrained if precision in has else unsupported
                found.append(Refused(gpu, precision, error(gpu, precision), asked))
        return found

    def _precisions(
        self, device: Device, supported: Callable[[Device], Iterable[Precision]]
    ) -> tuple[Precision, ...]:
        found: list[Precision] = []
        for name in self.precisions:
            found += supported(device) if _is_all(name) else [precision_of(name)]
        has = supported_precisions(device)
        return tuple(dict.fromkeys(p for p in found if p in has))

    def _named(self) -> list[Precision]:
        return [precision_of(name) for name in self.precisions if not _is_all(name)]

    def _devices(self) -> list[Device]:
        found: list[Device] = []
        found += (gpu for gpu, _ in self.places if gpu not in found)
        return found


def _untrained(device: Device, precision: Precision) -> ConditionsError:
    return ConditionsError(
        f"the checkpoint for {device.name} was not trained for {precision}",
        "`dippm models` lists the checkpoints; name another one with checkpoint=...",
    )


def _is_all(name: str) -> bool:
    return name.strip().casefold() == ALL_PRECISIONS


def conditions_of(
    device: DeviceLike,
    *,
    batch: int,
    precision: Precision,
    mode: Mode,
    timer: Timer,
    mig: str | MigProfile | None,
    channels_last: bool,
    host: HostLike = None,
    attention: Attention = "fused",
    phase: Phase = "inference",
    optimizer: Optimizer = "sgd",
    checkpointing: bool = False,
    autograd: bool = False,
    context_mb: ContextLike = None,
    runtime: Runtime = "pytorch",
) -> Conditions:
    """Return the conditions that names stand for.

    Raises:
        UnknownNameError: if device, slice or host is not known.
        ConditionsError: if one of the others cannot be predicted.
    """
    gpu = device_of(device)
    where = slice_of(gpu, mig)
    return Conditions(
        gpu,
        batch,
        precision,
        mode,
        timer,
        where,
        channels_last,
        host_of(host),
        attention,
        phase,
        optimizer,
        checkpointing,
        autograd,
        context_mb,
        runtime,
    )


def device_of(device: DeviceLike) -> Device:
    """Return a device, or the one that a name or a device file means.

    A name is one of the catalogue or of an imported device, see `dippm.devices.imported`.

    Raises:
        UnknownNameError: if no device has this name.
        DeviceError: if the file, or a figure of the device, is wrong.
    """
    if isinstance(device, Device):
        return devices.check_device(device)
    if isinstance(device, os.PathLike) or is_device_file(device):
        return devices.read_device(device)
    if not devices.is_catalogued(device) and (imported := find_imported(device)):
        return imported
    return devices.find(device)


def slice_of(device: Device, mig: str | MigProfile | None) -> MigProfile | None:
    """Return the slice of a device that a name means, in any case; None is the whole device.

    Raises:
        UnknownNameError: if the device has none of this name.
    """
    name = _slice_name(mig)
    if name is None:
        return None
    profiles = {profile.name: profile for profile in device.mig_profiles}
    if name not in profiles:
        hint = "" if profiles else f"{device.name} cannot be sliced. `dippm devices` lists slices."
        if name in device.unlisted_mig_profiles:
            hint = (
                f"{name} exists, but its usable memory and SMs are not known here: `nvidia-smi mig "
                '-lgip` lists them, and a device file can have them, device="my_gpu.toml".'
            )
        raise UnknownNameError.of(f"MIG slice of {device.name}", name, profiles, hint)
    return profiles[name]


def _several(value: Any, one: Any) -> list[Any]:
    return [value] if isinstance(value, one) else list(value)


def _places(
    gpus: Sequence[Device], migs: Sequence[str | MigProfile | None]
) -> list[tuple[Device, MigProfile | None]]:
    places: list[tuple[Device, MigProfile | None]] = []
    for mig in migs:
        name = _slice_name(mig)
        owners = [g for g in gpus if name is None or name in {p.name for p in g.mig_profiles}]
        if not owners:
            slice_of(gpus[0], mig)
        places += [(gpu, slice_of(gpu, mig)) for gpu in owners]
    return sorted(places, key=lambda place: gpus.index(place[0]))


def _slice_name(mig: str | MigProfile | None) -> str | None:
    return mig.name if isinstance(mig, MigProfile) else mig and mig.strip().casefold()
