"""The memory that a process takes on a GPU before any model: context, libraries, their kernels.

The driver's figure for the device grows over the life of a process, because kernels are loaded when
they are first used and stay. So it is read once, when the process is fresh, and what a model needs
is added from the allocator, which forgets what models before took.

    python -m dippm.measure.context

prints that of a fresh process as one JSON document, for `dippm doctor`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from dippm.measure.readings import Absent, Source

PROBE = (sys.executable, "-m", "dippm.measure.context")
PROBE_S = 180.0
"""Longest that a probe may take: it imports torch and loads libraries onto a GPU."""
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


def probe() -> dict[str, Any] | Absent:
    """Measure the context of a fresh process on the first GPU, in a process of its own.

    Returns:
        "context_mb" in MiB, the name of the "device", and the versions of "torch" and "cuda"; else
        the reason why there is none.
    """
    try:
        done = subprocess.run(PROBE, capture_output=True, text=True, timeout=PROBE_S, check=False)
        found = json.loads(done.stdout.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return Absent(f"it took longer than {PROBE_S:.0f} s")
    except (OSError, ValueError) as error:
        return Absent(f"the process that measures it failed ({type(error).__name__})")
    return Absent(str(found["absent"])) if "absent" in found else found


def measured_here() -> dict[str, Any]:
    """Return what `probe` returns, of this process; "absent" has the reason if there is none."""
    try:
        import torch
    except ImportError:
        return {"absent": "torch is not installed"}
    if not torch.cuda.is_available():
        return {"absent": "torch sees no GPU"}
    from dippm.measure.counters import Counters

    device = torch.device("cuda", 0)
    open_context(device)
    counters = Counters(device)
    try:
        found = context_mb(device, counters.used, counters.processes)
    finally:
        counters.close()
    if isinstance(found, Absent):
        return {"absent": found.reason}
    name = torch.cuda.get_device_properties(device).name
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    return {"context_mb": found, "device": name, **versions}


if __name__ == "__main__":
    try:
        document = measured_here()
    except Exception as error:
        document = {"absent": f"{type(error).__name__}: {error}"}
    print(json.dumps(document))
