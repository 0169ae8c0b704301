"""`slowdown`: how much longer runs take when sharing a GPU than alone, from a store.

Steps are spans, as in `dippm.runs.tracking.steps`; for a run that shared a device only those during
a neighbour's run count. A run without spans is judged by its total duration if neighbours ran for
nearly all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.errors import RunError
from dippm.measure.readings import Absent
from dippm.runs.colocation import neighbour_runs
from dippm.runs.colocation.neighbour_runs import SharedEnergy, shared_energy
from dippm.runs.colocation.predicted_slowdowns import PredictedSlowdown
from dippm.runs.tracking.steps import timed_steps

if TYPE_CHECKING:
    from dippm.runs.store.stored_run import StoredRun

DOCUMENT = "slowdown"
NEARLY_ALL = 0.9
Verdict = Literal["slower", "equal", "faster", "unknown"]
Held = Literal["inside", "above", "below", "unknown"]


@dataclass(frozen=True, slots=True)
class RunSlowdown:
    """A run that shared a device, compared with runs of the same work alone.

    Attributes:
        uuid: uuid of the run.
        name: name of the run.
        sharing: recorded way of sharing; "" without one.
        what: timed quantity: "latency_ms" of the steps, or "seconds" of the whole run.
        shared: value while sharing; None if it is missing.
        alone: mean of the runs alone; None without any.
        alone_low: smallest value of the runs alone.
        alone_high: largest value of the runs alone.
        alone_runs: uuids of the runs alone.
        noise_percent: two standard errors of both means, relative; None if unknown.
        overlap: share of the run's time in which a neighbour ran, 0 to 1.
        reason: reason why `shared` or `alone` is None.
        foretold: slow-down that `dippm.share` predicts; None if it is missing.
        foretold_low: lower end of its interval, or lower bound.
        foretold_high: upper end of the interval, or upper bound.
        foretold_reason: reason why it is missing, or has bounds instead of an interval.
    """

    uuid: str
    name: str
    sharing: str
    what: str
    shared: float | None
    alone: float | None
    alone_low: float | None
    alone_high: float | None
    alone_runs: tuple[str, ...]
    noise_percent: float | None
    overlap: float
    reason: str = ""
    foretold: float | None = None
    foretold_low: float | None = None
    foretold_high: float | None = None
    foretold_reason: str = ""

    @property
    def held(self) -> Held:
        """Whether the slow-down lies within the prediction, allowing for noise."""
        measured, low, high = self.slowdown, self.foretold_low, self.foretold_high
        if measured is None or low is None or high is None:
            return "unknown"
        noise = 1 + (self.noise_percent or 0.0) / 100
        return (
            "below" if measured * noise < low else "above" if measured > high * noise else "inside"
        )

    @property
    def slowdown(self) -> float | None:
        """Time when sharing over time alone: 1 means no loss."""
        return self.shared / self.alone if self.shared and self.alone else None

    @property
    def verdict(self) -> Verdict:
        """Slower or faster only if the difference exceeds the noise."""
        if self.slowdown is None:
            return "unknown"
        if abs(self.slowdown - 1) <= (self.noise_percent or 0.0) / 100:
            return "equal"
        return "slower" if self.slowdown > 1 else "faster"


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """Slow-downs of all runs that shared devices, and their common energy.

    Attributes:
        runs: slow-down of each run, the requested one first.
        energy: energy of their boards while all of them ran.
    """

    runs: tuple[RunSlowdown, ...]
    energy: SharedEnergy

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data; energies of single runs are called estimates."""
        energy = self.energy
        absent = isinstance(energy.all_j, Absent)
        return {
            "runs": [
                {**asdict(run), "slowdown": run.slowdown, "verdict": run.verdict, "held": run.held}
                for run in self.runs
            ],
            "energy": {
                "seconds": energy.seconds,
                "all_j": None if absent else energy.all_j,
                "absent": str(energy.all_j.reason) if isinstance(energy.all_j, Absent) else None,
                "estimates_j": list(energy.estimates_j) or None,
                "estimate_rule": energy.rule or None,
                "idle_w": energy.idle_w,
            },
        }

    def with_predictions(self, foretold: Mapping[str, PredictedSlowdown] | str) -> Slowdowns:
        """Return a copy with the prediction for each run, see `predict_slowdowns`."""
        if isinstance(foretold, str):
            runs = [replace(run, foretold_reason=foretold) for run in self.runs]
        else:
            runs = [
                replace(
                    run,
                    foretold=one.slowdown,
                    foretold_low=one.low,
                    foretold_high=one.high,
                    foretold_reason=one.bounds,
                )
                for run in self.runs
                for one in (foretold[run.uuid],)
            ]
        return replace(self, runs=tuple(runs))

    def key_figures(self) -> dict[str, float]:
        """Return searchable numbers of the requested run."""
        asked = self.runs[0]
        return {} if asked.slowdown is None else {"slowdown": asked.slowdown}

    def __str__(self) -> str:
        head = f" {'run':<22}{'shared':<14}{'alone':<14}{'runs':>5}{'slow-down':>11}{'noise':>9}"
        lines = [head, *map(_line, self.runs), *_prediction_lines(self), *_energy_lines(self)]
        return "\n".join(lines)


