"""The one graph form that every framework's model is brought to."""

from __future__ import annotations

from dippm.model.graph.builder import build
from dippm.model.graph.model_graph import GRAPH_VERSION, ModelGraph, OpNode, TensorSpec

__all__ = ["GRAPH_VERSION", "ModelGraph", "OpNode", "TensorSpec", "build"]
