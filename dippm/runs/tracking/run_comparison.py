"""Comparison of the measured cost of a run with its prediction.

Sections: `compare_run`, which returns a `RunComparison` with verdicts; the check that run and
prediction have the same conditions; the cost of the steps of a run (`RunFigures`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.errors import ConditionsError, RunError
from dippm.estimate.models.targets import UNITS
from dippm.estimate.prediction import LABELS
from dippm.measure.provenance import catalogue_name
from dippm.measure.readings import Absent
from dippm.runs.store.record import Start
from dippm.runs.tracking.profilers import refuse_profiled
from dippm.runs.tracking.steps import Steps, timed_steps

if TYPE_CHECKING:
    from dippm.runs.store.columns import Column
    from dippm.runs.store.stored_run import StoredRun

COMPARED = ("latency_ms", "energy_j", "memory_mb")
DOCUMENT = "comparison"
EXPECT = "Start it with `dippm run --model FILE --batch 32 -- CMD`, or track(prediction=...)."
Verdict = Literal["inside", "within noise", "above", "below", "absent"]


@dataclass(frozen=True, slots=True)
class TargetComparison:
    """One quantity of a step, predicted and measured.

    Attributes:
        target: name of the quantity, with its unit.
        predicted: predicted value; None if it is missing.
        low: lower end of the interval.
        high: upper end of the interval.
        measured: measured value; None if it is missing.
        noise_percent: difference to expect between two measurements; see `RunComparison.noise`.
        verdict: "inside" the interval; "within noise" of the prediction; the run was "above" or
            "below"; "absent" if one of the two values is missing.
        reason: reason why a value is missing.
    """

    target: str
    predicted: float | None
    low: float | None
    high: float | None
    measured: float | None
    noise_percent: float | None
    verdict: Verdict
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Signed relative error of the prediction: 0.1 is 10 % too much."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A run compared with the prediction that is stored with it.

    Attributes:
        uuid: UUID of the run.
        title: model and conditions.
        compared: comparison of latency, energy and memory.
        told: names of the conditions that the run recorded; the others are taken to be predicted.
        steps: name, number and warm-up of the spans.
        noise: origin of the noise floor.
        at: time of the comparison in UTC.
        figures: all measured values.
    """

    uuid: str
    title: str
    compared: tuple[TargetComparison, ...]
    told: tuple[str, ...]
    steps: Steps
    noise: str
    at: str
    figures: RunFigures

    @property
    def verdict(self) -> str:
        """Targets outside of their interval and of the noise; "held" if there are none."""
        missed = [
            f"{LABELS[one.target]} {one.verdict}"
            for one in self.compared
            if one.verdict in ("above", "below")
        ]
        return ", ".join(missed) if missed else "held"

    def __str__(self) -> str:
        head = f"{'':14}{'predicted':<14}{'interval':<22}{'measured':<14}{'error':>8}{'noise':>8}"
        lines = [f" {self.title}", head.rstrip(), *map(_comparison_line, self.compared)]
        steps = self.figures.methods["latency_ms"]
        untold = [n for n in ("batch", "precision", "mode") if n not in self.told]
        if untold:
            lines.append(f" ! the run did not tell its {', '.join(untold)}: taken as predicted")
        return "\n".join([*lines, f" {steps} · noise: {self.noise} · verdict: {self.verdict}"])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        compared = {
            one.target: {**asdict(one), "error": one.error, "unit": UNITS[one.target]}
            for one in self.compared
        }
        return {
            "uuid": self.uuid,
            "title": self.title,
            "verdict": self.verdict,
            "compared": compared,
            "told": list(self.told),
            "steps": {
                "name": self.steps.name,
                "timed": len(self.steps.times_ms),
                "warm_up": self.steps.warm_up,
                "median_ms": self.steps.median_ms,
                "p95_ms": self.steps.p95_ms,
                "sd_ms": self.steps.spread_ms,
            },
            "timer": self.figures.timer,
            "methods": dict(self.figures.methods),
            "noise": self.noise,
            "at": self.at,
        }

    def key_figures(self) -> dict[str, float]:
        """Return searchable numbers per target: measured and predicted value, verdict."""
        found = {}
        for one in self.compared:
            if one.verdict != "absent" and one.measured is not None and one.predicted is not None:
                found[f"{one.target}/measured"] = one.measured
                found[f"{one.target}/predicted"] = one.predicted
                found[f"{one.target}/inside"] = float(one.verdict == "inside")
        return found


