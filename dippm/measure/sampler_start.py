"""Start the sampler from a workload: one system call, no imports."""

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
        pid: process id; it is excluded from the tree that it watches.
        out: path of its file.
    """

    def __init__(self, pid: int, out: str) -> None:
        self.pid = pid
        self.out = out
        self._code: int | None = None

    def wait_until_ready(self, seconds: float = 5.0) -> bool:
        """Wait for the first reading in the file; return False after a timeout."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.poll() is not None:
                return False
            if os.path.exists(self.out) and os.path.getsize(self.out) > 0:
                return True
            time.sleep(0.002)
        return False

    def poll(self) -> int | None:
        """Return the exit code if it has ended: 0 success, 1 I/O error, 2 usage error."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def stop(self) -> int:
        """Let it take a last reading and write the end; return its exit code."""
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
    """Start a sampler for this process.

    Args:
        out: path of its new file.
        pid: root of the tree to watch, by default this process.
        hz: ticks per second.
        sources: names of sources, each with "@HZ" if it is to be read less often.
        device: device for sources of a GPU: NVML index, UUID, or "cuda:N" in torch's numbering.
    """
    if str(device).startswith("cuda"):
        from dippm.measure.sources.nvml_session import torch_uuid

        # The sampler imports no torch, so it could not resolve the device.
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
