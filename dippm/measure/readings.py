"""`Readings` and `Source`: the values of a family of counters at one moment.

To add a source: write `dippm/measure/sources/<name>.py` with a class that follows `Source`, and
list it in `dippm/measure/sources/registry.py`; from another distribution, register it under the
entry point group "dippm.sources".

Records here and in the sources of CPU and memory are named tuples: importing dataclasses would take
a fifth of the sampler's start-up time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

Scope = Literal["tree", "host", "device", "slice", "process"]
NOTHING: Mapping[str, str] = MappingProxyType({})


class Quantity(NamedTuple):
    """The meaning of a value.

    Attributes:
        name: name with its unit, for instance "power_w"; "<source>.<name>" is the full name.
        unit: unit for display, for instance "W".
        scope: what is measured: the run's process tree, the host, a whole device, a slice of one,
            or this process.
        about: description in one line.
        counter: whether it is cumulative (energy, CPU seconds): only differences are meaningful.
    """

    name: str
    unit: str
    scope: Scope
    about: str
    counter: bool = False


class Absent(NamedTuple):
    """Takes the place of a missing value; never 0, never -1.

    Attributes:
        reason: reason for the absence, with a remedy if there is one.
    """

    reason: str


class Readings(NamedTuple):
    """The values of one source at one moment.

    The sampler creates hundreds per second, and a frozen dataclass takes three times as long.

    Attributes:
        time_ns: `time.monotonic_ns()` of the reading.
        values: values by name of the quantity, without the absent ones.
        absent: reasons by name of the quantity, for exactly the absent ones.
    """

    time_ns: int
    values: Mapping[str, float]
    absent: Mapping[str, str] = NOTHING

    def get(self, name: str) -> float | Absent:
        """Return the value of a quantity, or the reason for its absence."""
        if name in self.values:
            return self.values[name]
        return Absent(self.absent.get(name, f"no {name} is read here"))


class Source(Protocol):
    """One family of counters; it never raises for counters that this machine lacks."""

    @property
    def name(self) -> str:
        """Name of the family, for instance "nvml"."""
        ...

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """All quantities that `read` gives a value or a reason for."""
        ...

    def read(self) -> Readings:
        """Return one value or one reason for each quantity."""
        ...

    def close(self) -> None:
        """Release all resources; later readings give reasons, not errors."""
        ...


class AbsentSource(NamedTuple):
    """The source for a machine without these counters: every quantity is absent, with a reason.

    Attributes:
        name: name of the missing family.
        quantities: quantities of the family.
        reason: reason for the absence, with a remedy if there is one.
    """

    name: str
    quantities: tuple[Quantity, ...]
    reason: str

    def read(self) -> Readings:
        """Return the reason for every quantity."""
        absent = {quantity.name: self.reason for quantity in self.quantities}
        return Readings(time.monotonic_ns(), {}, absent)

    def close(self) -> None:
        """Do nothing: there are no resources."""
