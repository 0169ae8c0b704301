"""`KernelClock`: time of each kernel by itself, by the law of the shipped predictor.

A language model has few distinct kernels, which recur in every layer, so each is timed once.
Kernels of serving engines take the law without the offsets of any table of whole models, times
corrections that were learned from operators of such engines (see `corrections`); kernels of eager
PyTorch take the law as for any other model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dippm.decide.language.corrections import Corrections
from dippm.decide.language.kernels import KernelList
from dippm.decide.language.setting import Software
from dippm.devices import Device
from dippm.estimate.conditions import Conditions, Precision
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_features import DeviceView, kernel_features
from dippm.estimate.features.kernel_table import KernelGraph, KernelTable
from dippm.estimate.models.gpu_effects import GpuEffects
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.kernel_law import KernelLaw
from dippm.estimate.models.kernel_network import ROUNDS
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.monotonic_bounds import MonotonicBounds
from dippm.estimate.models.novelty import Novelty
from dippm.estimate.models.ordered_times import OrderedTimes


class KernelTime(NamedTuple):
    """The time of one kernel.

    Attributes:
        ms: time on the device.
        spread: standard deviation of its log over the members of the law's ensemble.
        extrapolated: 1 if its slow-down was clipped to the measured range, else 0.
        novelty: distance to the training data.
    """

    ms: float
    spread: float
    extrapolated: float
    novelty: Novelty


class ListTime(NamedTuple):
    """The time of a list of kernels that run one after the other.

    Attributes:
        ms: time on the device.
        spread, extrapolated, novelty: means of those of `KernelTime`, weighted by time.
        by_name: time of the kernels of each name in ms.
    """

    ms: float
    spread: float
    extrapolated: float
    novelty: Novelty
    by_name: dict[str, float]


class KernelClock:
    """Times of kernels on one device.

    Args:
        hybrid: the predictor.
        conditions: device and precision; the batch is that of the kernels.
        software: see `ServingSetting`; selects the law.
        corrections: corrections for kernels of serving engines; None without any.
    """

    def __init__(
        self,
        hybrid: Hybrid,
        conditions: Conditions,
        software: Software,
        corrections: Corrections | None,
    ) -> None:
        shared = software != "eager"
        law = hybrid.law
        assert isinstance(law, KernelLaw)
        self._law = replace(law, effects=GpuEffects({}, {}), table_heads={}) if shared else law
        self._corrections = corrections if shared else None
        self._bounds = _BoundsOfGpus(hybrid.config["seen"]["often"])
        self._conditions = conditions.replace(
            device=with_eight_bits(conditions.device), batch=1, mig=None
        )
        self.view = DeviceView.of(self._conditions.device)
        self._known: dict[Kernel, KernelTime] = {}

    def time(self, kernel: Kernel) -> KernelTime:
        """Return the time of a kernel."""
        found = self._known.get(kernel)
        if found is None:
            found = self._known[kernel] = self._timed(kernel)
        return found

    def times(self, listed: KernelList) -> ListTime:
        """Return the time of all kernels of a list."""
        by_name: dict[str, float] = {}
        sums = np.zeros(4)
        for (name, kernel), count in listed.counts.items():
            found = self.time(kernel)
            by_name[name] = by_name.get(name, 0.0) + count * found.ms
            sums += count * found.ms * np.array([found.spread, found.extrapolated, *found.novelty])
        total = sum(by_name.values())
        spread, extrapolated, *novelty = (sums / max(total, 1e-12)).tolist()
        return ListTime(total, spread, extrapolated, Novelty(*novelty), by_name)

    def _timed(self, kernel: Kernel) -> KernelTime:
        table = KernelTable.of_kernels([kernel])
        kernels = LawKernels.of(KernelGraph.of(table, ROUNDS))
        ordered = OrderedTimes(self._law, self._bounds, lambda _: kernels, 1)
        found = ordered.at(self._conditions)
        ms = found.device_ms
        if self._corrections is not None:
            ms *= self._corrections.factor(kernel_features(table, 1, self.view))
            ms = max(ms, self._cold_ms(kernel))
        return KernelTime(ms, found.spread, found.extrapolated, found.novelty)

    def _cold_ms(self, kernel: Kernel) -> float:
        """Return the time of reading weights, keys and values from memory at its peak rate.

        Operator benchmarks repeat on the same tensors, which then stay in the L2 cache; in a model
        the other layers evict them between two passes.
        """
        cold = kernel.weight_bytes + (kernel.read_bytes if kernel.kind == "attention" else 0.0)
        return cold / self.view.bytes_per_ms


class _BoundsOfGpus(MonotonicBounds):
    """Bounds between GPUs only: half precision is not compared with another format."""

    def never_faster(self, device: Device, precision: Precision) -> tuple[Precision, ...]:
        """Return nothing."""
        return ()


def with_eight_bits(device: Device) -> Device:
    """Return a device whose int8 rate, if it is not known, is that of fp8.

    Both formats share the unit on every GPU that has fp8 in the catalogue.
    """
    rates = device.peak_tflops
    if "int8" in rates or "fp8" not in rates:
        return device
    return replace(device, peak_tflops={**rates, "int8": rates["fp8"]})
