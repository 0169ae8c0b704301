"""Random cells: a graph of mixed operators, drawn from a seed, stacked in stages."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from dataset.families.networks.layers import Convolution, SqueezeExcite, activation

OPERATORS = (
    "identity",
    "conv1",
    "conv3",
    "separable3",
    "separable5",
    "dilated3",
    "grouped3",
    "avg3",
    "max3",
    "squeeze",
    "factored7",
)


class Draws:
    """Integers from a seed, the same on every version of Python."""

    def __init__(self, seed: int) -> None:
        self.seed, self.count = seed, 0

    def below(self, high: int) -> int:
        """Return the next number below `high`."""
        self.count += 1
        digest = hashlib.sha256(f"{self.seed}/{self.count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % high


def operator(name: str, width: int, act: str) -> nn.Module:
    """Return an operator that keeps the shape of its input."""
    if name.startswith("separable"):
        kernel = int(name[-1])
        return nn.Sequential(
            Convolution(width, width, kernel, groups=width, act="none"),
            Convolution(width, width, 1, act=act),
        )
    if name == "factored7":
        return nn.Sequential(
            Convolution(width, width, (1, 7), act="none"),
            Convolution(width, width, (7, 1), act=act),
        )
    made: dict[str, nn.Module] = {
        "identity": nn.Identity(),
        "conv1": Convolution(width, width, 1, act=act),
        "conv3": Convolution(width, width, 3, act=act),
        "dilated3": Convolution(width, width, 3, dilation=2, act=act),
        "grouped3": Convolution(width, width, 3, groups=4, act=act),
        "avg3": nn.AvgPool2d(3, 1, 1),
        "max3": nn.MaxPool2d(3, 1, 1),
        "squeeze": SqueezeExcite(width, width // 4),
    }
    return made[name]


class Cell(nn.Module):
    """Nodes that add one or two earlier nodes, each through an operator; unused ones go out."""

    def __init__(self, channels: int, width: int, *, nodes: int, draws: Draws, act: str) -> None:
        super().__init__()
        self.enter = Convolution(channels, width, 1, act=act)
        self.edges: list[list[int]] = []
        self.parts = nn.ModuleList()
        for node in range(nodes):
            sources = sorted({draws.below(node + 1) for _ in range(1 + draws.below(2))})
            self.edges.append(sources)
            names = [OPERATORS[draws.below(len(OPERATORS))] for _ in sources]
            self.parts.append(nn.ModuleList(operator(name, width, act) for name in names))
        used = {source for sources in self.edges for source in sources}
        self.ends = [node for node in range(nodes + 1) if node not in used]
        self.leave = Convolution(width * len(self.ends), width, 1, act="none")
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        states = [self.enter(x)]
        for sources, parts in zip(self.edges, self.parts, strict=True):
            pairs = zip(sources, parts.children(), strict=True)
            terms = [part(states[i]) for i, part in pairs]
            states.append(terms[0] if len(terms) == 1 else terms[0] + terms[1])
        joined = torch.cat([states[end] for end in self.ends], 1)
        return self.act(self.leave(joined) + states[0])


class RandomCells(nn.Module):
    """Stages of one random cell, repeated, between strided convolutions."""

    def __init__(
        self, *, seed: int, nodes: int, width: int, stages: int, repeats: int, fresh: bool, act: str
    ):
        super().__init__()
        draws = Draws(seed)
        layers: list[nn.Module] = [Convolution(3, width, 3, stride=2, act=act)]
        channels = width
        for stage in range(stages):
            wide = width << stage
            layers.append(Convolution(channels, wide, 3, stride=2, act=act))
            channels = wide
            for _ in range(repeats):
                own = draws if fresh else Draws(seed)
                layers.append(Cell(channels, wide, nodes=nodes, draws=own, act=act))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.features(x).mean((2, 3)))
