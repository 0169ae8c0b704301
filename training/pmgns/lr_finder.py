"""The learning-rate range test of Smith (2017), which D3.5 took its rate from.

One pass over training batches only, the rate growing geometrically; the loss falls, then explodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

Batch = TypeVar("Batch")
SMOOTHING = 0.9
EXPLODED = 4.0
"""The test stops when the smoothed loss is this many times its minimum."""


@dataclass(frozen=True, slots=True)
class LearningRateRange:
    """Rates tried and the smoothed loss after each.

    Attributes:
        rates: ascending.
        losses: smoothed, bias-corrected.
        suggestion: a tenth of the rate where the loss was lowest, which lies on the falling slope.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    suggestion: float


def find_learning_rate(
    network: nn.Module,
    batches: Iterable[Batch],
    loss_of: Callable[[nn.Module, Batch], torch.Tensor],
    *,
    low: float = 1e-7,
    high: float = 1.0,
    steps: int = 100,
) -> LearningRateRange:
    """Return the range test of a copy of the network; the network itself is not changed.

    Args:
        network: untrained network.
        batches: batches of the training split, at most `steps` of them; the rates end with them.
        loss_of: loss of one batch.
        low: first rate.
        high: last rate.
        steps: number of rates.
    """
    network = deepcopy(network).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=low)
    rates: list[float] = []
    losses: list[float] = []
    average = 0.0
    for step, batch in zip(range(steps), batches, strict=False):
        rate = low * (high / low) ** (step / (steps - 1))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = loss_of(network, batch)
        average = SMOOTHING * average + (1 - SMOOTHING) * loss.item()
        smooth = average / (1 - SMOOTHING ** (step + 1))
        if not smooth < EXPLODED * min(losses, default=float("inf")):
            break
        rates.append(rate)
        losses.append(smooth)
        loss.backward()
        optimizer.step()
    lowest = min(range(len(losses)), key=losses.__getitem__)
    return LearningRateRange(tuple(rates), tuple(losses), rates[lowest] / 10)
