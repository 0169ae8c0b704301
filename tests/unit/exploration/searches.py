"""A search in a process of its own, which waits in the middle until it is told to go on."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dippm.decide.exploration import Space, explore
from dippm.decide.exploration.study import key_of
from tests.unit.exploration.networks import build_and_wait

ROOT = Path(__file__).resolve().parents[3]
DESIGNS = 12
WAITING = 2
"""Designs of width 24 and depth 1: they wait for a file."""
DRIVER = """
import sys
from tests.unit.exploration.searches import search
print(len(search(*sys.argv[1:]).tried))
"""


def search(folder: str, storage: str, name: str = "dippm"):
    """Search the designs of `build_and_wait`."""
    make = functools.partial(build_and_wait, str(folder))
    space = Space(make, {"width": [8, 24, 32], "depth": [1, 2]}, input="3,32,32", batch=[1, 4])
    return explore(space, ["latency_ms", "memory_mb"], storage=storage, name=name, workers=2)


def begin(folder: Path, storage: str, name: str = "dippm") -> subprocess.Popen:
    """Begin the same search in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), storage, name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_until_it_waits(process: subprocess.Popen, storage: str, name: str = "dippm") -> list:
    """Return what was tried when all but the waiting designs are."""
    while len(found := told(storage, name)) < DESIGNS - WAITING:
        assert process.poll() is None, "the search ended"
        time.sleep(0.1)
    assert all(dict(c)["depth"] == 2 or dict(c)["width"] != 24 for c in found)
    return found


def kill(process: subprocess.Popen, folder: Path) -> set[Path]:
    """Kill a search, wait until its workers are gone, and return what it had begun."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    begun = set(folder.glob("begun-*"))
    while any(_runs(int(path.name.rsplit("-", 1)[1])) for path in begun):
        time.sleep(0.1)
    return begun


def begun_since(folder: Path, before: set[Path]) -> set[str]:
    """Return which designs were begun since."""
    return {path.name.rsplit("-", 1)[0] for path in set(folder.glob("begun-*")) - before}


def told(storage: str, name: str = "dippm") -> list:
    """Return the designs whose outcome is in the storage, while another process writes there."""
    import optuna
    from sqlalchemy import create_engine, inspect, text
    from sqlalchemy.pool import NullPool

    # A pool outlives its use, and a server has only so many connections.
    with create_engine(storage, poolclass=NullPool).connect() as connection:
        # Optuna writes to a storage that it opens: not before the search has made the study.
        if not inspect(connection).has_table("studies"):
            return []
        by_name = text("SELECT 1 FROM studies WHERE study_name = :name")
        if not connection.execute(by_name, {"name": name}).first():
            return []
    kept = optuna.storages.RDBStorage(storage, engine_kwargs={"poolclass": NullPool})
    trials = optuna.load_study(study_name=name, storage=kept).trials
    return [key_of(trial.params) for trial in trials if trial.state.is_finished()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
