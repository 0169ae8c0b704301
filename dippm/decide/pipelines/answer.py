"""`PipelinePrediction`: cost of a pipeline, stage by stage, and how it prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dippm.base.answer import Answer
from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.pipelines.combined import IntervalTerm, correlated_sum, independent_sum
from dippm.decide.pipelines.memory import MemoryPhase, StageRun, peak_memory
from dippm.decide.pipelines.stage import Pipeline, Stage
from dippm.errors import ConditionsError, DeviceError
from dippm.estimate.models.power import idle_power_w
from dippm.estimate.models.targets import Interval
from dippm.estimate.module_tree import ModuleCost
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor

HEADER = (
    "stage",
    "runs",
    "batch",
    "precision",
    "ms each",
    "ms",
    "share",
    "J",
    "weights MB",
    "working MB",
)
UNVERIFIED = "dippm measure runs one model: the lines of the stages check them one by one"
LEAST_SHARE = 0.05
"""Share of the latency above which the answer repeats the warnings of a stage."""
OF_ONE_MODEL = ("run out of memory", "without torch.no_grad")
"""Warnings about a single model that do not apply to a stage."""
_NUMBERS = re.compile(r"\d[\d.,]*")
COPIES = "copies of offloaded weights are taken at rates of data sheets, none was measured"


@dataclass(frozen=True, slots=True)
class StageCost:
    """Cost of a stage in one pass of the pipeline.

    Attributes:
        stage: description of the stage.
        prediction: prediction of one run by itself.
        latency_ms: latency of all its runs, without copies.
        share: share of runs and copies in the latency of the pipeline, 0 to 1.
        energy_j: energy of all its runs; None, as in `prediction`, if it is not predicted.
        copy_ms: time of copying its weights there and back; 0 if they are resident.
        weights_mb: size of its weights; None if the memory is predicted only as a whole.
        working_mb: activations and workspace of a run; None likewise.
    """

    stage: Stage
    prediction: Prediction = field(repr=False)
    latency_ms: float
    share: float
    energy_j: float | None
    copy_ms: float
    weights_mb: float | None
    working_mb: float | None

    @property
    def tree(self) -> ModuleCost:
        """Cost of each module over all runs; shares are of the pipeline."""
        one, whole = self.prediction.tree, self.latency_ms + self.copy_ms
        scale = self.share * self.latency_ms / whole
        return _times(replace(one, name=self.stage.name), self.stage.repeat, scale)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data; operators are left out."""
        return {
            "name": self.stage.name,
            "repeat": self.stage.repeat,
            "batch_factor": self.stage.batch_factor,
            "placement": self.stage.placement,
            "before": list(self.stage.before),
            "latency_ms": self.latency_ms,
            "share": self.share,
            "energy_j": self.energy_j,
            "copy_ms": self.copy_ms,
            "weights_mb": self.weights_mb,
            "working_mb": self.working_mb,
            "prediction": {**self.prediction.to_dict(), "operators": []},
        }


