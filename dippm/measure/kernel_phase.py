"""The profiled steps of one point, after everything that is timed: kernels and their columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dippm.measure.kernels.profile import profiled
from dippm.measure.kernels.record import TracedKernel, kernel_ms
from dippm.measure.readings import Absent
from dippm.measure.timing import Step

if TYPE_CHECKING:
    import torch

METHODS = {
    "cuda": "kernels of one profiled step, by CUPTI",
    "cpu": "operators of one profiled step, each without those inside",
}
NAMES = ("kernel_ms", "kernel_launches", "kernel_method")
NONE_SEEN = Absent("the profiler saw no kernel: CUPTI is missing, or its counters are restricted")
Seen = tuple[TracedKernel, ...] | Absent


def kernels_of(
    step: Step,
    device: torch.device,
    module: torch.nn.Module | None,
    *,
    before: Callable[[], object] = lambda: None,
) -> Seen:
    """Return the kernels of one step, or why there are none: what was timed stays a row.

    See `profiled` for the arguments.
    """
    try:
        kernels = profiled(step, device, module=module, before=before)
    except Exception as error:  # the profiler's, or memory that it needs beside the step's
        words = (str(error).strip().splitlines() or [""])[0][:200]
        return Absent(f"the profiled step failed: {type(error).__name__}: {words}")
    return kernels or NONE_SEEN


def kernel_columns(kernels: Seen, device: torch.device) -> dict[str, Any]:
    """Return the columns of a kernel table, each a value or `Absent`."""
    if isinstance(kernels, Absent):
        return dict.fromkeys(NAMES, kernels)
    values = (kernel_ms(kernels), len(kernels), METHODS[device.type])
    return dict(zip(NAMES, values, strict=True))
