"""Runs in a store: how they get there beside the workload, and their rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from dippm.errors import RunError


def attach_beside(folder: Path, store: str) -> None:
    """Start a process that brings a run's folder into a store; without MLflow it stays there.

    The workload does not wait for it. What it cannot bring stays in the folder, for whoever looks
    at the store next.
    """
    if find_spec("mlflow") is None:
        return
    home = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "dippm.store.attach", str(folder), "--store", store]
    try:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    except OSError:
        return


def attach_now(folders: Iterable[Path], store: str | None) -> tuple[int, str]:
    """Bring folders into a store; return how many are there, and why the others wait."""
    chosen = list(folders)
    if not chosen:
        return 0, ""
    if find_spec("mlflow") is None:
        return 0, "it needs MLflow: pip install 'dippm[track]'; then `dippm runs --attach`"
    try:
        from dippm.store.store import open_store

        opened = open_store(store)
        for folder in chosen:
            opened.attach(folder)
    except (RunError, ImportError) as error:
        return 0, str(error)
    return len(chosen), ""