@dataclass(frozen=True, slots=True)
class PipelinePrediction(Answer):
    """Cost of a pipeline of models; `dippm.pipeline` makes it.

    Attributes:
        pipeline: description of the pipeline, with its stages in execution order.
        parameters: parameters of a shipped pipeline.
        batch: samples per pass of the pipeline.
        stages: cost of each stage.
        latency_ms: time from the start of the first stage to the end of the last, including copies
            of offloaded weights.
        energy_j: energy over that time; None, with the reason in `absent`, if a stage has none.
        power_w: mean power over that time; None likewise.
        memory_mb: peak GPU memory in MiB as `nvidia-smi` shows it; None likewise.
        memory_bound_mb: upper 99 % bound of the peak, see `dippm.decide.pipelines.memory`.
        peak_stage: name of the stage at the peak; "" if the memory is absent.
        timeline: memory over time; empty if the memory is absent.
        largest_batch: largest batch of the pipeline that fits at 99 %; None if not even 1 does, or
            the memory is absent.
        intervals: interval by target for fully correlated errors of stages: the widest.
        intervals_apart: interval by target for independent errors of stages: the narrowest, see
            `dippm.decide.pipelines.combined`.
        absent: reason for each quantity without a value.
        warnings: warnings about the numbers.
    """

    pipeline: Pipeline = field(repr=False)
    parameters: Mapping[str, Any]
    batch: int
    stages: tuple[StageCost, ...] = field(repr=False)
    latency_ms: float
    energy_j: float | None
    power_w: float | None
    memory_mb: float | None
    memory_bound_mb: float | None
    peak_stage: str
    timeline: tuple[MemoryPhase, ...] = field(repr=False)
    largest_batch: int | None
    intervals: Mapping[str, Interval]
    intervals_apart: Mapping[str, Interval]
    absent: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def capacity_mb(self) -> int:
        """Memory of the GPU in MiB, or usable memory of the slice."""
        return self.stages[0].prediction.capacity_mb

    @property
    def fits(self) -> bool | None:
        """Whether the 99 % bound fits the memory; None if the bound is absent."""
        return None if self.memory_bound_mb is None else self.memory_bound_mb <= self.capacity_mb

    @property
    def tree(self) -> ModuleCost:
        """Cost of each stage and module in one pass, without copies."""
        children = tuple(stage.tree for stage in self.stages)
        operators: dict[str, int] = {}
        for child in children:
            for name, count in child.operators.items():
                operators[name] = operators.get(name, 0) + count
        return ModuleCost(
            name=self.pipeline.name,
            path="",
            operators=operators,
            macs=sum(child.macs for child in children),
            weight_bytes=sum(child.weight_bytes for child in children),
            time_ms=sum(stage.latency_ms for stage in self.stages),
            share=sum(child.share or 0.0 for child in children),
            energy_j=self.energy_j,
            children=children,
        )

    @property
    def title(self) -> str:
        """Pipeline and conditions in one printable line."""
        c = self.stages[0].prediction.conditions
        place = f"{c.device.name}, slice {c.mig}" if c.mig else c.device.name
        parts = [self.pipeline.name, f"batch {self.batch}", place, self.pipeline.precision]
        parts.append(c.mode if c.runtime == "pytorch" else c.runtime)
        parts += [f"{name} {value}" for name, value in self.parameters.items()]
        return printable(" · ".join(parts))

    @property
    def footer(self) -> str:
        """Checkpoint and host in one printable line."""
        first = self.stages[0].prediction
        host = first.host
        place = f" · host {host.name}{' (assumed)' * host.assumed}" if host else ""
        count = f"{len(self.stages)} stage{'s' * (len(self.stages) > 1)}"
        return printable(f"{first.provenance.checkpoint} · {count}{place}")

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per stage, with latency and energy over all its runs."""
        return [
            {
                "stage": one.stage.name,
                "source": one.prediction.provenance.source,
                "runs": one.stage.repeat,
                "batch": one.prediction.conditions.batch,
                "precision": one.prediction.conditions.precision,
                "placement": one.stage.placement,
                "latency_ms": one.latency_ms,
                "share": one.share,
                "energy_j": one.energy_j,
                "copy_ms": one.copy_ms,
                "weights_mb": one.weights_mb,
                "working_mb": one.working_mb,
            }
            for one in self.stages
        ]

    def figures(self) -> Iterator[tuple[str, str, str]]:
        """Yield label, value and remark of each figure."""
        for target, label, unit in (
            ("latency_ms", "latency", "ms"),
            ("energy_j", "energy", "J"),
            ("power_w", "power", "W"),
        ):
            value = getattr(self, target)
            if value is None:
                yield label, "not available: " + printable(self.absent[target]), ""
            elif target in self.intervals:
                yield label, f"{show(value)} {unit}", self._between(target)
            else:
                yield label, f"{show(value)} {unit}", "mean of the pass"
        if self.memory_mb is None:
            yield "memory", "not available: " + printable(self.absent["memory_mb"]), ""
            return
        yield "memory", f"{show(self.memory_mb)} MB", f"peak in stage {self.peak_stage}"
        if self.memory_bound_mb is None:
            yield "fits", "not known: " + printable(self.absent["fits"]), ""
            return
        bound = f"{show(self.memory_bound_mb)} MB at 99 %, of {self.capacity_mb:,}"
        yield "fits", "yes" if self.fits else "no", bound
        largest = "none" if self.largest_batch is None else f"batch {self.largest_batch:,}"
        yield "largest", largest, "at 99 %"

    def table(self) -> list[tuple[str, ...]]:
        """Return the cells of the stages, in the order of HEADER."""
        return [_cells(stage) for stage in self.stages]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data; operators of the stages are left out."""
        one = self.stages[0].prediction.to_dict()
        del one["conditions"]["batch"]
        bound = self.memory_bound_mb
        return {
            "name": self.pipeline.name,
            "parameters": dict(self.parameters),
            "batch": self.batch,
            "conditions": {**one["conditions"], "precision": self.pipeline.precision},
            "latency_ms": self.latency_ms,
            "energy_j": self.energy_j,
            "power_w": self.power_w,
            "memory_mb": self.memory_mb,
            "memory_bound_mb": bound,
            "capacity_mb": self.capacity_mb,
            "headroom_mb": None if bound is None else self.capacity_mb - bound,
            "fits": self.fits,
            "peak_stage": self.peak_stage or None,
            "largest_batch": self.largest_batch,
            "intervals": {target: asdict(i) for target, i in self.intervals.items()},
            "intervals_apart": {target: asdict(i) for target, i in self.intervals_apart.items()},
            "timeline": [{**asdict(m), "memory_mb": m.memory_mb} for m in self.timeline],
            "stages": [stage.to_dict() for stage in self.stages],
            "absent": {**self.absent, "verify": UNVERIFIED},
            "warnings": list(self.warnings),
            "provenance": one["provenance"],
            "verify": None,
        }

    def _between(self, target: str) -> str:
        wide, narrow = self.intervals[target], self.intervals_apart[target]
        found = f"{show(wide.low)} – {show(wide.high)}"
        if len(self.stages) == 1:
            return found
        return f"{found}; {show(narrow.low)} – {show(narrow.high)} if errors are apart"


