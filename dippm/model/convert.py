"""Model → canonical graph, and what an answer calls the model."""

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
from dippm.model.frontends.deadline import within
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S, times
from dippm.model.graph import ModelGraph

LEAST_S = 5.0
"""What is left for a stage in this process after a conversion that took all the time."""
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
    """Convert a model to its canonical graph, or return the graph that was given.

    The graph is at the batch of its conversion, which can be a marker; see `ModelGraph.at_batch`.
    The arguments are those of `predict`.

    Raises:
        ModelFileError: if the model cannot become a graph.
        ConversionError: also if conversion and graph take longer than `timeout_s`.
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
    """Run a stage of Python work on a model within what is left of the time of its conversion.

    Args:
        began: when the conversion did, by `time.monotonic`.
        timeout_s: wall time that both may take, for a graph of usual size, see `limits.times`.
        operators: size of the graph.
        what: what is made, for the message.

    Raises:
        ConversionError: if it took longer.
    """
    limit_s = timeout_s * times(operators)
    left_s = max(began + limit_s - time.monotonic(), LEAST_S)
    if math.isinf(left_s):
        yield
        return
    try:
        with within(min(left_s, LONGEST_S)):
            yield
    except TimeoutError as error:
        raise ConversionError(
            f"conversion and {what} took longer than {limit_s:g} s (step: {what}, of"
            f" {operators:,} operators)",
            "Give it more time with timeout_s=..., or check that the file is a model that somebody"
            " uses.",
        ) from error


def source_name(source: Any) -> str:
    """Return what a prediction calls its model."""
    if isinstance(source, ModelGraph):
        return "graph"
    if isinstance(source, str | os.PathLike):
        return os.path.basename(os.fspath(source).rstrip("/\\")) or str(source)
    return type(source).__name__
