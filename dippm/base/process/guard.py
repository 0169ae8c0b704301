"""The guard: a small process that cleans up after a worker when the caller has ended."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import IO

PATIENCE_S = 1.0
"""Time in s for a worker to end by itself."""


def start_guard(requests: IO[bytes], folder: Path) -> int:
    """Fork a small process that cleans up when the caller has ended, and return its id.

    The guard waits until the other end of `requests` is closed, by the caller or by its death.
    Then it gives this process a moment to end by itself, kills it with all its children, and
    removes `folder`. A thread of this process could not do that while a converter holds the GIL,
    and PR_SET_PDEATHSIG would leave the folder behind and fire when the caller's thread ends. Call
    this before other threads start.
    """
    worker = os.getpid()
    guard = os.fork()
    if guard:
        return guard
    try:
        os.setpgid(0, 0)  # not killed with the worker; in its session, so its id is not reused
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _keep_only(requests.fileno())
        hung_up = select.poll()
        hung_up.register(requests.fileno(), 0)
        hung_up.poll()
        end = time.monotonic() + PATIENCE_S
        while os.getppid() == worker and time.monotonic() < end:
            time.sleep(0.02)
        _clean_up(worker, folder)
    finally:
        os._exit(0)


def leave_guard(guard: int, folder: Path) -> None:
    """Clean up in place of the guard, and end it: the caller has ended or closed the worker.

    A sandboxed process cannot end it; the guard then ends itself after this process.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)


def _keep_only(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, 1 << 16)


def _clean_up(group: int, folder: Path) -> None:
    """Kill a process group, and remove the folder, into which its last process may still write."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)
