"""Bytes and transfers of each disk of the machine."""

from __future__ import annotations

import os
from pathlib import Path

from dippm.measure.readings import AbsentSource, Quantity, Source
from dippm.measure.sources.calls import Calls, CounterCall, CounterSource, NotHere, limit_cost
from dippm.measure.sources.host import SECTOR_MB, real_devices

NONE = "the kernel shows no disk here, as in some containers"
TOTAL = "total"


class DisksSource(CounterSource):
    """Whole disks in /proc/diskstats, and their sum, without partitions."""

    name = "disks"

    def __init__(self, proc: Path, disks: tuple[str, ...]) -> None:
        self._proc = proc
        self._disks = disks
        self.quantities = _quantities((*disks, TOTAL))
        self._calls = Calls(self.name, [CounterCall(self.quantities, limit_cost(self._count))])

    def _count(self) -> tuple[float, ...]:
        found = _counts(self._proc)
        gone = [disk for disk in self._disks if disk not in found]
        if gone:
            raise NotHere(f"the disk {gone[0]} is gone")
        counts = [found[disk] for disk in self._disks]
        total = [sum(column) for column in zip(*counts, strict=True)]
        return tuple(count for of_disk in (*counts, total) for count in of_disk)


def open_disks(
    proc: str | os.PathLike[str] = "/proc", sys: str | os.PathLike[str] = "/sys"
) -> Source:
    """Open the counters of the current disks."""
    try:
        counted = _counts(Path(proc))
        disks = tuple(sorted(real_devices(Path(sys) / "block") & set(counted)))
    except OSError as error:
        return AbsentSource(DisksSource.name, _quantities((TOTAL,)), f"{error.filename} is missing")
    if not disks:
        return AbsentSource(DisksSource.name, _quantities((TOTAL,)), NONE)
    return DisksSource(Path(proc), disks)


def _quantities(disks: tuple[str, ...]) -> tuple[Quantity, ...]:
    return tuple(
        Quantity(f"{disk}_{what}", unit, "host", about, counter=True)
        for disk in disks
        for what, unit, about in (
            ("transfers", "transfers", "reads and writes that the disk ended"),
            ("read_mb", "MiB", "from it"),
            ("written_mb", "MiB", "to it"),
        )
    )


def _counts(proc: Path) -> dict[str, tuple[float, float, float]]:
    found = {}
    for line in (proc / "diskstats").read_text().splitlines():
        fields = line.split()
        read, sectors_read, written, sectors_written = (int(fields[n]) for n in (3, 5, 7, 9))
        found[fields[2]] = (
            float(read + written),
            sectors_read * SECTOR_MB,
            sectors_written * SECTOR_MB,
        )
    return found
