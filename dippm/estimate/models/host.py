"""From kernel times to the latency that a clock on the host shows."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from dippm.estimate.conditions import Timer

OVERLAP_POWER = 8.0


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that launches the kernels.

    Attributes:
        launch_ms: host time of one eager launch.
        copy_bytes_per_ms: host-to-device copy rate of pageable memory.
    """

    launch_ms: float
    copy_bytes_per_ms: float


def wall_ms(device_ms: float, launches: float, host: Host) -> float:
    """Return the time of a synchronised forward, in ms.

    Kernels run while later ones are launched, so the longer of the two wins, with a soft corner:
    (a^p + b^p)^(1/p) with p = 8.
    """
    return _smooth_max(device_ms, launches * host.launch_ms)


def latency_ms(
    device_ms: float, launches: float, input_bytes: float, timer: Timer, host: Host
) -> float:
    """Return the latency that a timer regime shows, in ms; see `Conditions.timer`.

    A span between events follows the law of the wall: both hold the launches. What the wall has on
    top, the wait of the host, is in the launch time that tables of either teach.
    """
    if timer == "kernel":
        return device_ms
    wall = wall_ms(device_ms, launches, host)
    return wall + input_bytes / host.copy_bytes_per_ms if timer == "wall+copy" else wall


def _smooth_max(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    if high <= 0.0:
        return 0.0
    return float(high * (1.0 + (low / high) ** OVERLAP_POWER) ** (1.0 / OVERLAP_POWER))


def launch_share(
    device_ms: float, launches: float, input_bytes: float, timer: Timer, host: Host
) -> float:
    """Return the share of the latency that the host's launch time decides, 0 to 1.

    It is d log(latency) / d log(launch time): 0 where kernels hide every launch, 1 where the GPU
    waits for all of them. 0, too, if the time of the kernels is no finite number.
    """
    launch_ms = launches * host.launch_ms
    if timer == "kernel" or launch_ms <= 0.0 or not isfinite(device_ms):
        return 0.0
    wall = _smooth_max(device_ms, launch_ms)
    decided = float(1.0 / (1.0 + (device_ms / launch_ms) ** OVERLAP_POWER))
    return decided * wall / latency_ms(device_ms, launches, input_bytes, timer, host)
