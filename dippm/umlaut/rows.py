"""`CallRow`: one metric of one call, or one logged value, as in UMLAUT's tables."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import MeasurementError
from dippm.measure.readings import Absent
from dippm.runs.store.folder import read_folder
from dippm.runs.store.record import Span, Start, Value
from dippm.umlaut.descriptions import BEFORE, Logged, descriptions_of, logged_types

if TYPE_CHECKING:
    from dippm.runs.store.stored_run import StoredRun

HELD_NS = 2_000_000_000
"""Longest time for which a reading of a gauge applies to a later call."""
NO_SAMPLE = "no reading fell into the call: give a shorter interval"


@dataclass(frozen=True, slots=True)
class CallRow:
    """One metric of one call, or one logged value.

    Attributes:
        uuid: uuid of the run.
        measure_type: kind in UMLAUT's notation; "call" for a call without metrics.
        description: the user's description.
        method_name: function or block.
        unit: unit of the value.
        value: one number for the whole call; None if absent.
        absent: reason for a missing value, "" without one.
        series: (seconds since the start of the call, value) of a sampled metric.
        data: data of a tracker.
        status: "ok", "failed", or "open" if the call never ended.
        error: type of the exception that ended the call.
        start_s: start of the call, since that of the run.
        seconds: duration of the call; None if it never ended.
    """

    uuid: str
    measure_type: str
    description: str
    method_name: str
    unit: str
    value: float | None = None
    absent: str = ""
    series: tuple[tuple[float, float], ...] = ()
    data: Any = None
    status: str = "ok"
    error: str = ""
    start_s: float = 0.0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SampledSeries:
    """One sampled series of a run.

    Attributes:
        time_ns: ascending times.
        values: one value per time.
        reason: why there is nothing, if there is.
    """

    time_ns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    reason: str = ""


Sampling = Mapping[tuple[str, str], SampledSeries]
"""Series by full name and GPU; "" if there is only one."""


def rows_of_folder(folder: Path) -> list[CallRow]:
    """Return the rows of a run's folder, even while the run is in progress.

    Raises:
        RunError: if it holds no run.
    """
    recorded = read_folder(folder)
    sampled = _series_of_files(recorded.samples)
    return rows_of(recorded.start, recorded.spans, recorded.values, sampled)


def rows_of(
    start: Start, spans: Iterable[Span], values: Iterable[Value], sampled: Sampling
) -> list[CallRow]:
    """Return the rows of a run, in the order of calls and logged values."""
    about, types = descriptions_of(start), logged_types(start)
    names: dict[int, str] = {}
    found: list[tuple[int, CallRow]] = []
    for span in spans:
        names[span.id] = span.name
        metrics = about.get(span.name) or {"": {"type": "call", "unit": "s", "description": ""}}
        for metric in metrics.values():
            found.append((span.start_ns, _of_call(start, span, metric, sampled)))
    for value in values:
        row = _of_value(start, value, names.get(value.span, ""), types)
        found.append((value.time_ns, row))
    return [row for _, row in sorted(found, key=lambda item: item[0])]


class MeasuredCalls:
    """The metrics of a run's calls, by the names of `describe_metrics`.

    A metric of a function without a description is the value in its spans.

    Attributes:
        described: descriptions of metrics, by name of the function.
    """

    def __init__(self, start: Start) -> None:
        self.described = descriptions_of(start)

    def metrics(self, span: Span) -> list[str]:
        """Return the names of a call's metrics, without the readings at its ends."""
        known = self.described.get(span.name, {})
        ends = {name.removesuffix(BEFORE) for name in span.values if name.endswith(BEFORE)}
        parts = {name for end in ends for name in (end, end + BEFORE)}
        parts |= {about["name"] for about in known.values()}
        return [*known, *(name for name in (*span.values, *span.absent) if name not in parts)]

    def series(self, function: str, metric: str) -> str:
        """Return the full name of the series behind a metric, "" for none."""
        return str(self.described.get(function, {}).get(metric, {}).get("series", ""))

    def value(self, span: Span, metric: str, sampled: Sampling) -> float | Absent | None:
        """Return a metric of a call; None if it was not measured."""
        about = self.described.get(span.name, {}).get(metric)
        if about is not None:
            return _value(span, about, sampled)[0]
        if metric in span.values:
            return span.values[metric]
        return Absent(span.absent[metric]) if metric in span.absent else None


