"""Profile one step, after all timing of a point: the profiler would distort every figure.

`torch.autograd.profiler` writes the raw trace that Kineto collected; `torch.profiler` spends most
of a capture on tables that are not used here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.base.progress import tell
from dippm.measure.kernels.record import TracedKernel
from dippm.measure.kernels.trace_file import mark_modules, read
from dippm.measure.timing import Step

if TYPE_CHECKING:
    import torch

WARM_STEPS = 3
QUIET = "99"


def profile_step(
    step: Step,
    device: torch.device,
    *,
    module: torch.nn.Module | None = None,
    before: Callable[[], object] = lambda: None,
) -> tuple[TracedKernel, ...]:
    """Run a few steps, then one under the profiler; return its kernels ordered by start.

    Args:
        step: one forward pass, or one training step.
        device: device that it runs on.
        module: module whose submodules mark their calls; None where they cannot.
        before: called right before the profiled step, outside of it.

    Raises:
        Exception: error of the step or of the profiler.
    """
    from torch.autograd.profiler import profile

    tell("profiling one step")
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)  # else it prints to stderr at each capture
    on_gpu = device.type == "cuda"
    finish = _finish(device)
    with (
        tempfile.TemporaryDirectory(prefix="dippm-") as folder,
        nullcontext() if module is None else mark_modules(module),
    ):
        for _ in range(WARM_STEPS):
            step()
        before()
        finish()
        with profile(use_kineto=True, use_device="cuda" if on_gpu else None) as profiler:
            step()
            finish()
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return read(path.read_bytes(), on_gpu=on_gpu, has_paths=module is not None)


def _finish(device: torch.device) -> Callable[[], object]:
    import torch

    return lambda: torch.cuda.synchronize(device) if device.type == "cuda" else None
