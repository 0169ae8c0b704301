"""Comparison of predictions with measurements.

`verify` compares the quantities of a whole model, `verify_operators` the operators of a prediction
with the kernels of one profiled step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.errors import ConditionsError
from dippm.estimate.models.targets import TARGETS, UNITS, Interval, OperatorCost
from dippm.estimate.prediction import LABELS, Prediction
from dippm.measure.kernels.join import join_kernels
from dippm.measure.measurement import Measurement
from dippm.model.graph.model_graph import ModelGraph


@dataclass(frozen=True, slots=True)
class Check:
    """One quantity, predicted and measured.

    Attributes:
        target: name in `dippm.estimate.models.targets`.
        predicted: value in the unit of the target; None if it was not predicted.
        interval: interval of the prediction.
        measured: measured value; None if it could not be measured.
        reason: reason for a missing value; "" if both are present.
    """

    target: str
    predicted: float | None
    interval: Interval | None
    measured: float | None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Signed relative error of the prediction: 0.1 is 10 % too much."""
        if self.predicted is None or self.measured is None or self.measured == 0:
            return None
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measured value lies in the predicted interval."""
        if self.interval is None or self.measured is None:
            return None
        return self.interval.low <= self.measured <= self.interval.high


@dataclass(frozen=True, slots=True)
class Verification:
    """A prediction compared with a measurement under the same conditions.

    Attributes:
        title: model and conditions.
        checks: comparison of each target; empty if the two cannot be compared.
        prediction: prediction; None if it could not be made.
        measurement: measurement under the same conditions.
        reason: reason why the two are not compared; "" if they are.
    """

    title: str
    checks: tuple[Check, ...]
    prediction: Prediction | None
    measurement: Measurement
    reason: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the reliability of the verdict."""
        found = self.prediction.warnings if self.prediction and self.checks else ()
        load = self.measurement.load
        if load is None or not load.is_busy or not self.checks:
            return (*found, *self.measurement.warnings)
        verdict = (
            f"this is the verdict of a busy machine ({load.words}), not of the prediction: measure "
            "again when nothing else runs"
        )
        return (*found, verdict)

    def __str__(self) -> str:
        if self.prediction is None or self.reason:
            return f"{self.measurement}\n comparison absent: {printable(self.reason)}"
        head = f"{'':14}{'predicted':<14}{'interval':<22}{'measured':<14}{'error':>8}"
        lines = [" " + self.title, head, *map(_check_line, self.checks)]
        load = self.measurement.load
        if load is not None:
            lines.append(f" {'machine':<13}{load.words}")
        lines += [f" ! {printable(warning)}" for warning in self.warnings]
        return "\n".join([*lines, f" {self.prediction.footer} · {self.measurement.footer}"])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return {
            "checks": [{**asdict(c), "error": c.error, "inside": c.inside} for c in self.checks],
            "prediction": self.prediction and self.prediction.to_dict(),
            "measurement": self.measurement.to_dict(),
            "absent": {"comparison": self.reason} if self.reason else {},
            "warnings": list(self.warnings),
        }


def verify(prediction: Prediction, measurement: Measurement) -> Verification:
    """Compare a prediction with a measurement.

    Raises:
        ConditionsError: if their conditions or frameworks differ.
    """
    _refuse_mismatch(prediction, measurement)
    checks = tuple(_check(target, prediction, measurement) for target in TARGETS)
    return Verification(measurement.title, checks, prediction, measurement)


def not_compared(
    measurement: Measurement, reason: str, prediction: Prediction | None = None
) -> Verification:
    """Return a measurement without a comparable prediction, with the reason."""
    return Verification(measurement.title, (), prediction, measurement, reason)


def why_other_framework(prediction: Prediction, framework: str) -> str:
    """Return why a prediction does not apply to a framework's run; "" if it does."""
    known = prediction.provenance.frameworks
    if framework in known:
        return ""
    return (
        f"the prediction is for framework {' or '.join(known)}, the measurement for {framework}: "
        f"{prediction.provenance.checkpoint} did not learn from runs of that"
    )


def _refuse_mismatch(prediction: Prediction, measurement: Measurement) -> None:
    """Check that a prediction and a measurement have the same conditions.

    Raises:
        ConditionsError: if they differ.
    """
    c, regime = prediction.conditions, measurement.regime
    pairs = {
        "device": (c.device.name, measurement.device),
        "slice": (c.mig and c.mig.name, measurement.columns["mig_profile"]),
        "batch": (c.batch, measurement.batch),
        "precision": (c.precision, regime.precision),
        "mode": (c.mode, regime.mode),
        "timer": (c.timer, measurement.columns["timer"]),
        "layout": (c.channels_last, regime.channels_last),
        "phase": (c.phase, regime.phase),
        "autograd": (c.autograd, False),  # measurements run under torch.inference_mode
    }
    for name, (predicted, measured) in pairs.items():
        if predicted != measured:
            raise ConditionsError(
                f"the prediction is for {name} {predicted}, the measurement for {measured}",
                "Predict and measure under the same conditions.",
            )
    why = why_other_framework(prediction, measurement.columns["framework"].split()[0])
    if why:
        raise ConditionsError(
            why,
            "Measure the PyTorch model, or train a checkpoint on runs of this framework: "
            "docs/train_your_own.md says how.",
        )


