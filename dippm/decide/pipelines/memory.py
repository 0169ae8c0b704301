"""What a pipeline has in memory when, its peak, and the largest batch that it leaves room for.

    memory(t) = context + weights on the GPU + results that a later stage reads
                + activations and workspace of the stage that runs

The context is the largest of those of the stages: one process runs them all, and the libraries that
one of them loads stay.

Resident weights are there from the start. Offloaded ones are copied over PCIe before their stage
and back behind it, as `enable_model_cpu_offload` of diffusers does. What PyTorch's allocator has
reserved for a stage it keeps for the next: `nvidia-smi` shows the highest value until then.

The bound of the peak: the 99 % bound of the stage at the peak, whose error is that of its
activations, workspace and context, and beside it the weights of others and the results, which are
counted and not estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dippm.decide.pipelines.combined import Part
from dippm.decide.pipelines.inputs import output_bytes
from dippm.decide.pipelines.stage import Stage
from dippm.devices import Device
from dippm.devices.links import link_of
from dippm.estimate.conditions import MAX_BATCH
from dippm.estimate.largest_batch import largest_batch, memory_bound_mb
from dippm.estimate.models.targets import MemoryParts
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.graph.float_type import in_float32

UNPINNED = 1 / 3
"""Share of the rate of a link that copies from memory that is not pinned are taken to reach, at the
least; recalled, not measured."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A stage that was predicted, with what passes over the link for it.

    Attributes:
        stage: which.
        prediction: of one run.
        copy_ms: time of a copy of its weights, each way; None if they stay.
    """

    stage: Stage
    prediction: Prediction
    copy_ms: Part | None = None

    @property
    def parts(self) -> MemoryParts:
        """What one run needs; only where the predictor says it."""
        assert self.prediction.memory_parts is not None
        return self.prediction.memory_parts

    @property
    def working_mb(self) -> float:
        """Activations and workspace of one run."""
        return self.parts.activations_mb + self.parts.workspace_mb

    @property
    def key(self) -> tuple[Any, str]:
        """What is equal for stages with the same weights."""
        model = self.stage.model
        named = str(model) if isinstance(model, str) else id(model)
        return named, self.prediction.conditions.precision

    def results_mb(self, batch: int) -> float:
        """Return the memory of what the stage gives, in MiB, at a batch of the pipeline."""
        halved = self.prediction.conditions.precision in ("fp16", "bf16", "amp", "amp-bf16")
        graph = self.prediction.source_graph
        return output_bytes(graph, batch * self.stage.batch_factor, 2 if halved else 4) / 2**20


@dataclass(frozen=True, slots=True)
class Moment:
    """A span of a pipeline in which its memory stays as it is.

    Attributes:
        start_ms: from the start of the pipeline.
        end_ms: likewise.
        stage: that runs, or whose weights are copied.
        what: "run", "load" or "return".
        context_mb: of the process.
        weights_mb: on the GPU, of all stages.
        results_mb: that a later stage reads.
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
        moments: one after the other.
        memory_mb: the highest.
        bound_mb: one-sided 99 % upper bound of it; None if a stage has none.
        stage: that runs at the peak.
        largest_batch: of the pipeline, that holds the bound; None if not even 1 does.
    """

    moments: tuple[Moment, ...]
    memory_mb: float
    bound_mb: float | None
    stage: str
    largest_batch: int | None


def copy_time(device: Device, weights_mb: float) -> Part:
    """Return the time that weights take over PCIe in one direction, in ms.

    The rate is the one that `dippm.devices.links` takes to be reached; between the nominal one and
    a third of it, which copies from memory that is not pinned may fall to.

    Raises:
        DeviceError: if it is not known how the device is joined.
    """
    link = link_of(device, "pcie")
    bytes_ = weights_mb * 2**20
    value, least = (bytes_ / rate / 1e6 for rate in (link.reached_gb_s, link.nominal_gb_s))
    return Part(value, least, value / UNPINNED)


def peak_memory(ran: Sequence[Ran], batch: int, loaded: LoadedPredictor) -> PeakMemory:
    """Return what stages have in memory, one after the other; each has `memory_parts`."""
    moments = tuple(_moments(ran, batch))
    highest = max(moments, key=lambda moment: moment.memory_mb)
    bounds = [one.prediction.memory_bound_mb for one in ran]
    beside = _beside_mb(ran, batch)
    known = [b + beside[r.stage.name] for b, r in zip(bounds, ran, strict=True) if b is not None]
    return PeakMemory(
        moments=moments,
        memory_mb=highest.memory_mb,
        bound_mb=max(known) if len(known) == len(ran) else None,
        stage=highest.stage,
        largest_batch=_largest(ran, loaded),
    )


def _moments(ran: Sequence[Ran], batch: int) -> Sequence[Moment]:
    resident_mb = sum(_resident(ran).values())
    waits = _last_readers(ran)
    found: list[Moment] = []
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
                Moment(
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


def _resident(ran: Sequence[Ran]) -> Mapping[tuple[Any, str], float]:
    """Return the weights that stay in MiB, those of stages with the same model once."""
    return {r.key: r.parts.weights_mb for r in ran if r.stage.placement == "resident"}


def _context_mb(ran: Sequence[Ran]) -> float:
    """Return the context of the process that runs all stages, in MiB."""
    return max(one.parts.context_mb for one in ran)


def _last_readers(ran: Sequence[Ran]) -> list[int]:
    """Return the place of the last stage that reads what each gives; its own if none does."""
    last = list(range(len(ran)))
    places = {one.stage.name: place for place, one in enumerate(ran)}
    for place, one in enumerate(ran):
        for name in one.stage.before:
            last[places[name]] = max(last[places[name]], place)
    return last


def _beside_mb(ran: Sequence[Ran], batch: int) -> dict[str, float]:
    """Return what is in memory beside what each stage needs alone, in MiB.

    Weights of others, results, and what others add to the context.
    """
    resident, waits = _resident(ran), _last_readers(ran)
    context_mb = _context_mb(ran)
    found = {}
    for place, one in enumerate(ran):
        others = sum(mb for key, mb in resident.items() if key != one.key)
        kept = sum(r.results_mb(batch) for i, r in enumerate(ran[:place]) if waits[i] >= place)
        found[one.stage.name] = others + kept + context_mb - one.parts.context_mb
    return found


def _largest(ran: Sequence[Ran], loaded: LoadedPredictor) -> int | None:
    """Return the largest batch that every stage holds; stages that need most are asked first."""
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
            return None if bound is None else bound + _beside_mb(ran, batch)[name]  # noqa: B023

        if (at_most := bound_mb(most)) is not None and at_most <= c.capacity_mb:
            continue
        found = largest_batch(bound_mb, c.capacity_mb, most)
        if found is None:
            return None
        most = found
    return most
