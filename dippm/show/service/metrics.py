"""What a service tells its operator: metrics in Prometheus' text format, and a log of events."""

from __future__ import annotations

import json
import sys
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dippm.base.printable import legible, printable

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HELP = {
    "dippm_requests_total": "Requests by route and status code.",
    "dippm_request_seconds": "Time from a request's head to its answer, by route.",
    "dippm_jobs_total": "Jobs by question and how they ended.",
    "dippm_job_seconds": "Time that a worker process spent on a job, by question.",
    "dippm_results_total": "Questions answered from results (hit), joined to a job (joined), new.",
    "dippm_refused_total": "Requests refused before they were read, by reason.",
    "dippm_uploaded_bytes_total": "Bytes of uploaded models.",
    "dippm_workers_started_total": "Worker processes that the service has started.",
    "dippm_workers_lost_total": "Worker processes that ended during a job.",
    "dippm_queue_jobs": "Jobs that wait for a worker process.",
    "dippm_running_jobs": "Jobs that are being answered.",
    "dippm_connections": "Open connections.",
    "dippm_results_bytes": "Size of the cached results.",
    "dippm_uploads_bytes": "Size of the uploaded model files.",
    "process_resident_memory_bytes": "Resident memory of the service, its workers not counted.",
}
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters, histograms and gauges; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._times: dict[str, dict[Labels, list[float]]] = defaultdict(dict)
        self._gauges: dict[str, Callable[[], float]] = {
            "process_resident_memory_bytes": resident_bytes
        }

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Increment a counter."""
        with self._lock:
            self._counts[name][tuple(labels.items())] += by

    def time(self, name: str, seconds: float, **labels: str) -> None:
        """Observe a time in a histogram."""
        with self._lock:
            # The count below each bound, then the sum.
            found = self._times[name].setdefault(tuple(labels.items()), [0.0] * (len(BOUNDS_S) + 2))
            found[bisect_left(BOUNDS_S, seconds)] += 1
            found[-1] += seconds

    def look(self, name: str, gauge: Callable[[], float]) -> None:
        """Register a gauge, which is called whenever the text is made."""
        self._gauges[name] = gauge

    def value(self, name: str, **labels: str) -> float:
        """Return the value of a counter."""
        with self._lock:
            return self._counts[name][tuple(labels.items())]

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        gauges = {name: gauge() for name, gauge in self._gauges.items()}
        with self._lock:
            return "\n".join([*self._lines(gauges), ""])

    def _lines(self, gauges: Mapping[str, float]) -> Iterator[str]:
        for name, counts in self._counts.items():
            yield from _head(name, "counter")
            yield from (f"{name}{_braces(labels)} {value:g}" for labels, value in counts.items())
        for name, times in self._times.items():
            yield from _head(name, "histogram")
            for labels, found in times.items():
                so_far = 0.0
                for bound, number in zip((*BOUNDS_S, "+Inf"), found[:-1], strict=True):
                    so_far += number
                    yield f"{name}_bucket{_braces((*labels, ('le', str(bound))))} {so_far:g}"
                yield f"{name}_sum{_braces(labels)} {found[-1]:.9g}"
                yield f"{name}_count{_braces(labels)} {so_far:g}"
        for name, value in gauges.items():
            yield from _head(name, "gauge")
            yield f"{name} {value:.12g}"


def _head(name: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {HELP[name]}"
    yield f"# TYPE {name} {kind}"


def _braces(labels: Labels) -> str:
    """Return labels as text; their values are internal names and need no escaping."""
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}" if labels else ""


def resident_bytes() -> float:
    """Return the resident memory of this process in bytes; 0 if it is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    import resource

    return float(pages * resource.getpagesize())


_writing = threading.Lock()


def log(event: str, level: str = "info", **fields: Any) -> None:
    """Write an event as a line of JSON to stderr; a closed stderr is ignored.

    It contains no token, content or file name: models are named by the start of their hash.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    entry = {"time": now, "level": level, "event": event} | {
        name: printable(legible(value)) if isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None
    }
    line = json.dumps(entry, default=str) + "\n"
    try:
        with _writing:
            sys.stderr.write(line)
            sys.stderr.flush()
    except (OSError, ValueError):
        return
