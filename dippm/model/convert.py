"""Model → canonical graph, and the model's name in answers."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dippm.errors import ConversionError
from dippm.model import frontends, graph
from dippm.model.frontends import InputSpec
from dippm.model.frontends.limits import (
    DEFAULT_MEMORY_LIMIT_MB,
    DEFAULT_TIMEOUT_S,
    time_factor,
    time_limit,
)
from dippm.model.graph import ModelGraph

LEAST_S = 5.0
"""Minimum time for a later stage in this process, if the conversion used up its limit."""
LONGEST_S = 1e8

Input = str | Iterable[int] | Iterable[Iterable[int] | str] | Mapping[str, Any] | InputSpec | None


def read_graph(
    source: Any,
    framework: str | None = None,
    *,
    input: Input = None,
    trust: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB,
) -> ModelGraph:
    """Convert a model to its canonical graph; a graph is returned unchanged.

    The graph has the batch of its conversion, which may be a marker; see `ModelGraph.at_batch`.
    The arguments are those of `predict`.

    Raises:
        ModelFileError: if the model cannot become a graph.
        ConversionError: if it cannot be converted, or not within `timeout_s`.
    """
    if isinstance(source, ModelGraph):
        return source
    began = time.monotonic()
    raw = frontends.load(
        source,
        InputSpec.parse(input),
        framework=framework,
        trust=trust,
        timeout_s=timeout_s,
        memory_limit_mb=memory_limit_mb,
    )
    with until(began, timeout_s, len(raw.operators), "its graph"):
        return graph.build(raw)


@contextmanager
def until(began: float, timeout_s: float, operators: int, what: str) -> Iterator[None]:
    """Run a stage of Python work on a model within the rest of its conversion's time limit.

    Args:
        began: time at which the conversion began, by `time.monotonic`.
        timeout_s: wall time of both for a graph of usual size, see `limits.time_factor`.
        operators: number of operators in the graph.
        what: result of the stage, for the message.

    Raises:
        ConversionError: if it took longer.
    """
    limit_s = timeout_s * time_factor(operators)
    left_s = max(began + limit_s - time.monotonic(), LEAST_S)
    if math.isinf(left_s):
        yield
        return
    try:
        with time_limit(min(left_s, LONGEST_S)):
            yield
    except TimeoutError as error:
        raise ConversionError(
            f"conversion and {what} took longer than {limit_s:g} s (step: {what}, of"
            f" {operators:,} operators)",
            "Give it more time with timeout_s=..., or check that the file is a model that somebody"
            " uses.",
        ) from error


def source_name(source: Any) -> str:
    """Return the name of a model in predictions."""
    if isinstance(source, ModelGraph):
        return "graph"
    if isinstance(source, str | os.PathLike):
        return os.path.basename(os.fspath(source).rstrip("/\\")) or str(source)
    return type(source).__name__
