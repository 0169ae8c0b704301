"""Metric classes written for UMLAUT: `before`, `after`, `meanwhile` in a thread, and `log`."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

from dippm.measure.readings import Absent

STEPS = ("before", "after", "meanwhile")


def is_of_umlaut(metric: Any) -> bool:
    """Return whether a metric has UMLAUT's steps, which `dippm.umlaut.Metric` has not."""
    return any(callable(getattr(metric, step, None)) for step in STEPS)


class AdaptedMetric:
    """A metric of UMLAUT's as one of `tracking.metrics`; what it logs is a value of the run.

    Args:
        metric: of UMLAUT's shape; only `measure_type` and one of `STEPS` have to be there.
        benchmark: whose `log` it calls.
        method_name: of the function.

    Attributes:
        name: for reasons of absence.
    """

    def __init__(self, metric: Any, benchmark: Any, method_name: str) -> None:
        self.name = str(getattr(metric, "measure_type", type(metric).__name__))
        self._metric, self._benchmark, self._method_name = metric, benchmark, method_name

    def start(self) -> _Adapted:
        """Begin to measure a call, in a copy: a metric keeps what belongs to a call in itself."""
        metric = copy.copy(self._metric)
        metric.benchmark, metric.method_name = self._benchmark, self._method_name
        if not hasattr(metric, "serialize"):
            metric.serialize = lambda: metric.data
        return _Adapted(metric, self.name)


class _Adapted:
    __slots__ = ("_finished", "_kind", "_metric", "_thread")

    def __init__(self, metric: Any, kind: str) -> None:
        self._metric, self._kind = metric, kind
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None
        _call(metric, "before")
        if getattr(metric, "needs_threading", False):
            self._thread = threading.Thread(
                target=_call, args=(metric, "meanwhile", self._finished), daemon=True
            )
            self._thread.start()

    def stop(self) -> Mapping[str, float | Absent]:
        self._finished.set()
        if self._thread is not None:
            self._thread.join()
        metric = self._metric
        _call(metric, "after")
        if callable(getattr(metric, "log", None)):
            metric.log()
        elif hasattr(metric, "data"):
            unit, about = getattr(metric, "unit", ""), getattr(metric, "description", self._kind)
            metric.benchmark.log(about, self._kind, metric.serialize(), unit, metric.method_name)
        return {}


def _call(metric: Any, step: str, *words: Any) -> None:
    method = getattr(metric, step, None)
    if callable(method):
        method(*words)
