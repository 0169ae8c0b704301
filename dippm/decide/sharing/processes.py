"""`share`: predicts the cost of several processes that share one GPU.

latency    by the neighbour law, see `dippm.estimate.models.neighbour_law`; on slices of their
           own each process is predicted alone
memory     sum of the 99 % bounds, each with a context of its own
energy     active + idle: active is the energy of a pass above idle on the whole GPU, idle the
           board's idle power times the process's share of the GPU times its latency
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log
from typing import Any, Unpack

from dippm.api import load, predict
from dippm.base.number_format import show
from dippm.base.progress import stage
from dippm.decide.sharing.answer import SharedGpu, SharedProcess
from dippm.decide.sharing.load import load_of
from dippm.decide.sharing.ways import (
    WAYS,
    Way,
    check_copies,
    check_count,
    check_memory_limits,
    check_mps,
    check_percentages,
    part_of,
    slices_of,
    way_of,
)
from dippm.devices import Device, MigProfile, taken_fraction
from dippm.errors import ConditionsError
from dippm.estimate.conditions import check_options
from dippm.estimate.model_list import Candidate, cases_of
from dippm.estimate.models.neighbour_law import Load, NeighbourLaw, Together, fitted
from dippm.estimate.models.power import idle_power_w
from dippm.estimate.models.targets import Interval
from dippm.estimate.options import ProcessOptions, name_of, usual_options
from dippm.estimate.place import DEFAULT_DEVICE, device_of, slice_of
from dippm.estimate.prediction import Prediction

SLICES_ARE_APART = (
    "slices share neither multiprocessors nor memory: each is predicted by itself; the power limit "
    "and the host, which they do share, are not modelled"
)
MEASURED_PRECISIONS = ("fp32", "tf32")
"""Precisions of the measured table, which is in tf32: convolutions use tf32 in both."""
SWITCHING = "what it costs to switch between processes was not measured and is not counted"


@dataclass(frozen=True, slots=True)
class PlacedProcess:
    """A process at its place on the GPU.

    Attributes:
        alone: prediction alone on the shared place.
        limited: prediction alone within its part; the same if it may use all of it.
        part: its part of the GPU in words.
        share: its share of the board's idle power.
        whole: prediction alone on the whole GPU, which has an energy.
        load: load for the neighbour law; None on a slice of its own.
        memory_limit_mb: limit of its memory under MPS in MiB; None without one.
    """

    alone: Prediction
    limited: Prediction
    part: str
    share: float
    whole: Prediction
    load: Load | None
    memory_limit_mb: float | None = None


def share(
    models: Iterable[Any],
    framework: str | None = None,
    *,
    sharing: str = "mps",
    percentages: Sequence[float] | None = None,
    slices: Sequence[str] | None = None,
    memory_limits_mb: Sequence[float | None] | None = None,
    copies: int = 1,
    **options: Unpack[ProcessOptions],
) -> SharedGpu:
    """Predict several processes that share one GPU.

    Args:
        models: models as `dippm.predict` takes them, or `Candidate`s with an input of their own;
            one process each. A `Prediction` stands for its model under its own conditions, except
            those that are given.
        framework: see `dippm.predict`.
        sharing: "time-slicing" (no MPS: processes take turns), "mps", or "mig" (one slice each).
            `mode` may state it as well.
        percentages: percentage of the GPU's threads for each MPS client, at most 100 in total.
        slices: MIG slice of each process.
        memory_limits_mb: memory limit of each MPS client in MiB, None for no limit; the context is
            taken to count.
        copies: number of copies of the whole set.
        **options: see `dippm.Options`; `batch` is one for all processes or one per model, `mig` a
            slice that all share by time slicing or MPS.

    Raises:
        ConstraintError: if there is no model, or percentages, slices, limits or batches do not
            match the set.
        UnknownNameError: if the sharing mode, device, slice or checkpoint is not known.
        ConditionsError: if the GPU has no slices or no MPS, if `models` is a single model, if
            predictions are for different GPUs, or precision, mode, ... cannot be predicted.
        ModelFileError: if a model cannot become a graph.
    """
    check_options(options, ProcessOptions)
    cases = cases_of(models)
    given: dict[str, Any] = {**options}
    if given.get("mode") in WAYS:
        sharing = given.pop("mode")
    way = way_of(sharing)
    several = [_options_of(case, given) for case in cases]
    gpu = device_of(_one_of("device", several, DEFAULT_DEVICE))
    place = slice_of(gpu, _one_of("mig", several, None))
    batches = _batches(given.get("batch"), cases)
    check_copies(copies)
    check_count(len(cases) * copies)
    if way == "mps":
        check_mps(gpu, len(cases) * copies)
    cases, batches, several = cases * copies, batches * copies, several * copies
    check_percentages(percentages, len(cases), way, gpu)
    check_memory_limits(memory_limits_mb, len(cases), way)
    own = slices_of(gpu, slices, len(cases), way)
    if own and place is not None:
        raise ConditionsError(
            "both one slice for all processes and a slice for each were given",
            "Leave out mig, or slices.",
        )
    limits = _limits(gpu, place, percentages, own, len(cases))
    placed: list[PlacedProcess] = []
    asked = list(zip(cases, batches, limits, strict=True))
    for number, one in enumerate(asked):
        again = next((placed[i] for i in range(number) if asked[i] == one), None)
        there = {**several[number], "device": gpu, "mig": place}
        with stage(f"{number + 1} of {len(cases)}: {name_of(one[0].model)}"):
            placed.append(again or _place_process(*one, framework, there, own=own is not None))
    if memory_limits_mb is not None:
        placed = [
            replace(process, memory_limit_mb=limit)
            for process, limit in zip(placed, memory_limits_mb, strict=True)
        ]
    return answer_of(gpu, place, way, placed, limited=percentages is not None)


def _options_of(case: Candidate, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a process: what is given, else those of its prediction."""
    usual = usual_options(case.model, given)
    known = {n: v for n, v in usual.items() if n in ProcessOptions.__annotations__}
    return {n: v for n, v in {**known, **given}.items() if n != "batch"}


