"""Memory of a run in three views: tensors, cached blocks, and what the device has in use.

The allocator's peak is what the model needs; the driver's figure is what must fit, with context,
libraries and blocks that the allocator keeps. On a CPU it is the resident memory of the process.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dippm.measure.readings import Absent, Source

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to clear_refs it sets VmHWM back to VmRSS, see proc(5)."""
NO_GPU = Absent("measured on a CPU")


def forget(device: Any) -> None:
    """Give back what earlier runs left in the caches, and start the peaks anew."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    _trim_heap()
    if CLEAR_REFS.exists():
        CLEAR_REFS.write_text(RESET_PEAK)


def in_use_mb(device: Any, nvml: Source) -> float | Absent:
    """Return the memory in use now in MiB, or the reason why it is not known."""
    if device.type == "cuda":
        return nvml.read().get("memory_used_mb")
    return _status_mb("VmRSS")


def peaks(device: Any, nvml: Source) -> dict[str, float | Absent]:
    """Return the columns of memory since `forget`, each a value in MiB or a reason.

    On a GPU the driver's figure is read after the run: the allocator keeps its blocks, so what is
    in use then is the peak.
    """
    if device.type == "cuda":
        import torch

        used = in_use_mb(device, nvml)
        return {
            "memory_mb": used,
            "memory_nvml_mb": used,
            "memory_allocated_mb": torch.cuda.max_memory_allocated(device) / 2**20,
            "memory_reserved_mb": torch.cuda.max_memory_reserved(device) / 2**20,
        }
    return {
        "memory_mb": _status_mb("VmHWM"),
        "memory_nvml_mb": NO_GPU,
        "memory_allocated_mb": Absent("torch does not count host memory"),
        "memory_reserved_mb": NO_GPU,
    }


def method(device: Any) -> str:
    """Return where `memory_mb` comes from on a device."""
    if device.type == "cuda":
        return "NVML memory in use on the device after the run"
    return "peak resident memory of the process (VmHWM)"


def _status_mb(key: str) -> float | Absent:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError as error:
        return Absent(f"{STATUS} cannot be read: {error.strerror}")
    for line in lines:
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    return Absent(f"{STATUS} has no {key}")


def _trim_heap() -> None:
    """Let the C library return what it holds; else an earlier run would count as this one's."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library
        return
    trim(0)
