"""The CNNs of NAS-Bench-101 as modules of our own: training sample and names.

The network as its paper describes it (Ying et al., ICML 2019, section 2): a 3x3 convolution with
128 filters, three stacks of three equal cells, a 2x2 max-pooling that halves the image before the
second and the third stack, whose cells have twice the filters; global average pooling; a linear
layer to ten classes. A convolution is followed by batch norm and ReLU and has no bias.

A cell is a graph of vertices, the first of which is its input and the last its output:

* the output concatenates the interior vertices that lead to it, which share its filters equally;
  an interior vertex that does not has as many as the widest of those that it leads to;
* an interior vertex adds what comes in, the wider of two cut to the narrower, and applies its
  operation; what comes from the cell's input passes a 1x1 projection to the right width first;
* an edge from input to output adds a 1x1 projection to the concatenation.

A name contains the whole cell: "nb101:0110-0010-0001-0000(maxpool3x3+maxpool3x3)@32" has the rows
of the upper triangular adjacency matrix and the interior operations, for images of 32 by 32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

STEM, STACKS, CELLS, CLASSES = 128, 3, 3, 10
ARCHITECTURES = 240
OPERATIONS = ("conv3x3", "conv1x1", "maxpool3x3")
NAME = re.compile(r"(?P<rows>[01]+(?:-[01]+)*)\((?P<operations>[\w+]*)\)")


def key_of(architecture: Mapping[str, Any]) -> str:
    """Return the name of an architecture.

    Args:
        architecture: a row with adjacency_rows, interior_ops and image, see the source `ecnas`.
    """
    rows = architecture["adjacency_rows"].replace("|", "-")
    interior = architecture["interior_ops"]
    operations = "" if pd.isna(interior) else interior.replace("-bn-relu", "").replace("|", "+")
    return f"nb101:{rows}({operations})@{architecture['image'].partition('x')[0]}"


def sample_architectures(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the training sample of architectures.

    `ARCHITECTURES` of them, evenly from the fastest to the slowest, regardless of power.
    """
    ordered = table.sort_values(["latency_ms", "model"])
    places = [int((i + 0.5) * len(ordered) / ARCHITECTURES) for i in range(ARCHITECTURES)]
    return ordered.iloc[sorted(set(places))] if len(ordered) > ARCHITECTURES else ordered


def module_of(name: str) -> nn.Module:
    """Return the module of a name such as "011-001-000(conv3x3)", on no device.

    Raises:
        ValueError: if the name has another form.
    """
    found = NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} names no cell of NAS-Bench-101")
    adjacency = [[int(edge) for edge in row] for row in found["rows"].split("-")]
    operations = found["operations"].split("+") if found["operations"] else []
    n = len(adjacency)
    if n < 2 or {len(row) for row in adjacency} != {n} or len(operations) != n - 2:
        raise ValueError(f"{name!r} does not say every edge and interior operation of its cell")
    if any(adjacency[i][j] for i in range(n) for j in range(i + 1)):
        raise ValueError(f"{name!r} has an edge that leads backwards")
    unknown = sorted(set(operations) - set(OPERATIONS))
    if unknown:
        raise ValueError(f"{name!r} has {unknown[0]!r}, known are {', '.join(OPERATIONS)}")
    if any(not any(adjacency[v][v + 1 :]) for v in range(n - 1)):
        raise ValueError(f"{name!r} has a vertex that leads nowhere")
    with torch.device("meta"):
        return NasBench101(adjacency, operations).eval()


class NasBench101(nn.Sequential):
    """Images (batch, 3, height, width) → scores (batch, 10)."""

    def __init__(self, adjacency: Sequence[Sequence[int]], operations: Sequence[str]) -> None:
        layers: list[nn.Module] = [_convolution(3, STEM, 3)]
        width = STEM
        for stack in range(STACKS):
            if stack:
                layers.append(nn.MaxPool2d(2, 2))
            for cell in range(CELLS):
                wider = 2 if stack and not cell else 1
                layers.append(Cell(width, wider * width, adjacency, operations))
                width *= wider
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]
        super().__init__(*layers)


class Cell(nn.Module):
    """One cell; see the module docstring."""

    def __init__(
        self,
        width_in: int,
        width_out: int,
        adjacency: Sequence[Sequence[int]],
        operations: Sequence[str],
    ) -> None:
        super().__init__()
        self.last = len(adjacency) - 1
        self.widths = vertex_widths(width_out, adjacency)
        self.sources = [[u for u in range(v) if adjacency[u][v]] for v in range(len(adjacency))]
        of_input = [v for v in range(1, self.last + 1) if adjacency[0][v]]
        self.projections = nn.ModuleDict(
            {str(v): _convolution(width_in, self.widths[v], 1) for v in of_input}
        )
        self.operations = nn.ModuleList(
            _operation(name, width)
            for name, width in zip(operations, self.widths[1:-1], strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        values: dict[int, Tensor] = {}
        for v, operation in enumerate(self.operations, 1):
            values[v] = operation(self._sum(x, values, v))
        led = [values[u] for u in self.sources[self.last] if u]
        parts = [torch.cat(led, 1) if len(led) > 1 else led[0]] if led else []
        if 0 in self.sources[self.last]:
            parts.append(self.projections[str(self.last)](x))
        return parts[0] + parts[1] if len(parts) > 1 else parts[0]

    def _sum(self, x: Tensor, values: Mapping[int, Tensor], v: int) -> Tensor:
        width = self.widths[v]
        parts = [values[u][:, :width] for u in self.sources[v] if u]
        if 0 in self.sources[v]:
            parts.append(self.projections[str(v)](x))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


def vertex_widths(width_out: int, adjacency: Sequence[Sequence[int]]) -> list[int]:
    """Return the filters of each vertex, the output's last and 0 for the input."""
    last = len(adjacency) - 1
    widths = [0] * last + [width_out]
    to_output = [v for v in range(1, last) if adjacency[v][last]]
    for i, v in enumerate(to_output):
        # The remainder goes to the first ones.
        widths[v] = width_out // len(to_output) + (i < width_out % len(to_output))
    for v in range(last - 1, 0, -1):
        if not adjacency[v][last]:
            widths[v] = max(widths[w] for w in range(v + 1, last) if adjacency[v][w])
    return widths


def _convolution(width_in: int, width_out: int, size: int) -> nn.Module:
    convolution = nn.Conv2d(width_in, width_out, size, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width_out), nn.ReLU())


def _operation(name: str, width: int) -> nn.Module:
    if name == "maxpool3x3":
        return nn.MaxPool2d(3, 1, padding=1)
    return _convolution(width, width, 3 if name == "conv3x3" else 1)
