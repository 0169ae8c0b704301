"""Memory of a pipeline over time, its peak, and the largest batch that fits.

    memory(t) = context + weights on the GPU + outputs that a later stage reads
                + activations and workspace of the running stage

The context is the largest of any stage: one process runs them all, and libraries stay loaded.

Resident weights are on the GPU from the start. Offloaded ones are copied over PCIe before their
stage and back after it, like `enable_model_cpu_offload` of diffusers. PyTorch's allocator keeps the
memory that it reserved for a stage, so `nvidia-smi` shows the running maximum.

The bound of the peak is the 99 % bound of the stage at the peak (the error of its activations,
workspace and context) plus the weights of other stages and the outputs, which are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dippm.decide.pipelines.combined import IntervalTerm
from dippm.decide.pipelines.stage import Stage
from dippm.devices import Device
from dippm.devices.links import link_of
from dippm.estimate.conditions import MAX_BATCH
from dippm.estimate.largest_batch import largest_batch, memory_bound_mb
from dippm.estimate.models.targets import MemoryParts
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.graph import ModelGraph
from dippm.model.graph.float_type import in_float32

UNPINNED = 1 / 3
"""Assumed lower bound of the share of a link's rate for copies from pageable memory; not measured
by DIPPM."""


@dataclass(frozen=True, slots=True)
class StageRun:
    """A predicted stage, with the copies of its weights.

    Attributes:
        stage: the stage.
        prediction: prediction of one run.
        copy_ms: time of a copy of its weights, each way; None if they are resident.
    """

    stage: Stage
    prediction: Prediction
    copy_ms: IntervalTerm | None = None

    @property
    def parts(self) -> MemoryParts:
        """Memory parts of one run; the predictor has to provide them."""
        assert self.prediction.memory_parts is not None
        return self.prediction.memory_parts

    @property
    def working_mb(self) -> float:
        """Activations and workspace of one run."""
        return self.parts.activations_mb + self.parts.workspace_mb

    @property
    def key(self) -> tuple[Any, str]:
        """Key that stages with the same weights share."""
        model = self.stage.model
        named = str(model) if isinstance(model, str) else id(model)
        return named, self.prediction.conditions.precision

    def results_mb(self, batch: int) -> float:
        """Return the size of the stage's outputs in MiB at a batch of the pipeline."""
        halved = self.prediction.conditions.precision in ("fp16", "bf16", "amp", "amp-bf16")
        graph = self.prediction.source_graph
        return _output_bytes(graph, batch * self.stage.batch_factor, 2 if halved else 4) / 2**20


