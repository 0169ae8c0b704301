"""Whether the intervals of predictions still hold what runs measure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dippm.estimate.prediction import LABELS
from dippm.runs.tracking.run_comparison import COMPARED, DOCUMENT

if TYPE_CHECKING:
    from dippm.runs.store.stored import StoredRun

LAST = 50
LEAST_HELD = 0.8
LEAST_COMPARISONS = 10
"""With fewer, three misses of intervals that hold nine times in ten would be an alarm."""
HINT = "Train or calibrate on what was accepted: `dippm compare-run RUN --accept FOLDER`."


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often the last intervals of one quantity held.

    Attributes:
        target: the quantity.
        comparisons: the last ones, `LAST` at most.
        held: of them, where the measured value was inside.
    """

    target: str
    comparisons: int
    held: int

    @property
    def warning(self) -> str:
        """What to know before relying on the intervals; "" if they hold."""
        if self.comparisons < LEAST_COMPARISONS or self.held >= LEAST_HELD * self.comparisons:
            return ""
        return (
            f"90 % intervals of the {LABELS[self.target]} held {self.held} of the last "
            f"{self.comparisons} comparisons, fewer than {LEAST_HELD:.0%}"
        )


def coverage(runs: Iterable[StoredRun]) -> tuple[Coverage, ...]:
    """Return how often intervals held, for each quantity that was compared.

    Args:
        runs: of the store, the newest first; those that were never compared do not count.
    """
    seen: dict[str, list[float]] = {target: [] for target in COMPARED}
    for run in runs:
        for target, inside in seen.items():
            said = run.metrics.get(f"{DOCUMENT}/{target}/inside")
            if said is not None and len(inside) < LAST:
                inside.append(said)
    return tuple(Coverage(t, len(inside), int(sum(inside))) for t, inside in seen.items() if inside)
