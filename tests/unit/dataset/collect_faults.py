"""Families that fail in every way, and a bench that measures nothing: for tests of the collector.

The collector finds them through `--families collect_faults --bench collect_faults:QuickBench`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time

from dataset.families.family import Family, InputTensor
from dippm.measure.columns import MEASURED


def _nothing(parameters, sizes):
    import torch

    return torch.nn.Identity()


def _inputs(parameters, sizes):
    return (InputTensor("x", sizes),)


def _hangs(parameters, sizes):
    if flag := os.environ.get("HANGING_FLAG"):
        open(flag, "w").close()
    time.sleep(3600)


def _hangs_once(parameters, sizes):
    if os.path.exists(os.environ["HANG_FLAG"]):
        time.sleep(3600)
    return _nothing(parameters, sizes)


def _segfault(parameters, sizes):
    print("about to fall", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def _killed(parameters, sizes):
    os.kill(os.getpid(), signal.SIGKILL)


def _exits(parameters, sizes):
    os._exit(7)


def _raises(parameters, sizes):
    raise ValueError("no such layer\nand a second line")


def _lacking(parameters, sizes):
    importlib.import_module("no_such_zoo")


def _cuda_error(parameters, sizes):
    raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be ...")


class _Module:
    """Made inside functions, so that reading the table needs no torch."""

    @staticmethod
    def module(forward):
        import torch

        class Failing(torch.nn.Module):
            def forward(self, x):
                return forward(x)

        return lambda parameters, sizes: Failing()


def _large(parameters, sizes):
    """Need a gigabyte for each sample."""
    import torch

    return _Module.module(lambda x: torch.ones(len(x), 2**28) + 1)(parameters, sizes)


def _slow(parameters, sizes):
    return _Module.module(lambda x: time.sleep(3600) if len(x) > 1 else x)(parameters, sizes)


def _memory_error(parameters, sizes):
    def forward(x):
        if len(x) > 2:
            raise MemoryError
        return x

    return _Module.module(forward)(parameters, sizes)


def _kills_station(parameters, sizes):
    """Once, kill the parent of the worker."""

    def forward(x):
        if len(x) == 2 and os.path.exists(os.environ["KILL_FLAG"]):
            os.remove(os.environ["KILL_FLAG"])
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        return x

    return _Module.module(forward)(parameters, sizes)


def _prints(parameters, sizes):
    print("a library that talks")
    os.write(1, b"and one in C\n")
    return _nothing(parameters, sizes)


def _family(name, build, kind="model"):
    return Family(name, kind, "a test", lambda: [{}], lambda p: [(4,)], build, _inputs)


FAMILIES = {
    family.name: family
    for family in (
        _family("steady", _nothing),
        _family("hangs", _hangs),
        _family("hangs_once", _hangs_once),
        _family("segfault", _segfault),
        _family("killed", _killed),
        _family("exits", _exits),
        _family("raises", _raises),
        _family("lacking", _lacking),
        _family("cuda_error", _cuda_error),
        _family("large", _large),
        _family("slow", _slow),
        _family("memory_error", _memory_error),
        _family("prints", _prints),
        _family("kills_station", _kills_station),
    )
}
OPERATORS = {"single": _family("single", _nothing, "operator")}


def build(workload, device):
    family = FAMILIES.get(workload.family) or OPERATORS[workload.family]
    return family.build(workload.parameters, workload.sizes)


def make_inputs(workload, batch, device):
    import torch

    return (torch.zeros(batch, *workload.sizes, device=device),)


class QuickBench:
    """Runs a module once and says that it took a millisecond."""

    def __init__(self, device, settings):
        self.settings = settings

    def memory_mb(self):
        return 10.0

    def measure(self, module, inputs, regime, *, wanted, memory_before_mb):
        from dippm.measure.provenance import machine

        module(*inputs)
        time.sleep(float(os.environ.get("QUICK_S", "0")))
        columns = dict.fromkeys(MEASURED)
        columns |= {"latency_ms": 1.0, "latencies_ms": [1.0] * 30, "latency_sd_ms": float("nan")}
        columns |= {**machine(inputs[0].device), "memory_before_mb": memory_before_mb}
        return {**columns, "absent": {"energy_j": "not measured by this bench"}}


class LosesDeviceBench(QuickBench):
    """The device is there until a model fails, and then no more."""

    def __init__(self, device, settings):
        super().__init__(device, settings)
        if os.path.exists(os.environ["LOST_FLAG"]):
            raise RuntimeError("CUDA error: no CUDA-capable device is detected")

    def measure(self, module, inputs, regime, **more):
        if len(inputs[0]) > 1:
            open(os.environ["LOST_FLAG"], "w").close()
            raise RuntimeError("CUDA error: the device is gone")
        return super().measure(module, inputs, regime, **more)