def answer_of(
    pipeline: Pipeline,
    ran: Sequence[StageRun],
    *,
    batch: int,
    loaded: LoadedPredictor,
    parameters: Mapping[str, Any],
) -> PipelinePrediction:
    """Return the answer for predicted stages.

    Raises:
        ConditionsError: if the latency of a stage is not predicted.
    """
    for one in ran:
        if one.prediction.latency_ms is None:
            raise ConditionsError(
                f"stage {one.stage.name}: {one.prediction.absent['latency_ms']}",
                "Name another checkpoint; `dippm models` lists them.",
            )
    times = [_part(one, "latency_ms") for one in ran]
    copies = [_there_and_back(one) for one in ran]
    latency_ms = sum(part.value for part in (*times, *copies))
    absent: dict[str, str] = {}
    intervals = {"latency_ms": correlated_sum([*times, *copies], _coverage(ran, "latency_ms"))}
    narrow = {"latency_ms": independent_sum([*times, *copies], _coverage(ran, "latency_ms"))}
    energy_j = None
    without = next((one for one in ran if one.prediction.energy_j is None), None)
    if without is None:
        energies = [_part(one, "energy_j") for one in ran]
        idle_j = _idle_j(ran[0].prediction, sum(part.value for part in copies), absent)
        energy_j = None if idle_j is None else sum(part.value for part in energies) + idle_j
        if idle_j is not None:
            energies.append(IntervalTerm(idle_j, idle_j, idle_j))
            intervals["energy_j"] = correlated_sum(energies, _coverage(ran, "energy_j"))
            narrow["energy_j"] = independent_sum(energies, _coverage(ran, "energy_j"))
    else:
        absent["energy_j"] = f"{without.stage.name}: {without.prediction.absent['energy_j']}"
    if energy_j is None:
        absent["power_w"] = absent["energy_j"]
    unknown = next((one for one in ran if one.prediction.memory_parts is None), None)
    peak = None if unknown else peak_memory(ran, batch, loaded)
    if unknown is not None:
        reason = f"{unknown.stage.name}: {unknown.prediction.absent['memory_parts']}"
        absent.update(dict.fromkeys(("memory_mb", "fits", "timeline"), reason))
    elif peak is not None and peak.bound_mb is None:
        absent["fits"] = "a stage has no 99 % bound of its memory"
    answer = PipelinePrediction(
        pipeline=pipeline,
        parameters=parameters,
        batch=batch,
        stages=tuple(_costs(ran, times, copies, latency_ms)),
        latency_ms=latency_ms,
        energy_j=energy_j,
        power_w=None if energy_j is None else 1e3 * energy_j / latency_ms,
        memory_mb=peak.memory_mb if peak else None,
        memory_bound_mb=peak.bound_mb if peak else None,
        peak_stage=peak.stage if peak else "",
        timeline=peak.moments if peak else (),
        largest_batch=peak.largest_batch if peak else None,
        intervals=intervals,
        intervals_apart=narrow,
        absent=absent,
        warnings=(),
    )
    return replace(answer, warnings=tuple(_warnings(answer, pipeline, ran)))


