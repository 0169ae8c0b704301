"""`view`: makes one chart of runs: aligned, smoothed, merged, clipped and thinned."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dippm.runs.store.record import Span
from dippm.show.report.runs.charts import Level, Line, Lines, Stretch, extremes
from dippm.show.ui.exploration import ChartSelection, ChartView
from dippm.show.ui.lines import AXES, STEP, RunStart, merged, offsets_s, smoothed
from dippm.show.ui.opened import OpenedRun, PredictedValue, expected
from dippm.show.ui.selection import ListedRun, labels
from dippm.show.ui.streams import MOST_OF_A_LINE, Stream

MOST_POINTS = 40_000
"""Largest number of points of a chart, over all lines; a screen has some thousand columns."""
MOST_STRETCHES = 400
MOST_LEVELS = 8
GRID = 1000
NO_STEPS = "it has no steps: only numbers that were told with a step have"


@dataclass(frozen=True, slots=True)
class ChartData:
    """One chart, ready to draw.

    Attributes:
        chart: lines, levels and stretches.
        keys: key of each line, as in `ChartSelection.hidden`.
        colours: index of each line among all lines, including hidden ones, so that a line keeps
            its colour.
        absent: (run, reason) of each absent line.
        points: number of points before thinning.
        remarks: remarks on what was left out.
        clock: whether x is seconds since 1970.
        extent: first and last x over all records of the shown runs, so that all charts share one
            axis; None without any.
        endings: status of each line whose run did not end well; "" for any other.
    """

    chart: Lines
    keys: tuple[str, ...]
    colours: tuple[int, ...]
    absent: tuple[tuple[str, str], ...]
    points: int
    remarks: tuple[str, ...]
    clock: bool
    extent: tuple[float, float] | None = None
    endings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _ChartLine:
    key: str
    label: str
    place: int
    runs: tuple[tuple[Stream, float], ...]
    uuids: tuple[str, ...]


def workload_key(run: ListedRun) -> str:
    """Return the key of the line that a run is merged into: a JSON list of two names."""
    return json.dumps(run.workload)


def keys_of(runs: Sequence[ListedRun], exploration: ChartSelection) -> dict[str, str]:
    """Return the label of each line by key, in the order of selection."""
    if exploration.grouping == "merged":
        several = len({run.experiment for run in runs}) > 1
        return {workload_key(o): " / ".join(o.workload) if several else o.workload[1] for o in runs}
    return labels(runs)


def view(
    runs: Sequence[ListedRun],
    opened: Mapping[str, OpenedRun],
    exploration: ChartSelection,
    wanted: ChartView,
    *,
    whole: bool = False,
) -> ChartData:
    """Return one chart.

    Args:
        runs: selected runs, in the order of selection.
        opened: runs in memory, by uuid.
        exploration: settings of the page.
        wanted: settings of the chart.
        whole: keep every point and the whole axis, for a file.
    """
    offsets = offsets_s(
        [RunStart(run.uuid, run.workload, run.wall_ns) for run in runs], exploration.alignment
    )
    own = labels(runs)
    by_step, seen = exploration.axis == "step", None if whole else wanted.x
    found = _stream_lines(runs, opened, exploration, wanted.stream, offsets, own)
    drawn, shown = found.drawn, [run for of in found.members.values() for run in of]
    most = MOST_OF_A_LINE if len(drawn) <= 10 else max(4, MOST_POINTS // len(drawn))
    # A whole unchanged line is thinned once; a smoothed, merged or clipped one is thinned anew.
    is_merged = exploration.grouping == "merged"
    is_whole = not (whole or is_merged or by_step or exploration.smoothing or wanted.x)
    lines = [_line(one, exploration, seen, None if whole else most, is_whole) for one in drawn]
    remarks: list[str] = []
    levels = _levels(shown, opened, own, exploration, wanted.stream, remarks)
    stretches = (
        [] if by_step else _stretches(shown, opened, own, offsets, exploration, seen, remarks)
    )
    growth = " growth" if exploration.rates and _counts(shown, opened, wanted.stream) else ""
    y_label = f"{wanted.stream}{growth}" + (f" ({found.unit})" if found.unit else "")
    title, axis = wanted.stream, STEP if by_step else AXES[exploration.alignment]
    chart = Lines(title, axis, y_label, tuple(lines), tuple(levels), tuple(stretches), found.unit)
    hidden = frozenset(exploration.hidden)
    return ChartData(
        chart,
        tuple(one.key for one in drawn),
        tuple(one.place for one in drawn),
        tuple(found.absent),
        found.points,
        tuple(remarks),
        exploration.alignment == "clock" and not by_step,
        _extent(
            [run for run in runs if _key_of(run, exploration) not in hidden],
            opened,
            offsets,
            by_step=by_step,
        ),
        tuple(_ending(found.members[one.key]) for one in drawn),
    )


@dataclass(slots=True)
class _StreamLines:
    """The lines of a stream.

    Attributes:
        drawn: the lines.
        members: runs of each line, by its key.
        absent: (run, reason) of each absent line.
        unit: unit of the stream; "" if not known.
        points: number of points before thinning.
    """

    drawn: list[_ChartLine]
    members: dict[str, list[ListedRun]]
    absent: list[tuple[str, str]]
    unit: str
    points: int


def _key_of(run: ListedRun, exploration: ChartSelection) -> str:
    return workload_key(run) if exploration.grouping == "merged" else run.uuid


def _stream_lines(
    runs: Sequence[ListedRun],
    opened: Mapping[str, OpenedRun],
    exploration: ChartSelection,
    name: str,
    offsets: Mapping[str, float],
    own: Mapping[str, str],
) -> _StreamLines:
    """Return the visible lines of a stream, and why runs have none.

    Args:
        runs: selected runs.
        opened: runs in memory, by uuid.
        exploration: settings of the page.
        name: key of the stream.
        offsets: offset of each run in s, by uuid.
        own: labels of the runs, by uuid.
    """
    groups: dict[str, list[tuple[Stream, float]]] = {}
    members: dict[str, list[ListedRun]] = {}
    absent: list[tuple[str, str]] = []
    unit, points, hidden = "", 0, frozenset(exploration.hidden)
    for run in runs:
        key = _key_of(run, exploration)
        if key in hidden or run.uuid not in opened:
            continue
        stream = opened[run.uuid].streams.get(name)
        if stream is None:
            absent.append((own[run.uuid], "it has no such stream"))
            continue
        stream = stream.rate() if exploration.rates else stream
        if exploration.axis == "step" and stream.steps is None:
            absent.append((own[run.uuid], NO_STEPS))
            continue
        if stream.reason:
            absent.append((own[run.uuid], stream.reason))
        unit, points = stream.unit or unit, points + len(stream.values)
        groups.setdefault(key, []).append((stream, offsets[run.uuid]))
        members.setdefault(key, []).append(run)
    named = keys_of(runs, exploration)
    places = {key: place for place, key in enumerate(named)}
    drawn = [
        _ChartLine(key, named[key], places[key], tuple(of), tuple(run.uuid for run in members[key]))
        for key, of in groups.items()
    ]
    return _StreamLines(drawn, members, absent, unit, points)


def _counts(runs: Sequence[ListedRun], opened: Mapping[str, OpenedRun], name: str) -> bool:
    """Return whether a stream is a counter in at least one run."""
    streams = (opened[run.uuid].streams.get(name) for run in runs)
    return any(stream.counter for stream in streams if stream is not None)


def _visible_points(
    stream: Stream,
    offset_s: float,
    exploration: ChartSelection,
    seen: tuple[float, float] | None,
    most: int | None,
    *,
    is_whole: bool,
) -> tuple[Any, Any]:
    """Return x and y of a run in the visible range, with at most `most` points."""
    if is_whole:
        x, y = stream.least_and_greatest()
    else:
        x, y = stream.time_s, smoothed(stream.values, exploration.smoothing)
        if exploration.axis == "step":
            order = stream.steps.argsort(kind="stable")
            x, y, offset_s = stream.steps[order], y[order], 0.0
        x, y = _cut(x, y, None if seen is None else (min(seen) - offset_s, max(seen) - offset_s))
    if most is not None and len(y) > most:
        rows = extremes(y, most)
        x, y = x[rows], y[rows]
    return x + offset_s, y


def _extent(
    runs: Sequence[ListedRun],
    opened: Mapping[str, OpenedRun],
    offsets: Mapping[str, float],
    *,
    by_step: bool,
) -> tuple[float, float] | None:
    """Return the first and last x over all records of runs."""
    ends = []
    for run in runs:
        found = opened.get(run.uuid)
        if found is None:
            continue
        for stream in found.streams.values():
            if by_step:
                if stream.steps is not None:
                    ends += [float(stream.steps.min()), float(stream.steps.max())]
            elif len(stream.time_s):
                offset_s = offsets[run.uuid]
                ends += [float(stream.time_s[0]) + offset_s, float(stream.time_s[-1]) + offset_s]
    return (min(ends), max(ends)) if ends else None


def _ending(runs: Sequence[ListedRun]) -> str:
    """Return the final status of a line's runs; "" if all ended well or are running."""
    bad = [run.status for run in runs if run.status not in ("finished", "running")]
    if len(runs) == 1 or not bad:
        return bad[0] if bad else ""
    return f"{len(bad)} of {len(runs)} {', '.join(dict.fromkeys(bad))}"


