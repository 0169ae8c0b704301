"""`parallelize`: estimates a model on many GPUs from a prediction for one GPU.

    T = pipeline of stages (kernels, sharded under tensor parallelism, + their communication)
        + gradient communication that is not hidden behind the backward pass

Sharded kernels take the time of such smaller kernels by the predictor's law (in a training step,
their share of the whole time); links follow public data. `python -m training.studies.many_gpus`
compares the estimate with published measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Unpack

from dippm.api import load, predict
from dippm.base.answer import Answer
from dippm.base.progress import tell
from dippm.decide.parallel.one_process import shard_times_ms
from dippm.decide.parallel.one_process import step_ms as one_process_ms
from dippm.decide.parallel.plan import ParallelPlan, plan_of
from dippm.decide.parallel.shards import shards, split_nodes
from dippm.decide.parallel.work import MicroBatch, micro_batch_of, pipeline_ms
from dippm.devices.links import DEFAULT_NETWORK
from dippm.errors import ConditionsError, DeviceError
from dippm.estimate.models.power import idle_power_w
from dippm.estimate.options import Options, question
from dippm.estimate.place import DEFAULT_DEVICE, device_of
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor

ESTIMATED = (
    "many GPUs are estimated, from a prediction for one and public figures of the links; nothing "
    "of this was measured"
)


ESTIMATED_VALUES = (
    *("step_ms", "samples_per_s", "speedup", "efficiency", "stage_ms", "exchange_ms"),
    *("exposed_ms", "idle_share", "split_operators", "memory_mb", "energy_j"),
)
LAYOUT = ("gpus", "nodes", "data", "tensor", "pipeline", "micro_batches", "one_process")


@dataclass(frozen=True, slots=True)
class ParallelEstimate(Answer):
    """A step of a model on many GPUs.

    Attributes:
        prediction: prediction for one GPU with the batch of one replica.
        plan: layout of the model.
        step_ms: estimated time of a step.
        stage_ms: time of a micro-batch in each stage, including communication.
        exchange_ms: communication time of the busiest GPU in a step, hidden or not.
        exposed_ms: part of `exchange_ms` that is not hidden.
        idle_share: share of the GPUs' time in pipeline bubbles, 0 to 1.
        split_operators: number of sharded operators among those that launch kernels.
        memory_mb: largest memory of a GPU; None, with the reason in `absent`, if unknown.
        energy_j: energy of all GPUs in a step; None likewise.
        absent: reason for each quantity without a value.
        warnings: warnings about the estimate.
    """

    prediction: Prediction
    plan: ParallelPlan
    step_ms: float
    stage_ms: tuple[float, ...]
    exchange_ms: float
    exposed_ms: float
    idle_share: float
    split_operators: int
    memory_mb: float | None
    energy_j: float | None
    absent: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def samples(self) -> int:
        """Return the samples of a step, over all replicas."""
        return self.plan.data * self.prediction.conditions.batch

    @property
    def samples_per_s(self) -> float:
        """Return the throughput."""
        return 1e3 * self.samples / self.step_ms

    @property
    def speedup(self) -> float:
        """Return the throughput over that of one GPU with the batch of one replica."""
        assert self.prediction.latency_ms is not None
        return self.plan.data * self.prediction.latency_ms / self.step_ms

    @property
    def efficiency(self) -> float:
        """Return the speed-up over the number of GPUs."""
        return self.speedup / self.plan.gpus

    def rows(self) -> list[dict[str, Any]]:
        """Return two flat mappings: one GPU as predicted, and all GPUs as estimated."""
        one, plan = self.prediction, self.plan
        speed = one.estimate("samples_per_s")
        values = {name: getattr(self, name) for name in ESTIMATED_VALUES}
        alone = dict.fromkeys(values) | {
            "step_ms": one.latency_ms,
            "samples_per_s": speed and speed.value,
            "memory_mb": one.memory_mb,
            "energy_j": one.energy_j,
        }
        layout = {name: getattr(plan, name) for name in LAYOUT}
        return [
            {"estimated": False, "samples": one.conditions.batch, "gpus": 1, **alone},
            {"estimated": True, "samples": self.samples, **layout, **values}
            | {"stage_ms": list(self.stage_ms)},
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        one, plan = self.prediction.to_dict(), self.plan
        figures = ("latency_ms", "memory_mb", "energy_j")
        kept = ("source", "conditions", *figures, "provenance", "verify")
        return {
            "one_gpu": {key: one[key] for key in kept},
            "plan": {
                **{name: getattr(plan, name) for name in LAYOUT},
                "link": asdict(plan.link),
                "network": plan.network and asdict(plan.network),
            },
            "estimated": {
                name: list(self.stage_ms) if name == "stage_ms" else getattr(self, name)
                for name in ESTIMATED_VALUES
            },
            "absent": dict(self.absent),
            "warnings": list(self.warnings),
        }


@question(Options)
def parallelize(
    source: Any,
    framework: str | None = None,
    *,
    gpus: int | None = None,
    strategy: str | None = None,
    data: int | None = None,
    tensor: int | None = None,
    pipeline: int | None = None,
    nodes: int = 1,
    link: str | None = None,
    network: str = DEFAULT_NETWORK,
    micro_batches: int | None = None,
    one_process: bool = False,
    **options: Unpack[Options],
) -> ParallelEstimate:
    """Estimate a step of a model on many GPUs.

    Args:
        source: see `predict`.
        framework: see `predict`.
        gpus: total number of GPUs.
        strategy: "data", "tensor" or "pipeline" over all GPUs; "data" by default.
        data: data-parallel degree: replicas, each with a batch of its own.
        tensor: tensor-parallel degree: GPUs that share every product.
        pipeline: number of pipeline stages.
        nodes: number of nodes, with the same number of GPUs on each.
        link: link within a node, "nvlink" or "pcie"; None takes NVLink if the board has it.
        network: network between nodes, see `dippm.devices.links.network_names`.
        micro_batches: number of micro-batches of a pipeline.
        one_process: whether one process drives all GPUs like torch.nn.DataParallel, see
            `dippm.decide.parallel.one_process`.
        **options: see `dippm.Options`; `batch` is that of one replica.

    Raises:
        ConditionsError: if these contradict each other, or the checkpoint predicts only the whole.
        DeviceError: if the links of the device are not known.
        DippmError: as `predict` does.
    """
    batch = options.get("batch", 1)
    plan = plan_of(
        device_of(options.get("device", DEFAULT_DEVICE)),
        gpus=gpus,
        strategy=strategy,
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        nodes=nodes,
        link=link,
        network=network,
        micro_batches=micro_batches,
        batch=batch,
        is_slice=options.get("mig") is not None,
        one_process=one_process,
    )
    one = predict(source, framework, **options)
    part = one
    if plan.micro_batches > 1:
        loaded = load(options.get("checkpoint"), device=one.conditions.device)
        asked = one.conditions.replace(batch=batch // plan.micro_batches)
        part = loaded.predict_at(one.source_graph, asked, name=one.provenance.source)
    tell("laying out the model")
    predictor = None
    if plan.tensor > 1:
        predictor = load(options.get("checkpoint"), device=one.conditions.device)
    return estimate(one, part, plan, predictor)


def estimate(
    one: Prediction, part: Prediction, plan: ParallelPlan, loaded: LoadedPredictor | None = None
) -> ParallelEstimate:
    """Return the estimate of a plan.

    Args:
        one: the prediction for one GPU and the batch of a replica.
        part: the same for a micro-batch.
        plan: the layout.
        loaded: predictor that made them, whose law gives the time of sharded kernels. Without it
            they take their share of the whole time.

    Raises:
        ConditionsError: if the model does not suit the plan.
    """
    if part.latency_ms is None or not part.operators:
        why = part.absent.get("latency_ms") or f"{part.provenance.checkpoint} predicts the whole"
        raise ConditionsError(
            f"many GPUs need the time of each operator: {why}",
            "Name a checkpoint of kind hybrid; `dippm models` lists them.",
        )
    train = part.conditions.phase == "train"
    found = shards(part.graph, plan.tensor)
    if plan.tensor > 1 and not split_nodes(found):
        raise ConditionsError(
            f"no product of {one.provenance.source} can be shared by {plan.tensor} GPUs",
            "Widths must be a multiple of their number: give another tensor=..., or data=...",
        )
    sharded_ms = None
    if loaded is not None and plan.tensor > 1:
        c, predictor = part.conditions, loaded.checkpoint_for(part.conditions.device).predictor
        sharded_ms = shard_times_ms(predictor, part.source_graph, c, found, plan.tensor)
    work = micro_batch_of(part, found, plan, sharded_ms)
    step_ms = work.update_ms + pipeline_ms(work.stage_ms, work.send_ms, plan.micro_batches)
    exchange = plan.micro_batches * max(
        a + b for a, b in zip(work.exchange_ms, [*work.send_ms, 0.0], strict=True)
    )
    exposed_ms = plan.micro_batches * max(work.exchange_ms) + sum(work.send_ms)
    if train and plan.data > 1:
        late = [overlap(stage, plan.data_group.all_reduce_ms) for stage in work.gradients]
        step_ms += max(one_stage.exposed_ms for one_stage in late)
        exposed_ms += max(one_stage.exposed_ms for one_stage in late)
        exchange += max(one_stage.all_ms for one_stage in late)
    if plan.one_process and plan.gpus > 1:
        step_ms = one_process_ms(one, plan.data_group)
        assert one.latency_ms is not None
        exchange = exposed_ms = step_ms - one.latency_ms
    busy = plan.micro_batches * sum(work.stage_ms)
    memory_mb, energy_j = _memory(one, part, work, plan), _energy(one, plan, step_ms)
    absent: dict[str, str] = {}
    if memory_mb is None:
        why = "its parts are not known for a training step" if train else "it is not predicted"
        absent["memory_mb"] = one.absent.get("memory_mb", why)
    if energy_j is None:
        absent["energy_j"] = one.absent.get("energy_j", "the idle power is not known")
    return ParallelEstimate(
        prediction=one,
        plan=plan,
        step_ms=step_ms,
        stage_ms=tuple(work.stage_ms),
        exchange_ms=exchange,
        exposed_ms=exposed_ms,
        idle_share=max(0.0, 1.0 - busy / (plan.pipeline * step_ms)) if plan.pipeline > 1 else 0.0,
        split_operators=work.split,
        memory_mb=memory_mb,
        energy_j=energy_j,
        absent=absent,
        warnings=(*one.warnings, *_warnings(plan, one, memory_mb)),
    )


def _memory(
    one: Prediction, part: Prediction, work: MicroBatch, plan: ParallelPlan
) -> float | None:
    """Return the largest memory of a GPU in MB; activations are not sharded."""
    if plan.tensor == plan.pipeline == 1:
        return one.memory_mb
    parts = part.memory_parts
    if parts is None or part.conditions.phase == "train":
        return None
    return parts.context_mb + parts.workspace_mb + parts.activations_mb + max(work.weights_mb)


def _energy(one: Prediction, plan: ParallelPlan, step_ms: float) -> float | None:
    """Return the energy of all GPUs in J: active energy of the work plus idle energy of all."""
    if one.energy_j is None or one.latency_ms is None:
        return None
    try:
        idle_w = idle_power_w(one.conditions.device)
    except DeviceError:
        return None
    work_j = max(0.0, one.energy_j - idle_w * one.latency_ms / 1e3)
    return plan.data * work_j + plan.gpus * idle_w * step_ms / 1e3


def _warnings(plan: ParallelPlan, one: Prediction, memory_mb: float | None) -> Sequence[str]:
    found = [ESTIMATED]
    device = one.conditions.device
    if plan.tensor > plan.per_node:
        assert plan.network is not None
        found.append(
            f"products are shared between nodes over {plan.network.name}, which is avoided where "
            "possible: tensor parallelism within a node is faster"
        )
    if plan.link.kind == "pcie" and plan.per_node > 1:
        found.append(
            f"{plan.link.name} is taken at full rate for every GPU; shared switches and boards "
            "without peer-to-peer access are slower"
        )
    if memory_mb is not None and memory_mb > device.memory_mb:
        found.append(
            f"needs up to {memory_mb:,.0f} MB on a GPU, {device.name} has {device.memory_mb:,} MB"
        )
    return found


# Overlap of gradient communication with the backward pass.
#
# Each bucket of gradients is all-reduced as soon as its last gradient is ready, one after the
# other, concurrently with the backward pass (S. Li et al., "PyTorch Distributed: Experiences on
# Accelerating Data Parallel Training", VLDB 13(12), 2020, section 3.2.3). The rest is exposed.


MIB = 2.0**20
FIRST_BUCKET_MB, BUCKET_MB = 1.0, 25.0
"""Bucket sizes of `torch.nn.parallel.DistributedDataParallel`."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Time of gradient communication.

    Attributes:
        all_ms: time of all buckets, one after the other.
        exposed_ms: part of it after the end of the backward pass.
        buckets: number of buckets.
    """

    all_ms: float
    exposed_ms: float
    buckets: int


def overlap(
    gradients: Sequence[tuple[float, float]], all_reduce_ms: Callable[[float], float]
) -> Overlap:
    """Simulate the buckets of a backward pass.

    Args:
        gradients: (time of the backward pass in ms, bytes of gradients) of each operator in the
            order of the backward pass.
        all_reduce_ms: time in ms of an all-reduce, by bytes.
    """
    clock, link_free, held, limit = 0.0, 0.0, 0.0, FIRST_BUCKET_MB * MIB
    all_ms, count = 0.0, 0
    for position, (time_ms, size) in enumerate(gradients, 1):
        clock += time_ms
        held += size
        while held >= limit or (position == len(gradients) and held > 0):
            sent = min(held, limit)
            took = all_reduce_ms(sent)
            link_free = max(link_free, clock) + took
            all_ms += took
            held -= sent
            count += 1
            limit = BUCKET_MB * MIB
    return Overlap(all_ms, max(0.0, link_free - clock), count)
