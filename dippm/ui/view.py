"""`view`: from runs and what was set to one chart: aligned, smoothed, merged, cut and thinned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dippm.report.runs.charts import Level, Line, Lines, Stretch
from dippm.report.runs.thinning import extremes
from dippm.ui.alignment import AXES, Begun, offsets_s
from dippm.ui.expected import Expected, expected
from dippm.ui.exploration import ChartView, Exploration
from dippm.ui.merging import merged
from dippm.ui.opened import Opened
from dippm.ui.selection import Listed, labels
from dippm.ui.smoothing import smoothed
from dippm.ui.streams import Stream

MOST_POINTS = 40_000
"""Of a chart, all lines together; a screen has some thousand columns."""
MOST_OF_A_LINE = 4000
MOST_STRETCHES = 400
MOST_LEVELS = 8
GRID = 1000


@dataclass(frozen=True, slots=True)
class View:
    """One chart, ready to draw.

    Attributes:
        chart: lines, levels and stretches.
        keys: of each line, as `Exploration.hidden` names it.
        colours: place of each line among all that could be shown, hidden ones too: a line keeps
            its colour.
        absent: (run, reason) of what is not there.
        points: before thinning.
        remarks: what was left out, for people.
        clock: whether x is seconds since 1970.
    """

    chart: Lines
    keys: tuple[str, ...]
    colours: tuple[int, ...]
    absent: tuple[tuple[str, str], ...]
    points: int
    remarks: tuple[str, ...]
    clock: bool


@dataclass(frozen=True, slots=True)
class _Drawn:
    key: str
    label: str
    place: int
    runs: tuple[tuple[Any, Any], ...]


def workload_key(run: Listed) -> str:
    """Return the key of the line that a run is merged into: a JSON list of two names."""
    return json.dumps(run.workload)


def keys_of(runs: Sequence[Listed], exploration: Exploration) -> dict[str, str]:
    """Return label by key of all lines, in the order of selection."""
    if exploration.grouping == "merged":
        several = len({run.experiment for run in runs}) > 1
        return {workload_key(o): " / ".join(o.workload) if several else o.workload[1] for o in runs}
    return labels(runs)


def view(
    runs: Sequence[Listed],
    opened: Mapping[str, Opened],
    exploration: Exploration,
    wanted: ChartView,
    *,
    whole: bool = False,
) -> View:
    """Return one chart.

    Args:
        runs: what is selected, in that order.
        opened: those of them that were read, by uuid.
        exploration: what was set.
        wanted: the chart.
        whole: keep every point and the whole axis, for a file.
    """
    offsets = offsets_s(
        [Begun(run.uuid, run.workload, run.wall_ns) for run in runs], exploration.alignment
    )
    named, own = keys_of(runs, exploration), labels(runs)
    is_merged, hidden = exploration.grouping == "merged", frozenset(exploration.hidden)
    places = {key: place for place, key in enumerate(named)}
    groups: dict[str, list[tuple[Any, Any]]] = {}
    members: dict[str, list[Listed]] = {}
    absent: list[tuple[str, str]] = []
    unit, points = "", 0
    for run in runs:
        key = workload_key(run) if is_merged else run.uuid
        if key in hidden or run.uuid not in opened:
            continue
        stream = opened[run.uuid].streams.get(wanted.stream)
        if stream is None:
            absent.append((own[run.uuid], "it has no such stream"))
            continue
        stream = stream.rate() if exploration.rates else stream
        if stream.reason:
            absent.append((own[run.uuid], stream.reason))
        unit, points = stream.unit or unit, points + len(stream.values)
        groups.setdefault(key, []).append(_placed(stream, offsets[run.uuid], exploration))
        members.setdefault(key, []).append(run)
    drawn = [_Drawn(key, named[key], places[key], tuple(of)) for key, of in groups.items()]
    seen = None if whole else wanted.x
    most = MOST_OF_A_LINE if len(drawn) <= 10 else max(4, MOST_POINTS // len(drawn))
    lines = [_line(one, is_merged, seen, None if whole else most) for one in drawn]
    shown = [run for of in members.values() for run in of]
    remarks: list[str] = []
    levels = _levels(shown, opened, own, exploration, wanted.stream, remarks)
    stretches = _stretches(shown, opened, own, offsets, exploration, seen, remarks)
    is_counter = any(
        stream.counter
        for run in shown
        if (stream := opened[run.uuid].streams.get(wanted.stream)) is not None
    )
    growth = " growth" if exploration.rates and is_counter else ""
    y_label = f"{wanted.stream}{growth}" + (f" ({unit})" if unit else "")
    title, axis = wanted.stream, AXES[exploration.alignment]
    chart = Lines(title, axis, y_label, tuple(lines), tuple(levels), tuple(stretches))
    return View(
        chart,
        tuple(one.key for one in drawn),
        tuple(one.place for one in drawn),
        tuple(absent),
        points,
        tuple(remarks),
        exploration.alignment == "clock",
    )


def _placed(stream: Stream, offset_s: float, exploration: Exploration) -> tuple[Any, Any]:
    return stream.time_s + offset_s, smoothed(stream.values, exploration.smoothing)


def _line(one: _Drawn, is_merged: bool, seen: tuple[float, float] | None, most: int | None) -> Line:
    parts = [_cut(x, y, seen) for x, y in one.runs]
    if is_merged:
        band = merged(parts, GRID if most is None else min(GRID, max(4, most // 4)))
        return Line(one.label, one.label, *band, n=len(parts))
    x, y = parts[0]
    if most is not None and len(y) > most:
        rows = extremes(y, most)
        x, y = x[rows], y[rows]
    return Line(one.label, one.label, x, y)


def _cut(x: Any, y: Any, seen: tuple[float, float] | None) -> tuple[Any, Any]:
    """Return what is seen, and a point on either side, so that lines go on to the edge."""
    import numpy as np

    if seen is None:
        return x, y
    first, last = np.searchsorted(x, min(seen)), np.searchsorted(x, max(seen), side="right")
    there = slice(max(0, int(first) - 1), int(last) + 1)
    return x[there], y[there]


def _levels(
    runs: Sequence[Listed],
    opened: Mapping[str, Opened],
    own: Mapping[str, str],
    exploration: Exploration,
    key: str,
    remarks: list[str],
) -> list[Level]:
    """Return what was predicted, once for all runs that share it."""
    found: dict[Expected, list[str]] = {}
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
    runs: Sequence[Listed],
    opened: Mapping[str, Opened],
    own: Mapping[str, str],
    offsets: Mapping[str, float],
    exploration: Exploration,
    seen: tuple[float, float] | None,
    remarks: list[str],
) -> list[Stretch]:
    """Return the spans that are seen, the longest of them if they are many."""
    found = []
    for run in runs if exploration.spans else ():
        zero_ns, offset_s = opened[run.uuid].start.at.monotonic_ns, offsets[run.uuid]
        for span in opened[run.uuid].spans:
            if span.end_ns is None:
                continue
            start = (span.start_ns - zero_ns) / 1e9 + offset_s
            end = (span.end_ns - zero_ns) / 1e9 + offset_s
            if seen is None or (end >= min(seen) and start <= max(seen)):
                found.append(Stretch(own[run.uuid], span.name, start, end))
    if len(found) > MOST_STRETCHES:
        remarks.append(f"the {MOST_STRETCHES} longest of {len(found):,} spans are drawn; zoom in")
        found = sorted(found, key=lambda o: o.start - o.end)[:MOST_STRETCHES]
    return found
