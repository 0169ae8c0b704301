"""`Driver`: the process that searches a study, so that a second one does not join unseen."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that searches a study.

    Attributes:
        host: name of the machine.
        pid: its number there.
        began: when it began, in the kernel's ticks, so that another process of its number is told
            from it; 0 where nothing says it.
    """

    host: str
    pid: int
    began: int

    @classmethod
    def here(cls) -> Driver:
        """Return this process."""
        return cls(socket.gethostname(), os.getpid(), _began(os.getpid()))

    @property
    def is_gone(self) -> bool | None:
        """Whether it has ended; None if it is on another machine."""
        if self.host != socket.gethostname():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return _began(self.pid) != self.began


def _began(pid: int) -> int:
    """Return when a process began; a number that nobody has taken over has the same."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = status.rpartition(")")[2].split()  # the name before may hold anything
        return -1 if fields[0] == "Z" else int(fields[19])
    return 0
