"""What has become of a row, in the words of a plan's column Status."""

from __future__ import annotations

import os
import re
from typing import Literal, NamedTuple, get_args

from dippm.errors import UnknownNameError

Word = Literal["PENDING", "RUNNING", "FINISHED", "FAILED", "TIMEOUT", "INTERRUPTED", "LOST"]
WORDS: tuple[Word, ...] = get_args(Word)
MLFLOW: dict[str, Word] = {"KILLED": "INTERRUPTED", "SCHEDULED": "LOST"}
"""What radT writes from MLflow, and we have another word for."""


class Status(NamedTuple):
    """What has become of a row.

    Attributes:
        word: one of `WORDS`.
        detail: of FAILED the exit code, of RUNNING "host:pid:start", else "".
    """

    word: Word = "PENDING"
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.word} {self.detail}" if self.detail else self.word


_NUMBER = re.compile("[0-9]{1,20}")


class Process(NamedTuple):
    """A process that cannot be taken for a later one of its number.

    Attributes:
        host: name of the machine.
        pid: its number.
        start: clock ticks between the boot and its start; no clock that jumps has a part in it.
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
        """Return what `str` made of one, None for any other text."""
        host, _, rest = text.strip().partition(":")
        pid, _, start = rest.partition(":")
        numbers = all(_NUMBER.fullmatch(part) for part in (pid, start))
        return cls(host, int(pid), int(start)) if numbers else None

    @property
    def here(self) -> bool:
        """Whether it is one of this machine."""
        return self.host == os.uname().nodename

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended; only its own machine knows."""
        return self.here and self.start > 0 and _start(self.pid) == self.start


def read_status(text: str) -> Status:
    """Return what a cell says; radT's words, which name a run too, are understood.

    Raises:
        UnknownNameError: if it is no status.
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
                return Status("LOST")  # radT's, which says nothing of who runs it
            return Status(known, kept)
    if upper in MLFLOW:
        return Status(MLFLOW[upper])
    hint = f"Leave the cell empty to run it; a plan holds {', '.join(WORDS)}."
    raise UnknownNameError.of("status", text, WORDS, hint)


def _start(pid: int) -> int:
    """Return when a process started, in ticks since the boot; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
