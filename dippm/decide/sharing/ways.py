"""Modes in which processes share a GPU, and checks of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from dippm.base.written import is_finite
from dippm.devices import Device, MigProfile, arrange, places
from dippm.errors import ConditionsError, ConstraintError, UnknownNameError
from dippm.estimate.place import slice_of

Way = Literal["time-slicing", "mps", "mig"]
WAYS: tuple[Way, ...] = get_args(Way)
MOST_PROCESSES = 48
"""Clients of an MPS server, from Volta on."""
MOST_BEFORE_VOLTA = 16
"""Clients of an MPS server before Volta."""
VOLTA = 7.0
"""Compute capability from which MPS limits the threads of clients."""


def way_of(name: str) -> Way:
    """Return the sharing mode of a name; case and "_" for "-" do not matter.

    Raises:
        UnknownNameError: if there is no such mode.
    """
    folded = str(name).strip().casefold().replace("_", "-")
    found = next((way for way in WAYS if way == folded), None)
    if found is None:
        raise UnknownNameError.of("way to share a GPU", name, WAYS)
    return found


def check_copies(copies: int) -> None:
    """Refuse a number of copies that is not a whole number from 1.

    Raises:
        ConstraintError: if it is not.
    """
    if isinstance(copies, bool) or not isinstance(copies, int) or copies < 1:
        raise ConstraintError(f"copies is {copies!r}", "Give a whole number, at least 1.")


def check_count(processes: int) -> None:
    """Refuse an empty set, and one with more processes than a GPU allows.

    Raises:
        ConstraintError: if the number is out of range.
    """
    if not 0 < processes <= MOST_PROCESSES:
        raise ConstraintError(
            f"{processes} processes cannot share a GPU",
            f"Give 1 to {MOST_PROCESSES} models, copies counted.",
        )


def check_mps(device: Device, clients: int) -> None:
    """Refuse MPS on a GPU of another vendor, and more clients than it has before Volta.

    Raises:
        ConditionsError: if it is one.
    """
    if device.is_of_another_vendor:
        raise ConditionsError(
            f"MPS runs on NVIDIA GPUs, and {device.name} is not one",
            "Ask for sharing=time-slicing.",
        )
    if _is_before_volta(device) and clients > MOST_BEFORE_VOLTA:
        raise ConditionsError(
            f"MPS on {device.name} has at most {MOST_BEFORE_VOLTA} clients, not {clients}",
            f"Give fewer; from Volta on there are {MOST_PROCESSES}.",
        )


def _is_before_volta(device: Device) -> bool:
    return device.compute_capability is not None and device.compute_capability < VOLTA


def check_memory_limits(limits: Sequence[float | None] | None, processes: int, way: Way) -> None:
    """Refuse memory limits of MPS clients that do not go together.

    Raises:
        ConstraintError: if they are given without MPS, are not one per process, or not above 0.
    """
    if limits is None:
        return
    if way != "mps":
        raise ConstraintError(
            f"memory limits of clients apply to MPS, not to {way}",
            "Leave them out, or use sharing=mps.",
        )
    _check_one_each("memory limits", limits, processes)
    for one in limits:
        if one is not None and not (is_finite(one) and one > 0):
            raise ConstraintError(
                f"a memory limit of {one!r} MB is not possible", "Give more than 0, or None."
            )


def _check_one_each(what: str, given: Any, processes: int) -> None:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConstraintError(f"{what} is {given!r}", "Give a list of numbers, one per process.")
    if len(given) != processes:
        raise ConstraintError(
            f"{len(given)} {what} were given for {processes} processes",
            "Give one for each, or none.",
        )


def check_percentages(
    given: Sequence[float] | None, processes: int, way: Way, device: Device
) -> None:
    """Refuse percentages of a GPU's threads that do not go together.

    Raises:
        ConstraintError: if they are given without MPS, are not one per process, are out of range,
            or exceed the whole.
        ConditionsError: if MPS of the GPU has none.
    """
    if given is None:
        return
    if way != "mps":
        raise ConstraintError(
            f"percentages of threads apply to MPS, not to {way}",
            "Leave them out, or use sharing=mps.",
        )
    if _is_before_volta(device):
        raise ConditionsError(
            f"MPS on {device.name} has no percentages of threads: these came with Volta",
            "Leave them out.",
        )
    _check_one_each("percentages", given, processes)
    for one in given:
        if not (is_finite(one) and 0 < one <= 100):
            raise ConstraintError(
                f"{one!r} % of the threads is not possible",
                "Give a number above 0 and at most 100.",
            )
    if sum(given) > 100 + 1e-9:
        raise ConstraintError(
            f"{' + '.join(f'{one:g}' for one in given)} % of the threads are more than 100 %",
            "Give parts of one GPU. MPS itself lets clients overlap: without percentages each may "
            "use all of it.",
        )


def slices_of(
    device: Device, given: Sequence[str] | None, processes: int, way: Way
) -> tuple[MigProfile, ...] | None:
    """Return the slice of each process; None if processes have no slices of their own.

    Raises:
        ConstraintError: if slices are given without MIG, are not one per process, or cannot
            coexist.
        ConditionsError: if the GPU has no slices.
        UnknownNameError: if it has no slice of a name.
    """
    if way != "mig":
        if given is not None:
            raise ConstraintError(
                f"slices of processes apply to MIG, not to {way}",
                "Use sharing=mig, or mig=SLICE for one slice that all of them share.",
            )
        return None
    if not device.mig_profiles:
        raise ConditionsError(
            f"{device.name} has no known MIG slices", "Ask for sharing=mps or time-slicing."
        )
    if given is None or len(given) != processes:
        raise ConstraintError(
            f"{len(given or ())} slices were given for {processes} processes",
            "Name one for each; `dippm mig plan` finds them.",
        )
    found = [slice_of(device, name) for name in given]
    profiles = tuple(profile for profile in found if profile is not None)
    if arrange([profile.name for profile in profiles], places(device)) is None:
        raise ConstraintError(
            f"{' and '.join(map(str, profiles))} do not fit together on {device.name}",
            "Name smaller slices; `dippm mig plan` finds combinations that fit.",
        )
    return profiles


def part_of(device: Device, place: MigProfile | None, percent: float) -> MigProfile:
    """Return a percentage of a GPU's multiprocessors with all of its memory, as a profile."""
    whole = place.sm_count if place else int(device.known("sm_count"))
    return MigProfile(
        f"{percent:g} % threads",
        place.memory_mb if place else device.memory_mb,
        max(1, int(whole * percent / 100)),
        place.compute_slices if place else 1,
        place.memory_slices if place else device.memory_slices,
    )
