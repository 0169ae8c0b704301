"""Breakdown of the time, energy and memory of a prediction by operator and module.

`explain` returns an `Explanation`. Its operators and the parts outside of operators sum to the
whole: the update by the optimizer, the wait for the host, the copy of the inputs, and a residual,
which is the whole minus all others. `Roofline` places the operators on the roofline of the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Unpack

from dippm.api import predict
from dippm.base.answer import Answer
from dippm.base.progress import tell
from dippm.errors import ConditionsError
from dippm.estimate.features.kernel import UNITS
from dippm.estimate.features.kernel_features import DeviceView
from dippm.estimate.models.footprint import MemoryFootprint
from dippm.estimate.models.host import Host, wall_ms
from dippm.estimate.models.memory import MIB
from dippm.estimate.models.targets import MemoryParts, OperatorCost
from dippm.estimate.module_tree import MAX_DEPTH, ModuleCost, separator
from dippm.estimate.options import Options, question
from dippm.estimate.prediction import Prediction

ATTRIBUTION = (
    "energy by operator is attributed, not predicted by itself: idle power over its time, and what "
    "the power law adds in proportion to the operator's part of the law's score"
)


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator.

    Attributes:
        cost: time, bound, energy and work of the operator.
        weights_mb: size in MiB of the parameters of rank 2 and more that it is the first to read,
            in the format in which they are in memory.
        alive_mb: activations in memory while it runs, in MiB; None if not known.
    """

    cost: OperatorCost
    weights_mb: float
    alive_mb: float | None


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module, or several equal ones.

    Subtotals are sums over equal modules; `bound` and `alive_mb` are those of the first of them.

    Attributes:
        level: depth below the model.
        module: subtotals of the module.
        bound: limit of most of the module's time, see `Explanation.bound_of`.
        weights_mb: weights that its operators read, in MiB; for the model all weights in memory.
        alive_mb: largest activations in memory while one of its operators runs, in MiB; None if not
            known.
    """

    level: int
    module: ModuleCost
    bound: str
    weights_mb: float
    alive_mb: float | None


@dataclass(frozen=True)
class Explanation(Answer):
    """A prediction with all its parts.

    Attributes:
        prediction: prediction that is explained.
        operators: operators that launch kernels, in graph order.
        parts: parts of the latency outside of operators, one for each of `PARTS`.
        absent: reason for each quantity ("energy_j", "alive_mb") without a value.
    """

    prediction: Prediction
    operators: tuple[OperatorRow, ...]
    parts: tuple[LatencyPart, ...]
    absent: Mapping[str, str]

    @classmethod
    def of(cls, prediction: Prediction) -> Explanation:
        """Explain a prediction that has a table of operators.

        Raises:
            ConditionsError: if it has no such table.
        """
        latency_ms = prediction.latency_ms
        if latency_ms is None or not prediction.operators:
            why = prediction.absent.get("latency_ms") or (
                f"{prediction.provenance.checkpoint} predicts the whole, not its operators"
            )
            raise ConditionsError(
                f"nothing to explain: {why}",
                "Predict one point with a checkpoint of kind hybrid; `dippm models` lists them.",
            )
        alive, why_not = _alive_mb(prediction)
        weights = prediction.weights.by_node
        operators = tuple(
            OperatorRow(cost, _weights_mb(cost, weights[cost.node]), alive.get(cost.node))
            for cost in prediction.operators
            if cost.node is not None
        )
        absent = {"alive_mb": why_not} if why_not else {}
        if prediction.energy_j is None:
            absent["energy_j"] = prediction.absent["energy_j"]
        elif any(row.cost.energy_j is None for row in operators):
            absent["energy_j"] = f"{prediction.provenance.checkpoint} does not say by operator"
        return cls(prediction, operators, parts_of(prediction, latency_ms, absent), absent)

    @property
    def latency_ms(self) -> float:
        """Latency of the whole model."""
        assert self.prediction.latency_ms is not None
        return self.prediction.latency_ms

    @property
    def tree(self) -> ModuleCost:
        """Modules with their subtotals, without the parts outside of operators."""
        return self.prediction.tree

    def modules(self, depth: int = 3) -> Iterator[ModuleRow]:
        """Yield the modules down to a depth, the model first; equal siblings share a row."""
        return self._modules(self.tree.collapsed(), 0, depth)

    def _modules(self, module: ModuleCost, level: int, depth: int) -> Iterator[ModuleRow]:
        if level and is_part(module):
            return
        weights_mb = module.weight_bytes / MIB
        yield ModuleRow(
            level, module, self.bound_of(module), weights_mb, self._peak_alive_mb(module)
        )
        deeper = depth + (module.count > 1)
        if level < deeper:
            for child in module.children:
                yield from self._modules(child, level + 1, deeper)

    def bound_of(self, module: ModuleCost) -> str:
        """Return the limit of most of a module's time: "compute", "memory", ...; "" without one."""
        times: dict[str, float] = {}
        for row in self._rows_within(module):
            times[row.cost.bound] = times.get(row.cost.bound, 0.0) + row.cost.time_ms
        return max(times, key=lambda bound: times[bound]) if times else ""

    def _peak_alive_mb(self, module: ModuleCost) -> float | None:
        known = [row.alive_mb for row in self._rows_within(module) if row.alive_mb is not None]
        return max(known, default=None)

    def _rows_within(self, module: ModuleCost) -> list[OperatorRow]:
        """Return the operators of a module; a row without a name stands for a module's own ones."""
        whose = self._by_path if module.name else self._by_exact_path
        return whose.get(module.path, [])

    @cached_property
    def _by_path(self) -> dict[str, list[OperatorRow]]:
        found: dict[str, list[OperatorRow]] = {}
        for row in self.operators:
            for path in (*ancestors(row.cost.path), ""):
                found.setdefault(path, []).append(row)
        return found

    @cached_property
    def _by_exact_path(self) -> dict[str, list[OperatorRow]]:
        found: dict[str, list[OperatorRow]] = {}
        for row in self.operators:
            found.setdefault(row.cost.path, []).append(row)
        return found

    def memory(self) -> dict[str, float]:
        """Return the parts of the memory in MB by name; they sum to the number in `nvidia-smi`.

        Weights that operators read are separate from the rest (biases, copies made by autocast).
        """
        parts: MemoryParts | None = self.prediction.memory_parts
        if parts is None:
            return {}
        read = sum(row.weights_mb for row in self.operators)
        sizes = memory_by_part(parts)
        weights = {"weights of operators": read, "other weights": sizes.pop("weights") - read}
        return weights | sizes

    def rows(self) -> list[dict[str, Any]]:
        """Return a flat mapping per operator, then one per part of the time outside of operators.

        The column "op" of a part contains its name; columns that only operators have are None.
        """
        empty = dict.fromkeys(name for row in self._operator_rows()[:1] for name in row)
        parts = ({"op": p.name} | {k: v for k, v in asdict(p).items() if k != "name"}
                 for p in self.parts)  # fmt: skip
        return [*self._operator_rows(), *({**empty, **part} for part in parts)]

    def _operator_rows(self) -> list[dict[str, Any]]:
        return [
            {**asdict(row.cost), "weights_mb": row.weights_mb, "alive_mb": row.alive_mb}
            for row in self.operators
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data; times in ms, energies in J, memory in MB."""
        first = self.prediction.to_dict()
        return {
            **{key: first[key] for key in ("source", "conditions", "host")},
            "latency_ms": self.latency_ms,
            "energy_j": self.prediction.energy_j,
            "memory_mb": self.prediction.memory_mb,
            "operators": self._operator_rows(),
            "parts": [asdict(part) for part in self.parts],
            "memory": self.memory(),
            "modules": self.tree.to_dict(),
            "attribution": ATTRIBUTION,
            "absent": {**first["absent"], **self.absent},
            "warnings": first["warnings"],
            "provenance": first["provenance"],
            "verify": first["verify"],
        }


@question(Options)
def explain(source: Any, framework: str | None = None, **options: Unpack[Options]) -> Explanation:
    """Predict a model and break down its time, energy and memory.

    Args:
        source: see `predict`; a `Prediction` is explained as it is, or anew under given options.
        framework: see `predict`.
        **options: see `dippm.Options`.

    Raises:
        ConditionsError: if the checkpoint predicts only the whole.
        DippmError: as `predict` does.
    """
    found = predict(source, framework, **options)
    tell("explaining")
    return Explanation.of(found)


def is_part(module: ModuleCost) -> bool:
    """Return whether a row of a tree is a part outside of operators rather than a module."""
    return not module.path and module.name.startswith("(")


def _weights_mb(cost: OperatorCost, size: float) -> float:
    """Return the weights of an operator in MB, counted once for all its passes."""
    return size / MIB if cost.part == "forward" else 0.0


def ancestors(path: str) -> list[str]:
    """Return a path and its parents, the outermost first; an empty list for ""."""
    if not path:
        return []
    between = separator(path)
    names = path.split(between, MAX_DEPTH)
    return [between.join(names[: i + 1]) for i in range(len(names))]


def _alive_mb(prediction: Prediction) -> tuple[dict[int, float], str]:
    """Return the live activations in MiB by node, or the reason why they are not known."""
    c = prediction.conditions
    if c.phase == "train":
        return {}, "what is alive at each operator of a training step is not known"
    if c.autograd:
        return {}, "what is alive at each operator under autograd is not known"
    if prediction.memory_parts is None:
        return {}, prediction.absent["memory_parts"]
    footprint = MemoryFootprint.of(
        prediction.source_graph,
        c.precision,
        c.mode,
        attention=c.attention,
        channels_last=c.channels_last,
    )
    return {n: b / MIB for n, b in footprint.alive_by_node(c.batch).items()}, ""


# Parts of a prediction outside of its operators.

PARTS = {
    "optimizer": "the update of the parameters",
    "host": "the GPU waits for launches",
    "input copy": "from the host to the device",
    "residual": "the whole minus all of the above",
}
"""Description of each part, by name."""


@dataclass(frozen=True, slots=True)
class LatencyPart:
    """A part of the latency outside of operators.

    Attributes:
        name: one of `PARTS`.
        time_ms: time of the part; 0 if it does not occur.
        share: time of the part over the latency.
        energy_j: energy of the part; None if not predicted.
    """

    name: str
    time_ms: float
    share: float
    energy_j: float | None


def parts_of(
    prediction: Prediction, latency_ms: float, absent: Mapping[str, str]
) -> tuple[LatencyPart, ...]:
    """Return the optimizer's update, the wait for the host, the input copy, and the residual."""
    rows = prediction.operators
    kernels_ms = sum(cost.time_ms for cost in rows if cost.node is not None)
    update = [cost for cost in rows if cost.node is None and cost.op != "host"]
    host_ms = sum(cost.time_ms for cost in rows if cost.op == "host" and cost.node is None)
    update_ms = sum(cost.time_ms for cost in update)
    copy_ms, host = 0.0, prediction.host
    if host is not None and prediction.conditions.timer == "wall+copy":
        # The wait that launches explain is the host's; the rest of it is the copy.
        wall = wall_ms(kernels_ms + update_ms, host.launches, Host(host.launch_us / 1e3, 1.0))
        copy_ms = min(host_ms, max(0.0, latency_ms - wall))
        host_ms -= copy_ms
    times = {"optimizer": update_ms, "host": host_ms, "input copy": copy_ms}
    energies: dict[str, float | None] = dict.fromkeys(PARTS)
    whole = prediction.energy_j
    if whole is not None and "energy_j" not in absent:
        # One power for all of the wait, so its energy is divided in proportion to time.
        waiting = sum(c.energy_j or 0.0 for c in rows if c.op == "host" and c.node is None)
        per_ms = waiting / (host_ms + copy_ms) if host_ms + copy_ms > 0 else 0.0
        energies["optimizer"] = sum(cost.energy_j or 0.0 for cost in update)
        energies |= {"host": per_ms * host_ms, "input copy": per_ms * copy_ms}
        known = sum(cost.energy_j or 0.0 for cost in rows if cost.node is not None)
        energies["residual"] = whole - known - sum(e for e in energies.values() if e is not None)
    times["residual"] = latency_ms - kernels_ms - sum(times.values())
    return tuple(LatencyPart(n, times[n], times[n] / latency_ms, energies[n]) for n in PARTS)


def memory_by_part(parts: MemoryParts) -> dict[str, float]:
    """Return the parts of the memory in MB by name; they sum to the whole."""
    names = [f.name for f in fields(parts) if f.name.endswith("_mb") and f.name != "context_sd_mb"]
    found = {name: getattr(parts, name) for name in names}
    return {name.removesuffix("_mb"): float(size) for name, size in found.items()}


# Operators on the roofline of the device.
#
# S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model for
# Multicore Architectures", Communications of the ACM 52(4), 2009.

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