def _check(target: str, prediction: Prediction, measurement: Measurement) -> Check:
    predicted, measured = getattr(prediction, target), getattr(measurement, target)
    reasons = []
    if predicted is None:
        reasons.append("not predicted: " + prediction.absent.get(target, "no reason given"))
    if measured is None:
        reasons.append("not measured: " + measurement.absent.get(target, "no reason given"))
    interval = prediction.intervals.get(target)
    return Check(target, predicted, interval, measured, "; ".join(reasons))


def _check_line(check: Check) -> str:
    unit = UNITS[check.target]
    predicted = "–" if check.predicted is None else f"{show(check.predicted)} {unit}"
    measured = "–" if check.measured is None else f"{show(check.measured)} {unit}"
    between = ""
    if check.interval is not None:
        between = f"{show(check.interval.low)} – {show(check.interval.high)}"
    error = "" if check.error is None else f"{check.error:+.1%}"
    verdict = {True: "inside", False: "outside", None: ""}[check.inside]
    rest = printable(f"{verdict} {check.reason}".strip())
    label = LABELS[check.target]
    return f" {label:<13}{predicted:<14}{between:<22}{measured:<14}{error:>8}  {rest}".rstrip()


# Operators of a prediction compared with the kernels of one profiled step.


@dataclass(frozen=True, slots=True)
class OperatorCheck:
    """One operator, predicted and measured.

    Attributes:
        node: position in `ModelGraph.nodes`; None for kernels that no operator launched.
        op: canonical name; "" without a node.
        path: path of the operator's module.
        kernels: number of its kernels, or of operator calls on a CPU.
        measured_ms: sum of the durations of its kernels; None if it has none.
        predicted_ms: predicted time; None if it was not predicted.
    """

    node: int | None
    op: str
    path: str
    kernels: int
    measured_ms: float | None
    predicted_ms: float | None

    @property
    def error(self) -> float | None:
        """Signed relative error of the prediction: 0.1 is 10 % too much."""
        if self.predicted_ms is None or not self.measured_ms:
            return None
        return self.predicted_ms / self.measured_ms - 1


@dataclass(frozen=True, slots=True)
class OperatorVerification:
    """The operators of a model, the slowest first.

    Attributes:
        title: model and conditions.
        checks: comparison of each operator; kernels without an operator last.
        measured_ms: sum of the durations of all kernels of the step.
        predicted_ms: sum over all operators; None if they were not predicted.
        joined: share of `measured_ms` whose kernels belong to an operator, 0 to 1.
        reason: reason for missing predictions; "" if there are predictions.
    """

    title: str
    checks: tuple[OperatorCheck, ...]
    measured_ms: float
    predicted_ms: float | None
    joined: float
    reason: str = ""

    def __str__(self) -> str:
        sums = [f"kernels {show(self.measured_ms)} ms"]
        if self.predicted_ms is not None:
            sums.append(f"predicted {show(self.predicted_ms)} ms")
        sums.append(f"{self.joined:.1%} of the time joined with an operator")
        lines = [" " + " · ".join(sums)]
        lines += [f" ! not predicted: {printable(self.reason)}"] if self.reason else []
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        checks = [{**asdict(check), "error": check.error} for check in self.checks]
        return {**asdict(self), "checks": checks}


def verify_operators(
    measurement: Measurement,
    graph: ModelGraph,
    predicted: Sequence[OperatorCost] = (),
    *,
    reason: str = "",
) -> OperatorVerification:
    """Compare the operators of a prediction with the kernels of a measured step.

    Args:
        measurement: measurement with kernels.
        graph: graph of the same model.
        predicted: costs of the graph's operators; costs without a node, such as that of the host,
            are left out.
        reason: reason why `predicted` is empty.

    Raises:
        ConditionsError: if the measurement has no kernels, with the reason.
    """
    if not measurement.kernels:
        why = measurement.absent.get("kernel_ms", "no step was profiled")
        raise ConditionsError(f"no kernels were measured: {why}", "Measure without operators.")
    seen: dict[int | None, list[int]] = defaultdict(list)
    for kernel, place in zip(
        measurement.kernels, join_kernels(measurement.kernels, graph), strict=True
    ):
        seen[place.node].append(kernel.ns)
    costs: dict[int, float] = {}
    for cost in predicted:  # of a training step an operator has a row for each pass
        if cost.node is not None:
            costs[cost.node] = costs.get(cost.node, 0.0) + cost.time_ms
    known = sorted({node for node in (*seen, *costs) if node is not None})
    checks = [_operator_check(node, graph, seen.get(node, []), costs.get(node)) for node in known]
    checks.sort(key=lambda c: max(c.measured_ms or 0.0, c.predicted_ms or 0.0), reverse=True)
    strays = seen.get(None, [])
    if strays:
        checks.append(OperatorCheck(None, "", "", len(strays), sum(strays) / 1e6, None))
    total = sum(kernel.ns for kernel in measurement.kernels)
    return OperatorVerification(
        title=measurement.title,
        checks=tuple(checks),
        measured_ms=total / 1e6,
        predicted_ms=sum(costs.values()) if costs else None,
        joined=1 - sum(strays) / total if total else 1.0,
        reason=reason,
    )


def _operator_check(
    node: int, graph: ModelGraph, ns: Sequence[int], cost: float | None
) -> OperatorCheck:
    operator = graph.nodes[node]
    measured_ms = sum(ns) / 1e6 if ns else None
    return OperatorCheck(node, operator.op, operator.path, len(ns), measured_ms, cost)