def _of_call(start: Start, span: Span, about: Mapping[str, Any], sampled: Sampling) -> CallRow:
    answer, series = _value(span, about, sampled)
    return CallRow(
        start.uuid,
        about["type"],
        about["description"],
        span.name,
        about["unit"],
        None if isinstance(answer, Absent) else answer,
        answer.reason if isinstance(answer, Absent) else "",
        series,
        None,
        span.status,
        span.error,
        (span.start_ns - start.at.monotonic_ns) / 1e9,
        _seconds(span),
    )


def _seconds(span: Span) -> float | None:
    return None if span.end_ns is None else (span.end_ns - span.start_ns) / 1e9


def _value(
    span: Span, about: Mapping[str, Any], sampled: Sampling
) -> tuple[float | Absent, tuple[tuple[float, float], ...]]:
    """Return one metric of a call, and its series if it was sampled."""
    name, seconds = about.get("name", ""), _seconds(span)
    if name and "series" in about:
        return _reduce(span, about, sampled)
    if name in span.values:
        return span.values[name], ()
    if seconds is None:
        return Absent(span.absent.get(name, "the call never ended")), ()
    if not name:
        return seconds, ()
    return Absent(span.absent.get(name, "it was not measured")), ()


def _of_value(start: Start, value: Value, method_name: str, types: Logged) -> CallRow:
    as_logged = types.get(value.name) if value.kind == "metric" else None
    measure_type, description = as_logged or (value.kind, value.name)
    number = value.data if isinstance(value.data, int | float) else None
    return CallRow(
        start.uuid,
        measure_type,
        description,
        value.description or method_name,
        value.unit,
        None if number is None else float(number),
        data=value.data,
        start_s=(value.time_ns - start.at.monotonic_ns) / 1e9,
    )


def _reduce(
    span: Span, about: Mapping[str, Any], sampled: Sampling
) -> tuple[float | Absent, tuple[tuple[float, float], ...]]:
    """Return the value of a sampled metric over a call, and its series."""
    if about["name"] in span.absent:
        return Absent(span.absent[about["name"]]), ()
    full, counter = about["series"], about["reducer"] in ("rate", "delta")
    known = (
        sampled.get((full, about.get("device", ""))) or sampled.get((full, "")) or SampledSeries()
    )
    end_ns = span.end_ns if span.end_ns is not None else (known.time_ns or [span.start_ns])[-1]
    inside = slice(bisect_left(known.time_ns, span.start_ns), bisect_right(known.time_ns, end_ns))
    points = list(zip(known.time_ns[inside], known.values[inside], strict=True))
    if counter:
        points = _with_ends(points, known, span.start_ns, end_ns)
    elif full + BEFORE in span.values:
        points.insert(0, (span.start_ns, span.values[full + BEFORE]))
        points.append((end_ns, span.values[full]))
    elif not points:
        points = _held(known, inside.start, end_ns)
    answer, series = _over(points, about, span.start_ns)
    if counter and about["name"] in span.values:
        answer = span.values[about["name"]]  # read at both ends, so it needs no interpolation
    if answer is None:
        return Absent(known.reason or NO_SAMPLE), ()
    return answer, series


def _over(
    points: list[tuple[int, float]], about: Mapping[str, Any], start_ns: int
) -> tuple[float | None, tuple[tuple[float, float], ...]]:
    reducer = about["reducer"]
    if reducer == "rate":
        return _rate(points, about.get("factor", 1.0), start_ns)
    if reducer == "delta":
        points = [(at, value - points[0][1]) for at, value in points]
    series = tuple(((at - start_ns) / 1e9, value) for at, value in points)
    values = [value for _, value in points]
    if len(values) < (2 if reducer == "delta" else 1):
        return None, ()
    reduced = {"delta": lambda: values[-1], "max": lambda: max(values)}
    return reduced.get(reducer, lambda: _mean(values))(), series


def _rate(
    points: Sequence[tuple[int, float]], factor: float, start_ns: int
) -> tuple[float | None, tuple[tuple[float, float], ...]]:
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return None, ()
    seconds = (points[-1][0] - points[0][0]) / 1e9
    series = tuple(
        ((later - start_ns) / 1e9, factor * 1e9 * (more - less) / (later - sooner))
        for (sooner, less), (later, more) in pairwise(points)
        if later > sooner
    )
    return factor * (points[-1][1] - points[0][1]) / seconds, series