def _costs(
    ran: Sequence[StageRun],
    times: Sequence[IntervalTerm],
    copies: Sequence[IntervalTerm],
    latency_ms: float,
) -> Iterator[StageCost]:
    for one, time, copy in zip(ran, times, copies, strict=True):
        p = one.prediction
        known = p.memory_parts is not None
        yield StageCost(
            stage=one.stage,
            prediction=p,
            latency_ms=time.value,
            share=(time.value + copy.value) / latency_ms,
            energy_j=None if p.energy_j is None else one.stage.repeat * p.energy_j,
            copy_ms=copy.value,
            weights_mb=one.parts.weights_mb if known else None,
            working_mb=one.working_mb if known else None,
        )


def _part(one: StageRun, target: str) -> IntervalTerm:
    """Return a target summed over all runs of a stage."""
    interval, n = one.prediction.intervals[target], one.stage.repeat
    return IntervalTerm(n * getattr(one.prediction, target), n * interval.low, n * interval.high)


def _there_and_back(one: StageRun) -> IntervalTerm:
    copy = one.copy_ms or IntervalTerm(0.0, 0.0, 0.0)
    return IntervalTerm(2 * copy.value, 2 * copy.low, 2 * copy.high)


def _coverage(ran: Sequence[StageRun], target: str) -> float:
    return min(one.prediction.intervals[target].coverage for one in ran)


def _idle_j(one: Prediction, copy_ms: float, absent: dict[str, str]) -> float | None:
    """Return the energy of the board during copies; None, with the reason, if unknown."""
    if not copy_ms:
        return 0.0
    try:
        return idle_power_w(one.conditions.device) * copy_ms / 1e3
    except DeviceError as error:
        absent["energy_j"] = f"what copies take is not known: {error.message}"
        return None


def _warnings(
    answer: PipelinePrediction, pipeline: Pipeline, ran: Sequence[StageRun]
) -> Iterator[str]:
    """Yield the warnings of stages that matter.

    A stage matters by its share of the latency, or because it runs at the peak of the memory.
    Warnings that differ in their numbers alone are merged, with the numbers of the stage that takes
    most of the time.
    """
    said: dict[str, list[tuple[str, str]]] = {}
    pairs = zip(ran, answer.stages, strict=True)
    for one, cost in sorted(pairs, key=lambda pair: -pair[1].share):
        if cost.share < LEAST_SHARE and one.stage.name != answer.peak_stage:
            continue
        for warning in one.prediction.warnings:
            if not any(words in warning for words in OF_ONE_MODEL):
                alike = said.setdefault(_NUMBERS.sub("0", warning), [])
                alike.append((one.stage.name, warning))
    for sentences in said.values():
        (first, warning), others = sentences[0], [name for name, _ in sentences[1:]]
        likewise = f", likewise {', '.join(others)}" * bool(others)
        yield warning if len(ran) == 1 else f"{first}{likewise}: {warning}"
    if any(one.copy_ms is not None for one in ran):
        yield COPIES
    if answer.fits is False:
        assert answer.memory_bound_mb is not None
        needs = f"needs up to {show(answer.memory_bound_mb)} MB, of {answer.capacity_mb:,}"
        stays = len(ran) > 1 and all(one.stage.placement == "resident" for one in ran)
        yield f"may run out of memory: {needs}{'; offloaded stages need less' * stays}"
    yield from pipeline.notes


def _times(tree: ModuleCost, runs: int, scale: float) -> ModuleCost:
    """Scale the tree of one run to all runs."""
    return replace(
        tree,
        macs=tree.macs * runs,
        time_ms=None if tree.time_ms is None else tree.time_ms * runs,
        energy_j=None if tree.energy_j is None else tree.energy_j * runs,
        share=None if tree.share is None else tree.share * scale,
        children=tuple(_times(child, runs, scale) for child in tree.children),
    )


def _cells(one: StageCost) -> tuple[str, ...]:
    p = one.prediction
    assert p.latency_ms is not None
    offloaded = " offloaded" * (one.stage.placement == "offloaded")
    return (
        printable(one.stage.name),
        f"{one.stage.repeat:,}",
        f"{p.conditions.batch:,}",
        p.conditions.precision,
        show(p.latency_ms),
        show(one.latency_ms + one.copy_ms),
        f"{one.share:.1%}",
        "–" if one.energy_j is None else show(one.energy_j),
        "–" if one.weights_mb is None else show(one.weights_mb) + offloaded,
        "–" if one.working_mb is None else show(one.working_mb),
    )
