"""Workloads: rows that start together, and the letters that distinguish their runs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import NamedTuple

from dippm.runs.plans.row import PlanRow
from dippm.runs.tracking.run import JOIN_VARIABLE


class Workload(NamedTuple):
    """A group of rows that start together.

    Attributes:
        experiment: name of their experiment.
        name: name of the workload.
        rows: rows in the order of the plan.
        letters: letter of each row; see `letters`.
    """

    experiment: str
    name: str
    rows: tuple[PlanRow, ...]
    letters: tuple[str, ...]

    def run_name(self, row: PlanRow) -> str:
        """Return the name of a row's run: workload, letter, and the row's own name or file."""
        letter = self.letters[self.rows.index(row)]
        return f"({self.name} {letter}) {row.name or PurePath(row.file.split()[0]).name}"


def workloads(rows: Iterable[PlanRow]) -> tuple[Workload, ...]:
    """Return the workloads of rows, in the order in which they appear."""
    found: dict[tuple[str, str], list[PlanRow]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row)
    return tuple(Workload(*key, tuple(rows), letters(rows)) for key, rows in found.items())


def letters(rows: Sequence[PlanRow]) -> tuple[str, ...]:
    """Return what radT calls the letter of each run of a workload: its devices.

    Runs on the same devices are distinguished by a letter, and the way of sharing is appended: "0",
    "1+2", "2_A_3g.20gb", "1_B_mps"; "cpu" stands for no device.
    """
    devices = [device_of(row) for row in rows]
    seen: Counter[str] = Counter()
    found = []
    for row, device in zip(rows, devices, strict=True):
        letter = f"{device}_{_letter(seen[device])}" if devices.count(device) > 1 else device
        seen[device] += 1
        found.append(f"{letter}_{row.sharing}" if row.sharing else letter)
    return tuple(found)


def device_of(row: PlanRow) -> str:
    """Return the devices of a row as one word."""
    return "+".join(row.devices) or "cpu"


def shares_a_device(one: PlanRow, other: PlanRow) -> bool:
    """Return whether two rows have a device in common."""
    return bool(set(one.devices) & set(other.devices))


def _letter(number: int) -> str:
    """Return A to Z, then AA and so on."""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


# Processes of a run: all that were started with the run in their environment.
#
# They are found regardless of group, session and parent. The folder of a run is unique, so a reused
# pid is not mistaken for one of them.


TIRELESS_S = 5.0
"""Seconds during which new processes of a run are killed as they appear."""


def processes_of(folder: str) -> list[int]:
    """Return all processes that the command of a run has started, itself included."""
    mark = os.fsencode(f"{JOIN_VARIABLE}={folder}")
    return [pid for pid in _all() if mark in _environment(pid)]


def end_processes_of(folder: str) -> int:
    """Kill every process of a run; return the number of them."""
    end = time.monotonic() + TIRELESS_S
    killed: set[int] = set()
    while (found := processes_of(folder)) and time.monotonic() < end:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
        time.sleep(0.01)
    return len(killed)


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    """Return the environment of a process; empty if it has ended or is another user's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
