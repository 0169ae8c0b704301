"""How long an engine takes for each of its kernels: the roofline with measured offsets.

t_i = max(a_g F_i / P, b_g Q_i / B) + τ_g · f_T4 / f

of group g, with a, b ≥ 1, so that no kernel is faster than its roofline. No launch of the host is
in it: a CUDA graph launches them all. `python -m training.studies.engines --write` fits the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.errors import ConditionsError
from dippm.estimate.conditions import Conditions
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
Z90 = 1.645
ELSEWHERE_LOG_SD = log(1.5)
"""Taken for a GPU other than the measured one: an assumption, nothing was measured."""


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
        return float(np.hypot(self.log_half_width, Z90 * ELSEWHERE_LOG_SD))


@lru_cache(maxsize=1)
def tensorrt() -> EngineLaw:
    """Return the law of TensorRT."""
    return EngineLaw.read()


def as_compiled(c: Conditions) -> Conditions:
    """Return the conditions of compiled PyTorch, which an engine is held to."""
    return c.replace(runtime="pytorch", mode="compiled", channels_last=True)


def engine_times(
    table: KernelTable, c: Conditions, view: DeviceView, most_ms: float
) -> tuple[Floats, float]:
    """Return the times of an engine's kernels in ms, shape (K,), and the interval's log half width.

    In all they take no longer than compiled PyTorch, where the engine was measured by no more than
    the interval, and each takes no less than its roofline. The table that teaches has norms spelt
    in steps, 26 times their memory time; exporters of today keep them whole, so elsewhere no
    engine is taken to be slower than a compiler.

    Args:
        table: of the engine.
        c: of the question.
        view: of the device or slice.
        most_ms: device time of compiled PyTorch.
    """
    law = tensorrt()
    half = law.half_width_at(c)
    times = law.kernel_ms(table, c.batch, view)
    total_ms = float(times.sum())
    most_ms *= exp(law.log_half_width) if law.is_own_place(c) else 1.0
    factor = min(1.0, most_ms / total_ms) if total_ms > 0.0 else 1.0
    return np.maximum(factor * times, roofline_ms(table, c.batch, view)), half


def refuse_untaken(graph: ModelGraph, runtime: str) -> None:
    """Refuse a graph with operators that an engine does not take.

    Raises:
        ConditionsError: if it has some; they are named.
    """
    untaken = {op: n for op, n in sorted(graph.histogram().items()) if op in NOT_TAKEN}
    if untaken:
        listed = ", ".join(f"{op} ×{n}" for op, n in untaken.items())
        raise ConditionsError(
            f"{runtime} has no layer for {listed}",
            "Ask for runtime=pytorch with mode=compiled, or export the model without them.",
        )


def engine_warnings(graph: ModelGraph, c: Conditions) -> tuple[str, ...]:
    """Return what to know about the answer for an engine."""
    law, found = tensorrt(), []
    unknown = dict(graph.unknown_ops)
    if unknown:
        listed = ", ".join(f"{name} ×{count}" for name, count in sorted(unknown.items()))
        found.append(
            f"operators without a cost rule, taken as memory-bound: {listed}; whether {c.runtime} "
            "takes them is not known"
        )
    if not law.was_measured(c):
        place = f"slice {c.mig} of {c.device.name}" if c.mig else c.device.name
        found.append(
            f"{c.runtime} was never measured on {place} in {c.precision} at batch {c.batch:,}, "
            f"only on {law.device} in {law.precision} at batch 1: carried by the roofline; how "
            f"far that may be off, a factor of {exp(law.half_width_at(c)):.1f}, is an assumption"
        )
    if c.device.calibration is not None:
        found.append(f"the calibration of {c.device.name} is of PyTorch: {c.runtime} leaves it out")
    found.append(
        f"memory is that of compiled PyTorch, power follows its law: of {c.runtime} neither was "
        "measured"
    )
    return tuple(found)
