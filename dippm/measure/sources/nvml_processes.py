"""Processes on the GPU: memory of our process tree, and the presence of others."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from dippm.measure.readings import Quantity, Source
from dippm.measure.sources.calls import Calls, CounterCall, NotHere
from dippm.measure.sources.nvml_session import DeviceContext, DeviceCounters, explain, open_at
from dippm.measure.sources.tree import descendants

MB = 2**20
FIRST_NAMESPACE = "pid:[4026531836]"
QUANTITIES = (
    Quantity("other_processes", "processes", "device", "on the device and not of our tree"),
    Quantity("other_memory_mb", "MiB", "device", "device memory of those"),
    Quantity("tree_memory_mb", "MiB", "tree", "device memory of our process tree"),
)
HIDDEN = "the driver does not say how much memory a process uses"
ELSEWHERE = (
    "NVML names processes of another PID namespace, so ours cannot be told from others: "
    "start the container with --pid=host"
)


class NvmlProcessesSource(DeviceCounters):
    """The processes on one GPU, or one MIG slice, split into ours and others."""

    name = "nvml_processes"
    quantities = QUANTITIES

    def __init__(self, context: DeviceContext, mine: Collection[int] | None, root: int) -> None:
        self._context = context
        self._mine = mine
        self._root = root
        self._ours: list[Any] = []
        self._others: list[Any] = []
        self._unknown = ""
        calls = [
            CounterCall(QUANTITIES[:1], self._count),
            CounterCall(QUANTITIES[1:2], self._other_memory),
            CounterCall(QUANTITIES[2:], self._tree_memory),
        ]
        super().__init__(Calls(self.name, calls, explain))

    def _count(self) -> tuple[float, ...]:
        self._ours, self._others = [], []
        try:
            self._divide()
        except Exception as error:
            self._unknown = explain(error, CounterCall(QUANTITIES, tuple)).reason
            raise
        self._unknown = ""
        return (float(len({process.pid for process in self._others})),)

    def _divide(self) -> None:
        running = _running(self._context)
        mine = descendants(self._root) if self._mine is None else set(self._mine)
        ours = [process for process in running if process.pid in mine]
        others = [process for process in running if process.pid not in mine]
        if others and not ours and _foreign(others):
            raise NotHere(ELSEWHERE)
        self._ours, self._others = ours, others

    def _other_memory(self) -> tuple[float, ...]:
        if self._unknown:
            raise NotHere(self._unknown)
        return (_memory_mb(self._others),)

    def _tree_memory(self) -> tuple[float, ...]:
        if self._unknown:
            raise NotHere(self._unknown)
        if not self._ours:
            raise NotHere("no process of our tree is on the device")
        return (_memory_mb(self._ours),)


def open_nvml_processes(
    device: str | int = 0, *, mine: Collection[int] | None = None, pid: int | None = None
) -> Source:
    """Open the list of processes of one GPU.

    Args:
        device: see `nvml_session.locate`.
        mine: ids of our processes.
        pid: without `mine`: root of our process tree, by default this process.
    """
    return open_at(
        device,
        lambda context: NvmlProcessesSource(context, mine, pid or os.getpid()),
        name=NvmlProcessesSource.name,
        quantities=QUANTITIES,
    )


def _running(context: DeviceContext) -> list[Any]:
    nvml = context.nvml
    running = list(nvml.nvmlDeviceGetComputeRunningProcesses(context.handle))
    if context.is_slice:
        # Some drivers list the processes of all slices; without an instance, any of them may be
        # meant.
        of_slice = {None, context.gpu_instance}
        running = [p for p in running if getattr(p, "gpuInstanceId", None) in of_slice]
    return running


def _memory_mb(processes: list[Any]) -> float:
    if any(process.usedGpuMemory is None for process in processes):
        raise NotHere(HIDDEN)
    return float(sum(process.usedGpuMemory for process in processes) / MB)


def _foreign(processes: list[Any]) -> bool:
    """Whether these ids are from another PID namespace."""
    try:
        if os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE:
            return False
    except OSError:
        return False
    return not all(os.path.exists(f"/proc/{process.pid}") for process in processes)