def _one_of(name: str, several: Sequence[Mapping[str, Any]], usual: Any) -> Any:
    """Return the place that all processes have.

    Raises:
        ConditionsError: if predictions are of different places, and none was given.
    """
    values = [options[name] for options in several if name in options]
    other = next((value for value in values if value != values[0]), None)
    if other is not None:
        first, second = (getattr(value, "name", value or "none") for value in (values[0], other))
        raise ConditionsError(
            f"the predictions are for different places: {name} {first} and {second}",
            f"Processes share one GPU: give {name}=...",
        )
    return values[0] if values else usual


def _batches(batch: int | Sequence[int] | None, cases: Sequence[Candidate]) -> list[int]:
    """Return the batch of each model: its own, else the one at its position, else that of all."""
    if batch is None:
        several = [_usual_batch(case.model) for case in cases]
    else:
        several = [batch] * len(cases) if isinstance(batch, int) else list(batch)
    if len(several) == 1:
        several *= len(cases)
    if len(several) != len(cases):
        raise ConditionsError(
            f"{len(several)} batches were given for {len(cases)} models",
            "Give one for all of them, or one for each.",
        )
    for case in cases:
        if case.batches and len(case.batches) > 1:
            raise ConditionsError(
                f"{name_of(case.model)} has {len(case.batches)} batches",
                "A process runs one: give one, or list the model once for each.",
            )
    return [c.batches[0] if c.batches else own for c, own in zip(cases, several, strict=True)]


def _usual_batch(model: Any) -> int:
    return model.conditions.batch if isinstance(model, Prediction) else 1


def _limits(
    gpu: Device,
    place: MigProfile | None,
    percentages: Sequence[float] | None,
    own: Sequence[MigProfile] | None,
    processes: int,
) -> list[tuple[MigProfile | None, float]]:
    """Return (part of the GPU, None for all of it; share of idle power) of each process."""
    if own:
        return [(profile, taken_fraction(profile, gpu)) for profile in own]
    of_board = taken_fraction(place, gpu) if place else 1.0
    if percentages is None:
        return [(None, of_board / processes)] * processes
    return [(part_of(gpu, place, one), of_board * one / 100) for one in percentages]


def _place_process(
    case: Candidate,
    batch: int,
    limit: tuple[MigProfile | None, float],
    framework: str | None,
    given: dict[str, Any],
    *,
    own: bool,
) -> PlacedProcess:
    sizes = {} if case.input is None else {"input": case.input}
    asked: Any = {**given, **sizes, "batch": batch}
    alone = predict(case.model, case.framework or framework, **asked)
    c, graph, name = alone.conditions, alone.source_graph, alone.provenance.source
    loaded = load(given.get("checkpoint"), device=c.device, phase=c.phase)

    def at(mig: MigProfile | None) -> Prediction:
        if mig == c.mig:
            return alone
        return loaded.predict_at(graph, c.replace(mig=mig), name=name)

    part, of_board = limit
    limited = alone if part is None else at(part)
    load_ = None if own else load_of(loaded, graph, c, limited)
    return PlacedProcess(
        alone, limited, "" if part is None else part.name, of_board, at(None), load_
    )


