"""Memory of a run in three views: tensors, cached blocks, and what the device has in use.

The allocator's peak is what the model needs; with the context of a fresh process it is what must
fit. The driver's figure for the device drifts with the life of the process (see `context`) and
stands beside it. On a CPU it is the resident memory of the process.
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
        _drop_workspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    _trim_heap()
    if CLEAR_REFS.exists():
        CLEAR_REFS.write_text(RESET_PEAK)


def in_use_mb(device: Any, nvml: Source, driver_mb: float | Absent) -> float | Absent:
    """Return the memory in use now in MiB, or the reason why it is not known."""
    if device.type == "cuda":
        return without_driver(nvml.read().get("memory_used_mb"), driver_mb)
    return _status_mb("VmRSS")


def without_driver(used_mb: float | Absent, driver_mb: float | Absent) -> float | Absent:
    """Return what NVML's second version, and `nvidia-smi`, count of what its first calls used.

    Args:
        used_mb: by the first version, in MiB.
        driver_mb: what the driver keeps for itself; what is not known stays in.
    """
    known = not isinstance(used_mb, Absent) and not isinstance(driver_mb, Absent)
    return used_mb - driver_mb if known else used_mb  # type: ignore[operator]


def peaks(
    device: Any, used_mb: float | Absent, context_mb: float | Absent, driver_mb: float | Absent
) -> dict[str, float | Absent]:
    """Return the columns of memory since `forget`, each a value in MiB or a reason.

    Args:
        device: that ran.
        used_mb: what the driver says is in use on a GPU after the run: the allocator keeps its
            blocks, so that is the peak of the process so far.
        context_mb: see `context.context_mb`.
        driver_mb: what the driver keeps for itself, which neither of the others has in it.
    """
    if device.type == "cuda":
        import torch

        reserved_mb = torch.cuda.max_memory_reserved(device) / 2**20
        return {
            "memory_mb": context_mb if isinstance(context_mb, Absent) else reserved_mb + context_mb,
            "memory_context_mb": context_mb,
            "memory_nvml_mb": used_mb,
            "memory_driver_mb": driver_mb,
            "memory_allocated_mb": torch.cuda.max_memory_allocated(device) / 2**20,
            "memory_reserved_mb": reserved_mb,
        }
    return {
        "memory_mb": _status_mb("VmHWM"),
        "memory_context_mb": NO_GPU,
        "memory_nvml_mb": NO_GPU,
        "memory_driver_mb": NO_GPU,
        "memory_allocated_mb": Absent("torch does not count host memory"),
        "memory_reserved_mb": NO_GPU,
    }


def method(device: Any, driver_mb: float | Absent) -> str:
    """Return where `memory_mb` comes from on a device."""
    if device.type == "cuda":
        has = "with" if isinstance(driver_mb, Absent) else "without"
        counted = f"{has} what the driver keeps for itself"
        return f"peak of the allocator's blocks and the context of a fresh process, {counted}"
    return "peak resident memory of the process (VmHWM)"


def _drop_workspaces() -> None:
    """Give back what cuBLAS got for the products of earlier models, or of opening the context.

    Else it would be in the peaks of every model, also of one without a product; one that has some
    asks for it anew.
    """
    import torch

    drop: Callable[[], None] | None = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if drop is not None:
        drop()


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
