"""Models of any number of operators, and what building their graphs takes; run in a process.

Where torch has traced a model, a trace function can hang Python 3.11: hence a module of its own,
which a fresh process can import.
"""

from __future__ import annotations

import sys

from dippm.model.graph import build
from dippm.model.relax.raw_graph import RawGraph
from tests.unit.graph.sketch import BATCH, Sketch


def chain(count: int) -> RawGraph:
    s = Sketch()
    x = s.input(BATCH, 8)
    for _ in range(count):
        x = s.call("add", [s.call("matmul", [x, s.weight(8, 8)], BATCH, 8), x], BATCH, 8)
    return s.raw(x)


def wide(count: int) -> RawGraph:
    s = Sketch()
    x = s.input(BATCH, 8)
    parts = [s.call("tanh", [x], BATCH, 8) for _ in range(count)]
    return s.raw(s.call("concat", parts, BATCH, 8 * count, axis=1))


def split(count: int) -> RawGraph:
    s = Sketch()
    parts = s.calls("split", [s.input(BATCH, count)], [(BATCH, 1)] * count, axis=1)
    parts = [s.call("exp", [part], BATCH, 1) for part in parts]
    return s.raw(s.call("concat", parts, BATCH, count, axis=1))


def gates(count: int) -> RawGraph:
    s = Sketch()
    x = s.input(BATCH, 8, 4, 4)
    for _ in range(count):
        mean = s.call("reshape", [s.call("mean", [x], BATCH, 8, axis=(2, 3))], BATCH, 8, 1, 1)
        x = s.call("multiply", [x, mean], BATCH, 8, 4, 4)
    return s.raw(x)


def layers(count: int) -> RawGraph:
    s = Sketch()
    x = s.input(BATCH, 8, 16)
    for _ in range(count):
        weights = [s.weight(48, 16) for _ in range(4)]
        shapes = [(BATCH, 8, 16), (2, BATCH, 16)]
        x = s.calls("aten.gru", [x, *weights], shapes, num_layers=2, batch_first=1)[0]
    return s.raw(x)


MODELS = {model.__name__: model for model in (chain, wide, split, gates, layers)}


def lines_of_build(model: str, operators: int) -> int:
    """Return the lines of Python that a build executes, comprehensions included."""
    raw = MODELS[model](operators)
    count = 0

    def trace(*_: object) -> object:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        build(raw)
    finally:
        sys.settrace(None)
    return count
