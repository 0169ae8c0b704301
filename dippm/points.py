"""Which points a question has: devices, slices, precisions and batches, from their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from dippm import devices
from dippm.conditions import Conditions, Mode, Precision, Timer, precision_of
from dippm.devices import Device, MigProfile
from dippm.errors import ConditionsError, UnknownNameError

DEFAULT_DEVICE = "A100"
ALL_PRECISIONS = "all"


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
    """

    places: Sequence[tuple[Device, MigProfile | None]]
    precisions: Sequence[str] = ("fp32",)
    batches: Sequence[int] = (1,)
    mode: Mode = "eager"
    timer: Timer = "wall"
    channels_last: bool = False

    @classmethod
    def of(
        cls,
        device: str | Device | Iterable[str | Device],
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
            "device": _several(device, str | Device),
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
        """Return every point.

        Args:
            batches: others than those of the grid.
            supported: what "all" stands for on a device.

        Raises:
            ConditionsError: if one of them cannot be predicted.
        """
        sizes = self.batches if batches is None else tuple(batches)
        return [
            Conditions(gpu, batch, precision, self.mode, self.timer, mig, self.channels_last)
            for gpu, mig in self.places
            for precision, batch in product(self._precisions(gpu, supported), sizes)
        ]

    def _precisions(
        self, device: Device, supported: Callable[[Device], Iterable[Precision]]
    ) -> tuple[Precision, ...]:
        found: list[Precision] = []
        for name in self.precisions:
            is_all = name.strip().casefold() == ALL_PRECISIONS
            found += supported(device) if is_all else [precision_of(name)]
        return tuple(dict.fromkeys(found))


def conditions_of(
    device: str | Device,
    *,
    batch: int,
    precision: Precision,
    mode: Mode,
    timer: Timer,
    mig: str | MigProfile | None,
    channels_last: bool,
) -> Conditions:
    """Return the conditions that names stand for.

    Raises:
        UnknownNameError: if device or slice is not known.
        ConditionsError: if one of the others cannot be predicted.
    """
    gpu = device_of(device)
    return Conditions(gpu, batch, precision, mode, timer, slice_of(gpu, mig), channels_last)


def device_of(device: str | Device) -> Device:
    """Return a device, or the one that a name means.

    Raises:
        UnknownNameError: if there is none.
    """
    return device if isinstance(device, Device) else devices.find(device)


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
