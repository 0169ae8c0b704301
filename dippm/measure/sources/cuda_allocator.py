"""Memory of torch's CUDA allocator in this process."""

from __future__ import annotations

import sys
import time
from typing import Any

from dippm.measure.readings import AbsentSource, Quantity, Readings, Source

MB = 2**20
QUANTITIES = (
    Quantity("allocated_mb", "MiB", "process", "tensors"),
    Quantity("reserved_mb", "MiB", "process", "blocks kept by the allocator, tensors included"),
    Quantity("peak_allocated_mb", "MiB", "process", "most since `reset_peak`"),
    Quantity("peak_reserved_mb", "MiB", "process", "most since `reset_peak`"),
)


class CudaAllocatorSource:
    """The allocator's statistics for one device of this process."""

    name = "cuda_allocator"
    quantities = QUANTITIES

    def __init__(self, torch: Any, device: str | int) -> None:
        self._torch = torch
        self._device = torch.device(device)

    def read(self) -> Readings:
        """Read the allocator's statistics, without synchronising the device."""
        cuda = self._torch.cuda
        now = time.monotonic_ns()
        asked = (
            cuda.memory_allocated,
            cuda.memory_reserved,
            cuda.max_memory_allocated,
            cuda.max_memory_reserved,
        )
        try:
            figures = [ask(self._device) / MB for ask in asked]
        except RuntimeError as error:
            reason = f"torch says {str(error).splitlines()[0]!r}"
            return Readings(now, {}, {quantity.name: reason for quantity in QUANTITIES})
        names = [quantity.name for quantity in QUANTITIES]
        return Readings(now, dict(zip(names, figures, strict=True)))

    def reset_peak(self) -> None:
        """Reset the peaks to the current values."""
        self._torch.cuda.reset_peak_memory_stats(self._device)

    def close(self) -> None:
        """Do nothing: there are no resources."""


def open_cuda_allocator(device: str | int = "cuda:0") -> Source:
    """Open the allocator's statistics; `device` in torch's notation."""
    torch = sys.modules.get("torch")
    if torch is None:
        reason = "this process has not imported torch"
    elif not torch.cuda.is_available():
        built = torch.version.cuda or "no CUDA"
        reason = f"torch {torch.__version__} sees no CUDA device here (built for {built})"
    else:
        return CudaAllocatorSource(torch, device)
    return AbsentSource(CudaAllocatorSource.name, QUANTITIES, reason)