def _with_ends(
    points: list[tuple[int, float]], known: SampledSeries, start_ns: int, end_ns: int
) -> list[tuple[int, float]]:
    """Add interpolated values of a counter at both ends of a call."""
    ends = [_between(known, at) for at in (start_ns, end_ns)]
    if ends[0] is None or ends[1] is None:
        return points
    return [(start_ns, ends[0]), *points, (end_ns, ends[1])]


def _between(known: SampledSeries, at_ns: int) -> float | None:
    place = bisect_left(known.time_ns, at_ns)
    if place == len(known.time_ns):
        return None
    if known.time_ns[place] == at_ns:
        return known.values[place]
    if place == 0:
        return None
    sooner, later = known.time_ns[place - 1], known.time_ns[place]
    less, more = known.values[place - 1], known.values[place]
    return less + (more - less) * (at_ns - sooner) / (later - sooner)


def _held(known: SampledSeries, place: int, end_ns: int) -> list[tuple[int, float]]:
    """Return the last reading of a gauge before a call without readings."""
    if not place or end_ns - known.time_ns[place - 1] > HELD_NS:
        return []
    return [(end_ns, known.values[place - 1])]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _series_of_files(files: Iterable[Path]) -> dict[tuple[str, str], SampledSeries]:
    """Return the readings in sampler files, ignoring unreadable files."""
    from dippm.measure.sampler_file import read

    found: dict[tuple[str, str], SampledSeries] = {}
    for file in files:
        try:
            samples = read(file)
        except MeasurementError:
            continue
        device = file.stem.split("-", 3)[-1] if file.stem.count("-") >= 3 else "host"
        for name, series in samples.series.items():
            place = device if device != "host" and name not in ("tree", "host", "rapl") else ""
            reasons = {quantity: reason for _, quantity, reason in series.reasons}
            for quantity, column in series.values.items():
                key = (f"{name}.{quantity}", place)
                before = found.get(key, SampledSeries())
                pairs = [
                    (t, v) for t, v in zip(series.time_ns, column, strict=True) if v is not None
                ]
                both = sorted([*zip(before.time_ns, before.values, strict=True), *pairs])
                reason = reasons.get(quantity, before.reason)
                found[key] = SampledSeries([t for t, _ in both], [v for _, v in both], reason)
    return found


# Rows of runs in a store.


MOST_RUNS = 1000


def stored_rows(store: str, uuid: str = "") -> list[CallRow]:
    """Attach the runs that wait in the spool, and return the rows of runs in a store.

    Args:
        store: address of the store.
        uuid: uuid of one run or its prefix; "" for all.

    Raises:
        StoreError: if the store cannot be read.
        RunError: if there is no such run.
    """
    from dippm.runs.store.attach import attach_all
    from dippm.runs.store.runs import open_store

    attach_all()
    opened = open_store(store)
    runs = [opened.run(uuid.replace("-", ""))] if uuid else opened.runs(limit=MOST_RUNS)
    return [
        row
        for run in reversed(runs)
        for row in rows_of(run.start, run.spans, run.values, _series_of_run(run))
    ]


def call_values(
    run: StoredRun, functions: Iterable[str], metric: str
) -> dict[str, list[float | Absent]]:
    """Return a metric of each call of some functions; a sampled one as its value per call.

    Args:
        run: run in a store.
        functions: names of the spans.
        metric: name as in `MeasuredCalls.metrics`; calls without it are left out.
    """
    calls = MeasuredCalls(run.start)
    found: dict[str, list[float | Absent]] = {function: [] for function in functions}
    sampled: dict[tuple[str, str], SampledSeries] = {}
    for series in {calls.series(function, metric) for function in found} - {""}:
        sampled |= _series_of_run(run, series)
    for span in run.spans:
        value = calls.value(span, metric, sampled) if span.name in found else None
        if value is not None:
            found[span.name].append(value)
    return found


def _series_of_run(run: StoredRun, series: str = "") -> dict[tuple[str, str], SampledSeries]:
    """Return the readings of all series of a run, or of one series on all devices."""
    found = {}
    for column in run.columns:
        source, _, quantity = column.series.partition(".")
        source, _, device = source.partition(":")  # present if there are several devices
        if series not in ("", f"{source}.{quantity}"):
            continue
        pairs = zip(column.time_ns.tolist(), column.values.tolist(), strict=True)
        there = [(at, value) for at, value in pairs if value == value]
        reason = column.reasons[-1][1] if column.reasons else ""
        readings = SampledSeries([at for at, _ in there], [value for _, value in there], reason)
        found[f"{source}.{quantity}", device] = readings
    return found