@dataclass(frozen=True, slots=True)
class MemoryPhase:
    """A phase of a pipeline with constant memory.

    Attributes:
        start_ms: start, from the start of the pipeline.
        end_ms: end, likewise.
        stage: stage that runs, or whose weights are copied.
        what: "run", "load" or "return".
        context_mb: context of the process.
        weights_mb: weights of all stages on the GPU.
        results_mb: outputs that a later stage reads.
        working_mb: activations and workspace of the stage.
    """

    start_ms: float
    end_ms: float
    stage: str
    what: str
    context_mb: float
    weights_mb: float
    results_mb: float
    working_mb: float

    @property
    def memory_mb(self) -> float:
        """Sum of the parts in MiB."""
        return self.context_mb + self.weights_mb + self.results_mb + self.working_mb


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The memory of a pipeline.

    Attributes:
        moments: phases in their order.
        memory_mb: peak memory.
        bound_mb: upper 99 % bound of the peak; None if a stage has none.
        stage: stage at the peak.
        largest_batch: largest batch of the pipeline within the bound; None if not even 1 is.
    """

    moments: tuple[MemoryPhase, ...]
    memory_mb: float
    bound_mb: float | None
    stage: str
    largest_batch: int | None


def copy_time(device: Device, weights_mb: float) -> IntervalTerm:
    """Return the time of copying weights over PCIe in one direction, in ms.

    The value takes the achieved rate of `dippm.devices.links`; the interval reaches from the
    nominal rate to a third of the achieved one, to which copies from pageable memory may fall.

    Raises:
        DeviceError: if the links of the device are not known.
    """
    link = link_of(device, "pcie")
    bytes_ = weights_mb * 2**20
    value, least = (bytes_ / rate / 1e6 for rate in (link.reached_gb_s, link.nominal_gb_s))
    return IntervalTerm(value, least, value / UNPINNED)


def peak_memory(ran: Sequence[StageRun], batch: int, loaded: LoadedPredictor) -> PeakMemory:
    """Return the memory of stages over time; each needs `memory_parts`."""
    moments = tuple(_moments(ran, batch))
    highest = max(moments, key=lambda moment: moment.memory_mb)
    bounds = [one.prediction.memory_bound_mb for one in ran]
    other_mb = _other_mb(ran, batch)
    known = [b + other_mb[r.stage.name] for b, r in zip(bounds, ran, strict=True) if b is not None]
    return PeakMemory(
        moments=moments,
        memory_mb=highest.memory_mb,
        bound_mb=max(known) if len(known) == len(ran) else None,
        stage=highest.stage,
        largest_batch=_largest(ran, loaded),
    )


def _moments(ran: Sequence[StageRun], batch: int) -> Sequence[MemoryPhase]:
    resident_mb = sum(_resident(ran).values())
    waits = _last_readers(ran)
    found: list[MemoryPhase] = []
    now = 0.0
    for place, one in enumerate(ran):
        assert one.prediction.latency_ms is not None
        kept = sum(r.results_mb(batch) for i, r in enumerate(ran[:place]) if waits[i] >= place)
        own_mb = one.parts.weights_mb if one.stage.placement == "offloaded" else 0.0
        copy_ms = one.copy_ms.value if one.copy_ms else 0.0
        run_ms = one.stage.repeat * one.prediction.latency_ms
        for what, takes_ms in (("load", copy_ms), ("run", run_ms), ("return", copy_ms)):
            if what != "run" and one.copy_ms is None:
                continue
            found.append(
                MemoryPhase(
                    start_ms=now,
                    end_ms=(now := now + takes_ms),
                    stage=one.stage.name,
                    what=what,
                    context_mb=_context_mb(ran),
                    weights_mb=resident_mb + own_mb,
                    results_mb=kept,
                    working_mb=one.working_mb if what == "run" else 0.0,
                )
            )
    return found


def _resident(ran: Sequence[StageRun]) -> Mapping[tuple[Any, str], float]:
    """Return the size of resident weights in MiB, counting equal models once."""
    return {r.key: r.parts.weights_mb for r in ran if r.stage.placement == "resident"}


def _context_mb(ran: Sequence[StageRun]) -> float:
    """Return the context of the process that runs all stages, in MiB."""
    return max(one.parts.context_mb for one in ran)


def _last_readers(ran: Sequence[StageRun]) -> list[int]:
    """Return the position of the last reader of each stage's outputs; its own if there is none."""
    last = list(range(len(ran)))
    places = {one.stage.name: place for place, one in enumerate(ran)}
    for place, one in enumerate(ran):
        for name in one.stage.before:
            last[places[name]] = max(last[places[name]], place)
    return last


def _other_mb(ran: Sequence[StageRun], batch: int) -> dict[str, float]:
    """Return the memory in addition to what each stage needs by itself, in MiB.

    Weights of other stages, outputs, and what other stages add to the context.
    """
    resident, waits = _resident(ran), _last_readers(ran)
    context_mb = _context_mb(ran)
    found = {}
    for place, one in enumerate(ran):
        others = sum(mb for key, mb in resident.items() if key != one.key)
        kept = sum(r.results_mb(batch) for i, r in enumerate(ran[:place]) if waits[i] >= place)
        found[one.stage.name] = others + kept + context_mb - one.parts.context_mb
    return found


def _largest(ran: Sequence[StageRun], loaded: LoadedPredictor) -> int | None:
    """Return the largest batch that fits in every stage, checking the largest stages first."""
    most = MAX_BATCH // max(one.stage.batch_factor for one in ran)
    for one in sorted(ran, key=lambda r: r.prediction.memory_bound_mb or 0.0, reverse=True):
        c = one.prediction.conditions
        graph = in_float32(one.prediction.source_graph)
        predictor = loaded.checkpoint_for(c.device, c.phase).predictor
        factor, name = one.stage.batch_factor, one.stage.name
        if not graph.batch_is_symbolic:
            most = min(most, 1)

        def bound_mb(batch: int) -> float | None:
            at = replace(c, batch=batch * factor)  # noqa: B023  called within the turn
            bound = memory_bound_mb(predictor, graph, at)  # noqa: B023
            return None if bound is None else bound + _other_mb(ran, batch)[name]  # noqa: B023

        if (at_most := bound_mb(most)) is not None and at_most <= c.capacity_mb:
            continue
        found = largest_batch(bound_mb, c.capacity_mb, most)
        if found is None:
            return None
        most = found
    return most


def _output_bytes(graph: ModelGraph, batch: int, item_bytes: int) -> int:
    """Return the bytes of all outputs of a graph at a batch.

    Args:
        graph: the graph.
        batch: samples.
        item_bytes: bytes of a floating-point number; other types take 8.
    """
    total = 0
    for spec in graph.outputs if not graph.batch_is_symbolic else graph.at_batch(batch).outputs:
        count = 1
        for size in spec.shape:
            count *= max(1, size)
        total += count * (item_bytes if "float" in spec.dtype else 8)
    return total
