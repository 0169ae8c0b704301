"""A run as a trace for Perfetto and Chrome: spans, and counter tracks of its samples.

The format is the JSON object of the Trace Event Format, with times in µs since the run's start.
Cumulative counters become rates. The format cannot express absent values: such readings are left
out, and an instant event on the counter's track gives the time and the reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from dippm.errors import RunError
from dippm.runs.store.columns import Column
from dippm.runs.store.record import Span, Value
from dippm.runs.store.stored_run import StoredRun
from dippm.runs.tracking.listeners import named_series

OF_TRACKS = {
    "tree": "the run's process tree",
    "process": "the run's process",
    "host": "host, everybody's",
    "device": "device",
    "slice": "slice",
}
TOLD = "told by the run"


def trace(run: StoredRun, listeners: Sequence[str] = ()) -> dict[str, Any]:
    """Return a run as a Trace Event Format document.

    Args:
        run: run of the store.
        listeners: radT listeners whose names counters take; by default all series by DIPPM's names.

    Raises:
        ListenerError: if the run has no series of a listener.
        RunError: if the record of the run is damaged.
    """
    start_ns = run.start.at.monotonic_ns
    end_ns = run.end.at.monotonic_ns
    processes = _Processes()
    events = list(_spans(run.spans, end_ns, processes))
    if listeners:
        for named in named_series(run.columns, listeners):
            process = processes.number(_track(named.scope, named.origin))
            pairs = zip(named.time_ns.tolist(), named.values.tolist(), strict=True)
            events += _counter(named.name, named.unit, pairs, process)
    else:
        for column in run.columns:
            events += _samples(column, processes.number(_track(column.scope, column.series)))
    events += _reported_values(run.values, processes)
    for event in events:
        event["ts"] = _us(event["ts"] - start_ns)
    events.sort(key=lambda event: event["ts"])
    return {
        "traceEvents": [*processes.names(), *events],
        "displayTimeUnit": "ms",
        "otherData": {
            "run": run.uuid,
            "name": run.name,
            "experiment": run.experiment,
            "status": run.status,
            "host": run.start.host,
            "started_wall_ns": run.wall_ns,
        },
    }


class _Processes:
    """Assigns ids to processes and threads, and yields their names."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}

    def number(self, name: str) -> int:
        return self._processes.setdefault(name, len(self._processes) + 1)

    def thread(self, process: int, name: str) -> int:
        return self._threads.setdefault((process, name), len(self._threads) + 1)

    def names(self) -> Iterator[dict[str, Any]]:
        for name, process in self._processes.items():
            yield _name_event("process_name", process, 0, name)
        for (process, name), thread in self._threads.items():
            yield _name_event("thread_name", process, thread, name)


