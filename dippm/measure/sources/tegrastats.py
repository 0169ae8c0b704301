"""Counters of a Jetson board by `tegrastats`, which NVIDIA's system for it brings.

NVML says little there: the GPU has no memory and no board of its own. Lines are read as NVIDIA's
manual has them, of several generations of boards. Not tried on a real one.
"""

from __future__ import annotations

import re
import shutil
import time

from dippm.measure.readings import AbsentSource, Quantity, Readings, Source
from dippm.measure.sources.program_lines import ProgramLines

PERIOD_MS = 100
NO_PROGRAM = "tegrastats is not installed: this is no Jetson board"
WAITING = "tegrastats has not answered yet: read again"


def _field(name: str, unit: str, about: str) -> Quantity:
    return Quantity(name, unit, "device", about)


FIELDS: tuple[tuple[Quantity, str, float, str], ...] = (
    (
        _field("memory_used_mb", "MiB", "memory in use, which processor and GPU share"),
        r"\bRAM (\d+)/\d+MB",
        1.0,
        "tegrastats says no RAM",
    ),
    (
        _field("gpu_percent", "%", "time in which the GPU worked"),
        r"\bGR3D_FREQ (\d+)%",
        1.0,
        "tegrastats says no GR3D_FREQ",
    ),
    (
        _field("gpu_mhz", "MHz", "clock of the GPU, the first of its parts"),
        r"\bGR3D_FREQ \d+%@\[?(\d+)",
        1.0,
        "tegrastats says no clock of the GPU: as root it does",
    ),
    (
        _field("memory_bus_percent", "%", "bandwidth of memory of that at its clock"),
        r"\bEMC_FREQ (\d+)%",
        1.0,
        "tegrastats says no EMC_FREQ: as root it does",
    ),
    (
        _field("gpu_c", "°C", "temperature of the GPU"),
        r"(?i:\bgpu@)(\d+(?:\.\d+)?)C",
        1.0,
        "tegrastats says no temperature of the GPU",
    ),
    (
        _field("power_w", "W", "what the board takes in, now"),
        r"\b(?:VDD_IN|POM_5V_IN) (\d+)(?:mW)?/",
        1e-3,
        "this board measures no power at its input, only at parts of it",
    ),
)
"""Quantity, where it stands in a line, its factor, and what it means if it does not."""
QUANTITIES = tuple(quantity for quantity, *_ in FIELDS)


class TegrastatsSource:
    """A board as a `tegrastats` of our own tells it."""

    name = "tegrastats"
    quantities = QUANTITIES

    def __init__(self, program: str) -> None:
        self._lines = ProgramLines([program, "--interval", str(PERIOD_MS)])
        self._line = ""

    def read(self) -> Readings:
        """Return what `tegrastats` said last; it repeats itself until it has news."""
        now = time.monotonic_ns()
        if self._lines.is_closed:
            return _all(now, "the source is closed")
        for line in filter(bytes.strip, self._lines.read()):
            self._line = line.decode(errors="replace")
        if self._lines.exit_code is not None:
            return _all(now, f"tegrastats ended: {self._line or self._lines.exit_code}")
        return readings_of(self._line, now) if self._line else _all(now, WAITING)

    def close(self) -> None:
        """End our `tegrastats`."""
        self._lines.close()


def readings_of(line: str, time_ns: int) -> Readings:
    """Return what a line of `tegrastats` says.

    Args:
        line: one, whole.
        time_ns: when it was read, monotonic.
    """
    values, absent = {}, {}
    for quantity, pattern, factor, reason in FIELDS:
        found = re.search(pattern, line)
        if found:
            values[quantity.name] = factor * float(found[1])
        else:
            absent[quantity.name] = reason
    return Readings(time_ns, values, absent)


def open_tegrastats() -> Source:
    """Open the counters of the Jetson board that this is, if it is one."""
    program = shutil.which("tegrastats")
    if program is None:
        return AbsentSource(TegrastatsSource.name, QUANTITIES, NO_PROGRAM)
    return TegrastatsSource(program)


def _all(time_ns: int, reason: str) -> Readings:
    return Readings(time_ns, {}, {quantity.name: reason for quantity in QUANTITIES})
