"""What part of a predicted energy each kernel has.

    E   = waiting · T + active                 the law of `power`, times the latency
    E_i = waiting · t_i + active · s_i / Σ s   s_i = floor · t_i + Σ coefficient · work_i

Nothing of the law is changed: a kernel has the board's waiting power while it runs, and of
what comes on top as much as it adds to the score s, which is linear in kernels. That power rises
less the more a board does (u of the law) is a property of the whole pass and falls on all alike.
What the board draws while it waits for the host is the host's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.models.power import PowerModel

Floats = NDArray[np.float64]


def energy_shares(
    power: PowerModel,
    waiting_w: float,
    energy_j: float,
    total_ms: float,
    times: Floats,
    work: Floats,
) -> tuple[Floats, float]:
    """Return the energy of each kernel in J, shape (K,), and that of the host; they sum to all.

    Args:
        power: the law that the energy comes from.
        waiting_w: power of the board between kernels.
        energy_j: of the whole pass.
        total_ms: its latency.
        times: of the kernels in ms, shape (K,).
        work: what they do at the device's peaks, see `power.work_ms`, shape (4, K).
    """
    busy_ms = float(times.sum())
    waiting_j = min(waiting_w * total_ms / 1e3, energy_j)
    scores = power.floor * times
    for coefficient, part in zip(power.coefficients, work, strict=True):
        whole_ms = float(part.sum())
        if whole_ms > 0:  # a share of more than all of a peak counts as all of it
            scores = scores + coefficient * part * min(1.0, busy_ms / whole_ms)
    score = float(scores.sum())
    if score <= 0:
        scores, score = times, busy_ms
    waiting = waiting_j / total_ms * times
    found = waiting + (energy_j - waiting_j) * scores / max(score, 1e-300)
    return found, energy_j - float(found.sum())
