"""How long runtimes beside eager and compiled PyTorch take.

TensorRT was measured on a T4 in fp16 at batch 1. There a kernel of group g takes

    A_i = max(a_g F_i / P, b_g Q_i / B) + τ_g · f_T4 / f

with a, b ≥ 1, so that none is faster than its roofline. Elsewhere an engine times its tactics and
keeps the fastest, those of PyTorch's libraries among them, so that a kernel takes no longer than
theirs, M_i = min(A_i, t_i) with t_i of the law of eager mode: it knows other GPUs, batches and
formats. Over the batch n of the T4 one turns into the other, M_i (A_i / M_i)^(1/n), no batch less
than one sample. No launch of the host is in it: a CUDA graph launches them all.
`python -m training.studies.engines --write` fits the file.

ONNX Runtime and TorchScript launch kernels of the same libraries, for less of the host's time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, hypot, log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.devices import Device
from dippm.errors import ConditionsError
from dippm.estimate.conditions import (
    EIGHT_BITS,
    GRAPH_ENGINES,
    Conditions,
    Precision,
    supported_precisions,
)
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import DeviceView, roofline_ms, roofline_parts_ms
from dippm.estimate.features.kernel_table import SETTINGS, KernelTable
from dippm.model.graph.model_graph import ModelGraph

Floats = NDArray[np.float64]
OFFSETS = Path(__file__).with_name("engine_offsets.json")
GROUPS: Mapping[str, Sequence[str]] = {
    "convolution": ("conv_spatial", "conv_patch", "conv_other"),
    "pointwise convolution": ("conv_pointwise",),
    "grouped convolution": ("conv_grouped",),
    "depthwise convolution": ("conv_depthwise", "conv_depthwise_direct"),
    "dense": ("gemm", "recurrent"),
    "batched product": ("batched_gemm",),
    "attention": ("attention",),
    "norm": ("layer_norm", "group_norm"),
    "softmax": ("softmax",),
    "reduction": ("reduction", "pool"),
    "element-wise": (
        *("batch_norm", "activation", "costly_activation", "elementwise", "broadcast", "cast"),
    ),
    "copy": ("copy", "concat", "gather", "resize", "other"),
}
"""Classes of kernels that share their offsets: 168 rows cannot tell more of them apart."""

_GROUP_OF = {kind: i for i, kinds in enumerate(GROUPS.values()) for kind in kinds}
GROUP_OF_CLASS = np.array([_GROUP_OF[kind] for kind in KERNEL_CLASSES], dtype=np.int64)
LAUNCHES = SETTINGS.index("launches")
NOT_TAKEN = (
    *("fft", "factorise", "complex", "histogram", "bessel", "gamma", "lgamma", "digamma"),
    *("erfinv", "moe_dispatch"),
)
"""Operators that no layer of an engine computes: ONNX, from which it is built, has none of them or
it has no parser for them."""
NEEDS_PLUGIN = ("deform_conv2d", "col2im", "affine_grid", "bit_shift")
"""Operators of ONNX that TensorRT's own parser does not read (its list of supported operators): a
plugin computes them, or the engine ends before them and PyTorch does (Torch-TensorRT)."""
LEAST_INT8_TENSOR_CORES = 7.2
"""Compute capability from which tensor cores multiply 8-bit integers: Xavier, then Turing."""
Z90 = 1.645
ELSEWHERE_LOG_SD = log(1.3)
"""Added away from what was measured: an assumption. Rates that NVIDIA has published for A100, V100
and H100 were recalled while it was chosen; none is committed, and none was fitted to."""
EIGHT_BITS_LOG_SD = log(1.25)
"""Added for formats of 8 bits: which layers take them is the engine's choice, and was not measured.
Twelve large convolutions of DeepBench on a T4 reach 0.81 of the share of the peak that they reach
in fp16 (batch 2 against 16)."""
LAUNCH_SHARE: Mapping[str, float] = {"onnxruntime": 0.3, "torchscript": 0.7}
"""Of the host's time for a launch of eager PyTorch: about 10 µs of 33 for a node in ONNX Runtime,
whose executor is C++; TorchScript saves Python and keeps the dispatcher. Assumed, not measured."""
RUNTIME_LOG_SD: Mapping[str, float] = {"onnxruntime": log(1.3), "torchscript": log(1.2)}
"""Added to the interval of eager PyTorch, an assumption as well."""
WIDER: Mapping[Precision, Precision] = {
    "int8": "fp16",
    "fp8": "fp16",
    "fp16": "fp32",
    "bf16": "fp32",
    "tf32": "fp32-ieee",
    "fp32": "fp32-ieee",
}
"""The format that an engine may keep for a layer where that is faster."""


@dataclass(frozen=True, slots=True)
class EngineLaw:
    """Offsets of one engine.

    Attributes:
        device: that was measured.
        precision: that was measured.
        clock_mhz: of that device; times of a layer follow the clock.
        arithmetic: a of each group, shape (G,).
        memory: b of each group, shape (G,).
        layer_ms: τ of each group on the measured device, shape (G,).
        log_half_width: within which 90 % of the rows of families left out of the fit lay.
    """

    device: str
    precision: str
    clock_mhz: float
    arithmetic: Floats
    memory: Floats
    layer_ms: Floats
    log_half_width: float

    @classmethod
    def read(cls, path: Path = OFFSETS) -> EngineLaw:
        """Read the offsets that come with the package."""
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        groups = [found["groups"][name] for name in GROUPS]
        return cls(
            device=found["device"],
            precision=found["precision"],
            clock_mhz=found["clock_mhz"],
            arithmetic=np.array([group["arithmetic"] for group in groups]),
            memory=np.array([group["memory"] for group in groups]),
            layer_ms=np.array([group["layer_us"] for group in groups]) / 1e3,
            log_half_width=found["log_half_width"],
        )

    def kernel_ms(self, table: KernelTable, batch: int, view: DeviceView) -> Floats:
        """Return the time of each kernel of an engine, in ms, shape (K,).

        Args:
            table: of `engine_kernels`.
            batch: samples.
            view: of the device or slice.
        """
        group = GROUP_OF_CLASS[table.kind]
        compute, memory = roofline_parts_ms(table, batch, view)
        layer_ms = self.layer_ms[group] * table.settings[:, LAUNCHES]
        slowed = np.maximum(self.arithmetic[group] * compute, self.memory[group] * memory)
        least = np.maximum(layer_ms * self.clock_mhz / view.clock_mhz, view.launch_ms)
        return np.asarray(slowed + least, dtype=np.float64)

    def is_own_place(self, c: Conditions) -> bool:
        """Tell whether the engine was measured on the device in the precision, at any batch."""
        asked = c.device.measured_name, c.precision, c.mig
        return asked == (self.device, self.precision, None)

    def was_measured(self, c: Conditions) -> bool:
        """Tell whether the engine was measured on the device, in the precision, at the batch."""
        return self.is_own_place(c) and c.batch == 1

    def half_width_at(self, c: Conditions) -> float:
        """Return the half width of the 90 % interval, in the log."""
        if self.was_measured(c):
            return self.log_half_width
        eight = EIGHT_BITS_LOG_SD if c.precision in EIGHT_BITS else 0.0
        return hypot(self.log_half_width, Z90 * ELSEWHERE_LOG_SD, Z90 * eight)

    def times(self, table: KernelTable, c: Conditions, view: DeviceView, library: Floats) -> Floats:
        """Return the time of each kernel, in ms, shape (K,).

        Args:
            table: of the engine.
            c: of the question.
            view: of the device or slice.
            library: what PyTorch's libraries take for the same kernels, in ms, shape (K,).
        """
        own = self.kernel_ms(table, c.batch, view)
        fastest = np.minimum(own, library)
        least = roofline_ms(table, c.batch, view)
        if c.device.measured_name != self.device or c.mig is not None:
            return np.maximum(fastest, least)
        times = fastest * (own / np.maximum(fastest, 1e-12)) ** (1.0 / c.batch)
        if table.batch is None:  # more samples take no less than the one that was measured
            least = np.maximum(least, self.kernel_ms(table, 1, view))
        return np.maximum(times, least)


@lru_cache(maxsize=1)
def tensorrt() -> EngineLaw:
    """Return the law of TensorRT."""
    return EngineLaw.read()


def as_pytorch(c: Conditions) -> Conditions:
    """Return the conditions of PyTorch that a runtime is held to, and has the memory of.

    TensorRT is held to compiled mode, the others to eager mode.
    """
    fused = c.runtime == "tensorrt"
    return c.replace(
        runtime="pytorch",
        mode="compiled" if fused else "eager",
        channels_last=fused or c.channels_last,
        precision="fp16" if c.precision in EIGHT_BITS else _products(c),
    )


def _products(c: Conditions) -> Precision:
    """Return the precision with TF32 on for every product, as both engines come."""
    has_tf32 = c.runtime in GRAPH_ENGINES and "tf32" in c.device.peak_tflops
    return "tf32" if has_tf32 and c.precision == "fp32" else c.precision


def as_run(c: Conditions) -> Conditions:
    """Return the conditions whose kernels a runtime runs.

    The unit of 8 bits multiplies both of its formats, each at its rate; where that of halves is
    faster the engine keeps these.
    """
    if c.runtime not in GRAPH_ENGINES:
        return c.replace(runtime="pytorch")
    run = c.replace(precision=_products(c), channels_last=c.runtime == "tensorrt")
    return run.replace(device=with_eight_bits(c.device, c.precision))


def with_eight_bits(device: Device, precision: Precision) -> Device:
    """Return a GPU whose unit of 8 bits has the rate of a format, if that is one of EIGHT_BITS."""
    if precision not in EIGHT_BITS:
        return device
    rates = device.peak_tflops
    rate = rates.get("fp8") if precision == "fp8" else device.int8_tops
    return replace(device, peak_tflops={**rates, "int8": max(rate or 0.0, rates["fp16"])})


def wider_than(c: Conditions) -> Conditions | None:
    """Return the conditions in the format that an engine may keep instead; None without one."""
    wider = WIDER.get(c.precision)
    if wider is None or wider not in supported_precisions(c.device, c.runtime):
        return None
    return c.replace(precision=wider)


def at_most(times: Floats, most_ms: float, least: Floats) -> Floats:
    """Return times that sum to no more than a bound, none below its least."""
    total_ms = float(times.sum())
    factor = min(1.0, most_ms / total_ms) if total_ms > 0.0 else 1.0
    return np.asarray(np.maximum(factor * times, least), dtype=np.float64)


def half_width(c: Conditions, eager: float) -> float:
    """Return the half width of the 90 % interval of a runtime, in the log.

    Args:
        c: of the question.
        eager: that of PyTorch.
    """
    if c.runtime == "tensorrt":
        return tensorrt().half_width_at(c)
    return hypot(eager, Z90 * RUNTIME_LOG_SD[c.runtime])


def refuse_untaken(graph: ModelGraph, runtime: str) -> None:
    """Refuse a graph with operators that an engine does not take.

    Raises:
        ConditionsError: if it has some; they are named.
    """
    if runtime not in GRAPH_ENGINES:
        return
    untaken = {op: n for op, n in sorted(graph.histogram().items()) if op in NOT_TAKEN}
    if untaken:
        listed = ", ".join(f"{op} ×{n}" for op, n in untaken.items())
        raise ConditionsError(
            f"{runtime} has no layer for {listed}",
            "Use runtime=pytorch with mode=compiled, or export the model without them.",
        )


def engine_warnings(graph: ModelGraph, c: Conditions, half: float) -> tuple[str, ...]:
    """Return what to know about the answer for a runtime.

    Args:
        graph: of the model.
        c: of the question.
        half: half width of the interval, in the log.
    """
    law, found = tensorrt(), []
    unknown = dict(graph.unknown_ops)
    if unknown:
        listed = ", ".join(f"{name} ×{count}" for name, count in sorted(unknown.items()))
        found.append(
            f"operators without a cost rule, taken as memory-bound: {listed}; whether {c.runtime} "
            "takes them is not known"
        )
    plugins = {op: n for op, n in sorted(graph.histogram().items()) if op in NEEDS_PLUGIN}
    if plugins and c.runtime == "tensorrt":
        listed = ", ".join(f"{op} ×{n}" for op, n in plugins.items())
        found.append(
            f"tensorrt needs a plugin for {listed}, or leaves them to PyTorch (Torch-TensorRT): "
            "taken as a kernel of PyTorch, without what it costs to leave the engine there"
        )
    place = f"slice {c.mig} of {c.device.name}" if c.mig else c.device.name
    wide = f"a factor of {exp(half):.1f}, is an assumption"
    if c.runtime != "tensorrt":
        found.append(
            f"{c.runtime} was never measured: kernels as in eager PyTorch, {_ASSUMED[c.runtime]}; "
            f"how far that may be off, {wide}"
        )
    elif not law.was_measured(c):
        found.append(
            f"tensorrt was never measured on {place} in {c.precision} at batch {c.batch:,}, "
            f"only on {law.device} in {law.precision} at batch 1: carried by the roofline and by "
            f"the kernels of PyTorch; how far that may be off, {wide}"
        )
    if c.precision in EIGHT_BITS:
        found.append(
            f"{c.precision}: convolutions and dense layers; norms, softmax and attention stay in "
            "fp16; the effect of the rounding on the model's results is not considered"
        )
    capability = c.device.compute_capability
    if c.precision == "int8" and capability is not None and capability < LEAST_INT8_TENSOR_CORES:
        found.append(
            f"{c.device.name} has no tensor cores for 8-bit integers: they are multiplied by an "
            "instruction (DP4A), or in fp16 where its tensor cores are faster"
        )
    if c.device.calibration is not None and c.runtime == "tensorrt":
        found.append(
            f"the calibration of {c.device.name} is of PyTorch: what {c.runtime} takes from it is "
            "that it is no slower"
        )
    like = "compiled" if c.runtime == "tensorrt" else "eager"
    found.append(
        f"memory is that of {like} PyTorch, power follows its law: of {c.runtime} neither was "
        "measured"
    )
    return tuple(found)


_ASSUMED: Mapping[str, str] = {
    "onnxruntime": "fused as its optimizer does for CUDA, a node launched in 0.3 of eager's time",
    "torchscript": "none fused, each launched in 0.7 of its time",
}
