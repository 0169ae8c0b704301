"""The status of a row, as in a plan's column Status."""

from __future__ import annotations

import os
import re
from typing import Literal, NamedTuple, get_args

from dippm.errors import UnknownNameError

Word = Literal["PENDING", "RUNNING", "FINISHED", "FAILED", "TIMEOUT", "INTERRUPTED", "LOST"]
WORDS: tuple[Word, ...] = get_args(Word)
MLFLOW: dict[str, Word] = {"KILLED": "INTERRUPTED", "SCHEDULED": "LOST"}
"""MLflow's words that radT writes, and ours for them."""


class Status(NamedTuple):
    """The status of a row.

    Attributes:
        word: one of `WORDS`.
        detail: exit code of FAILED, "host:pid:start" of RUNNING, else "".
    """

    word: Word = "PENDING"
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.word} {self.detail}" if self.detail else self.word


_NUMBER = re.compile("[0-9]{1,20}")


class Process(NamedTuple):
    """A process, identified beyond the reuse of its pid.

    Attributes:
        host: name of the machine.
        pid: process id.
        start: clock ticks from boot to its start, independent of changes of the clock.
    """

    host: str
    pid: int
    start: int

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.start}"

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return a process of this machine; its start is 0 if it has ended."""
        return cls(os.uname().nodename, pid, _start(pid))

    @classmethod
    def parse(cls, text: str) -> Process | None:
        """Return the process of a text made by `str`, None for any other text."""
        host, _, rest = text.strip().partition(":")
        pid, _, start = rest.partition(":")
        numbers = all(_NUMBER.fullmatch(part) for part in (pid, start))
        return cls(host, int(pid), int(start)) if numbers else None

    @property
    def here(self) -> bool:
        """Whether it belongs to this machine."""
        return self.host == os.uname().nodename

    @property
    def goes_on(self) -> bool:
        """Whether it is still running; known only on its own machine."""
        return self.here and self.start > 0 and _start(self.pid) == self.start


def read_status(text: str) -> Status:
    """Return the status in a cell; radT's words, which include a run, are accepted.

    Raises:
        UnknownNameError: if the status is unknown.
    """
    word, _, detail = text.strip().partition(" ")
    detail = detail.strip()
    if word in ("", "-"):
        return Status()
    upper = word.upper()
    for known in WORDS:
        if known == upper:
            kept = detail if known == "FAILED" or Process.parse(detail) else ""
            if known == "RUNNING" and not kept:
                return Status("LOST")  # radT does not record the process that runs it
            return Status(known, kept)
    if upper in MLFLOW:
        return Status(MLFLOW[upper])
    hint = f"Leave the cell empty to run it; a plan holds {', '.join(WORDS)}."
    raise UnknownNameError.of("status", text, WORDS, hint)


def _start(pid: int) -> int:
    """Return the start of a process in ticks since boot; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
