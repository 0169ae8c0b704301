"""Time an operator with cold caches: its inputs are evicted before each step.

Repeated steps on the same tensors find whatever fits into the L2 cache of a GPU there; within a
network an operator finds some of it. Both extremes are measured. Before each cold step a buffer of
several times the cache is read, not written: writing back dirty lines would cost the step its
bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dippm.base.progress import tell
from dippm.measure.readings import Absent
from dippm.measure.timers import NO_EVENTS
from dippm.measure.timing import Step, Stopwatch

if TYPE_CHECKING:
    import torch

TIMES = 4
"""Buffer size in cache sizes: enough for any replacement policy and for split caches."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
NOT_COLD = Absent("operators alone are measured with cold caches")
NO_ROOM = Absent("no memory was left for the buffer that empties the caches")
NAMES = ("cold_latency_ms", "cold_event_ms")


def cache_bytes(device: torch.device) -> int | Absent:
    """Return the size of the last-level cache of a device, or the reason why it is unknown."""
    import torch

    if device.type == "cuda":
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
        return int(size) or Absent("torch does not know the size of the L2 cache")
    sizes = [_bytes(path) for path in CACHES.glob("index*/size")]
    return max(sizes, default=0) or Absent(f"{CACHES} does not say the size of a cache")


def displacer(device: torch.device) -> Callable[[], object] | Absent:
    """Return a function that evicts the caches of a device, or the reason why there is none."""
    import torch

    size = cache_bytes(device)
    if isinstance(size, Absent):
        return size
    buffer = torch.ones(TIMES * size // 4, dtype=torch.float32, device=device)
    return buffer.sum


def cold_columns(
    step: Step, watch: Stopwatch, displace: Callable[[], object], steps: int
) -> dict[str, Any]:
    """Time steps with cold caches; return their columns, each a value or `Absent`.

    Args:
        step: step that has run before.
        watch: stopwatch of the device; it waits before each step.
        displace: function that evicts the caches, see `displacer`.
        steps: number of steps.
    """
    tell(f"timing {steps} steps with cold caches")
    seen = []
    for _ in range(steps):
        displace()
        seen.append(watch(step))
    events = [event for _, event in seen if event is not None]
    wall_ms = fmean(wall for wall, _ in seen)
    return dict(zip(NAMES, (wall_ms, fmean(events) if events else NO_EVENTS), strict=True))


def _bytes(path: Path) -> int:
    """Return the size in a file such as "32768K", 0 without one."""
    try:
        found = re.fullmatch(r"(\d+)([KMG]?)", path.read_text().strip())
    except OSError:
        return 0
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0
