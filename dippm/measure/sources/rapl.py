"""Energy of CPU packages and memory, by RAPL through Linux' powercap."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dippm.measure.readings import AbsentSource, Quantity, Source
from dippm.measure.sources.calls import Calls, CounterCall, CounterSource, NotHere

FOLDER = Path("/sys/class/powercap")
QUANTITIES = (
    Quantity("package_energy_j", "J", "host", "of all CPU packages", counter=True),
    Quantity("dram_energy_j", "J", "host", "of the memory at all packages", counter=True),
)
NO_POWERCAP = (
    "no powercap in sysfs: a virtual machine, or the kernel's intel_rapl_msr is not loaded "
    "(modprobe intel_rapl_msr)"
)
NO_ZONE = {
    "package_energy_j": "no zone of a CPU package in powercap (modprobe intel_rapl_msr)",
    "dram_energy_j": "this CPU does not count the energy of its memory",
}


@dataclass(slots=True)
class Zone:
    """A counter that wraps around at `range_uj`.

    Attributes:
        file: file with micro-joules.
        range_uj: value at which it wraps around.
        last_uj: previous value, None before the first reading.
        sum_uj: energy since the first reading.
    """

    file: Path
    range_uj: int
    last_uj: int | None = None
    sum_uj: int = 0

    def read_uj(self) -> int:
        """Return micro-joules since the first reading; two wraps between readings count as one."""
        now = int(self.file.read_text())
        if self.last_uj is not None:
            step = now - self.last_uj
            self.sum_uj += step if step >= 0 else step + self.range_uj
        self.last_uj = now
        return self.sum_uj


class RaplSource(CounterSource):
    """Energy of the host's CPUs since the source was opened."""

    name = "rapl"
    quantities = QUANTITIES

    def __init__(self, folder: Path) -> None:
        zones = _zones(folder)
        calls = []
        for quantity, kind in zip(QUANTITIES, ("package", "dram"), strict=True):
            mine = [zone for name, zone in zones if name.startswith(kind)]
            calls.append(CounterCall((quantity,), partial(_sum, mine, quantity)))
        self._calls = Calls(self.name, calls)
        self._calls.read()  # the first values are the zero of the counters


def open_rapl(folder: str | os.PathLike[str] = FOLDER) -> Source:
    """Open the energy counters below `folder`."""
    if not any(Path(folder).glob("intel-rapl:*")):
        return AbsentSource(RaplSource.name, QUANTITIES, NO_POWERCAP)
    return RaplSource(Path(folder))


def _zones(folder: Path) -> list[tuple[str, Zone]]:
    found = []
    for zone in sorted(folder.glob("intel-rapl:*")):
        try:
            name = (zone / "name").read_text().strip()
            wraps_at = int((zone / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            continue  # a zone without a counter
        found.append((name, Zone(zone / "energy_uj", wraps_at)))
    return found


def _sum(zones: list[Zone], quantity: Quantity) -> tuple[float, ...]:
    if not zones:
        raise NotHere(NO_ZONE[quantity.name], lasts=True)
    try:
        return (sum(zone.read_uj() for zone in zones) / 1e6,)
    except PermissionError as error:
        text = f"only root may read {error.filename}: sudo chmod a+r {error.filename}"
        raise NotHere(text, lasts=True) from None
