"""Start the sidecar of a run from a workload: no thread, and no child that it could wait for.

The words and descriptors of its protocol stand here too, see `dippm.runs.tracking.sidecar`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dippm.base.boot import boot

if TYPE_CHECKING:
    from dippm.runs.tracking.run_config import RunConfig

HEAR, SAY = 3, 4
"""Descriptors of the sidecar for its owner's lines and for its answers."""
TALK = 5
"""Descriptor of the owner's stderr, if it has one, for warnings during the run."""
CLOSED, CLOSED_NOW = "closed", "closed now"
"""Sent when the end of the run is recorded; "now": the owner waits until the store has it."""
LOG = "keeper.log"
"""File in the run's folder with the sidecar's stderr."""
ATTACH_VARIABLE = "DIPPM_ATTACH"
""""no": runs stay in the spool until they are attached by hand, for nodes without access to the
store. "now": each run is attached when it ends, even while other runs are measured."""
START_S = 10.0
END_S = 5.0
DETACH = '"$0" "$@" & exit 0'
"""Shell command that detaches a process: no child of ours, and out of reach of Ctrl-C."""


class SidecarConfig(NamedTuple):
    """The configuration of a sidecar.

    Attributes:
        folder: folder of the run.
        out: path of the new file of samples.
        owner: pid of the process that records how the run ended.
        pid: root of the process tree to sample; 0 if the owner sends it later.
        hz: sampling ticks per second.
        sources: names of sources, each with "@HZ" if it is to be read less often.
        device: NVML index or UUID for sources of a GPU.
        program: program whose packages are recorded; "" if they already are.
        cwd: folder whose git commit is recorded.
        talks: whether the sidecar holds the owner's stderr; set by `start_sidecar`.
    """

    folder: str
    out: str
    owner: int
    pid: int
    hz: float
    sources: tuple[str, ...]
    device: str = "0"
    program: str = ""
    cwd: str = ""
    talks: bool = False


class Sidecar:
    """The owner's handle of a sidecar.

    Attributes:
        pid: process id of the sidecar; 0 before it is ready.
        trouble: reason why sampling stopped early; "" otherwise.
    """

    def __init__(self, hear: int, say: int) -> None:
        self.pid = 0
        self.trouble = ""
        self._hear, self._say = hear, say
        self._heard = b""
        self._over = False

    def wait_until_ready(self, seconds: float = START_S) -> bool:
        """Wait until it has loaded its modules; return False after a timeout."""
        return self._wait("ready", seconds)

    def watch(self, pid: int) -> None:
        """Send it the process to sample."""
        self._tell(f"watch {pid}")

    def stop(self) -> None:
        """Let it take the last readings: for a run that ends before its process."""
        if self.pid and not self._over:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGTERM)

    def wait_until_ended(self, seconds: float = END_S) -> bool:
        """Wait for the last samples; return False, with `trouble`, if they do not come."""
        if self._wait("ended", seconds):
            return True
        self.trouble = self.trouble or (
            "the sampler was killed" if self._over else "the sampler does not end"
        )
        return False

    def close(self, *, wait_s: float = 0.0) -> bool:
        """Tell the sidecar that the end of the run is recorded; it finishes alone.

        Args:
            wait_s: time to wait for it to finish, attaching to the store included.

        Returns:
            Whether the sidecar was waited for and has ended.
        """
        if wait_s and not self.pid:
            self.wait_until_ready(wait_s)
        process = _process(self.pid) if wait_s and self.pid else None
        self._tell(CLOSED_NOW if wait_s else CLOSED)
        for pipe in (self._hear, self._say):
            os.close(pipe)
        if process is None:
            return False
        try:
            return bool(select.select([process], [], [], wait_s)[0])
        finally:
            os.close(process)

    def _tell(self, line: str) -> None:
        """Write to a pipe whose reader may be gone: SIGPIPE must not reach the workload."""
        old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        try:
            os.write(self._say, f"{line}\n".encode())
        except OSError:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)

    def _wait(self, word: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not self._over:
            line, newline, rest = self._heard.partition(b"\n")
            if newline:
                self._heard = rest
                said, _, more = line.decode(errors="replace").partition(" ")
                if said == "ready":
                    self.pid = int(more)
                if said == "failed":
                    self.trouble = more
                    return False
                if said == word:
                    return True
            else:
                left_s = max(0.0, end - time.monotonic())
                if not select.select([self._hear], [], [], left_s)[0]:
                    return False
                piece = os.read(self._hear, 4096)
                self._over = not piece
                self._heard += piece
        return False


def start_sampler(
    folder: Path, config: RunConfig, *, pid: int, program: str, cwd: str, number: int = 1
) -> Sidecar:
    """Start a sidecar that samples a tree of processes into the folder of a run.

    Args:
        folder: folder of the run, which this process ends.
        config: sources and sampling rate.
        pid: root of the tree; 0 if it is sent later.
        program: see `SidecarConfig`.
        cwd: see `SidecarConfig`.
        number: position of the sidecar within the run; each has its own file of samples.

    Raises:
        OSError: if no process can be started here.
    """
    return start_sidecar(
        SidecarConfig(
            folder=str(folder),
            out=str(folder / f"samples-{number}.dippm"),
            owner=os.getpid(),
            pid=pid,
            hz=config.hz,
            sources=config.metrics,
            device=config.device,
            program=program,
            cwd=cwd,
        )
    )


def start_sidecar(config: SidecarConfig) -> Sidecar:
    """Start a sidecar.

    Raises:
        OSError: if no process can be started here.
    """
    if not sys.executable:
        raise OSError("this program does not say which Python it is")
    theirs_hear, ours_say = os.pipe()
    ours_hear, theirs_say = os.pipe()
    # Descriptors 3 and 4 may be taken by the pipes themselves: move theirs out of the way first.
    high = [fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, 10) for pipe in (theirs_hear, theirs_say)]
    os.close(theirs_hear)
    os.close(theirs_say)
    log = str(Path(config.folder) / LOG)
    talks = sys.stderr is not None and _is_open(2)  # a closed 2 may be reused by another file
    actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
        *([(os.POSIX_SPAWN_DUP2, 2, TALK)] if talks else []),
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666),
        (os.POSIX_SPAWN_DUP2, high[0], HEAR),
        (os.POSIX_SPAWN_DUP2, high[1], SAY),
    ]
    run = "from dippm.runs.tracking.sidecar import main; main(sys.argv[1])"
    words = [
        sys.executable,
        "-P",
        "-c",
        boot(run),
        json.dumps(config._replace(talks=talks)._asdict()),
    ]
    try:
        # SIGTERM stays blocked until the sidecar can end cleanly.
        shell = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", DETACH, *words],
            os.environ,
            file_actions=actions,
            setsigmask=[signal.SIGTERM],
            setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD],
        )
    except OSError:
        os.close(ours_hear)
        os.close(ours_say)
        raise
    finally:
        for pipe in high:
            os.close(pipe)
    _reap(shell)
    return Sidecar(ours_hear, ours_say)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _process(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # a workload may reap all its children
        os.waitpid(pid, 0)
