"""Runs as the page has them after reading, made from numbers."""

from __future__ import annotations

import numpy as np

from dippm.runs.store.columns import Column
from dippm.runs.store.record import Moment, Span, Start, Value
from dippm.show.ui.opened import OpenedRun
from dippm.show.ui.selection import ListedRun
from dippm.show.ui.streams import streams

ZERO_NS, WALL_NS = 7_000_000_000, 1_790_000_000_000_000_000


def listed(uuid: str, *, group: str = "", experiment: str = "vision", after_s: float = 0, **given):
    name = given.pop("name", uuid)
    status = given.pop("status", "finished")
    wall_ns = WALL_NS + int(after_s * 1e9)
    return ListedRun(uuid, name, experiment, group, status, wall_ns, 1.0, **given)


def column(series, values, *, hz=10.0, unit="MB", counter=False, reasons=()):
    values = np.asarray(values, dtype=np.float64)
    times = ZERO_NS + (np.arange(len(values)) * 1e9 / hz).astype(np.int64)
    return Column(series, unit, "tree", counter, times, values, tuple(reasons))


def opened(
    uuid: str, *columns, spans=(), values=(), prediction=None, after_s: float = 0
) -> OpenedRun:
    at = Moment(ZERO_NS, WALL_NS + int(after_s * 1e9))
    start = Start(uuid, uuid, "vision", at, prediction=prediction)
    return OpenedRun(start, tuple(spans), streams(start, spans, values, columns))


def call(number: int, start_s: float, end_s: float, name: str = "forward") -> Span:
    return Span(number, name, ZERO_NS + int(start_s * 1e9), ZERO_NS + int(end_s * 1e9))


def told(name: str, data, at_s: float, *, step: int | None = None) -> Value:
    return Value(name, "metric", data, ZERO_NS + int(at_s * 1e9), step=step)
