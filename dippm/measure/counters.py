"""The counters of one device, opened so that each moment asks for what it needs and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dippm.measure import energy
from dippm.measure.readings import Absent, AbsentSource, Quantity, Source
from dippm.measure.sources import gpm, nvml, nvml_processes
from dippm.measure.sources.registry import open_source
from dippm.measure.state import BUSY, WATCHED

if TYPE_CHECKING:
    import torch

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
