"""MIG slices: the smallest one that holds a model, its shares of the GPU, and valid placements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dippm.devices.catalog import find
from dippm.devices.device import Device, MigProfile

SEED_DEVICE = "A100-40GB"
SEED_LIMITS_MB = {"1g.5gb": 5_000, "2g.10gb": 10_000, "3g.20gb": 20_000, "7g.40gb": 40_000}
"""Device and upper limits of Eq. 2 of D3.5."""


def smallest_profile(memory_mb: float, device: Device) -> MigProfile | None:
    """Return the smallest slice of a device whose usable memory holds a model.

    A model of exactly the usable memory fits. Of two slices with the same memory, the one with
    fewer SMs is taken, so that most of the GPU stays free.

    Args:
        memory_mb: memory of the model in MiB.
        device: GPU; its `unlisted_mig_profiles` are not considered.

    Returns:
        None if no slice with known memory suffices, or the GPU has no slices.

    Raises:
        ValueError: if the memory is negative or not a number.
    """
    _check(memory_mb)
    fitting = [p for p in device.mig_profiles if memory_mb <= p.memory_mb]
    return min(fitting, key=lambda p: (p.memory_mb, p.sm_count), default=None)


def seed_profile(memory_mb: float) -> MigProfile | None:
    """Return the slice of an A100-40GB by Eq. 2 of D3.5, with nominal limits and four profiles.

    Eq. 2 leaves the limits themselves undefined (5 GB is neither below nor above); here each
    limit belongs to the smaller profile, and "gb" is 1000 MB, which reproduces the
    percentages of D3.5's Table 4 (2918 MB is 58 % of 5 GB, 30996 MB is 77 % of 40 GB). As in
    Eq. 2, 0 gives None. For a decision use `smallest_profile`: a real 1g.5gb has 4864 MB, not 5000.

    Args:
        memory_mb: memory predicted for the whole GPU.

    Raises:
        ValueError: if the memory is negative or not a number.
    """
    _check(memory_mb)
    names = (name for name, limit in SEED_LIMITS_MB.items() if 0 < memory_mb <= limit)
    chosen = next(names, None)
    profiles = {profile.name: profile for profile in find(SEED_DEVICE).mig_profiles}
    return profiles[chosen] if chosen else None


def sm_fraction(profile: MigProfile, device: Device) -> float:
    """Return the fraction of the GPU's SMs in a slice, 0 to 1.

    It differs from the nominal k/7 in both directions (98 of 108 for 7g on an A100).
    """
    return profile.sm_count / device.known("sm_count")


def memory_fraction(profile: MigProfile, device: Device) -> float:
    """Return the fraction of the GPU's bandwidth and L2 in a slice, 0 to 1."""
    return profile.memory_slices / device.memory_slices


def taken_fraction(profile: MigProfile, device: Device) -> float:
    """Return the dominant share of a slice, 0 to 1.

    It is the larger of its fractions of compute and memory slices (Ghodsi et al. 2011): a 3g slice
    has 3 of 7 compute slices and 4 of 8 memory slices, so no more than two fit.
    """
    compute = max(p.compute_slices for p in device.mig_profiles)
    return max(profile.compute_slices / compute, memory_fraction(profile, device))


def _check(memory_mb: float) -> None:
    if math.isnan(memory_mb) or memory_mb < 0:
        raise ValueError(f"memory is {memory_mb} MB; it must be 0 or more")


# Placement of MIG slices on a GPU: valid positions of each profile, and sets that can coexist.
#
# A slice occupies consecutive memory slices. It starts at a multiple of its own length, where
# enough compute slices follow; two slices can coexist if they share no memory slice. This gives the
# placements that drivers list (`nvidia-smi mig -lgipp`): on GPUs with 7 compute and 8 memory slices
# 1g at 0 to 6, 1g of double memory at 0, 2, 4, 6, 2g at 0, 2, 4, 3g at 0, 4, 4g and 7g at 0. At run
# time the driver's own list is used.


