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
from typing import TYPE_CHECKING, Any

from dippm.measure import energy
from dippm.measure.readings import Absent, AbsentSource, Quantity, Source
from dippm.measure.sources import gpm, nvml, nvml_processes
from dippm.measure.sources.registry import open_source
from dippm.measure.state import BUSY, WATCHED

if TYPE_CHECKING:
    import torch

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


# The counters of one device, opened so that each moment asks for what it needs and no more.


ON_A_CPU = "measured on a CPU"


class Counters:
    """Sources of one device, kept open over many measurements; each NVML call takes its time.

    Attributes:
        state: what changes while steps run.
        busy: the same, and how busy the device is.
        used: memory in use on the device.
        point: what is read once for each point.
        processes: who else uses the device.
        gpm: how busy its units are.
        meter: where energy is read, or the reason why nowhere.
    """

    def __init__(self, device: torch.device) -> None:
        self.state = _nvml(device, *WATCHED)
        self.busy = _nvml(device, *WATCHED, BUSY)
        self.used = _nvml(device, "memory_used_mb")
        self.point = _nvml(device, "memory_used_mb", "power_cap_w")
        self.processes = _of_gpu("nvml_processes", device, nvml_processes.QUANTITIES)
        self.gpm = _of_gpu("gpm", device, gpm.QUANTITIES)
        self._power = _nvml(device, *energy.METHODS)
        self._rapl = open_source("rapl")
        self.meter = energy.find_meter(self._power, self._rapl, on_gpu=device.type == "cuda")
        if isinstance(self.meter, energy.Meter) and self.meter.source is self._power:
            self._power.close()
            self._power = _nvml(device, self.meter.quantity)
            self.meter = energy.Meter(self._power, self.meter.quantity, self.meter.method)

    def idle_power_w(self, seconds: float) -> float | Absent:
        """Return the mean power while nothing runs."""
        if isinstance(self.meter, Absent):
            return self.meter
        return energy.idle_power(self.meter, seconds)

    def close(self) -> None:
        """Close the sources."""
        of_gpu = (self.state, self.busy, self.used, self.point, self.processes, self.gpm)
        for source in (*of_gpu, self._power, self._rapl):
            source.close()


def _nvml(device: torch.device, *names: str) -> Source:
    return _of_gpu("nvml", device, nvml.QUANTITIES, only=names)


def _of_gpu(
    name: str, device: torch.device, quantities: tuple[Quantity, ...], **where: Any
) -> Source:
    if device.type != "cuda":
        return AbsentSource(name, quantities, ON_A_CPU)
    return open_source(name, device=str(device), **where)
