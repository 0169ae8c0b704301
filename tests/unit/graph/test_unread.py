"""Layers whose result nobody reads are run by eager PyTorch, so they are counted."""

from __future__ import annotations

from dataclasses import replace

from dippm.model.graph import ModelGraph, build
from dippm.model.relax.raw_graph import RawGraph
from tests.unit.graph.sketch import BATCH, Sketch, ops


def test_an_unread_layer_is_a_node_with_what_follows_it() -> None:
    graph = _eager(_with_unread_branch())
    assert ops(graph) == ["relu", "dense", "gelu", "dense", "reshape", "tanh"]
    assert graph.edges == ((0, 1), (0, 5), (1, 2), (2, 3), (3, 4))
    assert graph.at_batch(2).macs == 2 * (8 * 16 + 16 * 4)
    assert [spec.shape for spec in graph.outputs] == [(BATCH, 8)]


def test_what_prunes_before_it_runs_has_no_unread_layers() -> None:
    assert ops(build(_with_unread_branch())) == ["relu", "tanh"]


def test_dead_ends_without_a_layer_are_no_nodes() -> None:
    s = Sketch()
    x = s.input(BATCH, 8)
    s.call("exp", [s.call("negative", [x], BATCH, 8)], BATCH, 8)
    assert ops(_eager(s.raw(s.call("nn.relu", [x], BATCH, 8)))) == ["relu"]


def _with_unread_branch() -> RawGraph:
    s = Sketch()
    y = s.call("nn.relu", [s.input(BATCH, 8)], BATCH, 8)
    z = s.call("matmul", [y, s.weight(8, 16)], BATCH, 16)
    z = s.call("nn.gelu", [z], BATCH, 16)
    z = s.call("matmul", [z, s.weight(16, 4)], BATCH, 4)
    s.call("reshape", [z], BATCH, 2, 2)
    return s.raw(s.call("tanh", [y], BATCH, 8))


def _eager(raw: RawGraph) -> ModelGraph:
    return build(replace(raw, called=("",)))
