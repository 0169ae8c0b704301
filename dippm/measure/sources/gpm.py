"""Activity of a GPU's units by NVML's GPM: Hopper and later, without daemon or root.

A value is the mean between two samples, so the first reading has none. Unlike utilisation, it is
also available for a MIG slice.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

from dippm.measure.readings import AbsentSource, Quantity, Readings, Source
from dippm.measure.sources.calls import Calls, CounterCall, Failure, NotHere
from dippm.measure.sources.nvml_session import DeviceContext, Session, explain, locate


def _metric(name: str, unit: str, about: str, asked: str) -> tuple[Quantity, str]:
    return Quantity(name, unit, "device", about), asked


METRICS = (
    _metric("sm_active_percent", "%", "multiprocessors busy", "SM_UTIL"),
    _metric("sm_occupancy_percent", "%", "warps of those possible", "SM_OCCUPANCY"),
    _metric("tensor_active_percent", "%", "tensor cores busy", "ANY_TENSOR_UTIL"),
    _metric("dram_active_percent", "%", "bandwidth of that possible", "DRAM_BW_UTIL"),
    _metric("graphics_active_percent", "%", "engine that runs kernels busy", "GRAPHICS_UTIL"),
    _metric("fp64_active_percent", "%", "FP64 pipes busy", "FP64_UTIL"),
    _metric("fp32_active_percent", "%", "FP32 pipes busy", "FP32_UTIL"),
    _metric("fp16_active_percent", "%", "FP16 pipes busy, no tensor cores", "FP16_UTIL"),
    _metric("pcie_tx_mb_s", "MiB/s", "sent by the GPU", "PCIE_TX_PER_SEC"),
    _metric("pcie_rx_mb_s", "MiB/s", "received by the GPU", "PCIE_RX_PER_SEC"),
    _metric("nvlink_tx_mb_s", "MiB/s", "sent over all links", "NVLINK_TOTAL_TX_PER_SEC"),
    _metric("nvlink_rx_mb_s", "MiB/s", "received over them", "NVLINK_TOTAL_RX_PER_SEC"),
)
QUANTITIES = tuple(quantity for quantity, _ in METRICS)
UNSUPPORTED = "this GPU has no GPM: Hopper and later do"
FIRST = "a mean between two readings: read again"


class GpmSource:
    """Activity of one GPU, or one MIG slice, between two readings."""

    name = "gpm"

    def __init__(self, context: DeviceContext) -> None:
        if context.is_slice:
            self.quantities: tuple[Quantity, ...] = tuple(
                Quantity(q.name, q.unit, "slice", q.about) for q in QUANTITIES
            )
        else:
            self.quantities = QUANTITIES
        self._context = context
        self._ids = [getattr(context.nvml, f"NVML_GPM_METRIC_{name}") for _, name in METRICS]
        self._samples = [context.nvml.nvmlGpmSampleAlloc() for _ in range(2)]
        self._has_first = False
        self._calls = Calls(self.name, [CounterCall(QUANTITIES, self._sample)], _explain)
        self._answers: dict[str, float] = {}
        self._reasons: dict[str, str] = {}
        self._open = True

    def read(self) -> Readings:
        """Take a sample and compare it with the previous one."""
        self._answers, self._reasons = {}, {}
        whole = self._calls.read()
        if whole.absent:
            return whole
        return Readings(whole.time_ns, self._answers, self._reasons)

    def close(self) -> None:
        """Free the samples; shut NVML down, unless it is used elsewhere in this process."""
        if not self._open:
            return
        self._open = False
        self._calls.drop("the source is closed")
        for sample in self._samples:
            with contextlib.suppress(self._context.nvml.NVMLError):  # the GPU may be lost
                self._context.nvml.nvmlGpmSampleFree(sample)
        Session.close()

    def _sample(self) -> tuple[float, ...]:
        older, newer = self._samples
        self._take(newer)
        if not self._has_first:
            self._has_first = True
            self._samples = [newer, older]
            raise NotHere(FIRST)
        try:
            self._compare(older, newer)
        finally:
            self._samples = [newer, older]
        return tuple(self._answers.get(quantity.name, math.nan) for quantity in QUANTITIES)

    def _take(self, sample: Any) -> None:
        context = self._context
        if context.is_slice:
            context.nvml.nvmlGpmMigSampleGet(context.board, context.gpu_instance, sample)
        else:
            context.nvml.nvmlGpmSampleGet(context.board, sample)

    def _compare(self, older: Any, newer: Any) -> None:
        nvml = self._context.nvml
        question = nvml.c_nvmlGpmMetricsGet_t()
        question.version = nvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(self._ids)
        question.sample1, question.sample2 = older, newer
        for position, metric in enumerate(self._ids):
            question.metrics[position].metricId = metric
        nvml.nvmlGpmMetricsGet(question)
        for position, quantity in enumerate(QUANTITIES):
            metric = question.metrics[position]
            if metric.nvmlReturn != nvml.NVML_SUCCESS:
                self._reasons[quantity.name] = (
                    f"NVML says {str(nvml.NVMLError(metric.nvmlReturn))!r}"
                )
            elif not math.isfinite(metric.value):
                self._reasons[quantity.name] = "the two readings were too close: read more slowly"
            else:
                self._answers[quantity.name] = float(metric.value)


def open_gpm(device: str | int = 0) -> Source:
    """Open the activity counters of a GPU; `device` as in `nvml_session.locate`."""
    try:
        nvml = Session.open()
    except NotHere as missing:
        return AbsentSource(GpmSource.name, QUANTITIES, str(missing))
    try:
        context = locate(nvml, device)
        if not nvml.nvmlGpmQueryDeviceSupport(context.board).isSupportedDevice:
            raise NotHere(UNSUPPORTED)
        return GpmSource(context)
    except (NotHere, AttributeError, nvml.NVMLError) as error:
        Session.close()
        reason = _explain(error, CounterCall(QUANTITIES, tuple)).reason
        return AbsentSource(GpmSource.name, QUANTITIES, reason)


def _explain(error: Exception, call: CounterCall) -> Failure:
    return explain(error, call, {QUANTITIES[0].name: "Hopper and later have GPM"})
