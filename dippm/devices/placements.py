"""Placement of MIG slices on a GPU: valid positions of each profile, and sets that can coexist.

A slice occupies consecutive memory slices. It starts at a multiple of its own length, where enough
compute slices follow; two slices can coexist if they share no memory slice. This gives the
placements that drivers list (`nvidia-smi mig -lgipp`): on GPUs with 7 compute and 8 memory slices
1g at 0 to 6, 1g of double memory at 0, 2, 4, 6, 2g at 0, 2, 4, 3g at 0, 4, 4g and 7g at 0. At run
time the driver's own list is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dippm.devices.device import Device


class Placement(NamedTuple):
    """A MIG slice at a position.

    Attributes:
        profile: name of the profile, for instance "3g.20gb".
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
    yield from (found for found in _extend((), places(device)) if found)


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

    Of several solutions, the one is taken that leaves the most placements, largest slices first.

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
    best = max(_ways(names, every, there), key=lambda way: _room(way + there, every), default=None)
    if best is None:
        return None
    by_number = dict(zip(order, best, strict=True))
    return tuple(by_number[number] for number in range(len(wanted)))


def free(possible: Iterable[Placement], taken: Iterable[Placement]) -> Arrangement:
    """Return the placements that are free given existing slices."""
    there = tuple(taken)
    return tuple(place for place in possible if _fits(place, there))


def _ways(names: list[str], every: Arrangement, there: Arrangement) -> Iterator[Arrangement]:
    if not names:
        yield ()
        return
    for place in every:
        if place.profile == names[0] and _fits(place, there):
            # Slices of one profile are interchangeable: the next one lies further right.
            later = tuple(p for p in every if p.profile != place.profile or p.start > place.start)
            for rest in _ways(names[1:], later, (*there, place)):
                yield (place, *rest)


def _room(there: Arrangement, every: Arrangement) -> tuple[int, ...]:
    left = free(every, there)
    sizes = sorted({place.size for place in every}, reverse=True)
    return tuple(sum(place.size == size for place in left) for size in sizes)


def _extend(there: Arrangement, rest: Arrangement) -> Iterator[Arrangement]:
    yield there
    for number, place in enumerate(rest):
        if _fits(place, there):
            yield from _extend((*there, place), rest[number + 1 :])


def _fits(place: Placement, there: Arrangement) -> bool:
    end = place.start + place.size
    return all(end <= other.start or other.start + other.size <= place.start for other in there)


def _size(profile: str, every: Arrangement) -> int:
    return max((place.size for place in every if place.profile == profile), default=0)
