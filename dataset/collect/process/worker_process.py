"""`WorkerProcess`: the supervisor's handle of a worker, which may hang or die at any time."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dataset.collect.errors import first_line
from dippm.base.process import Message, Remaining, WorkerDiedError, WorkerPipes
from dippm.measure.protocol import Settings

CHECKOUT = Path(__file__).resolve().parents[3]
LOG_BYTES = 2 * 2**20
"""Maximum size of a log, as libraries may print without end."""
LINE_BYTES = 2**16


class WorkerFailedError(Exception):
    """The worker has become unusable; the message has the reason and its last line on stderr."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of a worker.

    Attributes:
        device: torch's name of the device.
        families: extra registry modules, searched before our own.
        bench: "module:Class" in place of `dippm.measure.run:Bench`, for tests of the collector.
        memory_limit_mb: limit on its data, 0 for none; only for CPUs, because a GPU's driver needs
            more address space than it uses.
        settings: settings of the measurement.
        log: file for its stderr.
    """

    device: str
    families: tuple[str, ...] = ()
    bench: str = ""
    settings: Settings = field(default_factory=Settings)
    memory_limit_mb: int = 0
    log: Path | None = None

    def command(self) -> list[str]:
        """Return the command line."""
        line = [sys.executable, "-m", "dataset.collect.process.worker", "--device", self.device]
        for module in self.families:
            line += ["--families", module]
        if self.bench:
            line += ["--bench", self.bench]
        if self.memory_limit_mb:
            line += ["--memory-limit-mb", str(self.memory_limit_mb)]
        settings = json.dumps(asdict(self.settings))
        return [*line, "--settings", settings, "--parent", str(os.getpid())]


class WorkerProcess:
    """A running worker.

    Args:
        options: options of the worker.
        locks: file descriptors of locks that must outlive the supervisor if the worker does.

    Attributes:
        machine: provenance of its machine, set by `wait_ready`.
    """

    def __init__(self, options: WorkerOptions, locks: Sequence[int] = ()) -> None:
        path = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._log = _Log(options.log)
        self._pipes = WorkerPipes(
            options.command(),
            {**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            inherited=locks,
            keep_log=self._log.add,
        )
        self.machine: Message = {}

    def wait_ready(self, remaining: Remaining) -> None:
        """Wait until the worker has initialised its device.

        Raises:
            TimedOutError: if it takes too long.
            WorkerFailedError: if it cannot be initialised.
        """
        reply = self._read(remaining)
        if reply["event"] != "ready":
            self._pipes.wait(5)  # for its traceback to reach the log
            raise WorkerFailedError(reply["reason"])
        self.machine = reply["machine"]

    def ask(self, request: Message, remaining: Remaining) -> Message:
        """Send a request and return the answer.

        Args:
            request: request as in `dataset.collect.process.worker`.
            remaining: function that returns the remaining seconds, called repeatedly.

        Raises:
            TimedOutError: if no time is left.
            WorkerFailedError: if the worker ended.
        """
        self._pipes.send(request)
        return self._read(remaining)

    def kill(self) -> None:
        """Kill the worker and all its child processes."""
        self._pipes.kill()
        self._log.end()

    def close(self) -> None:
        """Let the worker exit by itself; kill it if it does not."""
        self._pipes.close()
        self._log.end()

    def _read(self, remaining: Remaining) -> Message:
        try:
            return self._pipes.receive(remaining)
        except WorkerDiedError as error:
            if error.code is None:
                raise WorkerFailedError(str(error)) from None
            lines = [line for line in self._pipes.last_words().splitlines() if line.strip()]
            last = first_line(lines[-1]) if lines else "nothing on stderr"
            raise WorkerFailedError(f"{error}; last line on stderr: {last}") from None


class _Log:
    """The log file of workers' output, with the time of each line.

    Args:
        path: path of the file; None for none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._begun = path, b""

    def add(self, chunk: bytes) -> None:
        """Write all complete lines."""
        *lines, self._begun = (self._begun + chunk).split(b"\n")
        self._begun = self._begun[-LINE_BYTES:]
        self._write(lines)

    def end(self) -> None:
        """Write the incomplete last line."""
        begun, self._begun = self._begun, b""
        self._write([begun] if begun else [])

    def _write(self, lines: Sequence[bytes]) -> None:
        if self._path is None or not lines:
            return
        try:
            if not self._path.exists() or self._path.stat().st_size < LOG_BYTES:
                stamp = time.strftime("%H:%M:%S ", time.gmtime()).encode()
                with self._path.open("ab") as file:
                    file.writelines(stamp + line + b"\n" for line in lines)
        except OSError:  # a log must never stop a campaign
            pass
