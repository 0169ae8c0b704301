"""Supervise a command in the foreground: signals, terminal, exit, and processes it leaves behind.

With a terminal the command shares our process group, as under `nice` or `time`: signals of the
terminal (Ctrl-C, Ctrl-Z, hang-up) reach it directly, and only signals that another process sends to
us alone are forwarded. Without a terminal the command leads its own group, and every signal that we
get is forwarded to that group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dippm.measure.sources.tree import descendants
from dippm.measure.sources.tree_process import children_by_search
from dippm.runs.store.record import Moment

FORWARDED = tuple(
    getattr(signal, name)
    for name in "SIGHUP SIGINT SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGTERM SIGTSTP SIGCONT".split()
)
INTERRUPTS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
GRACE_S = 5.0
"""Seconds between SIGINT, SIGTERM and SIGKILL when a command has timed out."""
PR_SET_CHILD_SUBREAPER = 36


class NotStartedError(OSError):
    """The command does not exist or may not be executed."""

    def __str__(self) -> str:
        return "command not found" if self.errno == 2 else str(self.strerror)


@dataclass(frozen=True, slots=True)
class CommandExit:
    """How a command ended.

    Attributes:
        code: exit code as in a shell: 128 + n after signal n.
        signal: signal that ended the command, 0 for none.
        at_ns: monotonic time at which the end was noticed.
        cpu_s: CPU time of the command and of all processes that it started: reaped, detached and
            ended, or still running (up to now).
        peak_rss_mb: resident memory of the largest of these processes; None if it is below our own,
            which the system counts in.
        timed_out: whether the time limit was reached.
        interrupted: whether we were asked to end, by a signal or at the terminal.
        daemons: number of detached processes that ended before the command did.
        daemon_cpu_s: CPU time of the daemons, contained in `cpu_s`.
        left_behind: processes that are still running, each "name (pid)".
        left_cpu_s: CPU time of those until now, contained in `cpu_s`.
    """

    code: int
    signal: int
    at_ns: int
    cpu_s: float
    peak_rss_mb: float | None
    timed_out: bool
    interrupted: bool
    daemons: int
    daemon_cpu_s: float
    left_behind: tuple[str, ...]
    left_cpu_s: float


class CommandProcess:
    """A running command.

    Attributes:
        pid: process id.
        started: time of the start.
        helpers: pids of children of ours that do not belong to the command.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        environment: Mapping[str, str],
        *,
        timeout_s: float = 0.0,
        insist: bool = False,
    ) -> None:
        """Start the command.

        Args:
            command: program and arguments.
            environment: environment of the command.
            timeout_s: time limit; 0 for none.
            insist: whether a signal that asks the command to end is followed by stronger ones, and
                a second one by SIGKILL at once, to all processes of its tree.

        Raises:
            NotStartedError: if the command does not exist or may not be executed.
        """
        ignored = {number for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN}
        self._awaited = {*FORWARDED, signal.SIGCHLD} - ignored
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an ignored one would never be awaited
        self._own_group = not _has_terminal()
        self.helpers: set[int] = set()
        self.started = Moment.now()
        try:
            self.pid = os.posix_spawnp(
                command[0],
                command,
                environment,
                setsigmask=before,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
                **({"setpgroup": 0} if self._own_group else {}),  # type: ignore[arg-type]
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise NotStartedError(error.errno, os.strerror(error.errno or 0)) from error
        self._own_rss_kb = _own_peak_kb()
        self._interrupted = False
        self._timed_out = False
        self._daemons, self._daemon_cpu_s = 0, 0.0
        self._insist, self._limited = insist, True
        self._schedule: list[tuple[float, signal.Signals]] = []
        if timeout_s:
            self._schedule = _schedule_signals(
                timeout_s, (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
            )

    def wait(self, child_ended: Callable[[int], None]) -> None:
        """Forward signals until the command has ended; it is not reaped yet.

        Args:
            child_ended: called with the pid of every other child that has ended.
        """
        while not self._reap_children(child_ended):
            left_s = self._schedule[0][0] - time.monotonic() if self._schedule else 3600.0
            if left_s <= 0:
                self._timed_out |= self._limited
                self._send_to_all(self._schedule.pop(0)[1])
                continue
            info = signal.sigtimedwait(self._awaited, left_s)
            if info is not None and info.si_signo != signal.SIGCHLD:
                self._forward(signal.Signals(info.si_signo), by_a_process=info.si_code <= 0)

    def reap(self) -> CommandExit:
        """Reap the command and return how it ended."""
        at_ns = time.monotonic_ns()
        _, status, used = os.wait4(self.pid, 0)
        number = os.waitstatus_to_exitcode(status)
        while self._reap_one():  # detached processes that ended just before
            pass
        left = self._left_behind()
        left_cpu_s = sum(map(used_s, left))
        while info := signal.sigtimedwait(self._awaited, 0):  # sent by the terminal just before
            self._interrupted |= info.si_signo in INTERRUPTS
        return CommandExit(
            code=number if number >= 0 else 128 - number,
            signal=max(0, -number),
            at_ns=at_ns,
            cpu_s=used.ru_utime + used.ru_stime + self._daemon_cpu_s + left_cpu_s,
            peak_rss_mb=used.ru_maxrss / 1024 if used.ru_maxrss > self._own_rss_kb else None,
            timed_out=self._timed_out,
            interrupted=self._interrupted,
            daemons=self._daemons,
            daemon_cpu_s=self._daemon_cpu_s,
            left_behind=tuple(f"{_name(pid)} ({pid})" for pid in left),
            left_cpu_s=left_cpu_s,
        )

    def _reap_one(self, child: int = -1) -> int:
        """Reap this child, or any, if it has ended; return its pid, else 0."""
        try:
            pid, _, used = os.wait4(child, os.WNOHANG)
        except ChildProcessError:
            return 0
        if pid and pid not in self.helpers:
            self._daemons += 1
            self._daemon_cpu_s += used.ru_utime + used.ru_stime
        return pid

    def _reap_children(self, child_ended: Callable[[int], None]) -> bool:
        """Reap ended children except the command; return whether the command has ended."""
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return False
            if found.si_pid == self.pid:
                return True
            child_ended(self._reap_one(found.si_pid))

    def _forward(self, number: signal.Signals, *, by_a_process: bool) -> None:
        if self._insist and number in INTERRUPTS and (self._interrupted or not self._timed_out):
            again = self._interrupted
            steps = (signal.SIGKILL,) if again else (signal.SIGTERM, signal.SIGKILL)
            self._schedule = _schedule_signals(0 if again else GRACE_S, steps)
            self._limited = False
        self._interrupted |= number in INTERRUPTS
        if by_a_process or self._own_group:
            self._send(number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)  # SIGCONT resumes us here and is forwarded

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._own_group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    def _send_to_all(self, number: signal.Signals) -> None:
        """Send a signal to every process of the tree, detached ones included."""
        self._send(number)
        for pid in {*self._left_behind(), *(descendants(self.pid) - {self.pid})}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if not self._own_group or os.getpgid(pid) != self.pid:
                    os.kill(pid, number)

    def _left_behind(self) -> list[int]:
        """Return the orphans of the command that we adopted, and their descendants."""
        by_parent = children_by_search()
        found, apart = [], {self.pid, *self.helpers}
        waiting = [os.getpid()]
        while waiting:
            children = [pid for pid in by_parent.get(waiting.pop(), ()) if pid not in apart]
            found += children
            waiting += children
        return sorted(found)


def _schedule_signals(
    after_s: float, signals: tuple[signal.Signals, ...]
) -> list[tuple[float, signal.Signals]]:
    """Return the time of each signal: the first after `after_s`, the others `GRACE_S` apart."""
    start = time.monotonic() + after_s
    return [(start + n * GRACE_S, step) for n, step in enumerate(signals)]


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, where the system supports it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _has_terminal() -> bool:
    """Return whether a terminal controls us, and so may send signals to our group."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _own_peak_kb() -> int:
    """Return our own peak memory: the kernel counts it for a child until the child calls exec.

    `getrusage` would include the program that called exec before us.
    """
    with open("/proc/self/status", encoding="utf-8") as file:
        sizes = [line.split()[1] for line in file if line.startswith("VmHWM:")]
    return int(sizes[0]) if sizes else 0


def used_s(pid: int) -> float:
    """Return the CPU time of a process and of its reaped children, 0 once it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "ended"
