"""The measuring protocol of one configuration: `Regime` (conditions) and `Settings` (lengths).

Deliverable D3.5: 5 warm-up and 30 timed forward passes, their mean. Here the median, percentiles
and every single time are kept as well, and energy comes from a window long enough for its counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dippm.estimate.conditions import Mode, Precision

Phase = Literal["inference", "train"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Regime:
    """The conditions under which a module runs.

    Attributes:
        precision: precision as in `dippm.estimate.conditions`.
        mode: "eager" or "compiled".
        phase: "inference", or "train": forward, backward and optimiser step (SGD with momentum).
        channels_last: memory layout of images.
    """

    precision: Precision = "fp32"
    mode: Mode = "eager"
    phase: Phase = "inference"
    channels_last: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers of steps and lengths of windows.

    Attributes:
        warm_up_steps: least number of untimed steps.
        timed_steps: number of timed steps.
        settle_s: approximate limit for the warm-up, which ends when two windows agree within 1 %.
            The first call is not part of it.
        energy_window_s: length of the energy window; 0 for no energy.
        idle_s: duration of idle power measurements before and after the energy window.
    """

    warm_up_steps: int = 5
    timed_steps: int = 30
    settle_s: float = 2.0
    energy_window_s: float = 2.0
    idle_s: float = 0.5
