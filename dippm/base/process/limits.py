"""Limits that a worker process sets for itself, and the guard that cleans up after it.

The limits are on memory, size of files, CPU time, time, and the lifetime of the parent process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1
LONGEST_S = 1e8
"""Maximum duration of a timer in s: three years."""


def limit_memory(limit_mb: int) -> None:
    """Limit the private memory of this process; on Linux only."""
    if sys.platform != "linux":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = min(limit_mb << 20, hard if hard >= 0 else sys.maxsize)  # -1 is "no limit"
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_files(limit_mb: int) -> None:
    """Limit the size of each file that this process writes."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    given = [limit for limit in (soft, hard) if limit >= 0]  # -1 is "no limit"
    most = min(limit_mb << 20, *given, sys.maxsize)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def cpu_limit_s() -> int | None:
    """Return the limit of CPU time of this process in s; None without one."""
    if sys.platform == "win32":
        return None
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    return hard if 0 <= hard < LONGEST_S else None


def end_before_cpu_limit() -> None:
    """Let SIGXCPU end this process one second before its limit of CPU time.

    The limit itself ends it with SIGKILL, which could not be told from a lack of memory.
    """
    hard = cpu_limit_s()
    if hard is None:
        return
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_CPU)
    early = max(hard - 1, 1)
    resource.setrlimit(resource.RLIMIT_CPU, (early if soft < 0 else min(soft, early), hard))


def end_after_cpu(seconds: int) -> None:
    """Let the kernel end this process after further CPU time, without a core file."""
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    most = int(usage.ru_utime + usage.ru_stime) + seconds
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    most = most if hard < 0 else min(most, hard)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def end_after(seconds: float | None) -> None:
    """Let the kernel end this process after some time, busy or not; None disables it.

    Each call replaces the previous one.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, min(seconds or 0.0, LONGEST_S))


def follow_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Receive a signal when the thread that started this process ends; on Linux only.

    Args:
        parent: id of the thread's process.
        number: signal to receive.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


# The guard: a small process that cleans up after a worker when the caller has ended.

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
