"""`Place`: device, slice and host of a run, and how each of them is named."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from math import nan
from numbers import Real
from typing import Any, Literal, cast, get_args

from dippm import devices
from dippm.base.written import decimal_number
from dippm.devices import Device, HostMachine, MigProfile, host_of
from dippm.devices.device_file import find_imported, is_device_file
from dippm.errors import ConditionsError, UnknownNameError, shortened

DEFAULT_DEVICE = "A100"
DeviceLike = str | os.PathLike[str] | Device
"""A name of the catalogue, the path of a device file (text that ends in .toml is one), a device."""
MigLike = str | MigProfile | None
"""A slice by name or as an object; None for the whole GPU."""
HostLike = str | float | HostMachine | None
"""A class of machines, microseconds per launch as a number or text, or None."""
ContextLike = str | float | None
"""Memory in MiB as a number or text, a class of `SOFTWARE_CLASSES`, or None."""
SoftwareClass = Literal["cuda-10", "cuda-11", "lazy"]
SOFTWARE_CLASSES: tuple[SoftwareClass, ...] = get_args(SoftwareClass)
"""Generations of CUDA and torch, by the memory that a process takes besides its tensors:

    cuda-10  CUDA 10: Volta, Turing and older
    cuda-11  CUDA 11.0 to 11.6, torch up to 1.12: a library loads all of its kernels at once
    lazy     CUDA 11.7 and newer with torch 1.13 and newer: kernels are loaded when they are used
"""
MAX_CONTEXT_MB = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Place:
    """The device, slice and host of a run, which decide kernel times and available memory.

    The host and the context are part of it, and not of `Execution`: they belong to the machine and
    to its software, are the same for every model that runs there, and launch no other kernels.

    Attributes:
        device: the GPU; a name or a device file is looked up.
        mig: slice of the device, None for the whole GPU; a name is looked up.
        host: machine that launches the kernels, by class or by microseconds per launch; None to
            let the predictor assume one and say which.
        context_mb: memory in MiB that the process takes besides PyTorch's allocator, or a class of
            `SOFTWARE_CLASSES` that stands for it; None to let the predictor assume a class
            and says which.

    Raises:
        UnknownNameError: if device, slice or host is not known.
        HostError: if the host is no launch time.
        ConditionsError: if the context is no memory.
    """

    device: Device
    mig: MigProfile | None = None
    host: HostMachine | None = None
    context_mb: float | str | None = None

    def __post_init__(self) -> None:
        device, mig = cast(DeviceLike, self.device), cast(MigLike, self.mig)
        if not isinstance(device, Device):
            object.__setattr__(self, "device", device_of(device))
        if mig is not None and not isinstance(mig, MigProfile):
            object.__setattr__(self, "mig", slice_of(self.device, mig))
        object.__setattr__(self, "host", host_of(self.host))
        object.__setattr__(self, "context_mb", context_of(self.context_mb))

    @classmethod
    def of(
        cls,
        device: DeviceLike = DEFAULT_DEVICE,
        mig: MigLike = None,
        host: HostLike = None,
        context_mb: ContextLike = None,
    ) -> Place:
        """Return the place of names, its device and its slice checked.

        Raises:
            DeviceError: if a device file, or a figure of the device, is wrong.
            DippmError: as `Place`.
        """
        gpu = device_of(device)
        given: Any = {"host": host, "context_mb": context_mb}
        return cls(gpu, slice_of(gpu, mig), **given)

    @property
    def name(self) -> str:
        """The name of the GPU, followed by that of the slice."""
        return f"{self.device.name} {self.mig}" if self.mig else self.device.name

    @property
    def capacity_mb(self) -> int:
        """Memory of the GPU in MiB, or usable memory of the slice."""
        return self.mig.memory_mb if self.mig else self.device.memory_mb


def device_of(device: DeviceLike) -> Device:
    """Return a device, or the one that a name or a device file means.

    A name is one of the catalogue or of an imported device, see `dippm.devices.device_file`.

    Raises:
        UnknownNameError: if no device has this name.
        DeviceError: if the file, or a figure of the device, is wrong.
    """
    if isinstance(device, Device):
        return devices.check_device(device)
    if isinstance(device, os.PathLike) or is_device_file(device):
        return devices.read_device(device)
    if not isinstance(device, str):
        raise UnknownNameError(
            f"the device is a {type(device).__module__}.{type(device).__qualname__}, not a name",
            'Name a GPU, device="A100" (`dippm devices` lists them), or give a device file.',
        )
    if not devices.is_catalogued(device) and (imported := find_imported(device)):
        return imported
    return devices.find(device)


def slice_of(device: Device, mig: MigLike) -> MigProfile | None:
    """Return the slice of a device that a name means, in any case; None is the whole device.

    Raises:
        UnknownNameError: if the device has none of this name.
    """
    if mig is not None and not isinstance(mig, str | MigProfile):
        raise UnknownNameError(
            f"the slice is a {type(mig).__qualname__}, not a name",
            'Name a MIG slice, mig="3g.20gb"; `dippm devices` lists those of each GPU.',
        )
    name = slice_name(mig)
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


def context_of(context: Any) -> float | str | None:
    """Return the context that a number of MiB, text of one, or a class of software means.

    Raises:
        ConditionsError: if it means none.
    """
    if context is None:
        return None
    number, shown = nan, type(context).__name__
    if isinstance(context, str):
        shown = shortened(context)
        folded = shown.strip().casefold()
        if folded in SOFTWARE_CLASSES:
            return folded
        with suppress(ValueError):
            number = decimal_number(folded.removesuffix("mib").removesuffix("mb"))
    elif not isinstance(context, bool) and isinstance(context, Real):
        given: Any = context  # a whole number may be too large for a float, or for print
        within = -MAX_CONTEXT_MB <= given <= MAX_CONTEXT_MB
        number, shown = (float(given), f"{given}") if within else (nan, "out of range")
    if not 0 <= number <= MAX_CONTEXT_MB:
        close = get_close_matches(shown.strip().casefold(), SOFTWARE_CLASSES, n=1)
        guess = f"Did you mean {close[0]}? " if close else ""
        raise ConditionsError(
            f"context_mb is {shown!r}: no memory in MiB, and no class of software",
            f"{guess}Give MiB, 0 to {MAX_CONTEXT_MB:,.0f}, or one of "
            f"{', '.join(SOFTWARE_CLASSES)}; `dippm doctor` measures it where a GPU is.",
        )
    return number


def slice_name(mig: MigLike) -> str | None:
    """Return the name of a slice, folded; None for the whole device."""
    return mig.name if isinstance(mig, MigProfile) else mig and mig.strip().casefold()