def compare_run(
    run: StoredRun,
    *,
    span: str | None = None,
    prediction: Mapping[str, Any] | None = None,
    earlier: Iterable[StoredRun] = (),
) -> RunComparison:
    """Compare a run with its prediction.

    Args:
        run: run of the store.
        span: name of the steps; by default "forward", or the only name of spans.
        prediction: prediction as `Prediction.to_dict` returns it; by default the one stored with
            the run.
        earlier: other runs of the store; those of the same work give the noise floor.

    Raises:
        RunError: if there is no prediction, or if the steps give no latency.
        ProfilerError: if the run was profiled, so its times are invalid.
        ConditionsError: if the run's conditions differ from those of the prediction.
    """
    refuse_profiled(run.start.tags, f"run {run.uuid[:8]}")
    foretold = prediction or run.prediction
    if foretold is None:
        raise RunError(f"no prediction is stored beside run {run.uuid[:8]}", EXPECT)
    asked = foretold["conditions"]
    steps = timed_steps(run.spans, span)
    timer = "event" if asked["timer"] == "event" and steps.event_ms else "wall"
    recorded = refuse_mismatch(run.start, foretold, timer)
    on_gpu = not str(asked["device"]).startswith("CPU")
    figures = figures_of(steps, run.columns, timer=timer, on_gpu=on_gpu)
    noise, where = _noise(steps, foretold, run, earlier)
    compared = tuple(_compare_target(t, foretold, figures, noise.get(t)) for t in COMPARED)
    conditions = [str(asked[k]) for k in ("device", "precision", "mode", "phase")]
    title = " · ".join([str(foretold["source"]), f"batch {asked['batch']}", *conditions])
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return RunComparison(run.uuid, printable(title), compared, recorded, steps, where, at, figures)


def _compare_target(
    target: str, foretold: Mapping[str, Any], figures: RunFigures, noise: float | None
) -> TargetComparison:
    predicted = foretold.get(target)
    interval = foretold["intervals"].get(target) or {}
    measured: float | Absent = getattr(figures, target)
    reasons = []
    if predicted is None:
        reasons.append(f"not predicted: {foretold['absent'].get(target, 'no reason given')}")
    if isinstance(measured, Absent):
        reasons.append(f"not measured: {measured.reason}")
    number = None if isinstance(measured, Absent) else measured
    low, high = interval.get("low"), interval.get("high")
    verdict = _verdict(predicted, low, high, number, noise)
    return TargetComparison(
        target, predicted, low, high, number, noise, verdict, "; ".join(reasons)
    )


def _verdict(
    predicted: float | None,
    low: float | None,
    high: float | None,
    measured: float | None,
    noise_percent: float | None,
) -> Verdict:
    if predicted is None or measured is None:
        return "absent"
    if low is not None and high is not None and low <= measured <= high:
        return "inside"
    if noise_percent is not None and abs(predicted / measured - 1) <= noise_percent / 100:
        return "within noise"
    return "above" if measured > predicted else "below"


def _noise(
    steps: Steps, foretold: Mapping[str, Any], run: StoredRun, earlier: Iterable[StoredRun]
) -> tuple[dict[str, float], str]:
    """Return the noise floor by target, in percent, and its origin.

    It is the relative standard deviation of earlier compared runs of the same work. With fewer than
    two of them, it is known for the latency only: twice the standard error of this run's mean step,
    which does not include variation between days.
    """
    values: dict[str, list[float]] = {target: [] for target in COMPARED}
    repeats = 0
    for other in _same_work(foretold, run, earlier):
        repeats += 1
        for target in COMPARED:
            value = other.metrics.get(f"{DOCUMENT}/{target}/measured")
            values[target] += [] if value is None else [value]
    floors = {t: 100 * stdev(found) / fmean(found) for t, found in values.items() if len(found) > 1}
    if floors:
        return floors, f"{repeats} earlier runs of the same work"
    error_ms = steps.spread_ms / len(steps.times_ms) ** 0.5
    return {"latency_ms": 200 * error_ms / steps.mean_ms}, "steps of this run alone"