def slowdown(
    run: StoredRun,
    runs: Iterable[StoredRun],
    *,
    alone: Sequence[StoredRun] = (),
    span: str | None = None,
    idle_w: float | None = None,
) -> Slowdowns:
    """Compare a run that shared a device, and its neighbours, with runs of the same work alone.

    Args:
        run: run of the store.
        runs: other runs of the store, among them neighbours and runs of the same work alone.
        alone: runs to use as the runs alone, whatever they ran; for a command that differs.
        span: name of the steps; by default "forward", or the only name of spans.
        idle_w: idle power of the boards, W, for the estimate of energy.

    Raises:
        RunError: if the run shared no device, or its times are invalid.
    """
    every = [run, *(other for other in runs if other.uuid != run.uuid)]
    others = neighbour_runs.neighbours_of(run, every)
    if not others:
        raise RunError(
            f"run {run.uuid[:8]} shared no device with another run of this store",
            "Runs that overlap in time on one device are compared; give one that did.",
        )
    if not neighbour_runs.is_comparable(run):
        raise RunError(
            f"the times of run {run.uuid[:8]} do not count: it is {run.status}, or was profiled",
            "Give a run that finished, without a profiler.",
        )
    found = [
        _measure_slowdown(each, every, alone if each is run else (), span)
        for each in (run, *others)
    ]
    return Slowdowns(tuple(found), shared_energy((run, *others), idle_w=idle_w))


def _measure_slowdown(
    run: StoredRun, every: Sequence[StoredRun], given: Sequence[StoredRun], span: str | None
) -> RunSlowdown:
    others = neighbour_runs.neighbours_of(run, every)
    shared = neighbour_runs.shared_time(run, others)
    first, last = neighbour_runs.time_range(run)
    overlap = sum(end - begin for begin, end in shared) / max(1, last - first)
    solo = list(given) or _find_runs_alone(run, every)
    what, mine, error, reason = _time(run, span, shared, overlap)
    if not neighbour_runs.is_comparable(run):
        mine, reason = None, f"its times do not count: it is {run.status}, or was profiled"
    times, errors = [], []
    for other in solo:
        kind, time, error_of, why = _time(other, span, None, 1.0)
        if time is not None and kind == what:
            times.append(time)
            errors.append(error_of)
        else:
            reason = reason or f"run {other.uuid[:8]} alone: {why or f'it has {kind} only'}"
    if not solo:
        reason = reason or "no run of the same work alone is in the store: run it once by itself"
    return RunSlowdown(
        run.uuid,
        run.name,
        run.start.tags.get("sharing", ""),
        what,
        mine,
        fmean(times) if times else None,
        min(times, default=None),
        max(times, default=None),
        tuple(other.uuid for other in solo),
        _noise(mine, error, times, errors),
        overlap,
        reason if mine is None or not times else "",
    )


