"""Networks over weather fields, with the inputs of the applications of MAELSTROM.

Deliverable D3.5 states the inputs and the kind of each network but not its widths: those are ours,
based on the applications' public reports and code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class FieldUNet(nn.Module):
    """Fields (batch, channels, h, w) → fields (batch, outputs, h, w), of any size.

    Args:
        channels: number of input fields.
        outputs: number of output fields.
        width: channels of the first level; each level doubles them.
        levels: number of levels, including the lowest one.
    """

    def __init__(self, channels: int, outputs: int, *, width: int, levels: int) -> None:
        super().__init__()
        widths = [width << i for i in range(levels)]
        self.down = nn.ModuleList(
            _two_convolutions(ins, out)
            for ins, out in zip([channels, *widths], widths, strict=False)
        )
        self.shrink = nn.MaxPool2d(2)
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(low, high, 2, stride=2)
            for low, high in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.up = nn.ModuleList(_two_convolutions(2 * high, high) for high in widths[-2::-1])
        self.head = nn.Conv2d(width, outputs, 1)

    def forward(self, fields: Tensor) -> Tensor:  # noqa: D102
        x, kept = fields, []
        for i, part in enumerate(self.down):
            x = part(x if i == 0 else self.shrink(x))
            kept.append(x)
        for grow, part, skip in zip(self.grow, self.up, kept[-2::-1], strict=True):
            x = grow(x)
            height, width = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
            if height or width:  # the halved size was odd
                x = functional.pad(x, (0, width, 0, height))
            x = part(torch.cat([x, skip], 1))
        y: Tensor = self.head(x)
        return y


class ColumnEmulator(nn.Module):
    """Layers of an air column (batch, layers, fields) → fluxes at each, by recurrent layers.

    One pass goes upwards and one downwards, like radiation (after Ukkonen 2022).
    """

    def __init__(self, fields: int = 27, width: int = 64, outputs: int = 4) -> None:
        super().__init__()
        self.up = nn.GRU(fields, width, batch_first=True)
        self.down = nn.GRU(fields + width, width, batch_first=True)
        self.head = nn.Linear(2 * width, outputs)

    def forward(self, column: Tensor) -> Tensor:  # noqa: D102
        rising, _ = self.up(column.flip(1))
        rising = rising.flip(1)
        falling, _ = self.down(torch.cat([column, rising], 2))
        y: Tensor = self.head(torch.cat([rising, falling], 2))
        return y


def _two_convolutions(channels: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for ins in (channels, width):
        layers += [nn.Conv2d(ins, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)