class Placement(NamedTuple):
    """A MIG slice at a position.

    Attributes:
        profile: name of the profile, such as "3g.20gb".
        start: first memory slice.
        size: number of memory slices.
    """

    profile: str
    start: int
    size: int

    def __str__(self) -> str:
        return f"{self.profile} at {self.start}"


Arrangement = tuple[Placement, ...]


def places(device: Device) -> Arrangement:
    """Return every placement of every MIG profile of a GPU; empty without MIG."""
    compute = max((profile.compute_slices for profile in device.mig_profiles), default=0)
    return tuple(
        Placement(profile.name, start, profile.memory_slices)
        for profile in device.mig_profiles
        for start in range(0, device.memory_slices, max(1, profile.memory_slices))
        if start + profile.compute_slices <= compute
    )


def arrangements(device: Device) -> Iterator[Arrangement]:
    """Yield every valid non-empty set of slices of a GPU: 722 with 7 compute slices.

    Sets that differ only in positions are distinct. Variants of a profile that are not in the
    catalogue ("+me") are not counted.
    """
    yield from (found for found in _extensions((), places(device)) if found)


def maximal_arrangements(device: Device) -> Iterator[Arrangement]:
    """Yield the maximal valid sets, to which no slice can be added: 78 with 7 compute slices."""
    every = places(device)
    for found in arrangements(device):
        if not any(_fits(place, found) for place in every):
            yield found


def arrange(
    wanted: Sequence[str], possible: Iterable[Placement], taken: Iterable[Placement] = ()
) -> Arrangement | None:
    """Return a placement for each of several slices, in their order, so that all can coexist.

    Of several solutions, the one that leaves the most free placements is returned, where placements
    of larger slices count first.

    Args:
        wanted: names of profiles, possibly repeated.
        possible: every placement of every profile, as `places` or a driver lists them.
        taken: existing slices of any profile.

    Returns:
        The placements; None if they do not fit.
    """
    every, there = tuple(possible), tuple(taken)
    order = sorted(range(len(wanted)), key=lambda n: (-_size(wanted[n], every), wanted[n]))
    names = [wanted[n] for n in order]
    best = max(
        _solutions(names, every, there),
        key=lambda way: _free_counts(way + there, every),
        default=None,
    )
    if best is None:
        return None
    by_number = dict(zip(order, best, strict=True))
    return tuple(by_number[number] for number in range(len(wanted)))


def free(possible: Iterable[Placement], taken: Iterable[Placement]) -> Arrangement:
    """Return the placements that are free given existing slices."""
    there = tuple(taken)
    return tuple(place for place in possible if _fits(place, there))


def _solutions(names: list[str], every: Arrangement, there: Arrangement) -> Iterator[Arrangement]:
    """Yield the placements of several profiles that can coexist with existing slices."""
    if not names:
        yield ()
        return
    for place in every:
        if place.profile == names[0] and _fits(place, there):
            # Slices of one profile are interchangeable: the next one lies further right.
            later = tuple(p for p in every if p.profile != place.profile or p.start > place.start)
            for rest in _solutions(names[1:], later, (*there, place)):
                yield (place, *rest)


def _free_counts(there: Arrangement, every: Arrangement) -> tuple[int, ...]:
    """Return the number of free placements by size, the largest size first."""
    left = free(every, there)
    sizes = sorted({place.size for place in every}, reverse=True)
    return tuple(sum(place.size == size for place in left) for size in sizes)


def _extensions(there: Arrangement, rest: Arrangement) -> Iterator[Arrangement]:
    """Yield a set of slices, and all that result from adding placements in order."""
    yield there
    for number, place in enumerate(rest):
        if _fits(place, there):
            yield from _extensions((*there, place), rest[number + 1 :])


def _fits(place: Placement, there: Arrangement) -> bool:
    """Return whether a placement shares no memory slice with existing slices."""
    end = place.start + place.size
    return all(end <= other.start or other.start + other.size <= place.start for other in there)


def _size(profile: str, every: Arrangement) -> int:
    return max((place.size for place in every if place.profile == profile), default=0)
