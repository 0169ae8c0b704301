"""A process in /proc, read through descriptors that stay open.

An open file of /proc belongs to one process for good: when the process is gone, reading fails, even
if its pid is reused.
"""

from __future__ import annotations

import errno
import os
import time

TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20 if hasattr(os, "sysconf") else 4096 / 2**20


class Process:
    """The last reading of one process.

    Attributes:
        pid: process id.
        parent: id of its parent at the last reading.
        own_s: CPU seconds of its threads, ended ones included.
        waited_s: CPU seconds of reaped children and their reaped descendants.
        waited_before_s: the same at the previous reading.
        rss_mb: resident memory.
        threads: number of threads.
        started: clock ticks after boot; with `pid` it identifies a process uniquely.
        zombie: whether it has ended and has not been reaped.
        read_mb, written_mb: bytes from and to storage, reaped children included; None if they could
            not be read.
    """

    __slots__ = (
        "_clock",
        "_files",
        "_stat",
        "_statm",
        "own_s",
        "parent",
        "pid",
        "read_mb",
        "rss_mb",
        "started",
        "threads",
        "waited_before_s",
        "waited_s",
        "written_mb",
        "zombie",
    )

    def __init__(self, pid: int) -> None:
        """Open the process.

        Raises:
            OSError: if it does not exist.
        """
        self.pid = pid
        self._files: dict[str, int] = {}
        self._stat = self._statm = -1
        # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of Linux: /proc/PID/stat counts in 10 ms.
        self._clock: int | None = (~pid << 3) | 2
        self.waited_s = self.waited_before_s = self.own_s = 0.0
        self.read_mb: float | None = None
        self.written_mb: float | None = None
        try:
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            self._statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
            if not self.update():
                raise ProcessLookupError(errno.ESRCH, "it has just ended")
        except OSError:
            self.close()
            raise
        self.waited_before_s = self.waited_s

    def update(self) -> bool:
        """Read times and memory; return False if the process is gone."""
        try:
            line = os.pread(self._stat, 1024, 0)
        except ProcessLookupError:
            return False
        if not line:  # returned by other kernels instead of an error
            return False
        # The name in brackets may contain anything, including spaces and brackets.
        fields = line[line.rindex(b")") + 2 :].split(None, 22)
        self.zombie = fields[0] in b"ZX"
        self.parent = int(fields[1])
        self.own_s = self._own_s(fields)
        self.waited_s = (int(fields[13]) + int(fields[14])) * TICK_S
        self.threads = int(fields[17])
        self.started = int(fields[19])
        self.rss_mb = int(fields[21]) * PAGE_MB
        return True

    def update_cpu(self) -> bool:
        """Read CPU time only; return False if the process is gone, or its clock is unreadable.

        The time of reaped children is not updated: it has to be read together with who ended.
        """
        if self._clock is None:
            return False
        try:
            self.own_s = time.clock_gettime(self._clock)
        except OSError:
            return False
        return True

    def update_rss(self) -> float:
        """Read resident memory only and return it, in MiB; 0 if the process is gone."""
        try:
            self.rss_mb = int(os.pread(self._statm, 64, 0).split(None, 2)[1]) * PAGE_MB
        except (OSError, IndexError):
            self.rss_mb = 0.0
        return self.rss_mb

    def _own_s(self, fields: list[bytes]) -> float:
        if self._clock is not None:
            try:
                return time.clock_gettime(self._clock)
            except OSError:
                self._clock = None
        return max(self.own_s, (int(fields[11]) + int(fields[12])) * TICK_S)

    def update_io(self) -> None:
        """Read the bytes from and to storage.

        Raises:
            OSError: if access is denied, or the process is gone.
        """
        text = self._pread("io", 512)
        for line in text.splitlines():
            name, _, count = line.partition(b":")
            if name == b"read_bytes":
                self.read_mb = int(count) / 2**20
            elif name == b"write_bytes":
                self.written_mb = int(count) / 2**20

    def pss_mb(self) -> float:
        """Return the proportional set size, in MiB; costly.

        Raises:
            OSError: if access is denied, or the process is gone.
        """
        for line in self._pread("smaps_rollup", 2048).splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def children(self) -> list[int]:
        """Return the ids of the living children.

        Raises:
            FileNotFoundError: if the kernel does not list children, or the process is gone.
        """
        if self.threads == 1:
            return [
                int(child) for child in self._pread(f"task/{self.pid}/children", 1 << 16).split()
            ]
        found: list[int] = []
        for task in os.listdir(f"/proc/{self.pid}/task"):
            try:
                with open(f"/proc/{self.pid}/task/{task}/children", "rb", buffering=0) as file:
                    found += map(int, (file.read() or b"").split())
            except ProcessLookupError:
                continue  # a thread that has just ended
            except FileNotFoundError:
                if task == str(self.pid):
                    raise
        return found

    def close(self) -> None:
        """Close the descriptors."""
        for file in (self._stat, self._statm, *self._files.values()):
            if file >= 0:
                os.close(file)
        self._files = {}
        self._stat = self._statm = -1

    def _pread(self, name: str, size: int) -> bytes:
        file = self._files.get(name)
        if file is None:
            file = os.open(f"/proc/{self.pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            self._files[name] = file
        return os.pread(file, size, 0)


def children_by_search() -> dict[int, list[int]]:
    """Return the children of every process, for kernels that do not list them."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                line = file.read(1024) or b""
            parent = int(line[line.rindex(b")") + 2 :].split(None, 2)[1])
        except (OSError, ValueError):
            continue
        found.setdefault(parent, []).append(int(name))
    return found
