"""`Column`: one series of a run as arrays, read from the files of its samplers."""

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
    """One series.

    Attributes:
        series: full name, "<source>.<quantity>".
        unit: unit of the values.
        scope: what is measured, see `dippm.measure.readings.Quantity`.
        counter: whether the values are cumulative.
        time_ns: monotonic time, int64, [n]; each column has its own.
        values: float64, [n]; NaN where absent.
        reasons: (time_ns, reason) of each start of an absence, in order.
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