def _same_work(
    foretold: Mapping[str, Any], run: StoredRun, earlier: Iterable[StoredRun]
) -> Iterator[StoredRun]:
    for other in earlier:
        if other.uuid == run.uuid or not _was_compared(other):
            continue
        theirs = other.prediction or {}
        if all(theirs.get(key) == foretold.get(key) for key in ("source", "conditions", "input")):
            yield other


def _was_compared(run: StoredRun) -> bool:
    return any(name.startswith(f"{DOCUMENT}/") for name in run.metrics)


def _comparison_line(one: TargetComparison) -> str:
    unit, label = UNITS[one.target], LABELS[one.target]
    predicted = "–" if one.predicted is None else f"{show(one.predicted)} {unit}"
    measured = "–" if one.measured is None else f"{show(one.measured)} {unit}"
    between = "" if one.low is None or one.high is None else f"{show(one.low)} – {show(one.high)}"
    error = "" if one.error is None else f"{one.error:+.1%}"
    noise = "" if one.noise_percent is None else f"{one.noise_percent:.1f}%"
    rest = printable(one.reason) if one.verdict == "absent" else one.verdict
    start = f" {label:<13}{predicted:<14}{between:<22}{measured:<14}{error:>8}{noise:>8}"
    return f"{start}  {rest}".rstrip()


# Conditions of the run and of the prediction, which must not differ.


RECORDED = ("batch", "precision", "mode", "phase", "channels_last", "mig", "optimizer")
"""Conditions that a run may record as a parameter of this name."""


def device_of_run(start: Start) -> str | None:
    """Return the catalogue's name of a run's device; None if the run does not state it.

    It is the parameter "device", else the only kind of GPU in the machine, or the CPU of a machine
    without a GPU.
    """
    if "device" in start.params and not start.params["device"].startswith(("cuda", "cpu")):
        return catalogue_name(start.params["device"])
    environment = start.environment
    on_cpu = start.params.get("device", "").startswith("cpu")
    gpus = {_gpu_name(line) for line in environment.get("gpus", "").splitlines() if line}
    if gpus and not on_cpu:
        return catalogue_name(gpus.pop()) if len(gpus) == 1 else None
    cpu = environment.get("host_cpu")
    if cpu is None:
        return None
    listed = catalogue_name(cpu)
    return listed if listed.endswith(f"-{environment.get('host_cores')}c") else cpu


def refuse_mismatch(start: Start, prediction: Mapping[str, Any], timer: str) -> tuple[str, ...]:
    """Return the conditions that the run recorded, checked to be those of the prediction.

    Args:
        start: start of the run.
        prediction: prediction as `Prediction.to_dict` returns it.
        timer: kind of time of the run's steps, "wall" or "event".

    Raises:
        ConditionsError: if the run's conditions differ from those of the prediction.
    """
    asked = prediction["conditions"]
    device = device_of_run(start)
    if device is None:
        raise ConditionsError(
            "the run does not say which device it was on", 'Tell it: run.params({"device": ...}).'
        )
    pairs = {"device": (asked["device"], device), "timer": (asked["timer"], timer)}
    recorded = [name for name in RECORDED if name in start.params]
    pairs |= {name: (asked.get(name), start.params[name]) for name in recorded}
    for name, (predicted, ran) in pairs.items():
        if _normalise(predicted) != _normalise(ran):
            raise ConditionsError(
                f"the prediction is for {name} {predicted}, the run was at {ran}",
                "Predict and run under the same conditions.",
            )
    return ("device", "timer", *recorded)


def _normalise(value: Any) -> str:
    text = str(value).strip().casefold()
    names = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "none": ""}
    return names.get(text, text)


def _gpu_name(line: str) -> str:
    """Return the GPU model from a line of the environment, without address and UUID."""
    return re.split(r"[,(]|GPU-", line)[0].strip()


# The cost of the steps of a run: latency, memory and energy, each a value or the reason without.


