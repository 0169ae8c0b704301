"""`Summary`: six statistics of a series, or the reason why there are none.

For a counter (energy, CPU seconds) single values mean nothing, so all statistics are those of its
rate: its growth per second between distinct readings. Its integral is then its total growth; that
of a gauge is the area under its values by the trapezoidal rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dippm.runs.store.columns import Column

NUMBERS = ("mean", "p50", "p95", "max", "integral", "n")


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of one series.

    Attributes:
        series: full name, "<source>.<quantity>".
        unit: unit of the series.
        scope: what is measured, as in `dippm.measure.readings.Quantity`.
        counter: whether the statistics are those of a rate, in units per second.
        n: number of valid values.
        mean: time-weighted mean; None, like all below, without values.
        p50: median of the values.
        p95: 95th percentile.
        max: largest value.
        integral: unit times seconds; for a counter, its growth.
        reason: reason for missing values, "" if there are none; with `n` above 0 some are present.
    """

    series: str
    unit: str
    scope: str
    counter: bool
    n: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    max: float | None = None
    integral: float | None = None
    reason: str = ""

    def numbers(self) -> dict[str, float]:
        """Return the statistics that are present, by name."""
        found: dict[str, Any] = {name: getattr(self, name) for name in NUMBERS}
        return {name: float(value) for name, value in found.items() if value is not None}


def summarise(column: Column) -> Summary:
    """Return the summary of a series."""
    import numpy as np

    there = np.isfinite(column.values)
    time_s = (column.time_ns[there] - (column.time_ns[0] if len(there) else 0)) / 1e9
    values = column.values[there]
    named = (column.series, column.unit, column.scope, column.counter)
    reason = column.reasons[-1][1] if column.reasons and not there.all() else ""
    if not len(values):
        return Summary(*named, n=0, reason=reason or "nothing was read")
    if column.counter:
        return _rate(named, time_s, values, reason)
    whole = float(time_s[-1] - time_s[0])
    area = float(np.trapezoid(values, time_s))
    return Summary(
        *named,
        n=len(values),
        mean=area / whole if whole > 0 else float(values.mean()),
        p50=float(np.median(values)),
        p95=float(np.percentile(values, 95)),
        max=float(values.max()),
        integral=area,
        reason=reason,
    )


def _rate(named: tuple[str, str, str, bool], time_s: Any, values: Any, reason: str) -> Summary:
    """Return the summary of a counter; after a reset it counts on from there."""
    import numpy as np

    fresh = np.concatenate(([True], np.diff(values) != 0))
    fresh[-1] = True  # a counter that stood still to the end spans that time as well
    steps_s, growth = np.diff(time_s[fresh]), np.diff(values[fresh]).clip(min=0)
    steps_s, growth = steps_s[steps_s > 0], growth[steps_s > 0]
    if not len(steps_s):
        return Summary(*named, n=len(values), reason=reason or "a rate needs two readings")
    rates, grown = growth / steps_s, float(growth.sum())
    return Summary(
        *named,
        n=len(values),
        mean=grown / float(steps_s.sum()),
        p50=float(np.median(rates)),
        p95=float(np.percentile(rates, 95)),
        max=float(rates.max()),
        integral=grown,
        reason=reason,
    )
