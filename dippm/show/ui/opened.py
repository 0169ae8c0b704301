"""Runs as the page reads them: with samples (`OpenedRun`), or their record alone (`RunRecord`).

`expected` returns the predicted value of a stream, which charts draw beside the samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dippm.errors import DippmError, RunError
from dippm.runs.store.columns import Column, Summary, read_columns, summarise
from dippm.runs.store.folder import RecordedRun
from dippm.runs.store.record import End, Span, Start, Value
from dippm.runs.store.stored_run import StoredRun
from dippm.runs.tracking.steps import USUAL, timed_steps
from dippm.show.ui.streams import CALLS, Stream, streams


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run with its samples.

    Attributes:
        start: start record of the run.
        spans: spans in the order of their ids.
        streams: streams over time, by key.
    """

    start: Start
    spans: tuple[Span, ...]
    streams: Mapping[str, Stream]

    @property
    def prediction(self) -> Mapping[str, Any] | None:
        """Prediction for the same workload; None without one."""
        return self.start.prediction

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory, in bytes."""
        samples = sum(len(stream.values) for stream in self.streams.values())
        return 24 * samples + 500 * len(self.spans) + 10_000


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Everything that the page of a run shows, without samples.

    Attributes:
        start: start record of the run.
        end: end record; None while it is running.
        spans: spans in the order of their ids.
        values: reported values, in their order.
        summaries: summary of each series by name, or the reason why it is absent.
        artifacts: paths of its artifacts.
        remarks: remarks of the tracker.
        comparison: comparison with the prediction (`RunComparison.to_dict`); None without one.
        comparison_reason: reason why there is no comparison; "" if there is one, or if the run has
            no prediction.
    """

    start: Start
    end: End | None
    spans: tuple[Span, ...]
    values: tuple[Value, ...]
    summaries: Mapping[str, Summary]
    artifacts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    comparison: Mapping[str, Any] | None = None
    comparison_reason: str = ""


def record_of_store(run: StoredRun) -> RunRecord:
    """Read the record of a stored run, and compare it with its prediction.

    Raises:
        RunError: if the run is damaged.
        StoreError: if the store cannot be read.
    """
    run = replace(run)
    comparison, reason = run.comparison, ""
    if comparison is None and run.prediction is not None:
        from dippm.runs.tracking.run_comparison import compare_run

        try:
            comparison = compare_run(run).to_dict()
        except DippmError as error:
            reason = str(error)
        except (KeyError, TypeError, ValueError) as error:  # written by another program or by hand
            reason = f"the prediction beside it cannot be read: {type(error).__name__}: {error}"
    return RunRecord(
        run.start,
        run.end,
        run.spans,
        run.values,
        dict(run.summaries),
        run.artifacts,
        run.remarks,
        comparison,
        reason,
    )


def record_of_folder(recorded: RecordedRun) -> RunRecord:
    """Read the record of a run that is not in a store yet."""
    columns, _ = read_columns(recorded.samples)
    found = {column.series: summarise(column) for column in columns}
    waits = "it is compared with its prediction when it has ended and is in the store"
    reason = waits if recorded.start.prediction is not None else ""
    ends = recorded.start, recorded.end, recorded.spans, recorded.values
    return RunRecord(*ends, found, comparison_reason=reason)


def opened_of_store(run: StoredRun) -> OpenedRun:
    """Read a stored run with its samples.

    Raises:
        RunError: if the run is damaged.
        StoreError: if the store cannot be read.
    """
    run = replace(run)  # what this copy reads is freed with it, instead of staying in the list
    return _open(run.start, run.spans, run.values, run.columns)


def opened_of_folder(recorded: RecordedRun) -> OpenedRun:
    """Read a run that is still running, as far as it is written."""
    columns, _ = read_columns(recorded.samples)
    return _open(recorded.start, recorded.spans, recorded.values, tuple(columns))


def _open(
    start: Start, spans: tuple[Span, ...], values: tuple[Value, ...], columns: tuple[Column, ...]
) -> OpenedRun:
    return OpenedRun(start, spans, streams(start, spans, values, columns))


# Predicted values of streams.


ON_GPU = {
    "nvml_processes.tree_memory_mb": "memory_mb",
    "nvml.power_w": "power_w",
    "nvml.power_instant_w": "power_w",
    "nvml.energy_j": "power_w",
}
ON_CPU = {"tree.rss_mb": "memory_mb", "rapl.package_energy_j": "power_w"}
"""Predicted target of each stream, for a run on a GPU and on a CPU."""
COUNTERS = ("nvml.energy_j", "rapl.package_energy_j")
"""Cumulative energy counters, whose rate is a power."""


class PredictedValue(NamedTuple):
    """A predicted value with its interval.

    Attributes:
        target: target with its unit: "latency_ms".
        value: predicted value.
        low: lower end of the interval; None without one.
        high: upper end of the interval.
        coverage: probability of the interval, 0 to 1.
    """

    target: str
    value: float
    low: float | None
    high: float | None
    coverage: float | None


def expected(run: OpenedRun, key: str, *, rates: bool) -> PredictedValue | None:
    """Return the predicted value of a stream; None without one.

    The latency of a step belongs to the spans that `dippm compare-run` would time, the memory to
    that of the process tree on the predicted device, and the power to that of its board.

    Args:
        run: run with a prediction.
        key: key of the stream.
        rates: whether counters are drawn as rates.
    """
    foretold = run.prediction
    if foretold is None:
        return None
    target = _target(run, key, rates)
    value = foretold.get(target) if target else None
    if target is None or not isinstance(value, int | float):
        return None
    intervals = foretold.get("intervals")
    interval = intervals.get(target) if isinstance(intervals, Mapping) else None
    low, high, coverage = (_number(interval, name) for name in ("low", "high", "coverage"))
    return PredictedValue(target, float(value), low, high, coverage)


def _target(run: OpenedRun, key: str, rates: bool) -> str | None:
    if key.startswith(CALLS):
        return "latency_ms" if key == CALLS + _steps(run) else None
    if key in COUNTERS and not rates:
        return None
    conditions = (run.prediction or {}).get("conditions")
    device = conditions.get("device") if isinstance(conditions, Mapping) else ""
    source, _, quantity = key.partition(".")
    plain = f"{source.partition(':')[0]}.{quantity}"  # "nvml:1" is one of several devices
    return (ON_CPU if str(device).startswith("CPU") else ON_GPU).get(plain)


def _steps(run: OpenedRun) -> str:
    try:
        return timed_steps(run.spans).name
    except RunError:  # too few for a latency, but still the predicted spans
        names = {span.name for span in run.spans}
        return USUAL if USUAL in names else next(iter(names)) if len(names) == 1 else ""


def _number(interval: Any, name: str) -> float | None:
    value = interval.get(name) if isinstance(interval, Mapping) else None
    return float(value) if isinstance(value, int | float) else None