BUSY = 0.95
"""Least share of the time from the first to the last step that steps must take: the energy of the
gaps between steps is attributed to them."""
LEAST_UPDATES = 10
"""Number of updates of an energy counter that must be exceeded, as in `dippm.measure.energy`."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The cost of one step of a run.

    Attributes:
        timer: kind of time of the latency, "wall" or "event".
        latency_ms: mean time of the timed steps.
        memory_mb: peak memory of the process tree, in MiB.
        energy_j: gross energy of one step.
        power_w: mean power over the steps.
        methods: origin of each value, by name of the value.
    """

    timer: str
    latency_ms: float
    memory_mb: float | Absent
    energy_j: float | Absent
    power_w: float | Absent
    methods: Mapping[str, str]


def figures_of(steps: Steps, columns: Iterable[Column], *, timer: str, on_gpu: bool) -> RunFigures:
    """Return the cost of one step.

    Args:
        steps: timed steps, see `timed_steps`.
        columns: series of the run.
        timer: "wall" or "event".
        on_gpu: whether the work ran on a GPU.
    """
    series = {column.series: column for column in columns}
    memory = "nvml_processes.tree_memory_mb" if on_gpu else "tree.rss_mb"
    counter = "nvml.energy_j" if on_gpu else "rapl.package_energy_j"
    memory_mb = _peak_mb(series.get(memory), memory)
    if not on_gpu:
        memory_mb = _refuse_several_processes(memory_mb, series.get("tree.processes"))
    energy_j = _energy_per_step_j(series.get(counter), counter, steps)
    window_s = (steps.end_ns - steps.start_ns) / 1e9
    power_w = (
        energy_j if isinstance(energy_j, Absent) else energy_j * len(steps.times_ms) / window_s
    )
    times = steps.event_ms if timer == "event" else steps.times_ms
    return RunFigures(
        timer,
        sum(times) / len(times),
        memory_mb,
        energy_j,
        power_w,
        {
            "latency_ms": f"mean of {len(times)} spans {steps.name!r}, {steps.warm_up} before them "
            "are warm-up",
            "memory_mb": f"most of {memory} in the run",
            "energy_j": f"{counter} over these spans",
        },
    )


def _peak_mb(column: Column | None, name: str) -> float | Absent:
    source = name.partition(".")[0]
    if column is None:
        return Absent(f"{name} was not sampled: add {source} to --metrics")
    values = [value for value in column.values.tolist() if value == value]
    if not values:
        return Absent(column.reasons[-1][1] if column.reasons else f"{name} has no value")
    return float(max(values))


def _refuse_several_processes(
    memory_mb: float | Absent, processes: Column | None
) -> float | Absent:
    """Return the memory, or a reason instead if it is that of several processes."""
    if processes is None or isinstance(memory_mb, Absent):
        return memory_mb
    most = max((value for value in processes.values.tolist() if value == value), default=1)
    if most > 1:
        return Absent(f"the run had {most:.0f} processes at once, and one is predicted")
    return memory_mb


def _energy_per_step_j(column: Column | None, name: str, steps: Steps) -> float | Absent:
    """Return the energy per step, from the counter's updates during the steps.

    The mean power between the first and the last update is extended to the whole time of the steps,
    because counters are updated at times of their own.
    """
    if column is None:
        return Absent(f"{name} was not sampled: add {name.partition('.')[0]} to --metrics")
    pairs = zip(column.time_ns.tolist(), column.values.tolist(), strict=True)
    there = [(at, value) for at, value in pairs if value == value]
    if not there:
        return Absent(column.reasons[-1][1] if column.reasons else f"{name} has no value")
    if steps.busy < BUSY:
        return Absent(f"steps take {steps.busy:.0%} of the time between them, {BUSY:.0%} is needed")
    inside = [(at, value) for at, value in there if steps.start_ns <= at <= steps.end_ns]
    updates = [later for sooner, later in pairwise(inside) if later[1] != sooner[1]]
    if len(updates) <= LEAST_UPDATES:
        return Absent(f"{name} was updated {len(updates)} times during the steps, too few")
    (first_ns, first_j), (last_ns, last_j) = updates[0], updates[-1]
    power_w = (last_j - first_j) / ((last_ns - first_ns) / 1e9)
    return float(power_w * (steps.end_ns - steps.start_ns) / 1e9 / len(steps.times_ms))
