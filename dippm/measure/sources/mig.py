"""MIG slices of a GPU: their number, and the memory of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dippm.measure.readings import Quantity, Source
from dippm.measure.sources.calls import Calls, CounterCall, Failure, NotHere
from dippm.measure.sources.nvml_session import DeviceContext, DeviceCounters, explain, open_at

MB = 2**20
QUANTITIES = (
    Quantity("instances", "slices", "device", "MIG devices that exist on the GPU"),
    Quantity("slice_memory_used_mb", "MiB", "slice", "in use on the slice that was opened"),
    Quantity("slice_memory_total_mb", "MiB", "slice", "capacity of that slice"),
)
REMEDIES = {"instances": "GPUs before Ampere, and most consumer GPUs, have no MIG"}


class MigSource(DeviceCounters):
    """The slices of a GPU; given a slice's UUID, also the memory of that slice."""

    name = "mig"
    quantities = QUANTITIES

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        calls = [
            CounterCall(QUANTITIES[:1], self._count),
            CounterCall(QUANTITIES[1:], self._memory),
        ]
        super().__init__(Calls(self.name, calls, _explain))

    def _count(self) -> tuple[float, ...]:
        return (float(sum(1 for _ in _handles(self._context.nvml, self._context.board))),)

    def _memory(self) -> tuple[float, ...]:
        if not self._context.is_slice:
            raise NotHere("a whole GPU was opened: name a slice by its MIG UUID", lasts=True)
        info = self._context.nvml.nvmlDeviceGetMemoryInfo(self._context.handle)
        return info.used / MB, info.total / MB


def open_mig(device: str | int = 0) -> Source:
    """Open the slices of a GPU; `device` as in `nvml_session.locate`."""
    return open_at(device, MigSource, name=MigSource.name, quantities=QUANTITIES)


def profile(name: str) -> str:
    """Return the profile in the name of a device: "1g.5gb" from "NVIDIA A100 MIG 1g.5gb"."""
    return name.partition(" MIG ")[2].strip()


def _handles(nvml: Any, board: Any) -> Iterator[Any]:
    current, _pending = nvml.nvmlDeviceGetMigMode(board)
    if not current:
        return
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(board)):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index)
        except nvml.NVMLError_NotFound:
            continue  # places between slices are empty


def _explain(error: Exception, call: CounterCall) -> Failure:
    return explain(error, call, REMEDIES)
