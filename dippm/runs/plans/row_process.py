"""The process of a row: prepares, waits for the start of its workload, runs the command.

It ends the command if the scheduler is gone, also after kill -9. It reports to the scheduler in
JSON
lines: {"ready": uuid, "folder": path}, {"started": pid}, {"ended": document}.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from dippm.base.process.limits import follow_parent
from dippm.runs.store.record import Start
from dippm.runs.tracking.command import run_command
from dippm.runs.tracking.run_config import read_from_memory

ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Starter:
    """Holds the command back until the workload starts."""

    def __init__(self, barrier: int, report: int) -> None:
        self._barrier, self._report = barrier, report
        self._asked = False
        for number in ASKED:
            signal.signal(number, self._note)

    def hold(self, start: Start, folder: Path | None) -> bool:
        self._say(ready=start.uuid if folder else "", folder=str(folder or ""))
        token = os.read(self._barrier, 1)
        os.close(self._barrier)
        return token == GO and not self._asked

    def started(self, pid: int) -> None:
        self._say(started=pid)

    def ended(self, document: Mapping[str, Any]) -> None:
        self._say(ended=document)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._asked = True

    def _say(self, **words: Any) -> None:
        with contextlib.suppress(OSError):  # the scheduler is gone
            os.write(self._report, json.dumps(words).encode() + b"\n")


def main(config: int, barrier: int, report: int, scheduler: int) -> None:
    """Run the configuration in a memory file; the other descriptors are pipes."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    starter = _Starter(barrier, report)
    follow_parent(scheduler, signal.SIGTERM)
    for handle in (barrier, report):
        os.set_inheritable(handle, False)
    code = run_command(read_from_memory(config), starter)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


# The start signal of a workload: each run takes one byte out of a shared pipe.


GO = b"g"


class StartBarrier:
    """A pipe at which every run of a workload waits.

    Attributes:
        theirs: descriptor that the runs read.
    """

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()

    def open(self, count: int) -> None:
        """Let `count` runs start."""
        os.write(self._ours, GO * count)

    def close(self) -> None:
        """Release the runs that still wait, without starting them."""
        os.close(self.theirs)
        os.close(self._ours)
