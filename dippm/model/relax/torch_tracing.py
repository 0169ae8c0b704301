"""Settings for tracing programs that are neither run nor read. Needs no TVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.fx._lazy_graph_module import _use_lazy_graph_module


@contextmanager
def without_source() -> Iterator[None]:
    """Do not record source lines of operators, or generate code for graphs, in the block."""
    before = torch.fx.config.do_not_emit_stack_traces
    torch.fx.config.do_not_emit_stack_traces = True
    try:
        with _use_lazy_graph_module(True):
            yield
    finally:
        torch.fx.config.do_not_emit_stack_traces = before
