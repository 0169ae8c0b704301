"""`Work`: what the GPUs of one copy of a model do, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from dippm.errors import ConditionsError
from dippm.graph.model_graph import ModelGraph
from dippm.models.host import Host, wall_ms
from dippm.models.memory import MIB
from dippm.models.targets import OperatorCost
from dippm.parallel.plan import Plan
from dippm.parallel.shards import Shard
from dippm.parallel.stages import cuts_of
from dippm.prediction import Prediction

SHORTEST_MS = 0.002
"""Of a kernel, however small its part."""
BACKWARD_SHARE = 2 / 3
"""Of the time of a training step without its update: two products for each of the forward pass."""
HALF = ("fp16", "bf16")
LOW = (*HALF, "amp", "amp-bf16")


@dataclass(frozen=True, slots=True)
class Work:
    """One micro-batch, by stage.

    Attributes:
        stage_ms: kernels, launches and exchanges.
        exchange_ms: of it for shared products.
        send_ms: from each stage to the next.
        weights_mb: of one GPU.
        gradients: (time of the backward pass in ms, bytes of gradients) by operator, last first.
    """

    stage_ms: list[float]
    exchange_ms: list[float]
    send_ms: list[float]
    weights_mb: list[float]
    gradients: list[list[tuple[float, float]]]


def work_of(part: Prediction, found: Sequence[Shard], plan: Plan) -> Work:
    """Lay a micro-batch out over the GPUs of a copy.

    In training, tensors are exchanged and sent in both passes.

    Args:
        part: the prediction of a micro-batch for one GPU, with its operators.
        found: the shard of each operator of its graph.
        plan: the layout.

    Raises:
        ConditionsError: if there are fewer operators than stages.
    """
    graph, c = part.graph, part.conditions
    costs = {cost.node: cost for cost in part.operators if cost.node is not None}
    nodes = list(costs)
    if len(nodes) < plan.pipeline:
        raise ConditionsError(
            f"{len(nodes)} operators have no {plan.pipeline} stages",
            f"Give pipeline={max(1, len(nodes))} or less.",
        )
    width = 2 if c.precision in LOW else 4
    passes = 2 if c.phase == "train" else 1
    times = {n: _share_ms(cost, found[n], plan.tensor) for n, cost in costs.items()}
    exchanges = {n: passes * _exchange_ms(found[n], plan, width) for n in nodes}
    ends = cuts_of([times[n] + exchanges[n] for n in nodes], plan.pipeline)
    stages = [nodes[s:e] for s, e in zip([0, *ends[:-1]], ends, strict=True)]
    stage_ms = [_stage_ms(part, stage, costs, times, exchanges, found) for stage in stages]
    stage_ms[0] += _beside_launches_ms(part, costs)
    sends = [
        passes * plan.stage_group.send_ms(width * _crossing(graph, stage[0]))
        for stage in stages[1:]
    ]
    half = 0.5 if c.precision in HALF else 1.0
    kept = {n: half * graph.nodes[n].param_bytes for n in nodes}
    others = max(0.0, half * graph.param_bytes - sum(kept.values())) / plan.pipeline
    weights = {n: size / (plan.tensor if found[n].is_split else 1) for n, size in kept.items()}
    return Work(
        stage_ms=stage_ms,
        exchange_ms=[sum(exchanges[n] for n in stage) for stage in stages],
        send_ms=sends,
        weights_mb=[(sum(weights[n] for n in stage) + others) / MIB for stage in stages],
        gradients=[
            [*((BACKWARD_SHARE * times[n], weights[n]) for n in reversed(stage)), (0.0, others)]
            for stage in stages
        ],
    )


def _share_ms(cost: OperatorCost, shard: Shard, ways: int) -> float:
    """Return the time of one GPU's part: its share, but no kernel is shorter than any is."""
    if not shard.is_split:
        return cost.time_ms
    return max(cost.time_ms / ways, min(cost.time_ms, SHORTEST_MS * cost.kernels))


def _exchange_ms(shard: Shard, plan: Plan, width: int) -> float:
    group = plan.tensor_group
    by_kind = {"all-reduce": group.all_reduce_ms, "all-gather": group.all_gather_ms}
    return sum(by_kind[e.kind](width * e.elements) for e in shard.exchanged)


def _stage_ms(
    part: Prediction,
    stage: Sequence[int],
    costs: dict[int, OperatorCost],
    times: dict[int, float],
    exchanges: dict[int, float],
    found: Sequence[Shard],
) -> float:
    launches = sum(costs[n].kernels + len(found[n].exchanged) for n in stage)
    return wall_ms(sum(times[n] + exchanges[n] for n in stage), launches, _host(part))


def _beside_launches_ms(part: Prediction, costs: dict[int, OperatorCost]) -> float:
    """Return what the latency of one GPU has beside kernels and launches: the copy of inputs."""
    assert part.latency_ms is not None
    kernels = sum(cost.time_ms for cost in costs.values())
    launches = sum(cost.kernels for cost in costs.values())
    return max(0.0, part.latency_ms - wall_ms(kernels, launches, _host(part)))


def _host(part: Prediction) -> Host:
    launched = part.host is not None and part.conditions.timer != "kernel"
    return Host(part.host.launch_us / 1e3 if part.host and launched else 0.0, 1.0)


def _crossing(graph: ModelGraph, node: int) -> int:
    """Return the elements that operators from `node` on read of those before it."""
    crossing = {p for p, consumer in graph.edges if p < node <= consumer}
    return sum(prod(shape) for p in crossing for shape in graph.nodes[p].out_shapes)
