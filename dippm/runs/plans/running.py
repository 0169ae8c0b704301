"""A started row: its process, its reports and its output."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from dippm.base.boot import boot
from dippm.runs.plans.row import PlanRow, Process, Status
from dippm.runs.plans.row_process import StartBarrier
from dippm.runs.plans.workload import end_processes_of
from dippm.runs.tracking.run_config import RunConfig, write_to_memory

NOT_STARTED = (126, 127)
LONGEST_LINE = 1 << 16
AFTER: Mapping[str, Status] = {
    "finished": Status("FINISHED"),
    "timeout": Status("TIMEOUT"),
    "interrupted": Status("INTERRUPTED"),
    "lost": Status("LOST"),
}


class RunningRow:
    """The scheduler's handle of the process of a row.

    Args:
        row: row of the plan.
        letter: letter of its run.
        config: configuration of its run.
        environment: environment of its process.
        barrier: start barrier of its workload.
        show: called with the name and each line that the run prints.

    Attributes:
        ready: whether it has reached the barrier.
        run: uuid of its run, "" before it is ready or if it cannot be recorded.
        folder: folder of its run, likewise.
        over: whether its process has ended.
    """

    def __init__(
        self,
        row: PlanRow,
        letter: str,
        config: RunConfig,
        environment: Mapping[str, str],
        barrier: StartBarrier,
        show: Callable[[str, str], None],
    ) -> None:
        self.row, self.letter = row, letter
        self.ready, self.run, self.folder, self.over = False, "", "", False
        self._show, self._heard, self._printed = show, b"", b""
        self._ended: dict[str, Any] | None = None
        self._signals = 0
        report, theirs = os.pipe()
        held = write_to_memory(config)
        ours = (held, barrier.theirs, theirs)
        words = ", ".join(map(str, (*ours, os.getpid())))
        run = f"from dippm.runs.plans.row_process import main; main({words})"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", boot(run), config.command[0]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=ours,
                start_new_session=True,  # the terminal's signals reach it only through us
            )
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(held)
            os.close(theirs)
        assert self._process.stdout is not None
        self.report, self.output = report, self._process.stdout.fileno()
        for handle in (self.report, self.output):
            os.set_blocking(handle, False)
        self.process = Process.of(self._process.pid)

    @property
    def shown_name(self) -> str:
        """Prefix of its lines."""
        return f"{self.row.workload} {self.letter}"

    def read_reports(self) -> bool:
        """Read its reports; return False at their end."""
        piece = _read(self.report)
        while piece:
            self._heard += piece
            piece = _read(self.report)
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            self._apply_report(json.loads(line))
        return piece is None

    def print(self) -> bool:
        """Show the output of the run line by line; return False at its end."""
        piece = _read(self.output)
        self._printed += piece or b""
        *lines, self._printed = self._printed.split(b"\n")
        if self._printed and (piece == b"" or len(self._printed) > LONGEST_LINE):
            lines, self._printed = [*lines, self._printed], b""
        for line in lines:
            self._show(self.shown_name, line.decode(errors="replace").rstrip("\r"))
        return piece != b""

    def request_end(self) -> None:
        """Ask it to end; the second time it ends at once, the third time it is killed."""
        self._signals += 1
        with contextlib.suppress(ProcessLookupError):
            if not self.over:
                steps = (signal.SIGINT, signal.SIGTERM)
                number = steps[self._signals - 1] if self._signals <= 2 else signal.SIGKILL
                os.kill(self._process.pid, number)

    def end(self) -> Status:
        """Reap its process and return the final status of the row.

        After an early end, all processes of the run are killed.
        """
        code = self._process.wait()
        while self.print() and self._readable():
            pass
        for handle in (self.report, self.output):
            with contextlib.suppress(OSError):
                os.close(handle)
        self._process.stdout = None
        self.over = True
        status = self._status(code)
        if self.folder and status.word not in ("FINISHED", "FAILED"):
            end_processes_of(self.folder)
        return status

    def _readable(self) -> bool:
        return bool(select.select([self.output], [], [], 0)[0])

    def _status(self, code: int) -> Status:
        if self._ended is None:
            if code in NOT_STARTED:
                self.run = ""
                return Status("FAILED", str(code))
            return Status("INTERRUPTED" if self._signals and code >= 0 else "LOST")
        if self._signals:
            return AFTER["interrupted"]
        word = self._ended["status"]
        return AFTER.get(word, Status("FAILED", str(self._ended["exit_code"])))

    def _apply_report(self, said: Mapping[str, Any]) -> None:
        if "ready" in said:
            self.ready, self.run, self.folder = True, said["ready"], said["folder"]
        elif "ended" in said:
            self._ended = said["ended"]


def _read(handle: int) -> bytes | None:
    """Return available data, None if there is none yet, b"" at the end."""
    try:
        return os.read(handle, 1 << 16)
    except BlockingIOError:
        return None


def environment_of(seat: Mapping[str, str], group: str, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a row's process, with unbuffered output."""
    return {"PYTHONUNBUFFERED": "1", **base, "DIPPM_GROUP": group, **seat}
