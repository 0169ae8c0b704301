"""Runs of real commands, and words that tell what they have reached."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dippm.errors import MeasurementError
from dippm.measure.sampler_file import Samples, read
from dippm.runs.store.folder import RecordedRun, read_folder

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0
START = """
import json, sys
from dippm.runs.tracking.command import run_command
from dippm.runs.tracking.run_config import RunConfig
given = json.loads(sys.argv[1])
sys.exit(run_command(RunConfig(tuple(sys.argv[2:]), **given)))
"""


def environment(spool: Path) -> dict[str, str]:
    held = {name: text for name, text in os.environ.items() if not name.startswith("DIPPM")}
    more = {"PYTHONPATH": str(ROOT), "DIPPM_SPOOL": str(spool), "DIPPM_ATTACH": "no"}
    return {**held, **more, "DIPPM_LIVE": f"{spool}.live"}


def words(*command: str, **given: Any) -> list[str]:
    """The command line of a run without the command line of dippm, which takes longer to load."""
    return [sys.executable, "-c", START, json.dumps(given), *command]


def start(spool: Path, *command: str, given: dict[str, Any] | None = None, **popen: Any) -> Any:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = {**pipes, "env": environment(spool), "start_new_session": True, **popen}
    return subprocess.Popen(words(*command, **(given or {})), **options)


def run(spool: Path, *command: str, given: dict[str, Any] | None = None, **more: Any) -> Any:
    """Run to the end; return what `subprocess.run` does."""
    return subprocess.run(
        words(*command, **(given or {})),
        **{"env": environment(spool), "capture_output": True, "timeout": 120, **more},
    )


def until(reached: Callable[[], Any], what: str) -> Any:
    """Wait for an event, and return what says that it came."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = reached()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


def line_of(process: subprocess.Popen[Any]) -> str:
    """Return the next line of a process's stdout; "" if it ended.

    It is read byte by byte: what a buffer holds already, `select` does not see.
    """
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        assert ready, "nothing was said"
        piece = os.read(process.stdout.fileno(), 1)
        if not piece:
            break
        line += piece
    return line.decode().strip()


def folder(spool: Path) -> Path:
    """Return the folder of the only run."""
    (found,) = until(lambda: list(spool.glob("*/start.json")), "the start of a run")
    return Path(found.parent)


def ended(spool: Path) -> RecordedRun:
    """Return the only run when its end is written."""
    path = folder(spool)
    until(lambda: (path / "end.json").exists(), "the end of a run")
    return read_folder(path)


def samples(recorded: RecordedRun) -> list[Samples]:
    return [read(path) for path in recorded.samples]


def ticks(file: Path) -> int:
    """Return how many readings of the tree a file holds by now."""
    try:
        return len(read(file).series["tree"].time_ns)
    except MeasurementError:  # nothing is written yet
        return 0


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def sampler_of(path: Path) -> int:
    """Return the process that samples a run, when it has begun to."""
    file = path / "samples-1.dippm"
    until(lambda: ticks(file), "samples")
    return int(read(file).header["own_pid"])
