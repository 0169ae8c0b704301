"""Counters of a Jetson board by NVIDIA's `tegrastats`.

NVML offers little there: the GPU has neither memory nor a board of its own. The format is that of
NVIDIA's manual for several generations of boards. Not tested on a real board.
"""

from __future__ import annotations

import re
import shutil
import time

from dippm.measure.readings import AbsentSource, Quantity, Readings, Source
from dippm.measure.sources.program_lines import ProgramLines

PERIOD_MS = 100
NO_PROGRAM = "tegrastats is not installed: this is not a Jetson board"
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
"""Quantity, pattern in a line, factor, and the reason if it does not match."""
QUANTITIES = tuple(quantity for quantity, *_ in FIELDS)


class TegrastatsSource:
    """A board, read by our own `tegrastats` process."""

    name = "tegrastats"
    quantities = QUANTITIES

    def __init__(self, program: str) -> None:
        self._lines = ProgramLines([program, "--interval", str(PERIOD_MS)])
        self._line = ""

    def read(self) -> Readings:
        """Return the last values of `tegrastats`, repeated until there are new ones."""
        now = time.monotonic_ns()
        if self._lines.is_closed:
            return _all(now, "the source is closed")
        for line in filter(bytes.strip, self._lines.read()):
            self._line = line.decode(errors="replace")
        if self._lines.exit_code is not None:
            return _all(now, f"tegrastats ended: {self._line or self._lines.exit_code}")
        return readings_of(self._line, now) if self._line else _all(now, WAITING)

    def close(self) -> None:
        """Terminate our `tegrastats` process."""
        self._lines.close()


def readings_of(line: str, time_ns: int) -> Readings:
    """Return the values in a line of `tegrastats`.

    Args:
        line: one complete line.
        time_ns: monotonic time at which it was read.
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
    """Open the counters of this machine if it is a Jetson board."""
    program = shutil.which("tegrastats")
    if program is None:
        return AbsentSource(TegrastatsSource.name, QUANTITIES, NO_PROGRAM)
    return TegrastatsSource(program)


def _all(time_ns: int, reason: str) -> Readings:
    return Readings(time_ns, {}, {quantity.name: reason for quantity in QUANTITIES})
