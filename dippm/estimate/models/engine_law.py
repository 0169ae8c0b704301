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
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import DeviceView, roofline_parts_ms
from dippm.estimate.features.kernel_table import SETTINGS, KernelTable

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

    def log_half_width_on(self, device: str, precision: str, z: float) -> float:
        """Return the half width of the 90 % interval, in the log.

        Args:
            device: as measured devices are called.
            precision: of the question.
            z: quantile of the normal distribution for `ELSEWHERE_LOG_SD`.
        """
        if (device, precision) == (self.device, self.precision):
            return self.log_half_width
        return float(np.hypot(self.log_half_width, z * ELSEWHERE_LOG_SD))


@lru_cache(maxsize=1)
def tensorrt() -> EngineLaw:
    """Return the law of TensorRT."""
    return EngineLaw.read()
