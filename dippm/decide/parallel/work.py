"""`Work`: what the GPUs of one copy of a model do, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from dippm.decide.parallel.plan import Plan
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
class Share:
    """What one operator takes on one GPU, all passes together.

    Attributes:
        forward_ms: of the forward pass.
        backward_ms: of its gradients, and of what is run again for them.
        kernels: launched.
    """

    forward_ms: float = 0.0
    backward_ms: float = 0.0
    kernels: int = 0

    @property
    def time_ms(self) -> float:
        """Return the time of all passes."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True, slots=True)
class OneGpu:
    """A prediction as a plan needs it.

    Attributes:
        shares: by operator, in graph order.
        update_ms: of the optimiser.
        launch_ms: host time of each kernel, so that host and kernels give the latency.
        beside_ms: what the latency has beside both, the copy of the inputs.
    """

    shares: Mapping[int, Share]
    update_ms: float
    launch_ms: float
    beside_ms: float

    @classmethod
    def of(cls, prediction: Prediction) -> OneGpu:
        """Read the operators of a prediction."""
        shares: dict[int, Share] = {}
        update_ms = 0.0
        for cost in prediction.operators:
            if cost.node is None:
                update_ms += cost.time_ms if cost.op != "host" else 0.0
                continue
            share = shares.setdefault(cost.node, Share())
            share.kernels += cost.kernels
            if cost.part == "forward":
                share.forward_ms += cost.time_ms
            else:
                share.backward_ms += cost.time_ms
        ordered = dict(sorted(shares.items()))
        kernels_ms = sum(share.time_ms for share in ordered.values()) + update_ms
        launches = sum(share.kernels for share in ordered.values())
        launch_ms, beside_ms = _host(prediction, kernels_ms, launches)
        return cls(ordered, update_ms, launch_ms, beside_ms)

    @property
    def device_ms(self) -> float:
        """Return the time of all kernels but the update's."""
        return sum(share.time_ms for share in self.shares.values())

    @property
    def launches(self) -> int:
        """Return the kernels launched, but for the update's."""
        return sum(share.kernels for share in self.shares.values())


@dataclass(frozen=True, slots=True)
class Work:
    """One micro-batch, by stage.

    Attributes:
        stage_ms: kernels, launches and exchanges.
        exchange_ms: of it for shared products.
        send_ms: from each stage to the next.
        weights_mb: of one GPU.
        gradients: (time of the backward pass in ms, bytes of gradients) by operator, last first.
        update_ms: of the optimiser, once a step.
        split: operators of which each GPU does a part.
    """

    stage_ms: list[float]
    exchange_ms: list[float]
    send_ms: list[float]
    weights_mb: list[float]
    gradients: list[list[tuple[float, float]]] = field(repr=False)
    update_ms: float
    split: int


