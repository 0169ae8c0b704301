"""What a predictor answers: a value with an interval per target, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dippm.estimate.models.intervals import IntervalTerms

Bound = Literal["compute", "memory", "launch", "host"]
Pass = Literal["forward", "backward", "optimizer", "recompute", "host"]
UNITS = {"latency_ms": "ms", "memory_mb": "MB", "power_w": "W", "energy_j": "J"}
TARGETS = tuple(UNITS)
NOTHING_RUNS = "nothing of the model runs on the device: no operator computes or moves data"


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds the true value with the stated probability (0 to 1)."""

    low: float
    high: float
    coverage: float


def two_sided(coverage: float) -> float:
    """Return the standard deviations within which a normal error is with this probability."""
    return NormalDist().inv_cdf((1 + coverage) / 2)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted value in the unit of its target, with its interval."""

    value: float
    interval: Interval

    def scaled(self, factor: float, fixed: float = 0.0) -> Estimate:
        """Return factor · value + fixed, and the same of its interval, for a factor above 0."""
        low, high = (factor * end + fixed for end in (self.interval.low, self.interval.high))
        return Estimate(factor * self.value + fixed, Interval(low, high, self.interval.coverage))

    def rate(self, amount: float) -> Estimate | None:
        """Return amount / value: how much is done in a unit of this time; None of no time."""
        if self.interval.low <= 0:
            return None
        low, high = amount / self.interval.high, amount / self.interval.low
        return Estimate(amount / self.value, Interval(low, high, self.interval.coverage))

    @classmethod
    def around(cls, value: float, log_half_width: float, coverage: float) -> Estimate:
        """Return a value in the middle of its interval, on a logarithmic scale."""
        factor = exp(log_half_width)
        return cls(value, Interval(value / factor, value * factor, coverage))

    def clipped(self, least: float, most: float) -> Estimate:
        """Return the same with an interval that ends where the value cannot be."""
        low, high = max(self.interval.low, least), min(self.interval.high, most)
        return Estimate(self.value, Interval(low, high, self.interval.coverage))


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """The share of one operator, or of the host, in the latency.

    Attributes:
        node: position in `ModelGraph.nodes`; None for the host row and that of an update.
        op: canonical operator name, "host", or "optimizer".
        kernels: number of kernels that the operator launches under the conditions.
        time_ms: its part of the predicted latency in ms.
        share: time_ms / latency, 0 to 1.
        bound: resource that limits its speed.
        macs: multiply-accumulates.
        bytes_moved: bytes read and written, weights included.
        path: path of its module or layer, see `OpNode.path`; "" for the host.
        energy_j: its part of the predicted energy, see `power.energy_shares`; None if the energy is
            not predicted, or not by operator.
        flops: floating-point operations of its kernels, including element-wise work.
        unit: arithmetic unit of most of them, one of `dippm.estimate.features.kernel.UNITS`; "" if
            it is not known.
        part: pass of a training step: an operator has a row for its forward pass, one for its
            gradients and, with checkpointing, one for its recomputation; the update is a row
            without a node. Inference is all forward.
    """

    node: int | None
    op: str
    kernels: int
    time_ms: float
    share: float
    bound: Bound
    macs: int
    bytes_moved: int
    path: str = ""
    energy_j: float | None = None
    flops: int = 0
    unit: str = ""
    part: Pass = "forward"

    @property
    def title(self) -> str:
        """Return the operator with the pass that it is run in, if that is not the forward pass."""
        return f"{self.op} {self.part}" if self.part in ("backward", "recompute") else self.op


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """The parts of the predicted memory; they sum to what `nvidia-smi` shows.

    All but the context is reserved by PyTorch's allocator (`torch.cuda.max_memory_reserved`).

    Attributes:
        weights_mb: parameters, with the half-precision copies that autocast has made by the peak.
        activations_mb: tensors that are alive at the peak; for a training step, and for a forward
            pass under autograd, those saved for the gradients.
        workspace_mb: further reserved memory: cached blocks, workspaces of the libraries, rounding.
        context_mb: driver context, libraries and framework; grows with the multiprocessors.
        peak_node: position in `ModelGraph.nodes` of the operator whose results complete the
            activations; None if the inputs alone are the peak.
        peak_op: its canonical name, "" without one.
        peak_path: its module or layer, see `OpNode.path`.
        gradients_mb: gradients of the parameters; 0 for a forward pass.
        optimizer_mb: states of the optimiser; 0 for a forward pass.
        context_software: class of software whose context is assumed, "as given", or "that of
            the checkpoint".
        context_sd_mb: standard deviation of the context between installations; None if the error of
            the whole memory says it.
        context_assumed: whether the context was assumed rather than named.
    """

    weights_mb: float
    activations_mb: float
    workspace_mb: float
    context_mb: float
    peak_node: int | None
    peak_op: str
    peak_path: str
    gradients_mb: float = 0.0
    optimizer_mb: float = 0.0
    context_software: str = ""
    context_sd_mb: float | None = None
    context_assumed: bool = True

    @property
    def reserved_mb(self) -> float:
        """Return the memory that the framework's allocator reserves: all but the context."""
        kept = self.weights_mb + self.gradients_mb + self.optimizer_mb
        return kept + self.activations_mb + self.workspace_mb


@dataclass(frozen=True, slots=True)
class HostUse:
    """The machine that a latency holds for, and its share of that latency.

    Attributes:
        name: class of machines, or the number that was given.
        launch_us: host time of one launch, in µs.
        log_sd: standard deviation of its logarithm between such machines.
        assumed: whether the machine was assumed rather than named.
        launches: number of kernels launched in one pass.
        share: share of the latency that the launch time decides, 0 to 1.
    """

    name: str
    launch_us: float
    log_sd: float
    assumed: bool
    launches: int
    share: float


@dataclass(frozen=True, slots=True)
class Estimates:
    """The answer of a predictor for one graph under one set of conditions.

    Attributes:
        values: one estimate per target of `TARGETS`; a target without a value is missing here and
            has its reason in `absent`.
        absent: reasons by target.
        memory_bound_mb: one-sided 99 % upper bound of the memory; None without memory estimate.
        operators: parts of the latency, in graph order, the host row last; their times sum to it.
        warnings: limits of the answer that a user should know: unseen operators, out-of-range
            shapes, a device that was never measured.
        memory_parts: parts of the memory; None if the predictor knows only the whole, or was asked
            for many points.
        host: machine that the latency holds for; None if the predictor knows only one.
        interval_terms: terms of the width of the latency's interval; None if the predictor does not
            provide them.
    """

    values: Mapping[str, Estimate]
    absent: Mapping[str, str] = field(default_factory=dict)
    memory_bound_mb: float | None = None
    operators: tuple[OperatorCost, ...] = ()
    warnings: tuple[str, ...] = ()
    memory_parts: MemoryParts | None = None
    host: HostUse | None = None
    interval_terms: IntervalTerms | None = None
