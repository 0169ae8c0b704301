"""`WorkerProcess`: the supervisor's end of a worker, which may hang or die at any moment."""

from __future__ import annotations

import contextlib
import io
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dataset.collect.failures import describe_exit, first_line
from dippm.measure.protocol import Settings

CHECKOUT = Path(__file__).resolve().parent.parent.parent
POLL_S = 0.2
LOG_BYTES = 2 * 2**20
"""A log is for the first failures; libraries may print without end."""
Message = dict[str, Any]
Remaining = Callable[[], float]


class TimedOutError(Exception):
    """No answer came in time."""


class WorkerDiedError(Exception):
    """The worker ended without an answer; the message says how, with its last line on stderr."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a worker is started with.

    Attributes:
        device: as torch names it.
        families: extra registry modules, asked before the own one.
        bench: "module:Class" in place of `dippm.measure.run:Bench`, for tests of the collector.
        memory_limit_mb: limit on its data, 0 for none; a GPU's driver needs more address space
            than it uses, so it is for CPUs.
        settings: of the measurement.
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
        line = [sys.executable, "-m", "dataset.collect.worker", "--device", self.device]
        for module in self.families:
            line += ["--families", module]
        if self.bench:
            line += ["--bench", self.bench]
        if self.memory_limit_mb:
            line += ["--memory-limit-mb", str(self.memory_limit_mb)]
        settings = json.dumps(asdict(self.settings))
        return [*line, "--settings", settings, "--parent", str(os.getpid())]


class WorkerProcess:
    """A running worker in a process group of its own.

    Args:
        options: what to start.
        locks: file descriptors of locks that must outlive the supervisor if the worker does.

    Attributes:
        machine: what it said about where it runs, once `wait_ready` returned.
    """

    def __init__(self, options: WorkerOptions, locks: Sequence[int] = ()) -> None:
        path = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            options.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the supervisor
            pass_fds=locks,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )
        self.machine: Message = {}
        self._buffer = b""
        self._last_lines: deque[str] = deque(maxlen=20)
        self._log = threading.Thread(target=self._keep_log, args=(options.log,), daemon=True)
        self._log.start()

    def wait_ready(self, remaining: Remaining) -> None:
        """Wait until the device is initialised.

        Raises:
            TimedOutError: if it takes too long.
            WorkerDiedError: if it cannot be.
        """
        reply = self._read(remaining)
        if reply["event"] != "ready":
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)  # for its traceback to reach the log
            raise WorkerDiedError(reply["reason"])
        self.machine = reply["machine"]

    def ask(self, request: Message, remaining: Remaining) -> Message:
        """Send a request and return the answer.

        Args:
            request: see `dataset.collect.worker`.
            remaining: seconds that are left, asked for again and again.

        Raises:
            TimedOutError: if no time is left.
            WorkerDiedError: if the worker ended instead.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise self._death() from None
        return self._read(remaining)

    def kill(self) -> None:
        """End it and everything it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # One that waits for a hung driver cannot be killed; the next one will tell.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self._close()

    def close(self) -> None:
        """Let it end by itself; kill it if it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self.kill()

    def _read(self, remaining: Remaining) -> Message:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = remaining()
                if left <= 0:
                    raise TimedOutError
                if not selector.select(min(POLL_S, left)):
                    # A child of a dead worker may keep the pipe open.
                    if self._process.poll() is not None:
                        raise self._death()
                    continue
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise self._death()
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def _death(self) -> WorkerDiedError:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return WorkerDiedError("closed its pipe without an answer")
        self._log.join(timeout=1)
        last = first_line(self._last_lines[-1]) if self._last_lines else "nothing on stderr"
        return WorkerDiedError(f"{describe_exit(code)}; last line on stderr: {last}")

    def _keep_log(self, path: Path | None) -> None:
        """Read stderr to its end, so that the worker never waits for it or fails on a full disk."""
        assert self._process.stderr is not None
        for raw in io.BufferedReader(self._process.stderr):  # type: ignore[type-var]
            text = raw.decode(errors="replace").rstrip()
            if text:
                self._last_lines.append(text)
            if path is not None:
                _append(path, raw)

    def _close(self) -> None:
        self._log.join(timeout=1)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _append(path: Path, line: bytes) -> None:
    try:
        if not path.exists() or path.stat().st_size < LOG_BYTES:
            with path.open("ab") as file:
                stamp = time.strftime("%H:%M:%S ", time.gmtime()).encode()
                file.write(stamp + line)
    except OSError:  # a log must never stop a campaign
        pass