def _find_runs_alone(run: StoredRun, every: Sequence[StoredRun]) -> list[StoredRun]:
    """Return the runs of the same work alone: of the same experiment, or else of any.

    Fields in the list are checked first, since the record of a run has to be fetched.
    """
    finished = [o for o in every if o.uuid != run.uuid and o.status == run.status]
    for mine in (True, False):
        found = [
            other
            for other in finished
            if (other.experiment == run.experiment) is mine
            and neighbour_runs.same_work(run, other)
            and neighbour_runs.is_comparable(other)
            and neighbour_runs.was_alone(other, every)
        ]
        if found:
            return found
    return []


def _time(
    run: StoredRun,
    span: str | None,
    ranges: Sequence[neighbour_runs.TimeRange] | None,
    overlap: float,
) -> tuple[str, float | None, float, str]:
    """Return quantity, time, relative standard error, and the reason for a missing time."""
    if run.spans:
        spans = run.spans if ranges is None else neighbour_runs.spans_within(run.spans, ranges)
        try:
            steps = timed_steps(spans, span)
        except RunError as error:
            return "latency_ms", None, 0.0, error.message
        relative = steps.spread_ms / steps.mean_ms / len(steps.times_ms) ** 0.5
        return "latency_ms", steps.mean_ms, relative, ""
    if overlap < NEARLY_ALL:
        why = f"it has no spans, and neighbours ran for {overlap:.0%} of its time only"
        return "seconds", None, 0.0, why
    return "seconds", run.seconds, 0.0, ""


def _noise(
    mine: float | None, error: float, times: Sequence[float], errors: Sequence[float]
) -> float | None:
    """Return two standard errors of the quotient, in percent.

    Several runs alone give their own spread; a single one gives that of its steps.
    """
    if mine is None or not times:
        return None
    several = len(times) > 1
    alone = stdev(times) / fmean(times) if several else errors[0]
    either = (error**2 + alone**2) ** 0.5
    return 200 * either if either else None


def _line(run: RunSlowdown) -> str:
    unit = "s" if run.what == "seconds" else "ms"
    shared, alone = (
        "–" if time is None else f"{show(time)} {unit}" for time in (run.shared, run.alone)
    )
    factor = "–" if run.slowdown is None else f"× {run.slowdown:.2f}"
    noise = "–" if run.noise_percent is None else f"{run.noise_percent:.1f} %"
    name = printable(run.name or run.uuid[:8])[:21]
    start = f" {name:<22}{shared:<14}{alone:<14}{len(run.alone_runs):>5}{factor:>11}{noise:>9}"
    return f"{start}  {printable(run.reason) or run.verdict}"


def _prediction_lines(found: Slowdowns) -> Iterator[str]:
    reasons = dict.fromkeys(run.foretold_reason for run in found.runs if run.foretold_reason)
    if all(run.foretold is None for run in found.runs):
        yield from (f" slow-down not predicted: {printable(reason)}" for reason in reasons)
        return
    for run in found.runs:
        if run.foretold is not None:
            name = printable(run.name or run.uuid[:8])[:21]
            between = f"{run.foretold_low:.2f} – {run.foretold_high:.2f}"
            yield f" {name:<22}predicted × {run.foretold:.2f} ({between})  {run.held}"
    yield from (f"   bounds: {printable(reason)}" for reason in reasons)


def _energy_lines(found: Slowdowns) -> list[str]:
    energy = found.energy
    if isinstance(energy.all_j, Absent):
        return [f" energy together: absent, {printable(energy.all_j.reason)}"]
    lines = [f" energy together: {show(energy.all_j)} J of the boards in {energy.seconds:.1f} s"]
    for run, joules in zip(found.runs, energy.estimates_j, strict=True):
        lines.append(f"   {printable(run.name or run.uuid[:8])}: {show(joules)} J, an estimate")
    idle = "" if energy.idle_w is None else f", idling of {energy.idle_w:g} W evenly"
    lines.append(f"   divided {energy.rule}{idle}; no counter measures one run's part")
    return lines