def work_of(
    part: Prediction,
    found: Sequence[Shard],
    plan: Plan,
    sharded_ms: Mapping[int, float] | None = None,
) -> Work:
    """Lay a micro-batch out over the GPUs of a copy.

    In training, tensors are exchanged and sent in both passes.

    Args:
        part: the prediction of a micro-batch for one GPU, with its operators.
        found: the shard of each operator of its graph.
        plan: the layout.
        sharded_ms: time of each operator on one GPU where products are shared; None takes its
            share of the whole.

    Raises:
        ConditionsError: if there are fewer operators than stages.
    """
    graph, c = part.graph, part.conditions
    one = OneGpu.of(part)
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
            shares[n] = Share(sharded_ms[n], 0.0, one.shares[n].kernels)
    exchanges = {n: passes * _exchange_ms(found[n], plan, width) for n in nodes}
    ends = cuts_of([shares[n].time_ms + exchanges[n] for n in nodes], plan.pipeline)
    stages = [nodes[s:e] for s, e in zip([0, *ends[:-1]], ends, strict=True)]
    host = Host(one.launch_ms, 1.0)
    stage_ms = []
    for stage in stages:
        device_ms = sum(shares[n].time_ms + exchanges[n] for n in stage)
        launches = sum(shares[n].kernels + len(found[n].exchanged) for n in stage)
        stage_ms.append(wall_ms(device_ms, launches, host))
    stage_ms[0] += one.beside_ms
    sends = [
        passes * plan.stage_group.send_ms(width * _crossing(graph, stage[0]))
        for stage in stages[1:]
    ]
    half = c.precision in HALF
    kept = {n: node_weight_bytes(graph.nodes[n], in_half=half) for n in nodes}
    others = max(0.0, weight_bytes(graph, in_half=half) - sum(kept.values())) / plan.pipeline
    weights = {n: size / (plan.tensor if found[n].is_split else 1) for n, size in kept.items()}
    return Work(
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


def _part(share: Share, shard: Shard, ways: int, shortest_ms: float) -> Share:
    """Return one GPU's part: its share of the time, but no kernel takes less than any does."""
    if not shard.is_split:
        return share
    least = shortest_ms * share.kernels / max(share.time_ms, 1e-12)
    scale = max(1 / ways, min(1.0, least))
    return Share(scale * share.forward_ms, scale * share.backward_ms, share.kernels)


def _exchange_ms(shard: Shard, plan: Plan, width: int) -> float:
    group = plan.tensor_group
    by_kind = {"all-reduce": group.all_reduce_ms, "all-gather": group.all_gather_ms}
    return sum(by_kind[e.kind](width * e.elements) for e in shard.exchanged)


def _host(prediction: Prediction, kernels_ms: float, launches: int) -> tuple[float, float]:
    """Return the host's time for each launch, and what the latency has beside kernels and host.

    The host's time is what makes the latency of the kernels, see
    `dippm.estimate.models.host.wall_ms`.
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
    """Return the elements that operators from `node` on read of those before it."""
    crossing = {p for p, consumer in graph.edges if p < node <= consumer}
    return sum(prod(shape) for p in crossing for shape in graph.nodes[p].out_shapes)


# Pipeline parallelism: operators in stages, one GPU each, and batches in parts that follow.
#
# With m parts and p stages, stages of equal time are idle for a share (p - 1) / (m + p - 1) of a
# step (Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
# Parallelism", NeurIPS 2019, section 2.3).


def cuts_of(times: Sequence[float], stages: int) -> list[int]:
    """Return where each stage ends, so that the longest is as short as it can be.

    Args:
        times: of operators in execution order, in ms.
        stages: at most as many as operators.

    Returns:
        Positions behind the last operator of each stage, the last one being len(times).
    """
    until = [0.0, *accumulate(times)]
    low, high = max(times), until[-1]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _ends(until, middle, stages) else (middle, high)
    ends = _ends(until, high * (1 + 1e-9), stages)
    assert ends is not None
    # Fewer stages may do: the longest are cut until there are as many as GPUs.
    while len(ends) < stages:
        starts = [0, *ends[:-1]]
        widths = [(until[e] - until[s], s, e) for s, e in zip(starts, ends, strict=True)]
        _, start, end = max((w for w in widths if w[2] - w[1] > 1), key=lambda w: w[0])
        middle = (until[start] + until[end]) / 2
        cut = min(range(start + 1, end), key=lambda i: abs(until[i] - middle))
        ends = sorted({*ends, cut})
    return ends


def pipeline_ms(stage_ms: Sequence[float], send_ms: Sequence[float], parts: int) -> float:
    """Return the time in which all parts of a batch pass all stages, in ms.

    Args:
        stage_ms: time of one part in each stage.
        send_ms: between each stage and the next.
        parts: of the batch.
    """
    first = sum(stage_ms) + sum(send_ms)
    slowest = max(t + s for t, s in zip(stage_ms, [*send_ms, 0.0], strict=True))
    return first + (parts - 1) * slowest


def _ends(until: Sequence[float], most: float, stages: int) -> list[int] | None:
    """Return the stages' ends if none takes longer than `most`; None if they need more stages."""
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
