"""`Constraint`: limits that designs have to meet, checked for contradictions.

A constraint on memory applies to its 99 % bound, like the choice of a MIG slice. In addition to the
user's constraints, every design has to fit the place that it is predicted for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dippm.base.number_format import show
from dippm.base.written import is_finite
from dippm.decide.exploration.design import Design
from dippm.decide.exploration.errors import ContradictionError, ExploreError
from dippm.decide.exploration.objectives import (
    ALIASES,
    MEMORY,
    QUANTITIES,
    Objective,
    canonical_name,
)
from dippm.decide.exploration.space import Space
from dippm.errors import UnknownNameError
from dippm.estimate.place import slice_of

BOUND = "memory_bound_mb"
FITS = "fits its place"
FORMS = (
    "Give the most that is allowed, (least, most) with None for an open end, or for memory_mb the "
    'name of a MIG slice, such as "1g.5gb".'
)


@dataclass(frozen=True, slots=True)
class Constraint:
    """Limits of one quantity.

    Attributes:
        name: name as the user wrote it.
        quantity: quantity that is limited.
        low: smallest allowed value.
        high: largest allowed value.
    """

    name: str
    quantity: str
    low: float = -math.inf
    high: float = math.inf

    def violation(self, values: Mapping[str, float]) -> float:
        """Return by how much a design misses the limits, relative to them; 0 if it meets them.

        Raises:
            KeyError: if the quantity is not among the values.
        """
        value = values[self.quantity]
        return max(0.0, _excess(value, self.high), _excess(-value, -self.low))

    def __str__(self) -> str:
        what = self.quantity
        if math.isinf(self.low):
            return f"{what} ≤ {show(self.high)}"
        if math.isinf(self.high):
            return f"{what} ≥ {show(self.low)}"
        return f"{show(self.low)} ≤ {what} ≤ {show(self.high)}"


def constraints_of(
    given: Mapping[str, Any] | None, space: Space, objectives: Sequence[Objective]
) -> tuple[Constraint, ...]:
    """Return the constraints that a user specified.

    Args:
        given: limits by name of a quantity or of an objective: a number is the largest allowed
            value, a pair the smallest and the largest.
        space: the design space.
        objectives: objectives of the search.

    Raises:
        UnknownNameError: if there is no such quantity, or no device of the space has the slice.
        ExploreError: if a limit is not valid.
        ContradictionError: if no design of any space can meet them.
    """
    own = [o.name for o in objectives if o.of is not None]
    found = []
    for name, limits in (given or {}).items():
        quantity = name if name in own else canonical_name(str(name))
        if quantity not in QUANTITIES and quantity not in own:
            raise UnknownNameError.of(
                "constraint",
                str(name),
                (*QUANTITIES, *ALIASES, *own),
                f"Known: {', '.join((*QUANTITIES, *own))}.",
            )
        low, high = _limits(str(name), quantity, limits, space)
        held = BOUND if quantity == MEMORY else quantity
        found.append(Constraint(str(name), held, low, high))
    check_consistent(found, space)
    return tuple(found)


def place_of(design: Design, space: Space) -> Constraint:
    """Return the constraint that a design fits the place that it is predicted for."""
    return Constraint(FITS, BOUND, high=space.places[design.place].capacity_mb)


def check_consistent(constraints: Iterable[Constraint], space: Space) -> None:
    """Refuse limits that no design can meet, alone or by what they imply for each other.

    Samples per second are 1000 · batch / latency_ms, energy_j is power_w · latency_ms / 1000, and
    all of them are above 0.

    Raises:
        ContradictionError: if there are such limits; names them.
    """
    allowed = dict.fromkeys(QUANTITIES, (0.0, math.inf))
    said: dict[str, list[str]] = {}
    for one in constraints:
        low, high = allowed.get(one.quantity, (-math.inf, math.inf))
        allowed[one.quantity] = low, high = max(low, one.low), min(high, one.high)
        said.setdefault(one.quantity, []).append(str(one))
        if low > high or (one.quantity in QUANTITIES and high <= 0):
            why = "" if low > high and low > 0 else ": it is above 0"
            raise _contradiction(f"nothing has {' and '.join(said[one.quantity])}{why}")
    least, most = space.batches
    latency = allowed["latency_ms"]
    fewest, highest = _over(1e3 * least, latency[1]), _over(1e3 * most, latency[0])
    speed = allowed["samples_per_s"]
    if speed[1] < fewest or speed[0] > highest:
        raise _contradiction(
            f"{_both(said, 'latency_ms', 'samples_per_s')} cannot both hold at batch "
            f"{least if speed[1] < fewest else most}"
        )
    power, energy = allowed["power_w"], allowed["energy_j"]
    if energy[1] < power[0] * latency[0] / 1e3 or energy[0] > power[1] * latency[1] / 1e3:
        raise _contradiction(
            f"{_both(said, 'energy_j', 'power_w', 'latency_ms')} cannot all hold: energy is power "
            "times latency"
        )


def _limits(name: str, quantity: str, given: Any, space: Space) -> tuple[float, float]:
    if isinstance(given, str):
        if quantity not in (MEMORY, BOUND):
            raise ExploreError(f"{name} cannot be {given!r}", FORMS)
        return -math.inf, _slice_mb(given, space)
    if isinstance(given, tuple | list) and len(given) == 2:
        low, high = given
        if low is None and high is None:
            raise ExploreError(f"{name} has no limit", FORMS)
        return (
            -math.inf if low is None else _number(name, low),
            math.inf if high is None else _number(name, high),
        )
    return -math.inf, _number(name, given)


def _slice_mb(name: str, space: Space) -> float:
    """Return the usable memory of a slice in MiB, the smallest over the devices of the space."""
    devices = {place.device.name: place.device for place in space.places.values()}
    found, error = [], None
    for device in devices.values():
        try:
            profile = slice_of(device, name)
        except UnknownNameError as unknown:
            error = error or unknown
        else:
            assert profile is not None
            found.append(profile.memory_mb)
    if not found:
        assert error is not None
        raise error
    return min(found)


def _number(name: str, given: Any) -> float:
    if not is_finite(given):
        raise ExploreError(f"the limit of {name} is {given!r}", FORMS)
    return float(given)


def _excess(value: float, most: float) -> float:
    """Return the excess of a value over its limit, relative to the limit unless that is 0."""
    return 0.0 if math.isinf(most) else (value - most) / (abs(most) or 1.0)


def _over(number: float, by: float) -> float:
    if math.isinf(by):
        return 0.0
    return number / by if by > 0 else math.inf


def _both(said: Mapping[str, list[str]], *quantities: str) -> str:
    return ", ".join(text for quantity in quantities for text in said.get(quantity, ()))


def _contradiction(what: str) -> ContradictionError:
    return ContradictionError(f"the constraints contradict each other: {what}", "Loosen one.")
