"""`Readings` and `Source`: what a counter family says at one moment.

To add a source: write `dippm/measure/sources/<name>.py` with a class that follows `Source`, and
list it in `dippm/measure/sources/registry.py`; from another distribution, register it under the
entry point group "dippm.sources".

Records here and in the sources of CPU and memory are tuples with names: the import of dataclasses
is a fifth of what the sampler's start costs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

Scope = Literal["tree", "host", "device", "slice", "process"]
NOTHING: Mapping[str, str] = MappingProxyType({})


class Quantity(NamedTuple):
    """What a reading means.

    Attributes:
        name: with its unit, for instance "power_w"; "<source>.<name>" is its full name.
        unit: for people, for instance "W".
        scope: whose it is: the run's process tree, the host, a whole device, a slice of one, or
            this process.
        about: one line.
        counter: whether it only grows (energy, CPU seconds): differences mean something, single
            values do not.
    """

    name: str
    unit: str
    scope: Scope
    about: str
    counter: bool = False


class Absent(NamedTuple):
    """Stands where a value would stand; never 0, never -1.

    Attributes:
        reason: why there is no value, with the remedy if there is one.
    """

    reason: str


class Readings(NamedTuple):
    """What one source said at one moment.

    The sampler makes hundreds a second, and a frozen dataclass takes thrice as long as a tuple.

    Attributes:
        time_ns: `time.monotonic_ns()` when it was read.
        values: by name of the quantity; what could not be had is missing here.
        absent: reason by name of the quantity, for exactly the quantities without a value.
    """

    time_ns: int
    values: Mapping[str, float]
    absent: Mapping[str, str] = NOTHING

    def get(self, name: str) -> float | Absent:
        """Return the value of a quantity, or why it has none."""
        if name in self.values:
            return self.values[name]
        return Absent(self.absent.get(name, f"no {name} is read here"))


class Source(Protocol):
    """One family of counters; it never raises for a counter that this machine lacks."""

    @property
    def name(self) -> str:
        """Name of the family, for instance "nvml"."""
        ...

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """Everything that `read` gives a value or a reason for."""
        ...

    def read(self) -> Readings:
        """Return one value or one reason for each quantity."""
        ...

    def close(self) -> None:
        """Release what the source holds; reading after it gives reasons, not errors."""
        ...


class AbsentSource(NamedTuple):
    """The source of a machine that lacks these counters: every quantity is absent, with a reason.

    Attributes:
        name: of the family that is missing.
        quantities: what it would have given.
        reason: why not, with the remedy if there is one.
    """

    name: str
    quantities: tuple[Quantity, ...]
    reason: str

    def read(self) -> Readings:
        """Return the reason for every quantity."""
        absent = {quantity.name: self.reason for quantity in self.quantities}
        return Readings(time.monotonic_ns(), {}, absent)

    def close(self) -> None:
        """Nothing is held."""
