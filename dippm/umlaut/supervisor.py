"""`BenchmarkSupervisor`: a decorator or context manager that records calls as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, TypeVar

from dippm.runs.tracking.decorator import tracked
from dippm.runs.tracking.run import SpanBlock
from dippm.umlaut.benchmark import Benchmark
from dippm.umlaut.metric import Metric

F = TypeVar("F", bound=Callable[..., Any])


class BenchmarkSupervisor:
    """Measures every call of a decorated function, or a block of a `with` statement.

    Functions, methods, generators, and async functions and generators keep their kind.

    Args:
        metrics: metrics to measure; without any, calls and failures are still recorded.
        benchmark: run to record in.
        name: name of the rows, by default the function's.
    """

    def __init__(
        self, metrics: Iterable[Metric], benchmark: Benchmark, name: str | None = None
    ) -> None:
        self.metrics = tuple(sorted(metrics, key=lambda metric: -getattr(metric, "priority", 0)))
        self.benchmark = benchmark
        self.name = name
        self._entered: ContextVar[tuple[SpanBlock, ...]] = ContextVar("entered", default=())

    def __call__(self, function: F) -> F:
        """Return the supervised function."""
        held = getattr(function, "__func__", function)  # of a static or class method
        name = self.name or str(getattr(held, "__name__", type(held).__name__))
        metrics = self.benchmark.bind(name, self.metrics)
        supervised: F = tracked(name=name, metrics=metrics, run=self.benchmark.run)(function)
        return supervised

    def __enter__(self) -> BenchmarkSupervisor:
        name = self.name or "block"
        metrics = self.benchmark.bind(name, self.metrics)
        block = self.benchmark.run.span(name, metrics=metrics)
        self._entered.set((*self._entered.get(), block))
        block.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        *rest, block = self._entered.get()
        self._entered.set(tuple(rest))
        block.__exit__(kind, error, traceback)
