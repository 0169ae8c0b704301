"""Model → canonical graph, and what an answer calls the model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from dippm import frontends, graph
from dippm.frontends import InputSpec
from dippm.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S
from dippm.graph import ModelGraph

Input = str | Iterable[int] | Mapping[str, Any] | InputSpec | None


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
    """
    if isinstance(source, ModelGraph):
        return source
    raw = frontends.load(
        source,
        InputSpec.parse(input),
        framework=framework,
        trust=trust,
        timeout_s=timeout_s,
        memory_limit_mb=memory_limit_mb,
    )
    return graph.build(raw)


def source_name(source: Any) -> str:
    """Return what a prediction calls its model."""
    if isinstance(source, ModelGraph):
        return "graph"
    if isinstance(source, str | os.PathLike):
        return os.path.basename(os.fspath(source).rstrip("/\\")) or str(source)
    return type(source).__name__
