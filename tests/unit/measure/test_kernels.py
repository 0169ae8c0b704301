"""Kernel tables: from a profile of the CPU with everything real, and from a trace of a GPU.

The GPU's trace is written by hand in the format of torch's profiler; no figure of it was measured.
"""

import json

import pytest
import torch
from torch import nn

from dippm.measure.kernels import TracedKernel, kernel_ms
from dippm.measure.kernels.profile import profile_step, read_trace
from dippm.measure.protocol import Regime
from dippm.measure.regimes import prepare_step

CPU = torch.device("cpu")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def trace(regime: Regime, module: nn.Module | None = None) -> tuple[TracedKernel, ...]:
    network, inputs = module or Network(), (torch.randn(2, 3, 8, 8),)
    marks = None if regime.mode == "compiled" else network
    with prepare_step(network, inputs, regime, device=CPU) as step:
        return profile_step(step, CPU, module=marks)


def outermost(kernels) -> list[tuple[str, str | None]]:
    """Name and module of each call that is in no other."""
    return [(k.operators[0], k.path) for k in kernels if len(k.operators) == 1]


def test_operators_of_a_cpu_know_their_module():
    assert outermost(trace(Regime())) == [
        ("aten::conv2d", "features.0"),
        ("aten::relu", "features.1"),
        ("aten::mean", ""),
        ("aten::linear", "head"),
    ]


def test_a_call_inside_another_is_counted_once():
    kernels = trace(Regime())
    inner = [k for k in kernels if k.operators[0] == "aten::linear"]
    assert ("aten::linear", "aten::addmm") in [k.operators for k in inner]
    assert len({k.instances[0] for k in inner}) == 1
    whole = {k.instances[0]: k for k in kernels if len(k.operators) == 1}
    assert all(k.ns >= 0 for k in kernels)
    assert kernel_ms(kernels) >= kernel_ms(whole.values())


def test_the_parts_of_a_training_step_are_told_apart():
    kernels = trace(Regime(phase="train"))
    assert {k.part for k in kernels} == {"forward", "backward", "optimizer"}
    by_instance = {k.instances[-1]: k for k in kernels}
    gradients = [k for k in kernels if k.kernel == "aten::convolution_backward"]
    assert gradients
    for kernel in gradients:
        assert kernel.forward_instance is not None
        assert by_instance[kernel.forward_instance].path == "features.0"


def test_hooks_and_profiler_leave_nothing_behind():
    from torch.nn.modules import module

    network = Network()
    trace(Regime(), network)
    assert not module._global_forward_hooks
    assert not module._global_forward_pre_hooks
    assert not any(part._forward_hooks for part in network.modules())
    assert not torch.autograd._profiler_enabled()


def test_an_error_of_the_step_ends_the_profiler():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        profile_step(broken, CPU)
    assert not torch.autograd._profiler_enabled()


def event(cat, name, ts, dur, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, "args": args}


def gpu_trace() -> bytes:
    launched = {"External id": 12, "grid": [8, 4, 1], "block": [128, 1, 1], "stream": 7}
    events = [
        event("user_annotation", "dippm.module:", 0, 100),
        event("user_annotation", "dippm.module:head", 1, 90),
        event("cpu_op", "aten::linear", 2, 50, **{"External id": 11}),
        event("cpu_op", "aten::addmm", 3, 40, **{"External id": 12}),
        event("cuda_runtime", "cudaLaunchKernel", 4, 5, **{"External id": 12, "correlation": 900}),
        event("kernel", "sm90_xmma_gemm", 40, 6.125, **launched),
        event("gpu_memcpy", "Memcpy DtoD", 47, 1.5, **{"External id": 77, "stream": 7}),
        event("gpu_user_annotation", "dippm.module:head", 40, 9),
        event("kernel", "splitKreduce", 46.25, 0.5, **launched),
        {"ph": "M", "name": "process_name"},
    ]
    return json.dumps({"traceEvents": events}).encode()


def test_kernels_of_a_gpu_name_their_operator_module_and_grid():
    first, second, copy = read_trace(gpu_trace(), on_gpu=True)
    assert (first.kernel, first.ns, first.start_ns) == ("sm90_xmma_gemm", 6125, 0)
    assert first.operators == ("aten::linear", "aten::addmm")
    assert (first.path, first.part, first.grid, first.block) == (
        "head", "forward", (8, 4, 1), (128, 1, 1),
    )  # fmt: skip
    assert (second.kernel, second.start_ns, second.stream) == ("splitKreduce", 6250, 7)
    assert second.instances == first.instances
    assert (copy.kernel, copy.operators, copy.path, copy.grid) == ("Memcpy DtoD", (), None, None)
    assert kernel_ms((first, second, copy)) == pytest.approx(0.008125)


def test_what_is_no_trace_is_refused():
    with pytest.raises(ValueError, match="no trace"):
        read_trace(b"{}")


def test_a_kernel_survives_json():
    for kernel in (*read_trace(gpu_trace(), on_gpu=True), *trace(Regime())):
        assert TracedKernel.of(json.loads(json.dumps(kernel.to_dict()))) == kernel
