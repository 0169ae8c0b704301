"""Operators on the roofline of their device.

S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dippm.decide.explanation.explanation import Explanation
from dippm.estimate.features.kernel import UNITS
from dippm.estimate.features.kernel_features import DeviceView

UNIT_NAMES = {"half": "fp16 / bf16", "tf32": "TF32", "fp32": "fp32", "int8": "int8"}


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One operator on the roofline.

    Attributes:
        op: canonical name of the operator.
        path: path of its module.
        unit: arithmetic unit that carries out its operations.
        intensity: operations per byte moved, FLOP/B.
        tflops: operations over its predicted time, TFLOP/s.
        time_ms: predicted time.
        share: share of the latency.
    """

    op: str
    path: str
    unit: str
    intensity: float
    tflops: float
    time_ms: float
    share: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """The roofline of a device, with operators.

    Attributes:
        bandwidth_gb_s: memory bandwidth by the data sheet; that of the slice if one is requested.
        peak_tflops: peak rate of each unit that the model uses.
        points: operators that compute and move data, in graph order.
        left_out: number of operators that only move data and have no intensity.
    """

    bandwidth_gb_s: float
    peak_tflops: Mapping[str, float]
    points: tuple[RooflinePoint, ...]
    left_out: int

    @classmethod
    def of(cls, explanation: Explanation) -> Roofline:
        """Return the roofline of an explanation."""
        c = explanation.prediction.conditions
        view = DeviceView.of(c.device, c.mig)
        costs = [row.cost for row in explanation.operators]
        points = tuple(
            RooflinePoint(
                cost.op,
                cost.path,
                cost.unit,
                cost.flops / cost.bytes_moved,
                cost.flops / cost.time_ms / 1e9,
                cost.time_ms,
                cost.share,
            )
            for cost in costs
            if cost.flops > 0 and cost.bytes_moved > 0 and cost.time_ms > 0
        )
        used = {point.unit for point in points}
        peaks: dict[str, float] = {
            unit: float(rate) / 1e9
            for unit, rate in zip(UNITS, view.peak_flops_per_ms, strict=True)
            if unit in used
        }
        return cls(view.bytes_per_ms / 1e6, peaks, points, len(costs) - len(points))
