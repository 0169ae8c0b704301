"""Run a command as it would run alone, and record the run from another process.

The command inherits stdin, stdout, stderr, the terminal and the environment (with `DIPPM_RUN`, by
which programs join the run). A failure to record never keeps it from running nor changes its exit
code; it is reported on stderr and in the run's tag "trouble".
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from dippm.runs.store.folder import RunFolder
from dippm.runs.store.record import End, Moment, RunStatus, Start, Value
from dippm.runs.tracking.process_supervisor import (
    CommandExit,
    CommandProcess,
    NotStartedError,
    adopt_orphans,
)
from dippm.runs.tracking.run import JOIN_VARIABLE
from dippm.runs.tracking.run_config import RunConfig, read_from_memory, write_to_memory
from dippm.runs.tracking.sidecar_spawn import Sidecar, start_sampler

TIMED_OUT, NOT_FOUND, NOT_EXECUTABLE, NOT_LET = 124, 127, 126, 130
SCHEMA = "dippm.run/1"
"""Schema of the line of JSON; a definition of `dippm/schemas.json`."""
RESTARTS = 3
"""How often a sampler that was killed is started again."""


class Starter(Protocol):
    """Decides when a command starts, and is notified of it: the scheduler of a plan."""

    def hold(self, start: Start, folder: Path | None) -> bool:
        """Wait until the command may start; return False to start nothing and leave no run."""

    def started(self, pid: int) -> None:
        """Take the pid of the started command."""

    def ended(self, document: dict[str, Any]) -> None:
        """Take the document of the ended command, when it is recorded."""


def run_command(config: RunConfig, starter: Starter | None = None) -> int:
    """Run a command to its end, and record it.

    Call it in the main thread of a process with no other children: it waits for all of them.

    Args:
        config: what to run and to record.
        starter: holds the command back until all is ready. With one, a command that was asked to
            end is ended: by SIGTERM and SIGKILL if it goes on, and at once by a second signal.

    Returns:
        The exit code of the command; 128 + n after signal n, 124 after the time limit, 127 or 126
        if it could not be started, 130 if the starter refused or Ctrl-C came first.
    """
    adopt_orphans()
    record = _Record(config)
    try:
        record.attempt(record.open)
        if starter is not None and not starter.hold(*record.opened):
            record.discard()
            return NOT_LET
        child = CommandProcess(
            record.command(),
            record.environment(),
            timeout_s=config.timeout_s,
            insist=starter is not None,
        )
    except NotStartedError as error:
        record.discard()
        _talk(f"{config.command[0]}: {error}")
        return NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE
    except KeyboardInterrupt:  # later ones are forwarded to the command
        record.discard()
        return NOT_LET
    if starter is not None:
        starter.started(child.pid)
    record.attempt(lambda: record.begin(child))
    child.wait(record.look)
    record.attempt(record.samples_end)
    ended = child.reap()
    record.attempt(lambda: record.end(ended))
    if record.trouble:
        _talk(f"not everything of this run was recorded: {record.trouble}")
    code = TIMED_OUT if ended.timed_out else ended.code
    if config.json:
        print(json.dumps({"schema": SCHEMA, **record.document(ended, code)}), flush=True)
    if starter is not None:
        starter.ended(record.document(ended, code))
    return code


class _Record:
    """The recording of the run; without a folder, every method does nothing."""

    def __init__(self, config: RunConfig) -> None:
        self.trouble = ""
        self._config = config
        self._start = config.start()
        self._folder: RunFolder | None = None
        self._sidecar: Sidecar | None = None
        self._child: CommandProcess | None = None
        self._samplers = 0
        self._status: RunStatus = "lost"

    @property
    def opened(self) -> tuple[Start, Path | None]:
        """Record of the start, and the folder if there is one."""
        return self._start, self._folder.path if self._folder else None

    def attempt(self, step: Callable[[], None]) -> None:
        """Attempt a step of recording; the command goes on even if it fails."""
        try:
            step()
        except Exception as error:
            self._note(f"{type(error).__name__}: {error}")

    def command(self) -> tuple[str, ...]:
        """Return the command to start, within a profiler if one is configured."""
        config = self._config
        if not config.profile or self._folder is None:
            return config.command
        from dippm.runs.tracking.profilers import profiled_command

        try:
            return profiled_command(config.profile, config.command, self._folder.path)
        except OSError as error:
            self._note(f"no profile: {error}")
            return config.command

    def environment(self) -> dict[str, str]:
        if self._folder is None:
            return {name: text for name, text in os.environ.items() if name != JOIN_VARIABLE}
        held = {**os.environ, JOIN_VARIABLE: str(self._folder.path)}
        if self._config.profile:
            from dippm.runs.tracking.profilers import profiler_environment

            held |= profiler_environment(self._config.profile, self._config.profile_at)
        return held

    def open(self) -> None:
        self._folder = RunFolder.create(self._start)
        self._sidecar = self._start_sidecar(self._config.command[0])
        self._sidecar.wait_until_ready()

    def discard(self) -> None:
        """Remove the run of a command that was never started."""
        if self._folder is None:
            return
        if self._sidecar is not None and self._sidecar.pid:
            with contextlib.suppress(OSError):
                os.kill(self._sidecar.pid, 9)
        import shutil

        shutil.rmtree(self._folder.path, ignore_errors=True)  # the sidecar may still be writing

    def begin(self, child: CommandProcess) -> None:
        self._child = child
        if self._sidecar is not None:
            child.helpers.add(self._sidecar.pid)
            self._sidecar.watch(child.pid)
        if self._folder is not None:
            self._start = self._start._replace(pid=child.pid, at=child.started)
            self._folder.start(self._start)

    def look(self, pid: int) -> None:
        """Start another sampler if the ended child was ours and was killed."""
        sidecar = self._sidecar
        if sidecar is None or pid != sidecar.pid or self._child is None:
            return
        sidecar.wait_until_ended(0)
        if sidecar.trouble:
            self._note(sidecar.trouble)
        if self._samplers <= RESTARTS:
            self.attempt(self._restart)

    def samples_end(self) -> None:
        if self._sidecar is not None and not self._sidecar.wait_until_ended():
            self._note(self._sidecar.trouble)

    def end(self, ended: CommandExit) -> None:
        self._status = _status(ended)
        if self._folder is None:
            return
        at = Moment.now()
        wall_s = (ended.at_ns - self._start.at.monotonic_ns) / 1e9
        figures = {"command.wall_s": (wall_s, "s"), "command.cpu_s": (ended.cpu_s, "s")}
        if ended.peak_rss_mb is not None:
            figures["command.peak_rss_mb"] = (ended.peak_rss_mb, "MiB")
        if ended.daemons:
            figures["command.daemon_cpu_s"] = (ended.daemon_cpu_s, "s")
        if ended.left_behind:
            figures["command.left_cpu_s"] = (ended.left_cpu_s, "s")
        for name, (number, unit) in figures.items():
            self._folder.value(Value(name, "metric", number, at.monotonic_ns, unit))
        if self._config.profile:
            from dippm.runs.tracking.profilers import why_no_profile

            config = self._config
            if why := why_no_profile(config.profile, config.profile_at, self._folder.path):
                self._note(why)
        tags = {
            "daemons": str(ended.daemons) if ended.daemons else "",
            "left_behind": ", ".join(ended.left_behind),
            "trouble": self.trouble,
        }
        if any(tags.values()):
            self._folder.settings(tags={name: text for name, text in tags.items() if text})
        code = -ended.signal if ended.signal else ended.code
        error = f"ended after {self._config.timeout_s:g} s" if ended.timed_out else ""
        self._folder.end(End(self._status, at, code, error))
        if self._sidecar is not None:
            self._sidecar.close()

    def document(self, ended: CommandExit, code: int) -> dict[str, Any]:
        return {
            "run": self._start.uuid if self._folder else None,
            "name": self._start.name,
            "experiment": self._start.experiment,
            "folder": str(self._folder.path) if self._folder else None,
            "status": self._status,
            "exit_code": code,
            "cpu_s": ended.cpu_s,
            "left_behind": list(ended.left_behind),
            "trouble": self.trouble,
        }

    def _restart(self) -> None:
        assert self._child is not None
        self._sidecar = self._start_sidecar("", self._child.pid)
        self._sidecar.wait_until_ready()
        self._child.helpers.add(self._sidecar.pid)

    def _start_sidecar(self, program: str, pid: int = 0) -> Sidecar:
        assert self._folder is not None
        self._samplers += 1
        return start_sampler(
            self._folder.path,
            self._config,
            pid=pid,
            program=program,
            cwd=self._start.folder,
            number=self._samplers,
        )

    def _note(self, trouble: str) -> None:
        self.trouble = f"{self.trouble}; {trouble}" if self.trouble else trouble


def _status(ended: CommandExit) -> RunStatus:
    if ended.timed_out:
        return "timeout"
    if not ended.code:
        return "finished"
    return "interrupted" if ended.interrupted else "failed"


def _talk(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"dippm: {text}\n")
        sys.stderr.flush()


def become(config: RunConfig) -> None:
    """Replace this process, which has loaded a command line, by a small one that runs the command.

    Raises:
        OSError: if it cannot be started.
    """
    from dippm.base.boot import boot

    # Ctrl-C stays blocked until that process can handle it: a mask outlives exec, a handler not.
    waits = signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    run = f"from dippm.runs.tracking.command import main; main({write_to_memory(config)}, {waits})"
    os.execv(sys.executable, [sys.executable, "-P", "-c", boot(run), *config.command[:1]])


def main(descriptor: int, ctrl_c_waits: bool) -> None:
    """Run the configuration that `become` left in a memory file."""
    try:
        config = read_from_memory(descriptor)
        if ctrl_c_waits:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        code = run_command(config)
    except KeyboardInterrupt:
        code = NOT_LET
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)  # nothing to clean up, and the exit code is the command's
