"""Read counters in a separate process while a workload runs.

    python -m dippm.measure.sampler --pid 4711 --hz 10 --sources tree,nvml@5 --out samples.dippm

The workload is not affected. Sampling ends with the watched process, or on SIGTERM. Nothing heavy
is imported: no numpy, no torch, no Arrow. `dippm.measure.sampler_file.read` reads the file.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dippm.measure.readings import Readings, Source
from dippm.measure.sampler_writer import Writer, anchor
from dippm.measure.sources.registry import OF_A_GPU, OF_A_TREE, open_source

USAGE = (
    "usage: python -m dippm.measure.sampler --pid PID --out FILE [--hz 10] "
    "[--sources tree,nvml@5,gpm:1] [--device INDEX|UUID] [--seconds S] "
    "[--adopter PID]\n"
)
FLUSH_NS = 500_000_000
LOOK_NS = 100_000_000
"""The end of the watched process is noticed at once, at more than 10 Hz after this time."""
OF_THE_KERNEL = {"tree", "processes", "cores", "host", "disks", "rapl"}
"""Sources that need no installed package; others are searched in the package folders."""


class SamplerConfig(NamedTuple):
    """The configuration of a sampler.

    Attributes:
        pid: root of the process tree; its end ends the sampling.
        out: path of the new file.
        hz: ticks per second.
        sources: name and number of ticks between readings; "nvml:1" reads GPU 1 under that name.
        device: index or UUID for sources of a GPU without their own.
        seconds: time limit; 0 for none.
        adopter: process that adopts orphans of the tree; 0 for none.
    """

    pid: int
    out: str
    hz: float = 10.0
    sources: tuple[tuple[str, int], ...] = (("tree", 1),)
    device: str = "0"
    seconds: float = 0.0
    adopter: int = 0


def parse(words: Sequence[str]) -> SamplerConfig:
    """Parse the command line, by hand: argparse would take a megabyte.

    Raises:
        ValueError: if it is invalid, with the reason.
    """
    if len(words) % 2:
        raise ValueError(f"{words[-1]} has no value")
    given = dict(zip(words[::2], words[1::2], strict=True))
    known = {"--pid", "--out", "--hz", "--sources", "--device", "--seconds", "--adopter"}
    unknown = set(given) - known
    if unknown:
        raise ValueError(f"unknown option {', '.join(sorted(unknown))}")
    if not {"--pid", "--out"} <= set(given):
        raise ValueError("a process (PID) and a new file (FILE) are needed")
    hz = float(given.get("--hz", "10"))
    if not 0 < hz <= 1000:
        raise ValueError("hz must be above 0 and at most 1000")
    sources = tuple(_source(text, hz) for text in given.get("--sources", "tree").split(","))
    seconds = float(given.get("--seconds", "0"))
    pid, device = int(given["--pid"]), given.get("--device", "0")
    adopter = int(given.get("--adopter", "0"))
    return SamplerConfig(pid, given["--out"], hz, sources, device, seconds, adopter)


def _source(text: str, hz: float) -> tuple[str, int]:
    name, _, own_hz = text.strip().partition("@")
    return name, max(1, round(hz / float(own_hz))) if own_hz else 1


class Sampler:
    """Reads sources at fixed times and writes their readings."""

    def __init__(
        self, config: SamplerConfig, look: Callable[[Mapping[str, Readings]], None] | None = None
    ) -> None:
        """Open the sources and create the file.

        Args:
            config: configuration.
            look: called with the last readings by source, each time a frame is written.

        Raises:
            OSError: if the file exists or cannot be created.
            UnknownNameError: if a source does not exist.
        """
        self._config = config
        self._look_at = look
        self._last: dict[str, Readings] = {}
        _allow_files()
        self._sources = [self._open(name) for name, _ in config.sources]
        header = {"pid": config.pid, "hz": config.hz, "own_pid": os.getpid()}
        self._writer = Writer(config.out, self._sources, header)
        self._missed = self._look_ns = 0
        self._turns = tuple(enumerate(every for _, every in config.sources))
        self._due = [0] * len(self._sources)
        self._watched: int | None = None
        self._stop, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the workload, whose end we await

    def _open(self, word: str) -> Source:
        name, named, device = word.partition(":")
        if "site" not in sys.modules and name not in OF_THE_KERNEL:
            import site

            site.main()
        where: dict[str, Any] = {}
        if name in OF_A_GPU:
            where["device"] = device or self._config.device
        if name in OF_A_TREE or name == "nvml_processes":
            where["pid"] = self._config.pid
        if name in OF_A_TREE:
            where["exclude"] = (os.getpid(),)  # the workload may be our parent
        if name == "tree" and self._config.adopter:
            where["adopter"] = self._config.adopter
        source = open_source(name, **where)
        return _OfDevice(word, source) if named else source

    def run(self) -> str:
        """Sample until the end, and return its reason.

        Raises:
            OSError: if the file cannot be written.
        """
        self._watched = _watch(self._config.pid)
        period_ns = int(1e9 / self._config.hz)
        start_ns = next_ns = flushed_ns = time.monotonic_ns()
        end_ns = start_ns + int(self._config.seconds * 1e9) if self._config.seconds else 0
        tick, why = 0, ""
        while not why:
            self._read(tick)
            now = time.monotonic_ns()
            if now - flushed_ns >= FLUSH_NS or tick == 0:
                self._writer.flush()
                flushed_ns = now
                if self._look_at is not None:
                    self._look_at(self._last)
            tick, next_ns = tick + 1, next_ns + period_ns
            if now > next_ns:
                late = (now - next_ns) // period_ns + 1
                self._missed += late  # missed ticks are skipped, not made up for
                tick, next_ns = tick + late, next_ns + late * period_ns
            if next_ns < self._look_ns:
                time.sleep((next_ns - now) / 1e9)  # the cheapest wait
            else:
                why = self._look(now, next_ns)
            if end_ns and next_ns >= end_ns:
                why = why or f"{self._config.seconds:g} s have passed"
        self._finish(why)
        return why

    def _read(self, tick: int) -> None:
        """Read the sources that are due at a tick, those of missed ticks included."""
        due = self._due
        for number, every in self._turns:
            if tick >= due[number]:
                due[number] = tick - tick % every + every
                source = self._sources[number]
                self._last[source.name] = readings = source.read()
                self._writer.add(number, readings)

    def _look(self, now: int, until_ns: int) -> str:
        """Wait for a time, or the end of the watched process; return why sampling ends, or ""."""
        self._look_ns = now + LOOK_NS
        awaited = [self._stop, *([] if self._watched is None else [self._watched])]
        left_s = max(0, until_ns - time.monotonic_ns()) / 1e9
        return self._why(select.select(awaited, [], [], left_s)[0], self._watched is None)

    def _why(self, ready: list[int], poll: bool) -> str:
        if self._stop in ready:
            return "SIGTERM"
        if ready or (poll and not _alive(self._config.pid)):
            return "the watched process has ended"
        return ""

    def _finish(self, why: str) -> None:
        self._due = [0] * len(self._sources)
        self._read(0)  # a zombie still has its last figures until it is reaped
        times = os.times()
        cpu_s = times.user + times.system
        self._writer.close({"end": why, "missed": self._missed, "cpu_s": cpu_s, **anchor()})
        for source in self._sources:
            source.close()


class _OfDevice:
    """A source named after its device, so that series of several devices are separate."""

    def __init__(self, name: str, source: Source) -> None:
        self.name = name
        self.quantities = source.quantities
        self.read = source.read
        self.close = source.close


def _allow_files() -> None:
    """Raise the limit of open files to the maximum: each process of a tree takes five."""
    try:
        import resource
    except ImportError:  # not available on this system
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _watch(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, None if unsupported."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main(words: Sequence[str]) -> int:
    """Sample as the command line says; return 0 for success, 1 for I/O and 2 for usage errors."""
    from dippm.errors import DippmError

    try:
        config = parse(words)
        if not _alive(config.pid):
            raise ValueError(f"there is no process {config.pid}")
    except ValueError as error:
        sys.stderr.write(f"sampler: {error}\n{USAGE}")
        return 2
    try:
        Sampler(config).run()
    except (OSError, DippmError) as error:
        sys.stderr.write(f"sampler: stopped, {config.out}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
