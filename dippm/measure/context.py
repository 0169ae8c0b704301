"""The memory that a process takes on a GPU before any model: context, libraries, their kernels.

The driver's figure for the device grows over the life of a process, because kernels are loaded when
they are first used and stay. So it is read once, when the process is fresh, and what a model needs
is added from the allocator, which forgets what models before took.
"""

from __future__ import annotations

from typing import Any

from dippm.measure.readings import Absent, Source

CROWDED = "other processes are on the device, and the driver does not say how much memory they take"


def open_context(device: Any) -> None:
    """Make the context and load the libraries that nearly every model uses, on a CUDA device."""
    import torch

    torch.cuda.set_device(device)
    image = torch.zeros(1, 8, 8, 8, device=device)
    weight = torch.zeros(8, 8, 3, 3, device=device)
    with torch.inference_mode():
        torch.nn.functional.conv2d(image, weight)  # cuDNN
        image.flatten(2) @ image.flatten(2).mT  # cuBLAS
    torch.cuda.synchronize(device)


def context_mb(device: Any, nvml: Source, processes: Source) -> float | Absent:
    """Return the memory in MiB that this process takes on a device without its tensors.

    Call it after `open_context`, before the first model.

    Args:
        device: a CUDA device.
        nvml: has "memory_used_mb" of it.
        processes: has "other_processes" and "other_memory_mb" of it.
    """
    import torch

    used = nvml.read().get("memory_used_mb")
    if isinstance(used, Absent):
        return used
    said = processes.read()
    others_mb = said.get("other_memory_mb")
    if isinstance(others_mb, Absent):
        if said.values.get("other_processes", 0):
            return Absent(CROWDED)
        others_mb = 0.0
    return used - others_mb - torch.cuda.memory_reserved(device) / 2**20
