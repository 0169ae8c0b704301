"""Quantities derived from a prediction and its batch, for sweeps, choices and searches.

To add a quantity: a row in `DERIVED`. Its column comes last in the files of a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dippm.estimate.models.targets import Estimate


@dataclass(frozen=True, slots=True)
class Derived:
    """A quantity that follows from a target.

    Attributes:
        target: target that it is derived from; if that is absent, its reason holds here too.
        of: function that returns it from the estimate of a batch, and the batch.
    """

    target: str
    of: Callable[[Estimate, int], Estimate | None]


DERIVED: Mapping[str, Derived] = {
    "samples_per_s": Derived("latency_ms", lambda latency, batch: latency.rate(1e3 * batch)),
    "energy_per_sample_j": Derived("energy_j", lambda energy, batch: energy.scaled(1 / batch)),
}
