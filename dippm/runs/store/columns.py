"""The series of a run: as arrays read from its sampler files (`Column`), and as a `Summary`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import MeasurementError

if TYPE_CHECKING:
    from dippm.measure.sampler_file import Series


@dataclass(frozen=True, slots=True)
class Column:
    """One series of a run.

    Attributes:
        series: full name, "<source>.<quantity>".
        unit: unit of the values.
        scope: what is measured, see `dippm.measure.readings.Quantity`.
        counter: whether the values are cumulative.
        time_ns: monotonic time, int64, [n]; each column has its own.
        values: float64, [n]; NaN where absent.
        reasons: time in ns and reason of each start of an absence, in order of time.
    """

    series: str
    unit: str
    scope: str
    counter: bool
    time_ns: Any
    values: Any
    reasons: tuple[tuple[int, str], ...] = ()

    @property
    def source(self) -> str:
        """Name of the source."""
        return self.series.partition(".")[0]


def read_columns(files: Iterable[Path]) -> tuple[list[Column], list[str]]:
    """Return the columns of all sampler files of a run, and remarks on unreadable parts.

    A restarted sampler writes another file: columns of the same name are joined in order of time.
    Sources of several devices have separate names: "nvml:1". Of a damaged file only the damaged
    part is lost, with a remark.
    """
    from dippm.measure.sampler_file import read

    remarks: list[str] = []
    read_: list[tuple[str, Series]] = []
    for file in files:
        if not file.stat().st_size:
            remarks.append(f"{file.name}: the sampler wrote nothing")
            continue
        try:
            samples = read(file)
        except MeasurementError as error:
            remarks.append(f"{file.name}: {str(error.message).removeprefix(f'{file}: ')}")
            continue
        if samples.damaged_bytes:
            remarks.append(f"{file.name}: {samples.damaged_bytes} bytes at its end are damaged")
        read_ += [(_device(file), series) for series in samples.series.values()]
    parts: dict[str, list[Column]] = {}
    for device, series in read_:
        several = len({other for other, of_it in read_ if of_it.source == series.source}) > 1
        source = f"{series.source}:{device}" if several and device else series.source
        for column in _columns(source, series):
            parts.setdefault(column.series, []).append(column)
    return [_join(columns) for columns in parts.values()], remarks


def _columns(source: str, series: Series) -> Iterator[Column]:
    import numpy as np

    time_ns = np.array(series.time_ns, dtype=np.int64)
    for quantity in series.quantities:
        yield Column(
            f"{source}.{quantity.name}",
            *(quantity.unit, quantity.scope, quantity.counter),
            time_ns,
            np.array(series.values[quantity.name], dtype=np.float64),
            tuple((at, why) for at, name, why in series.reasons if name == quantity.name),
        )


def _device(file: Path) -> str:
    """Return the device in the name of a sampler's file: samples-PID-NUMBER-DEVICE."""
    return "-".join(file.stem.split("-")[3:])


def _join(parts: list[Column]) -> Column:
    import numpy as np

    if len(parts) == 1:
        return parts[0]
    parts = sorted(parts, key=lambda part: int(part.time_ns[0]) if len(part.time_ns) else 0)
    first = parts[0]
    return Column(
        *(first.series, first.unit, first.scope, first.counter),
        np.concatenate([part.time_ns for part in parts]),
        np.concatenate([part.values for part in parts]),
        tuple(reason for part in parts for reason in part.reasons),
    )


# Statistics of a series, or the reason why there are none.
#
# For a counter (energy, CPU seconds) single values mean nothing, so all statistics are those of its
# rate: its growth per second between distinct readings. Its integral is then its total growth; that
# of a gauge is the area under its values by the trapezoidal rule.


NUMBERS = ("mean", "p50", "p95", "max", "integral", "n")
"""Names of the statistics of a summary."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of one series.

    Attributes:
        series: full name, "<source>.<quantity>".
        unit: unit of the series.
        scope: what is measured, as in `dippm.measure.readings.Quantity`.
        counter: whether the statistics are those of a rate, in units per second.
        n: number of valid values.
        mean: time-weighted mean; None without values, like all statistics below.
        p50: median of the values.
        p95: 95th percentile of the values.
        max: largest value.
        integral: integral over time, in units times seconds; for a counter, its total growth.
        reason: reason why values are missing; "" if none is. If `n` is above 0, some are present.
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
    """Return the summary of a counter; the step down of a reset does not count as growth."""
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
