"""The host's processor."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """Return the model name of the host's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