def answer_of(
    gpu: Device,
    place: MigProfile | None,
    way: Way,
    placed: Sequence[PlacedProcess],
    *,
    limited: bool,
) -> SharedGpu:
    """Return the cost of processes at their places.

    Args:
        gpu: the GPU.
        place: the slice that all processes share; None for the GPU.
        way: sharing mode.
        placed: processes at their places.
        limited: whether percentages of threads limit them.
    """
    law = fitted()
    why = _why_bounds(gpu, way, placed, law, limited=limited)
    absent, idle_w = _idle(gpu, placed)
    if way == "mig":
        times = [_by_itself(process) for process in placed]
    else:
        loads = [process.load for process in placed if process.load is not None]
        found = law.together(loads, way)
        times = [
            latency_among_neighbours(process, one, law, bounds=bool(why))
            for process, one in zip(placed, found, strict=True)
        ]
    processes = []
    for process, (value, latency, slowdowns) in zip(placed, times, strict=True):
        alone_ms = process.alone.latency_ms
        assert alone_ms is not None
        processes.append(
            SharedProcess(
                process.alone.provenance.source,
                process.alone.conditions.batch,
                process.part,
                process.share,
                process.alone,
                value,
                latency,
                value / alone_ms,
                slowdowns,
                process.alone.memory_bound_mb,
                *_energy(process, value, idle_w),
            )
        )
    power_w = None
    if idle_w is not None:
        power_w = idle_w + sum(1e3 * (p.active_j or 0.0) / p.latency_ms for p in processes)
    return SharedGpu(
        gpu,
        place,
        way,
        ", ".join(dict.fromkeys(_words(process.alone) for process in placed)),
        tuple(processes),
        measured=not why,
        why_bounds=why,
        misfits=tuple(_misfits(gpu, place, way, placed)),
        idle_w=idle_w,
        power_w=power_w,
        absent=absent,
        warnings=tuple(dict.fromkeys(_warnings(gpu, way, placed, law, power_w, why))),
    )


def _why_bounds(
    gpu: Device, way: Way, placed: Sequence[PlacedProcess], law: NeighbourLaw, *, limited: bool
) -> str:
    """Return why a set is unlike those measured; "" if it is not, or if nothing is shared."""
    first = placed[0].alone
    alike = all(process.load == placed[0].load for process in placed)
    c = first.conditions
    if way == "mig" or len(placed) == 1:
        return ""
    if way == "time-slicing":
        return "no processes in time slices were measured"
    if limited:
        return "no clients of MPS with percentages were measured"
    if not alike:
        return "no sets of different models were measured, only copies of one"
    if (c.phase, c.mode, c.runtime) != ("inference", "eager", "pytorch"):
        return "only eager inference was measured beside neighbours"
    if c.precision not in MEASURED_PRECISIONS:
        return f"only {' and '.join(MEASURED_PRECISIONS)} were measured beside neighbours"
    if len(placed) > law.most_processes:
        return f"no more than {law.most_processes} processes were measured"
    if gpu.measured_name.partition("-")[0] != law.device.partition("-")[0]:
        return f"neighbours were measured on {law.device} alone"
    return ""


def _by_itself(process: PlacedProcess) -> tuple[float, Interval, Interval]:
    """Return latency, its interval and the slow-down on a slice of its own."""
    alone_ms, latency_ms = process.alone.latency_ms, process.limited.latency_ms
    if alone_ms is None or latency_ms is None:
        reason = process.limited.absent.get("latency_ms", "not predicted")
        raise ConditionsError(
            f"the latency of {process.alone.provenance.source} is not known: {reason}",
            "Ask with another checkpoint; `dippm models` lists them.",
        )
    ratio = latency_ms / alone_ms
    return latency_ms, process.limited.intervals["latency_ms"], Interval(ratio, ratio, 0.0)


