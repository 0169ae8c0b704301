"""Start the sampler from inside a workload: one system call, nothing is imported."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

from dippm.base.boot import boot


class SamplerProcess:
    """A running sampler.

    Attributes:
        pid: its process; it is left out of the tree that it watches.
        out: its file.
    """

    def __init__(self, pid: int, out: str) -> None:
        self.pid = pid
        self.out = out
        self._code: int | None = None

    def wait_until_ready(self, seconds: float = 5.0) -> bool:
        """Wait for the first reading in the file; False if none came."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.poll() is not None:
                return False
            if os.path.exists(self.out) and os.path.getsize(self.out) > 0:
                return True
            time.sleep(0.002)
        return False

    def poll(self) -> int | None:
        """Return the exit code if it has ended: 0 well, 1 could not write, 2 made no sense."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def stop(self) -> int:
        """Let it read a last time and write the end; return its exit code."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
            _, status = os.waitpid(self.pid, 0)
            self._code = os.waitstatus_to_exitcode(status)
        return self._code or 0


def start(
    out: str | os.PathLike[str],
    *,
    pid: int | None = None,
    hz: float = 10.0,
    sources: Sequence[str] = ("tree",),
    device: str | int = 0,
) -> SamplerProcess:
    """Start a sampler beside this process.

    Args:
        out: its new file.
        pid: root of the tree to watch, by default this process.
        hz: ticks per second.
        sources: names of sources, each with "@HZ" if it is to be read more rarely.
        device: for sources of a GPU: NVML index, UUID, or "cuda:N" as torch counts here.
    """
    if str(device).startswith("cuda"):
        from dippm.measure.sources.nvml_session import torch_uuid

        # The sampler imports no torch, so it could not tell which device that is.
        device = torch_uuid(int(str(device).partition(":")[2] or 0)) or device
    options = {
        "--pid": pid or os.getpid(),
        "--out": out,
        "--hz": hz,
        "--sources": ",".join(sources),
        "--device": device,
    }
    words = [str(word) for option in options.items() for word in option]
    run = boot("from dippm.measure.sampler import main; sys.exit(main(sys.argv[1:]))")
    command = [sys.executable, "-S", "-P", "-c", run, *words]
    child = os.posix_spawn(sys.executable, command, os.environ)
    return SamplerProcess(child, str(out))
