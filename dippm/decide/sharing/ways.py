"""Modes in which processes share a GPU, and checks of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from dippm.base.written import is_finite
from dippm.devices import Device, MigProfile, arrange, places
from dippm.errors import ConditionsError, ConstraintError, UnknownNameError
from dippm.estimate.place import slice_of

Way = Literal["time-slicing", "mps", "mig"]
WAYS: tuple[Way, ...] = get_args(Way)
MOST_PROCESSES = 48
"""Clients of an MPS server, from Volta on."""


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


def check_percentages(given: Sequence[float] | None, processes: int, way: Way) -> None:
    """Refuse percentages of a GPU's threads that do not go together.

    Raises:
        ConstraintError: if they are given without MPS, are not one per process, are out of range,
            or exceed the whole.
    """
    if given is None:
        return
    if way != "mps":
        raise ConstraintError(
            f"percentages of threads apply to MPS, not to {way}",
            "Leave them out, or use sharing=mps.",
        )
    if len(given) != processes:
        raise ConstraintError(
            f"{len(given)} percentages were given for {processes} processes",
            "Give one for each, or none.",
        )
    for one in given:
        if not (is_finite(one) and 0 < one <= 100):
            raise ConstraintError(
                f"{one} % of the threads is not possible", "Give more than 0 and at most 100."
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
        raise ConditionsError(f"{device.name} has no known MIG slices", "Ask for sharing=mps.")
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