def _line(
    one: _ChartLine,
    exploration: ChartSelection,
    seen: tuple[float, float] | None,
    most: int | None,
    is_whole: bool,
) -> Line:
    """Return one line; copies of its runs exist only while it is made."""
    if exploration.grouping == "merged":
        parts = [
            _visible_points(*run, exploration, seen, None, is_whole=is_whole) for run in one.runs
        ]
        band = merged(parts, GRID if most is None else min(GRID, max(4, most // 4)))
        return Line(one.label, one.label, *band, n=len(parts), uuids=one.uuids)
    x, y = _visible_points(*one.runs[0], exploration, seen, most, is_whole=is_whole)
    return Line(one.label, one.label, x, y, uuids=one.uuids)


def _cut(x: Any, y: Any, seen: tuple[float, float] | None) -> tuple[Any, Any]:
    """Return the visible points and one on either side, so that lines reach the edge."""
    import numpy as np

    if seen is None:
        return x, y
    first, last = np.searchsorted(x, min(seen)), np.searchsorted(x, max(seen), side="right")
    there = slice(max(0, int(first) - 1), int(last) + 1)
    return x[there], y[there]


def _levels(
    runs: Sequence[ListedRun],
    opened: Mapping[str, OpenedRun],
    own: Mapping[str, str],
    exploration: ChartSelection,
    key: str,
    remarks: list[str],
) -> list[Level]:
    """Return the predicted values, once for all runs that share one."""
    found: dict[PredictedValue, list[str]] = {}
    for run in runs if exploration.prediction else ():
        foretold = expected(opened[run.uuid], key, rates=exploration.rates)
        if foretold is not None:
            found.setdefault(foretold, []).append(own[run.uuid])
    if len(found) > MOST_LEVELS:
        remarks.append(f"{MOST_LEVELS} of {len(found)} predictions are drawn; select fewer runs")
    return [
        Level(of[0] if len(of) == 1 else f"{len(of)} runs", "predicted", *foretold[1:])
        for foretold, of in list(found.items())[:MOST_LEVELS]
    ]


def _stretches(
    runs: Sequence[ListedRun],
    opened: Mapping[str, OpenedRun],
    own: Mapping[str, str],
    offsets: Mapping[str, float],
    exploration: ChartSelection,
    seen: tuple[float, float] | None,
    remarks: list[str],
) -> list[Stretch]:
    """Return the visible spans, the longest ones if there are many."""
    found = []
    for run in runs if exploration.spans else ():
        zero_ns, offset_s = opened[run.uuid].start.at.monotonic_ns, offsets[run.uuid]
        lanes = _lanes(opened[run.uuid].spans)
        for span in opened[run.uuid].spans:
            if span.end_ns is None:
                continue
            start = (span.start_ns - zero_ns) / 1e9 + offset_s
            end = (span.end_ns - zero_ns) / 1e9 + offset_s
            if seen is None or (end >= min(seen) and start <= max(seen)):
                found.append(Stretch(own[run.uuid], span.name, start, end, lanes[span.id]))
    if len(found) > MOST_STRETCHES:
        remarks.append(f"the {MOST_STRETCHES} longest of {len(found):,} spans are drawn; zoom in")
        found = sorted(found, key=lambda o: o.start - o.end)[:MOST_STRETCHES]
    return found


def _lanes(spans: Iterable[Span]) -> dict[int, int]:
    """Return the lane of each span: below its parent, without overlap in a lane."""
    lanes: dict[int, int] = {}
    busy_until: list[int] = []
    ended = (span for span in spans if span.end_ns is not None)
    for span in sorted(ended, key=lambda span: (span.start_ns, -(span.end_ns or 0))):
        lane = lanes.get(span.parent, -1) + 1
        while lane < len(busy_until) and busy_until[lane] > span.start_ns:
            lane += 1
        busy_until += [0] * (lane + 1 - len(busy_until))
        busy_until[lane] = span.end_ns or 0
        lanes[span.id] = lane
    return lanes
