"""radT's spans: `with trace.span("forward"):` is a span of the current run."""

from __future__ import annotations

from dippm.runs.tracking.run import span

__all__ = ["span"]
