"""Operators of a prediction compared with the kernels of one profiled step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.errors import ConditionsError
from dippm.estimate.models.targets import OperatorCost
from dippm.measure.kernels.join import join_kernels
from dippm.measure.measurement import Measurement
from dippm.model.graph.model_graph import ModelGraph


@dataclass(frozen=True, slots=True)
class OperatorCheck:
    """One operator, predicted and measured.

    Attributes:
        node: position in `ModelGraph.nodes`; None for kernels that no operator launched.
        op: canonical name, "" without a node.
        path: path of its module.
        kernels: number of its kernels; on a CPU calls of operators.
        measured_ms: sum of their durations; None without any.
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
        checks: one per measured or predicted operator; kernels without an operator last.
        measured_ms: sum of all kernels of the step: regime K.
        predicted_ms: sum over all operators; None if they were not predicted.
        joined: share of `measured_ms` whose kernels belong to an operator, 0 to 1.
        reason: reason for missing predictions; empty without one.
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
        predicted: costs of the graph's operators; the host's share is left out of the sums.
        reason: reason why there are none.

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
    checks = [_check(node, graph, seen.get(node, []), costs.get(node)) for node in known]
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


def _check(node: int, graph: ModelGraph, ns: Sequence[int], cost: float | None) -> OperatorCheck:
    operator = graph.nodes[node]
    measured_ms = sum(ns) / 1e6 if ns else None
    return OperatorCheck(node, operator.op, operator.path, len(ns), measured_ms, cost)
