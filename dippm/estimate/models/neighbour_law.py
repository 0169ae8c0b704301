"""How processes that share a GPU slow each other down.

    d = min(w · g + c · y, t)            ms of the whole GPU that a pass takes from the others
    u = d / t                            part of the GPU that the process takes alone
    s : s + Σ min(u_j, s) = 1            fair share of the GPU with neighbours j
    T = (t^q + (d / s)^q - d^q)^(1/q)    latency with them

t is the latency alone, y the copy of the inputs, and g the kernel time of a pass. Under MPS kernels
of several processes run at once, so g is that of a small part of the GPU, which they fill, divided
by how many such parts there are; in time slices they never do, and g is that of the GPU with w = 1.
A process without neighbours has s = 1 and T = t; k alike that leave no time idle have s = 1 / k and
T = k · d. `python -m training.studies.neighbours --write` fits w, c and q to up to five copies of a
model under MPS on slices of an A100.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np

FILE = "neighbour_law.json"
Shared = Literal["mps", "time-slicing"]


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one process's pass on a GPU, in ms.

    Attributes:
        alone_ms: latency without neighbours, within the limits of the process.
        filled_ms: kernel time if neighbours fill the units that its kernels leave idle.
        kernel_ms: kernel time of the process by itself.
        copy_ms: copy of the inputs from the host.
        launches: number of its kernels, also of those that a CUDA graph launches at once.
    """

    alone_ms: float
    filled_ms: float
    kernel_ms: float
    copy_ms: float = 0.0
    launches: int = 1


@dataclass(frozen=True, slots=True)
class Together:
    """Latency of one process with its neighbours, in ms.

    Attributes:
        value: latency by fair shares.
        least: latency if its neighbours always waited for it; for copies of one model, where not
            all can come first, latency if no time of the GPU were lost.
        most: latency if it always waited for them, see `NeighbourLaw.together`.
    """

    value: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class NeighbourLaw:
    """The law above.

    Attributes:
        work: w under MPS.
        copy: c, the coefficient of copies.
        corner: q, the sharpness of the transition to a full GPU.
        log_half_width: within which 90 % of the rows of models left out of the fit lay, in the log
            of the slow-down.
        device: measured device.
        most_processes: largest measured number of processes.
        models: names of the measured models.
    """

    work: float
    copy: float
    corner: float
    log_half_width: float = 0.0
    device: str = ""
    most_processes: int = 0
    models: tuple[str, ...] = ()

    def demand_ms(self, load: Load, shared: Shared) -> float:
        """Return the demand of a pass in ms of the whole GPU; at most its latency."""
        kernels = self.work * load.filled_ms if shared == "mps" else load.kernel_ms
        return min(kernels + self.copy * load.copy_ms, load.alone_ms)

    def together(self, loads: Sequence[Load], shared: Shared) -> tuple[Together, ...]:
        """Return the latency of each of several processes that share a GPU.

        At worst a process waits, under MPS, before each of its kernels for one of each neighbour;
        in time slices for a turn of each, so that it has the GPU for one part in as many as there
        are processes. What switching costs was never measured and is not in it.

        Args:
            loads: of the processes.
            shared: how they share it.
        """
        demands = [self.demand_ms(load, shared) for load in loads]
        found = []
        for i, (load, own) in enumerate(zip(loads, demands, strict=True)):
            others = [j for j in range(len(loads)) if j != i]
            share = fair_share([demands[j] / loads[j].alone_ms for j in others])
            value = shared_latency_ms(load.alone_ms, own, share, self.corner)
            if shared == "mps":
                turns = [loads[j].kernel_ms / max(loads[j].launches, 1) for j in others]
                most = load.alone_ms + load.launches * sum(turns)
            else:
                most = load.alone_ms * len(loads)
            alike = all(loads[j] == load for j in others)
            least = max(load.alone_ms, len(loads) * own if alike else 0.0)
            found.append(Together(value, min(least, value), max(most, value)))
        return tuple(found)


def fair_share(wanted: Sequence[float]) -> float:
    """Return the share left for a process that takes all it gets, 0 to 1: max-min fairness.

    Args:
        wanted: parts of the GPU that its neighbours would take alone, each 0 to 1.
    """
    left, waiting = 1.0, len(wanted)
    for part in sorted(wanted):
        if part >= left / (waiting + 1):
            break
        left, waiting = left - part, waiting - 1
    return left / (waiting + 1)


def shared_latency_ms(alone_ms: Any, demand_ms: Any, share: Any, corner: float) -> Any:
    """Return the latency with neighbours that leave this share of the GPU; arrays or numbers.

    Args:
        alone_ms: latency without them, above 0.
        demand_ms: time of the whole GPU that a pass needs, at most the latency.
        share: share of the GPU that is left, above 0, at most 1.
        corner: sharpness of the transition, at least 1.
    """
    own = np.asarray(demand_ms, np.float64) / alone_ms
    # with the larger of both as the unit, so that a high power does not overflow
    unit = np.maximum(1.0, own / share)
    inside = unit**-corner + (own / share / unit) ** corner - (own / unit) ** corner
    found = alone_ms * unit * inside ** (1.0 / corner)
    return float(found) if np.ndim(found) == 0 else found


@cache
def fitted() -> NeighbourLaw:
    """Return the shipped law."""
    text = files("dippm.estimate.models").joinpath(FILE).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return NeighbourLaw(
        **found["law"],
        log_half_width=found["log_half_width"],
        device=found["device"],
        most_processes=found["most_processes"],
        models=tuple(found["models"]),
    )
