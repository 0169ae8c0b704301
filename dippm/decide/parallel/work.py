"""`MicroBatch`: the work of one replica's GPUs for a micro-batch, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from dippm.decide.parallel.plan import ParallelPlan
from dippm.decide.parallel.shards import Shard
from dippm.errors import ConditionsError
from dippm.estimate.features.kernel_features import DeviceView
from dippm.estimate.models.host import OVERLAP_POWER, Host, wall_ms
from dippm.estimate.models.memory import MIB
from dippm.estimate.prediction import Prediction
from dippm.model.graph.float_type import node_weight_bytes, weight_bytes
from dippm.model.graph.model_graph import ModelGraph

HALF = ("fp16", "bf16")
LOW = (*HALF, "amp", "amp-bf16")


@dataclass(slots=True)
class OperatorTime:
    """Time of one operator on one GPU, over all passes.

    Attributes:
        forward_ms: time in the forward pass.
        backward_ms: time of its gradients, including recomputation.
        kernels: number of launches.
    """

    forward_ms: float = 0.0
    backward_ms: float = 0.0
    kernels: int = 0

    @property
    def time_ms(self) -> float:
        """Return the time of all passes."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True, slots=True)
class OneGpuTimes:
    """Times of a prediction for one GPU, as a plan needs them.

    Attributes:
        shares: time by operator, in graph order.
        update_ms: time of the optimiser.
        launch_ms: host time per launch at which host and kernels give the latency.
        beside_ms: rest of the latency: the copy of the inputs.
    """

    shares: Mapping[int, OperatorTime]
    update_ms: float
    launch_ms: float
    rest_ms: float

    @classmethod
    def of(cls, prediction: Prediction) -> OneGpuTimes:
        """Read the operators of a prediction."""
        shares: dict[int, OperatorTime] = {}
        update_ms = 0.0
        for cost in prediction.operators:
            if cost.node is None:
                update_ms += cost.time_ms if cost.op != "host" else 0.0
                continue
            share = shares.setdefault(cost.node, OperatorTime())
            share.kernels += cost.kernels
            if cost.part == "forward":
                share.forward_ms += cost.time_ms
            else:
                share.backward_ms += cost.time_ms
        ordered = dict(sorted(shares.items()))
        kernels_ms = sum(share.time_ms for share in ordered.values()) + update_ms
        launches = sum(share.kernels for share in ordered.values())
        launch_ms, rest_ms = _host(prediction, kernels_ms, launches)
        return cls(ordered, update_ms, launch_ms, rest_ms)

    @property
    def device_ms(self) -> float:
        """Return the time of all kernels except those of the optimiser."""
        return sum(share.time_ms for share in self.shares.values())

    @property
    def launches(self) -> int:
        """Return the number of launches except those of the optimiser."""
        return sum(share.kernels for share in self.shares.values())


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Times of one micro-batch, by stage.

    Attributes:
        stage_ms: time of kernels, launches and communication in each stage.
        exchange_ms: part of it for tensor parallelism.
        send_ms: time of a transfer from each stage to the next.
        weights_mb: weights of one GPU, by stage.
        gradients: (time of the backward pass in ms, bytes of gradients) by operator, last first.
        update_ms: time of the optimiser, once a step.
        split: number of sharded operators.
    """

    stage_ms: list[float]
    exchange_ms: list[float]
    send_ms: list[float]
    weights_mb: list[float]
    gradients: list[list[tuple[float, float]]] = field(repr=False)
    update_ms: float
    split: int


def micro_batch_of(
    part: Prediction,
    found: Sequence[Shard],
    plan: ParallelPlan,
    sharded_ms: Mapping[int, float] | None = None,
) -> MicroBatch:
    """Distribute a micro-batch over the GPUs of a replica.

    In training, communication happens in both passes.

    Args:
        part: prediction of a micro-batch for one GPU, with its operators.
        found: shard of each operator of its graph.
        plan: the layout.
        sharded_ms: time of each operator's shard; None takes its share of the whole time.

    Raises:
        ConditionsError: if there are fewer operators than stages.
    """
    graph, c = part.graph, part.conditions
    one = OneGpuTimes.of(part)
    nodes = list(one.shares)
    if len(nodes) < plan.pipeline:
        raise ConditionsError(
            f"{len(nodes)} operators have no {plan.pipeline} stages",
            f"Give pipeline={max(1, len(nodes))} or less.",
        )
    width = 2 if c.precision in LOW else 4
    passes = 2 if c.phase == "train" else 1
    shortest_ms = DeviceView.of(c.device, c.mig).launch_ms
    shares = {n: _part(s, found[n], plan.tensor, shortest_ms) for n, s in one.shares.items()}
    for n in nodes if sharded_ms else ():
        if found[n].is_split and sharded_ms:
            shares[n] = OperatorTime(sharded_ms[n], 0.0, one.shares[n].kernels)
    exchanges = {n: passes * _exchange_ms(found[n], plan, width) for n in nodes}
    ends = cuts_of([shares[n].time_ms + exchanges[n] for n in nodes], plan.pipeline)
    stages = [nodes[s:e] for s, e in zip([0, *ends[:-1]], ends, strict=True)]
    host = Host(one.launch_ms, 1.0)
    stage_ms = []
    for stage in stages:
        device_ms = sum(shares[n].time_ms + exchanges[n] for n in stage)
        launches = sum(shares[n].kernels + len(found[n].exchanged) for n in stage)
        stage_ms.append(wall_ms(device_ms, launches, host))
    stage_ms[0] += one.rest_ms
    sends = [
        passes * plan.stage_group.send_ms(width * _crossing(graph, stage[0]))
        for stage in stages[1:]
    ]
    half = c.precision in HALF
    kept = {n: node_weight_bytes(graph.nodes[n], in_half=half) for n in nodes}
    others = max(0.0, weight_bytes(graph, in_half=half) - sum(kept.values())) / plan.pipeline
    weights = {n: size / (plan.tensor if found[n].is_split else 1) for n, size in kept.items()}
    return MicroBatch(
        stage_ms=stage_ms,
        exchange_ms=[sum(exchanges[n] for n in stage) for stage in stages],
        send_ms=sends,
        weights_mb=[(sum(weights[n] for n in stage) + others) / MIB for stage in stages],
        gradients=[
            [*((shares[n].backward_ms, weights[n]) for n in reversed(stage)), (0.0, others)]
            for stage in stages
        ],
        update_ms=one.update_ms / (plan.tensor * plan.pipeline),
        split=sum(found[n].is_split for n in nodes),
    )


def _part(share: OperatorTime, shard: Shard, ways: int, shortest_ms: float) -> OperatorTime:
    """Return one GPU's share of an operator's time, but at least that of the shortest kernel."""
    if not shard.is_split:
        return share
    least = shortest_ms * share.kernels / max(share.time_ms, 1e-12)
    scale = max(1 / ways, min(1.0, least))
    return OperatorTime(scale * share.forward_ms, scale * share.backward_ms, share.kernels)


def _exchange_ms(shard: Shard, plan: ParallelPlan, width: int) -> float:
    group = plan.tensor_group
    by_kind = {"all-reduce": group.all_reduce_ms, "all-gather": group.all_gather_ms}
    return sum(by_kind[e.kind](width * e.elements) for e in shard.exchanged)


def _host(prediction: Prediction, kernels_ms: float, launches: int) -> tuple[float, float]:
    """Return the host time per launch, and the rest of the latency.

    The host time is solved for: with it, `dippm.estimate.models.host.wall_ms` gives the latency.
    """
    latency_ms, timer = prediction.latency_ms, prediction.conditions.timer
    assert latency_ms is not None
    if timer == "kernel" or not launches:
        return 0.0, max(0.0, latency_ms - kernels_ms)
    if timer == "wall+copy" and prediction.host is not None:
        launch_ms = prediction.host.launch_us / 1e3
        return launch_ms, max(0.0, latency_ms - wall_ms(kernels_ms, launches, Host(launch_ms, 1.0)))
    excess = latency_ms**OVERLAP_POWER - kernels_ms**OVERLAP_POWER
    return max(0.0, excess) ** (1 / OVERLAP_POWER) / launches, 0.0


def _crossing(graph: ModelGraph, node: int) -> int:
    """Return the number of elements that operators from `node` on read from earlier ones."""
    crossing = {p for p, consumer in graph.edges if p < node <= consumer}
    return sum(prod(shape) for p in crossing for shape in graph.nodes[p].out_shapes)


# Pipeline parallelism: operators in stages, one GPU each, and batches in micro-batches.
#
# With m micro-batches and p stages of equal time, the bubble is (p - 1) / (m + p - 1) of a
# step (Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
# Parallelism", NeurIPS 2019, section 2.3).


def cuts_of(times: Sequence[float], stages: int) -> list[int]:
    """Return the ends of the stages that minimise the longest stage.

    Args:
        times: times of the operators in execution order, in ms.
        stages: number of stages, at most that of operators.

    Returns:
        Position after the last operator of each stage; the last one is len(times).
    """
    # Bisect the longest stage: a limit is feasible if greedy filling needs no more stages.
    until = [0.0, *accumulate(times)]
    low, high = max(times), until[-1]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _ends(until, middle, stages) else (middle, high)
    ends = _ends(until, high * (1 + 1e-9), stages)
    assert ends is not None
    # Fewer stages may suffice: the longest are cut until there is one for each GPU.
    while len(ends) < stages:
        starts = [0, *ends[:-1]]
        widths = [(until[e] - until[s], s, e) for s, e in zip(starts, ends, strict=True)]
        _, start, end = max((w for w in widths if w[2] - w[1] > 1), key=lambda w: w[0])
        middle = (until[start] + until[end]) / 2
        cut = min(range(start + 1, end), key=lambda i: abs(until[i] - middle))
        ends = sorted({*ends, cut})
    return ends


def pipeline_ms(stage_ms: Sequence[float], send_ms: Sequence[float], parts: int) -> float:
    """Return the time in which all micro-batches pass all stages, in ms.

    Args:
        stage_ms: time of one micro-batch in each stage.
        send_ms: time of a transfer between each stage and the next.
        parts: number of micro-batches.
    """
    # The first micro-batch fills the pipeline; then the slowest stage and transfer set the pace.
    first = sum(stage_ms) + sum(send_ms)
    slowest = max(t + s for t, s in zip(stage_ms, [*send_ms, 0.0], strict=True))
    return first + (parts - 1) * slowest


def _ends(until: Sequence[float], most: float, stages: int) -> list[int] | None:
    """Return the ends of stages of at most `most` ms each; None if more stages are needed."""
    ends, start, count = [], 0, len(until) - 1
    while start < count:
        end = start + 1
        while end < count and until[end + 1] - until[start] <= most:
            end += 1
        ends.append(end)
        if len(ends) > stages:
            return None
        start = end
    return ends