def _name_event(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _spans(spans: Iterable[Span], end_ns: int, processes: _Processes) -> Iterator[dict[str, Any]]:
    """Yield a slice per span; spans of one thread that do not nest get separate lanes."""
    lanes: dict[str, list[list[int]]] = defaultdict(list)
    for span in sorted(spans, key=lambda s: (s.start_ns, -(s.end_ns or end_ns), s.id)):
        until_ns = max(span.start_ns, end_ns if span.end_ns is None else span.end_ns)
        place = _lane(lanes[span.thread], span.start_ns, until_ns)
        number, _, rest = span.thread.partition("/")
        process = processes.number(f"process {number or '?'}")
        name = f"thread {rest}" if rest else "spans"
        thread = processes.thread(process, f"{name} ({place + 1})" if place else name)
        args: dict[str, Any] = {"id": span.id, "status": span.status}
        if span.error:
            args["error"] = span.error
        args |= {name: value for name, value in span.values.items() if math.isfinite(value)}
        args |= {f"absent {name}": reason for name, reason in span.absent.items()}
        yield {
            "ph": "X",
            "cat": "span",
            "name": span.name,
            "pid": process,
            "tid": thread,
            "ts": span.start_ns,
            "dur": _us(until_ns - span.start_ns),
            "args": args,
        }


def _lane(lanes: list[list[int]], start_ns: int, end_ns: int) -> int:
    """Return the first lane whose open spans end before this one begins, or contain it."""
    for place, ends in enumerate(lanes):
        while ends and ends[-1] <= start_ns:
            ends.pop()
        if not ends or end_ns <= ends[-1]:
            ends.append(end_ns)
            return place
    lanes.append([end_ns])
    return len(lanes) - 1


def _track(scope: str, series: str) -> str:
    source = series.partition(".")[0]
    device = source.partition(":")[2]
    return " ".join(filter(None, (OF_TRACKS.get(scope, scope), device)))


def _samples(column: Column, process: int) -> Iterator[dict[str, Any]]:
    times, values = column.time_ns.tolist(), column.values.tolist()
    if column.counter:
        rates = _rates(times, values)
        yield from _counter(f"{column.series} per s", f"{column.unit}/s", rates, process)
    else:
        pairs = zip(times, values, strict=True)
        yield from _counter(column.series, column.unit, pairs, process)
    for time_ns, reason in column.reasons:
        yield {
            "ph": "i",
            "s": "p",
            "cat": "absent",
            "name": f"{column.series} is absent: {reason}",
            "pid": process,
            "tid": 0,
            "ts": time_ns,
        }


def _rates(times: list[int], values: list[float]) -> Iterator[tuple[int, float]]:
    """Yield (time, increase per second since the last different reading)."""
    before: tuple[int, float] | None = None
    for time_ns, value in zip(times, values, strict=True):
        if not math.isfinite(value):
            before = None
        elif before is None:
            before = time_ns, value
        elif value != before[1] and time_ns > before[0]:
            yield before[0], max(0.0, value - before[1]) * 1e9 / (time_ns - before[0])
            before = time_ns, value
    if before is not None and times and times[-1] > before[0]:
        yield before[0], 0.0


def _counter(
    name: str, unit: str, pairs: Iterable[tuple[int, float]], process: int
) -> Iterator[dict[str, Any]]:
    """Yield a value whenever it changes: a track holds its last value."""
    last = math.nan
    for time_ns, value in pairs:
        if math.isfinite(value) and value != last:
            last = value
            yield {
                "ph": "C",
                "cat": "samples",
                "name": name,
                "pid": process,
                "tid": 0,
                "ts": time_ns,
                "args": {unit or "value": value},
            }


def _reported_values(values: Iterable[Value], processes: _Processes) -> Iterator[dict[str, Any]]:
    for value in values:
        if value.kind == "metric" and isinstance(value.data, int | float):
            pairs = [(value.time_ns, float(value.data))]
            yield from _counter(value.name, value.unit, pairs, processes.number(TOLD))


def _us(ns: int) -> float:
    return ns / 1000


def verify(document: Any) -> dict[str, int]:
    """Check a Trace Event Format document.

    Returns:
        Numbers of spans, counters, counter values and absences.

    Raises:
        RunError: names the first event that a viewer would refuse or draw wrongly.
    """
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise RunError("it has no list of traceEvents", "Create one: dippm export-trace RUN.")
    found = {"spans": 0, "counters": 0, "values": 0, "absences": 0}
    tracks: set[tuple[Any, ...]] = set()
    ends: dict[tuple[Any, Any], list[float]] = defaultdict(list)
    for number, event in zip(count(), events, strict=False):
        trouble = _trouble(event) or _unnested(event, ends)
        if trouble:
            raise RunError(f"event {number} {trouble}", "Export the trace anew.")
        if event["ph"] == "X":
            found["spans"] += 1
        elif event["ph"] == "C":
            found["values"] += 1
            tracks.add((event["pid"], event["name"]))
        elif event["ph"] == "i":
            found["absences"] += 1
    return {**found, "counters": len(tracks)}


def _trouble(event: Any) -> str:
    if not isinstance(event, dict):
        return "is no object"
    missing = [key for key in ("ph", "name", "pid") if key not in event]
    if missing:
        return f"has no {missing[0]}"
    numbers = [event[key] for key in ("ts", "dur") if key in event]
    if event["ph"] == "C":
        numbers += event.get("args", {}).values()
        if not event.get("args"):
            return "is a counter without a value"
    elif event["ph"] == "X" and "dur" not in event:
        return "has no dur"
    if event["ph"] != "M" and "ts" not in event:
        return "has no ts"
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            return f"has {number!r}, which is not a number"
        if not math.isfinite(number):
            return f"has {number!r}, which is not JSON"
    return "has a negative dur" if event.get("dur", 0) < 0 else ""


def _unnested(event: dict[str, Any], ends: dict[tuple[Any, Any], list[float]]) -> str:
    if event["ph"] != "X":
        return ""
    of_thread = ends[event["pid"], event.get("tid")]
    start, end = event["ts"], event["ts"] + event["dur"]
    while of_thread and of_thread[-1] <= start + 1e-3:
        of_thread.pop()
    if of_thread and end > of_thread[-1] + 1e-3:
        return f"({event['name']!r}) overlaps the one before without lying in it"
    of_thread.append(end)
    return ""