def latency_among_neighbours(
    process: PlacedProcess, found: Together, law: NeighbourLaw, *, bounds: bool
) -> tuple[float, Interval, Interval]:
    """Return latency and slow-down among neighbours, with intervals or bounds."""
    alone_ms, limited_ms = process.alone.latency_ms, process.limited.latency_ms
    assert alone_ms is not None
    assert limited_ms is not None
    own = process.limited.intervals["latency_ms"]
    half = log(own.high / limited_ms)
    least, most = found.least / alone_ms, found.most / alone_ms
    if bounds:
        between = Interval(found.least * exp(-half), found.most * exp(half), 0.0)
        return found.value, between, Interval(least, most, 0.0)
    width = law.log_half_width if found.most > found.least * (1 + 1e-9) else 0.0
    both = exp(hypot(half, width))
    between = Interval(max(own.low, found.value / both), found.value * both, own.coverage)
    ratio = found.value / alone_ms
    slower = Interval(max(least, ratio / exp(width)), ratio * exp(width), own.coverage)
    return found.value, between, slower


def _idle(gpu: Device, placed: Sequence[PlacedProcess]) -> tuple[dict[str, str], float | None]:
    """Return why energies are absent, and the idle power of the board."""
    reason = next((s.whole.absent["energy_j"] for s in placed if s.whole.energy_j is None), None)
    if reason is not None:
        return dict.fromkeys(("energy_j", "power_w"), reason), None
    return {}, idle_power_w(gpu)


def _energy(
    process: PlacedProcess, latency_ms: float, idle_w: float | None
) -> tuple[float | None, float | None]:
    """Return the energy of a pass above idle, and its share of the idle energy."""
    energy_j, alone_ms = process.whole.energy_j, process.whole.latency_ms
    if idle_w is None or energy_j is None or alone_ms is None:
        return None, None
    active_j = max(0.0, energy_j - idle_w * alone_ms / 1e3)
    return active_j, idle_w * process.share * latency_ms / 1e3


def _misfits(
    gpu: Device, place: MigProfile | None, way: Way, placed: Sequence[PlacedProcess]
) -> Iterator[str]:
    """Yield why the set does not fit the memory at 99 %."""
    for process in placed:
        limit_mb, bound_mb = process.memory_limit_mb, process.alone.memory_bound_mb
        if limit_mb is not None and bound_mb is not None and bound_mb > limit_mb:
            needs = f"needs up to {show(bound_mb)} MB at 99 %, its limit is {show(limit_mb)} MB"
            yield f"{process.alone.provenance.source} {needs}"
        if process.alone.memory_bound_mb is None:
            why = process.alone.absent.get("fits", "not predicted")
            yield f"whether {process.alone.provenance.source} fits is not known: {why}"
        elif way == "mig":
            capacity_mb = process.limited.capacity_mb
            if process.alone.memory_bound_mb > capacity_mb:
                needs = f"needs up to {show(process.alone.memory_bound_mb)} MB at 99 %"
                name = process.alone.provenance.source
                yield f"{name} {needs}, {process.part} has {capacity_mb:,}"
    if way != "mig":
        needs_mb = sum(process.alone.memory_bound_mb or 0.0 for process in placed)
        capacity_mb = place.memory_mb if place else gpu.memory_mb
        if needs_mb > capacity_mb:
            yield (
                f"together they need up to {show(needs_mb)} MB, each at 99 %; "
                f"{place or gpu.name} has {capacity_mb:,}"
            )


def _warnings(
    gpu: Device,
    way: Way,
    placed: Sequence[PlacedProcess],
    law: NeighbourLaw,
    power_w: float | None,
    why_bounds: str,
) -> Iterator[str]:
    if why_bounds:
        yield f"{why_bounds}: the range is bounds, not an interval that was tested"
    if way == "time-slicing" and len(placed) > 1:
        yield SWITCHING
    if way == "mig":
        yield SLICES_ARE_APART
    limit_w = gpu.power_limit_w
    if power_w is not None and limit_w is not None and power_w > limit_w:
        yield (
            f"together they would draw {show(power_w)} W, and {gpu.name} is limited to "
            f"{limit_w:,} W: it will slow all of them down, which is not in the latencies"
        )
    for process in placed:
        yield from (w for w in process.alone.warnings if "run out of memory" not in w)


def _words(alone: Prediction) -> str:
    c = alone.conditions
    how = c.mode if c.runtime == "pytorch" else c.runtime
    return " · ".join([c.precision, how, *["training step"] * (c.phase == "train")])
