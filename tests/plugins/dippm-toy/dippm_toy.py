"""A frontend from outside: reads `toy 64 32 8`, the widths of a multilayer perceptron."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from dippm.errors import ConversionError
from dippm.model.frontends.frontend import MARKER_BATCHES, InputSpec
from dippm.model.relax.raw_graph import RawGraph, RawOperator, RawValue

NAME = "toy"


def accepts(path: Path) -> bool:
    """Return whether the file starts with the word "toy"."""
    return path.is_file() and path.open("rb").read(4) == b"toy "


def load(path: Path, inputs: InputSpec, *, trust: bool) -> RawGraph:
    """Write the Relax operators of the perceptron."""
    try:
        widths = [int(word) for word in Path(path).read_text().split()[1:]]
    except ValueError as error:
        raise ConversionError("a width is not a whole number", "Write: toy 64 32 8") from error
    batch = MARKER_BATCHES[0]
    values = [RawValue((batch, widths[0]), "float32", "input", "x")]
    operators = []
    for fan_in, fan_out in pairwise(widths):
        last = len(values) - 1
        values.append(RawValue((fan_in, fan_out), "float32", "parameter", f"w{last}"))
        values.append(RawValue((batch, fan_out), "float32", "operator"))
        operators.append(RawOperator("matmul", (last, last + 1), (last + 2,)))
    return RawGraph(tuple(values), tuple(operators), (0,), (len(values) - 1,), batch)
