"""A copy of the tracked files in a folder of its own, as a fresh clone has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("DIPPM_DATA_DIR", "MAKEFLAGS", "PYTEST_ADDOPTS")
"""Variables that would lead out of the copy."""


def is_known() -> bool:
    """Tell whether git says which files are tracked."""
    return (ROOT / ".git").exists() and shutil.which("git") is not None


def copy_tracked_files(folder: Path) -> Path:
    """Copy every tracked file as it is now, changed or not; return the folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run_in(folder: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with this environment's packages and the copy's modules."""
    kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    return subprocess.run(
        command,
        cwd=folder,
        env=kept | {"PYTHONPATH": str(folder), "PATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
