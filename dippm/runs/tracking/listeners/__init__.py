"""radT's listeners: its names of series, as views of our sources."""

from __future__ import annotations

from dippm.runs.tracking.listeners.requested import check_names, sources_of, split_profiler
from dippm.runs.tracking.listeners.table import LISTENERS, NAMES, PROFILERS, Listener
from dippm.runs.tracking.listeners.view import ListenerSeries, named_series

__all__ = [
    "LISTENERS",
    "NAMES",
    "PROFILERS",
    "Listener",
    "ListenerSeries",
    "check_names",
    "named_series",
    "sources_of",
    "split_profiler",
]
