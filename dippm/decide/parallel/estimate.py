"""`parallelize`: what a model would take on many GPUs, from a prediction for one.

    T = pipeline of stages (kernels, split where products are shared, + their exchanges)
        + gradients that are still on their way when the backward pass ends

An estimate: kernels that are split take what the predictor's law says of such smaller ones (of a
training step their share of the time of the whole), and links what public figures say.
`python -m training.studies.many_gpus` holds it against what others measured.
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
from dippm.decide.parallel.plan import Plan, plan_of
from dippm.decide.parallel.shards import shards, split_nodes
from dippm.decide.parallel.work import Work, pipeline_ms, work_of
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
        prediction: for one GPU, with the batch of one copy.
        plan: how the model is laid out.
        step_ms: time of a step, estimated.
        stage_ms: of it, one part of a batch in each stage, exchanges included.
        exchange_ms: what the busiest GPU sends and receives in a step, hidden or not.
        exposed_ms: of it what is waited for.
        idle_share: of the GPUs' time in which a stage has nothing to do, 0 to 1.
        split_operators: that every GPU does a part of, of those that launch kernels.
        memory_mb: of the fullest GPU, at most; None, with the reason in `absent`, if unknown.
        energy_j: of all GPUs in a step; None likewise.
        absent: reason by quantity that has no value.
        warnings: what to know before relying on it.
    """

    prediction: Prediction
    plan: Plan
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
        """Return the samples of a step: the batch of every copy."""
        return self.plan.data * self.prediction.conditions.batch

    @property
    def samples_per_s(self) -> float:
        """Return the throughput."""
        return 1e3 * self.samples / self.step_ms

    @property
    def speedup(self) -> float:
        """Return the throughput over that of one GPU with the batch of one copy."""
        assert self.prediction.latency_ms is not None
        return self.plan.data * self.prediction.latency_ms / self.step_ms

    @property
    def efficiency(self) -> float:
        """Return the speed-up over the number of GPUs."""
        return self.speedup / self.plan.gpus

    def rows(self) -> list[dict[str, Any]]:
        """Return one GPU as predicted, then all of them as estimated, as flat mappings."""
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
        gpus: in all.
        strategy: "data", "tensor" or "pipeline" over all of them; "data" if nothing is said.
        data: copies of the model instead, each with a batch of its own.
        tensor: GPUs that share every product.
        pipeline: stages.
        nodes: that the GPUs are on, as many on each.
        link: within a node, "nvlink" or "pcie"; None takes NVLink where the board has it.
        network: between nodes, see `dippm.devices.links.network_names`.
        micro_batches: parts of a batch in a pipeline.
        one_process: of all GPUs, as torch.nn.DataParallel has it, see
            `dippm.decide.parallel.one_process`.
        **options: see `dippm.Options`; `batch` is that of one copy of the model.

    Raises:
        ConditionsError: if these do not go together, or the checkpoint predicts only the whole.
        DeviceError: if it is not known how the device is joined.
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
    one: Prediction, part: Prediction, plan: Plan, loaded: LoadedPredictor | None = None
) -> ParallelEstimate:
    """Return the estimate of a plan.

    Args:
        one: the prediction for one GPU and the batch of a copy.
        part: the same for a micro-batch.
        plan: the layout.
        loaded: what made them: its law says what parts of products take. Without it they take
            their share of the time of the whole.

    Raises:
        ConditionsError: if the model cannot be laid out so.
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
    work = work_of(part, found, plan, sharded_ms)
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


def _memory(one: Prediction, part: Prediction, work: Work, plan: Plan) -> float | None:
    """Return the memory of the fullest GPU in MB; tensors between operators count in full."""
    if plan.tensor == plan.pipeline == 1:
        return one.memory_mb
    parts = part.memory_parts
    if parts is None or part.conditions.phase == "train":
        return None
    return parts.context_mb + parts.workspace_mb + parts.activations_mb + max(work.weights_mb)


def _energy(one: Prediction, plan: Plan, step_ms: float) -> float | None:
    """Return the energy of all GPUs in J: what work adds to idle power, and idle power for all."""
    if one.energy_j is None or one.latency_ms is None:
        return None
    try:
        idle_w = idle_power_w(one.conditions.device)
    except DeviceError:
        return None
    work_j = max(0.0, one.energy_j - idle_w * one.latency_ms / 1e3)
    return plan.data * work_j + plan.gpus * idle_w * step_ms / 1e3


def _warnings(plan: Plan, one: Prediction, memory_mb: float | None) -> Sequence[str]:
    found = [ESTIMATED]
    device = one.conditions.device
    if plan.tensor > plan.per_node:
        assert plan.network is not None
        found.append(
            f"products are shared between nodes over {plan.network.name}: nobody does that who can "
            "keep them within one"
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


# Gradients on their way while others are still computed.
#
# Each bucket of gradients is summed over GPUs as soon as its last one is there, one bucket after
# the other, beside the backward pass (S. Li et al., "PyTorch Distributed: Experiences on
# Accelerating Data Parallel Training", VLDB 13(12), 2020, section 3.2.3). What is not done when the
# pass ends is waited for.


MIB = 2.0**20
FIRST_BUCKET_MB, BUCKET_MB = 1.0, 25.0
"""`torch.nn.parallel.DistributedDataParallel`'s."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What exchanging gradients takes.

    Attributes:
        all_ms: of all buckets, one after the other.
        exposed_ms: of it after the end of the backward pass.
        buckets: how many.
    """

    all_ms: float
    exposed_ms: float
    buckets: int


def overlap(
    gradients: Sequence[tuple[float, float]], all_reduce_ms: Callable[[float], float]
) -> Overlap:
    """Follow the buckets of a backward pass.

    Args:
        gradients: (time of the backward pass in ms, bytes of gradients) of each operator in the
            order of the backward pass.
        all_reduce_ms: time of summing so many bytes over all GPUs.
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
