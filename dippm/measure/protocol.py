"""How one configuration is measured: `Regime` says what runs, `Settings` how often.

Deliverable D3.5: 5 warm-up and 30 timed forward passes, their mean. Here the median, percentiles
and every single time stand beside it, and energy comes from a window long enough for its counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dippm.estimate.conditions import Mode, Precision

Phase = Literal["inference", "train"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Regime:
    """Under which conditions the module runs.

    Attributes:
        precision: as in `dippm.estimate.conditions`.
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
    """How often and how long.

    Attributes:
        warm_up_steps: untimed steps at least.
        timed_steps: timed steps.
        settle_s: warm-up goes on until two windows agree within 1 %, about so long at most. The
            first call is not part of it.
        energy_window_s: length of the energy window; 0 leaves energy out.
        idle_s: how long idle power is watched before the energy window, and after it.
    """

    warm_up_steps: int = 5
    timed_steps: int = 30
    settle_s: float = 2.0
    energy_window_s: float = 2.0
    idle_s: float = 0.5
