"""Where operators stand under the roofs of their device.

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
class Point:
    """One operator.

    Attributes:
        op: canonical name.
        path: of its module.
        unit: arithmetic that carries its operations.
        intensity: operations per byte moved, FLOP/B.
        tflops: operations over its predicted time, TFLOP/s.
        time_ms: predicted.
        share: of the latency.
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
    """A device and the operators under its roofs.

    Attributes:
        bandwidth_gb_s: of the memory, by the data sheet; of the slice if one is asked for.
        peak_tflops: by unit, of those that the model uses.
        points: operators that compute and move something, in graph order.
        left_out: operators that only move data, and have no place here.
    """

    bandwidth_gb_s: float
    peak_tflops: Mapping[str, float]
    points: tuple[Point, ...]
    left_out: int

    @classmethod
    def of(cls, explanation: Explanation) -> Roofline:
        """Place the operators of an explanation."""
        c = explanation.prediction.conditions
        view = DeviceView.of(c.device, c.mig)
        costs = [row.cost for row in explanation.operators]
        points = tuple(
            Point(
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
