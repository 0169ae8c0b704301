"""Plain stacks of 3×3 convolutions (Simonyan and Zisserman 2015)."""

from __future__ import annotations

from torch import Tensor, nn

from dataset.families.networks.layers import Convolution, activation


class Vgg(nn.Module):
    """Five stages that end in a pool, and up to three linear layers."""

    def __init__(
        self, *, depths: list[int], width: int, norm: str, act: str, hidden: int, pool: str
    ):
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage, depth in enumerate(depths):
            for _ in range(depth):
                outs = width << min(stage, 3)
                layers.append(Convolution(channels, outs, 3, norm_name=norm, act=act))
                channels = outs
            layers.append(nn.MaxPool2d(2) if pool == "max" else nn.AvgPool2d(2))
        self.features = nn.Sequential(*layers)
        if hidden:
            self.head = nn.Sequential(
                nn.AdaptiveAvgPool2d(7),
                nn.Flatten(),
                nn.Linear(49 * channels, hidden),
                activation(act),
                nn.Linear(hidden, hidden),
                activation(act),
                nn.Linear(hidden, 1000),
            )
        else:
            self.head = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)
            )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.features(x))
