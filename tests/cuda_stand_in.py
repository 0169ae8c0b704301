"""A GPU that is none: `torch.cuda` and NVML answered from Python, the work done by the CPU.

Only what a measurement asks for is there. No figure of it was ever measured, and nothing here says
how long a GPU takes; it shows what is asked, in which order, and what becomes of the answers.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from dippm.measure.kernels import TracedKernel
from dippm.measure.provenance import machine
from dippm.measure.readings import AbsentSource, Readings, Source
from dippm.measure.sources import gpm, nvml, nvml_processes

DEVICE = torch.device("cuda:0")
MB = 2**20


class Event:
    """Records a moment of the host: the stand-in's work is done when a call returns."""

    def __init__(self, **_: Any) -> None:
        self.at_s = 0.0

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: Event) -> float:
        return 1000 * (later.at_s - self.at_s)


@dataclass
class Gpu:
    """What the device says.

    Attributes:
        reserved_mb, allocated_mb: peaks of torch's allocator.
        used_mb: what the driver says is in use.
        others: processes of others, with the memory of all of them in MiB; None is not known.
        clock_mhz, busy_clock_mhz: outside of the energy window, and in it.
        busy_throttle: mask of NVML in the energy window.
        power_w: whatever runs.
        period_s: between two updates of the energy counter.
        asked: how often NVML was asked for each quantity.
        kernels_ns: durations of the kernels of a profiled step; None if the profiler fails.
        asked_before_profile: `asked` when the profiled step began.
    """

    reserved_mb: float = 100.0
    allocated_mb: float = 80.0
    used_mb: float = 700.0
    others: tuple[int, float | None] = (0, 0.0)
    clock_mhz: float = 1980.0
    busy_clock_mhz: float = 1500.0
    busy_throttle: int = 0x4
    power_w: float = 250.0
    period_s: float = 0.005
    asked: Counter[str] = field(default_factory=Counter)
    kernels_ns: list[int] | None = field(default_factory=lambda: [1000])
    asked_before_profile: Counter[str] = field(default_factory=Counter)

    def profile_step(self, step: Any, *_: Any, before: Any, **__: Any) -> tuple[TracedKernel, ...]:
        """Answer for the profiler, which needs CUDA."""
        self.asked_before_profile = self.asked.copy()
        if self.kernels_ns is None:
            raise RuntimeError("CUPTI is not there")
        before()
        step()
        call = (("aten::linear",), (0,), "", "forward", None)
        return tuple(TracedKernel("gemm", *call, 0, ns) for ns in self.kernels_ns)  # type: ignore[arg-type]

    def value(self, name: str, *, busy: bool) -> float:
        """Return what NVML says for a quantity."""
        self.asked[name] += 1
        ticks = int(time.monotonic() / self.period_s)
        return {
            "energy_j": self.power_w * ticks * self.period_s,
            "power_w": self.power_w,
            "power_instant_w": self.power_w,
            "memory_used_mb": self.used_mb,
            "power_cap_w": 700.0,
            "sm_clock_mhz": self.busy_clock_mhz if busy else self.clock_mhz,
            "memory_clock_mhz": 2619.0,
            "temperature_c": 70.0 if busy else 40.0,
            "throttle": float(self.busy_throttle if busy else 0),
            "utilization_percent": 99.0,
        }[name]


class Nvml:
    """NVML's source, asked for some quantities."""

    name, quantities = "nvml", nvml.QUANTITIES

    def __init__(self, gpu: Gpu, only: tuple[str, ...]) -> None:
        self.gpu, self.only = gpu, only

    def read(self) -> Readings:
        busy = "utilization_percent" in self.only
        values = {name: self.gpu.value(name, busy=busy) for name in self.only}
        return Readings(time.monotonic_ns(), values)

    def close(self) -> None:
        pass


class Processes:
    """Who else is on the device."""

    name, quantities = "nvml_processes", nvml_processes.QUANTITIES

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def read(self) -> Readings:
        count, memory_mb = self.gpu.others
        values = {"other_processes": float(count)}
        if memory_mb is not None:
            values["other_memory_mb"] = memory_mb
        return Readings(time.monotonic_ns(), values)

    def close(self) -> None:
        pass


@contextlib.contextmanager
def gpu() -> Iterator[Gpu]:
    """Let `dippm.measure.run.Bench` measure on `DEVICE`, with modules and inputs on the CPU."""
    made = Gpu()

    def opened(name: str, **where: Any) -> Source:
        if name == "nvml":
            return Nvml(made, tuple(where["only"]))
        if name == "nvml_processes":
            return Processes(made)
        return AbsentSource(name, gpm.QUANTITIES, "the stand-in has none")

    properties = SimpleNamespace(
        name="Stand-in", total_memory=80 * 1024 * MB, L2_cache_size=MB, multi_processor_count=4
    )
    answers = {
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda *_: None,
        "device": lambda *_: contextlib.nullcontext(),
        "Event": Event,
        "max_memory_allocated": lambda *_: made.allocated_mb * MB,
        "max_memory_reserved": lambda *_: made.reserved_mb * MB,
        "memory_reserved": lambda *_: 20 * MB,
        "get_device_properties": lambda *_: properties,
    }
    with (
        mock.patch.multiple(torch.cuda, **answers),
        mock.patch("dippm.measure.context.open_source", opened),
        mock.patch("dippm.measure.context.open_context"),
        mock.patch("dippm.measure.run.profile_step", made.profile_step),
        mock.patch("dippm.measure.run.displacer", return_value=torch.ones(4).sum),
    ):
        try:
            yield made
        finally:
            machine.cache_clear()
