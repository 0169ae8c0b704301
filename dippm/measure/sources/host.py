"""CPU, memory, disk and network use of the whole machine, and the name of its processor."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from dippm.measure.readings import Quantity, Source
from dippm.measure.sources.calls import Calls, CounterCall, CounterSource, NotHere, limit_cost

SECTOR_MB = 512 / 2**20
WINDOW_NS = 500_000_000
QUANTITIES = (
    Quantity("cpu_percent", "%", "host", "of all cores together, mean of the last half second"),
    Quantity("memory_used_mb", "MiB", "host", "total less available"),
    Quantity("memory_available_mb", "MiB", "host", "what a new program could have"),
    Quantity("swap_used_mb", "MiB", "host", "in use"),
    Quantity("disk_read_mb", "MiB", "host", "from all disks", counter=True),
    Quantity("disk_written_mb", "MiB", "host", "to all disks", counter=True),
    Quantity("network_rx_mb", "MiB", "host", "received, without loopback", counter=True),
    Quantity("network_tx_mb", "MiB", "host", "sent, without loopback", counter=True),
    Quantity("load", "processes", "host", "runnable, mean of the last minute"),
    Quantity("memory_total_mb", "MiB", "host", "capacity"),
    Quantity("memory_free_mb", "MiB", "host", "used for nothing at all"),
    Quantity("memory_shared_mb", "MiB", "host", "files in memory, and what processes share"),
    Quantity("memory_buffers_mb", "MiB", "host", "blocks of disks that are kept"),
    Quantity("memory_cached_mb", "MiB", "host", "files that are kept, and tables that can go"),
    Quantity("swap_total_mb", "MiB", "host", "capacity"),
    Quantity("swap_free_mb", "MiB", "host", "not in use"),
)
PARTS = {
    "memory_total_mb": (b"MemTotal",),
    "memory_free_mb": (b"MemFree",),
    "memory_shared_mb": (b"Shmem",),
    "memory_buffers_mb": (b"Buffers",),
    "memory_cached_mb": (b"Cached", b"SReclaimable"),
    "swap_total_mb": (b"SwapTotal",),
    "swap_free_mb": (b"SwapFree",),
}
"""Lines of /proc/meminfo that add up to a quantity."""


class HostSource(CounterSource):
    """Counters of the machine in /proc; reading each file costs at most 0.2 % of a core."""

    name = "host"
    quantities = QUANTITIES

    def __init__(self, proc: Path, sys: Path) -> None:
        by_name = {quantity.name: quantity for quantity in QUANTITIES}
        cpu = _Cpu(proc / "stat")
        readers: tuple[tuple[str, Callable[[], tuple[float, ...]]], ...] = (
            ("cpu_percent", cpu.read),
            ("memory_used_mb memory_available_mb swap_used_mb", lambda: _memory(proc)),
            ("disk_read_mb disk_written_mb", lambda: _disks(proc, sys)),
            ("network_rx_mb network_tx_mb", lambda: _network(proc, sys)),
            ("load", lambda: _load(proc)),
            (" ".join(PARTS), lambda: _memory_parts(proc)),
        )
        self._calls = Calls(
            self.name,
            [
                CounterCall(tuple(by_name[name] for name in names.split()), limit_cost(reader))
                for names, reader in readers
            ],
        )


def open_host(
    proc: str | os.PathLike[str] = "/proc", sys: str | os.PathLike[str] = "/sys"
) -> Source:
    """Open the machine's counters."""
    return HostSource(Path(proc), Path(sys))


class _Cpu:
    """CPU utilisation of all cores together, over the last half second."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._history: deque[tuple[int, int, int]] = deque()

    def read(self) -> tuple[float, ...]:
        with self._file.open("rb") as file:
            times = [int(ticks) for ticks in file.readline().split()[1:9]]
        now, idle = time.monotonic_ns(), times[3] + times[4]
        history = self._history
        history.append((now, sum(times), idle))
        while len(history) > 2 and now - history[1][0] >= WINDOW_NS:
            history.popleft()
        then, all_before, idle_before = history[0]
        passed = sum(times) - all_before
        if now - then < WINDOW_NS or passed <= 0:
            raise NotSettled
        return (100 * (1 - (idle - idle_before) / passed),)


class NotSettled(NotHere):
    """Signals that a mean has too few readings so far."""

    def __init__(self) -> None:
        super().__init__("a mean over half a second: read again")


def _sizes_mb(proc: Path) -> dict[bytes, float]:
    sizes = {}
    for line in (proc / "meminfo").read_bytes().splitlines():
        name, _, size = line.partition(b":")
        sizes[name] = int(size.split()[0]) / 1024
    return sizes


def _memory(proc: Path) -> tuple[float, ...]:
    sizes = _sizes_mb(proc)
    available = sizes[b"MemAvailable"]
    swapped = sizes.get(b"SwapTotal", 0.0) - sizes.get(b"SwapFree", 0.0)
    return sizes[b"MemTotal"] - available, available, swapped


def _memory_parts(proc: Path) -> tuple[float, ...]:
    sizes = _sizes_mb(proc)
    missing = [name for names in PARTS.values() for name in names if name not in sizes]
    if missing:
        raise NotHere(f"/proc/meminfo has no {missing[0].decode()}", lasts=True)
    return tuple(sum(sizes[name] for name in names) for names in PARTS.values())


def _disks(proc: Path, sys: Path) -> tuple[float, ...]:
    """Return MiB read and written, summed over whole disks.

    Partitions and layered devices would count the same bytes again.
    """
    real = real_devices(sys / "block")
    read = written = 0
    for line in (proc / "diskstats").read_text().splitlines():
        fields = line.split()
        if fields[2] in real:
            read += int(fields[5])
            written += int(fields[9])
    return read * SECTOR_MB, written * SECTOR_MB


def _network(proc: Path, sys: Path) -> tuple[float, ...]:
    real = real_devices(sys / "class" / "net") - {"lo"}
    received = sent = 0
    for line in (proc / "net" / "dev").read_text().splitlines()[2:]:
        name, _, counts = line.partition(":")
        if name.strip() in real:
            fields = counts.split()
            received += int(fields[0])
            sent += int(fields[8])
    return received / 2**20, sent / 2**20


def real_devices(folder: Path) -> set[str]:
    """Return the physical (or virtualised) devices of a folder; all if there are none."""
    names = {entry.name for entry in folder.iterdir()}
    real = {name for name in names if (folder / name / "device").exists()}
    return real or names


def _load(proc: Path) -> tuple[float, ...]:
    return (float((proc / "loadavg").read_text().split()[0]),)


# The host's processor.


def cpu_name() -> str:
    """Return the model name of the host's processor."""
    import platform  # the sampler has no use for it

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
