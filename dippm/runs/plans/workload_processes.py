"""Processes of a run: every one that was started with the run in its environment.

They are found whatever group, session or parent they have, and no process of anybody else is taken
for one of them: its number may have been given anew, the folder of a run is not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from dippm.runs.tracking.run import JOIN_VARIABLE

TIRELESS_S = 5.0
"""Processes that start others while they are ended: so long they are followed."""


def processes_of(folder: str) -> list[int]:
    """Return the processes that the command of a run has started, itself among them."""
    mark = os.fsencode(f"{JOIN_VARIABLE}={folder}")
    return [pid for pid in _all() if mark in _environment(pid)]


def end_processes_of(folder: str) -> int:
    """Kill every process of a run; return how many there were."""
    end = time.monotonic() + TIRELESS_S
    killed: set[int] = set()
    while (found := processes_of(folder)) and time.monotonic() < end:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
        time.sleep(0.01)
    return len(killed)


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    """Return the environment of a process; none of one that has ended or is somebody else's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
