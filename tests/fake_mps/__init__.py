"""A stand-in for `nvidia-cuda-mps-control`, for machines without a GPU.

`put(folder)` puts the two programs there; with the folder on PATH they are found as the real ones
are. They speak the real protocol: "-d" starts a daemon, commands come on stdin, the daemon's
private directory says which one is meant. What they refuse, the real ones refuse. The variable
FAKE_MPS makes them fail: "no server" (none comes up), "deaf" (nothing but SIGKILL ends them).
"""

from __future__ import annotations

import sys
from pathlib import Path

NAMES = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")


def put(folder: Path) -> Path:
    """Put the programs into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    text = Path(__file__).with_name("control.py").read_text(encoding="utf-8")
    for name in NAMES:
        program = folder / name
        program.write_text(f"#!{sys.executable} -IS\n{text}", encoding="utf-8")
        program.chmod(0o755)
    return folder
