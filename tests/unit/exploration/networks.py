"""Small networks for searches, at module level so that every kind of worker finds them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn


def build(width: int = 8, depth: int = 1, act: str = "relu") -> nn.Module:
    """Return convolutions of a width; width 13 cannot be built, and act "data" not be converted."""
    if width == 13:
        raise ValueError("13 is no width")
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [
            nn.Conv2d(width, width, 3, padding=1),
            ReadsData() if act == "data" else nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class ReadsData(nn.Module):
    """Branches on a value, which no exporter follows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def build_and_die_once(flag: str, width: int = 8, depth: int = 1) -> nn.Module:
    """Kill this process the first time that width 16 is built; the flag says that it happened."""
    if width == 16 and _take(Path(flag)):
        os.kill(os.getpid(), signal.SIGKILL)
    return build(width, depth)


def build_and_die(width: int = 8, depth: int = 1) -> nn.Module:
    """Kill this process whenever width 16 is built."""
    if width == 16:
        os.kill(os.getpid(), signal.SIGKILL)
    return build(width, depth)


def build_and_wait(folder: str, width: int = 8, depth: int = 1) -> nn.Module:
    """Say that a design was begun, and hang at width 24 and depth 1 until a file allows it."""
    Path(folder, f"begun-{width}-{depth}-{os.getpid()}").touch()
    while (width, depth) == (24, 1) and not Path(folder, "go").exists():
        time.sleep(0.02)
    return build(width, depth)


def count_parameters(module: nn.Module) -> float:
    """Return how many parameters a module has; it has to have weights."""
    assert all(parameter.device.type == "cpu" for parameter in module.parameters())
    return float(sum(parameter.numel() for parameter in module.parameters()))


def _take(flag: Path) -> bool:
    try:
        flag.unlink()
    except FileNotFoundError:
        return False
    return True
