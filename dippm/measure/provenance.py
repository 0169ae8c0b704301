"""The provenance of a measurement: machine, versions, switches."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dippm.devices import find
from dippm.errors import UnknownNameError
from dippm.measure.sources.host import cpu_name

LIBRARIES = ("torchvision", "timm", "transformers", "triton", "numpy")
CHECKOUT = Path(__file__).resolve().parent.parent.parent


@cache
def machine(device: Any) -> Mapping[str, Any]:
    """Return the columns of provenance that are constant in a process.

    Args:
        device: a `torch.device`.
    """
    import torch

    return {
        **(_gpu(device) if device.type == "cuda" else _cpu()),
        "device_kind": device.type,
        "cuda": torch.version.cuda,
        "cudnn": _cudnn(),
        "framework": f"torch {torch.__version__}",
        "libraries": {name: found for name in LIBRARIES if (found := _version(name))},
        "python": platform.python_version(),
        "host_cpu": cpu_name(),
        "host_cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "os": f"{platform.system()} {platform.release()}",
        "commit": commit(),
    }


def catalogue_name(own_name: str) -> str:
    """Return the catalogue's name of a device, or its own name if it is not listed."""
    try:
        return find(own_name).name
    except UnknownNameError:
        return own_name


def cpu_device() -> str:
    """Return the catalogue's name of this CPU if the core count matches too."""
    listed = catalogue_name(cpu_name())
    return listed if listed.endswith(f"-{os.cpu_count()}c") else cpu_name()


@cache
def commit() -> str | None:
    """Return the commit of the checkout, with "+" if files were changed.

    Without a git history it is that in DIPPM_COMMIT, else None.
    """
    if said := os.environ.get("DIPPM_COMMIT"):
        return said
    git = ["git", "-C", str(CHECKOUT)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _gpu(device: Any) -> dict[str, Any]:
    import torch

    from dippm.measure.sources.nvml_session import identity

    properties = torch.cuda.get_device_properties(device)
    return {
        "device": catalogue_name(properties.name),
        "device_memory_mb": properties.total_memory / 2**20,
        **identity(str(device)),
    }


def _cpu() -> dict[str, Any]:
    total_mb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20
    return {
        "device": cpu_device(),
        "device_uuid": None,
        "device_memory_mb": total_mb,
        "mig_profile": None,
        "driver": None,
    }


def _cudnn() -> str | None:
    import torch

    number = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return str(number) if number else None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
