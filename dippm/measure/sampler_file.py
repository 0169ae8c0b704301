"""Read the file of a sampler, even while it is being written or after a crash.

`dippm.measure.sampler_writer` describes its format.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dippm.errors import MeasurementError
from dippm.measure.readings import Quantity, Readings
from dippm.measure.sampler_writer import EVENT, FRAME, HEAD, TEXT, VERSION, mask_bytes

WRITE = "Write the file with `python -m dippm.measure.sampler --pid PID --out FILE`."


@dataclass(frozen=True, slots=True)
class Series:
    """The readings of one source as columns.

    Attributes:
        source: name of the source.
        quantities: quantities of the source.
        time_ns: monotonic time of each reading.
        values: one value per reading by quantity; None where absent.
        fresh: by quantity, whether the value differs from the previous reading's: a counter that
            was not updated in between is not fresh.
        reasons: (time_ns, quantity, reason) of each start of an absence, in order.
    """

    source: str
    quantities: tuple[Quantity, ...]
    time_ns: array[int] = field(default_factory=lambda: array("q"))
    values: dict[str, list[float | None]] = field(default_factory=dict)
    fresh: dict[str, list[bool]] = field(default_factory=dict)
    reasons: list[tuple[int, str, str]] = field(default_factory=list)

    def readings(self) -> tuple[Readings, ...]:
        """Return the columns as readings, for `RecordedSource`."""
        found, reasons, pending = [], {}, sorted(self.reasons)
        for row, time_ns in enumerate(self.time_ns):
            while pending and pending[0][0] <= time_ns:
                _, name, reason = pending.pop(0)
                reasons[name] = reason
            values = {n: c[row] for n, c in self.values.items() if c[row] is not None}
            absent = {n: reasons.get(n, "") for n in self.values if n not in values}
            found.append(Readings(time_ns, values, absent))  # type: ignore[arg-type]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Samples:
    """The contents of a sampler's file.

    Attributes:
        header: first event: pid, hz, wall_ns and monotonic_ns.
        series: series by name of the source.
        end: last event: reason for the end, missed ticks, own CPU seconds; None if it was killed.
        damaged_bytes: number of bytes at the end that are no complete frame.
    """

    header: dict[str, Any]
    series: dict[str, Series]
    end: dict[str, Any] | None
    damaged_bytes: int

    def wall_ns(self, time_ns: int) -> int:
        """Convert a monotonic time to wall-clock time since 1970."""
        return int(time_ns - self.header["monotonic_ns"] + self.header["wall_ns"])


def read(path: str | Path) -> Samples:
    """Read the file of a sampler, even while it is being written or after a crash.

    Raises:
        MeasurementError: if the file is missing or is not from a sampler.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise MeasurementError(f"no samples at {path}: {error.strerror}", WRITE) from error
    reader = _Reader()
    good = 0
    for end, payload in _frames(data):
        try:
            reader.take(payload)
        except (ValueError, KeyError, IndexError, struct.error) as error:
            raise MeasurementError(f"{path}: frame at byte {good} cannot be read", WRITE) from error
        good = end
    if not reader.header:
        raise MeasurementError(f"{path}: not written by the sampler", WRITE)
    series = {item.source: item for item in reader.series}
    return Samples(reader.header, series, reader.end, len(data) - good)


class _Reader:
    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self.end: dict[str, Any] | None = None
        self.series: list[Series] = []

    def take(self, payload: bytes) -> None:
        place = 0
        while place < len(payload):
            if payload[place] == EVENT:
                _, size = TEXT.unpack_from(payload, place)
                place += TEXT.size
                self._event(json.loads(payload[place : place + size]))
                place += size
            else:
                place = self._reading(payload, place)

    def _event(self, event: dict[str, Any]) -> None:
        if "sampler" in event:
            if event["sampler"] != VERSION:
                raise ValueError(f"version {event['sampler']}")
            self.header = event
            self.series = [_empty(described) for described in event["sources"]]
        elif "end" in event:
            self.end = event
        elif "absent" in event:
            reasons = self.series[event["source"]].reasons
            reasons += [(event["time_ns"], name, why) for name, why in event["absent"].items()]

    def _reading(self, payload: bytes, place: int) -> int:
        number, time_ns = HEAD.unpack_from(payload, place)
        series = self.series[number]
        size = mask_bytes(len(series.quantities))
        place += HEAD.size
        changed = int.from_bytes(payload[place : place + size], "little")
        absent = int.from_bytes(payload[place + size : place + 2 * size], "little")
        place += 2 * size
        stored = struct.unpack_from(f"<{changed.bit_count()}d", payload, place)
        news = iter(stored)
        series.time_ns.append(time_ns)
        for position, (name, column) in enumerate(series.values.items()):
            fresh = bool(changed >> position & 1)
            if fresh:
                column.append(next(news))
            else:
                column.append(None if absent >> position & 1 else column[-1])
            series.fresh[name].append(fresh)
        return place + 8 * len(stored)


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield end and payload of each complete frame."""
    place = 0
    while place + FRAME.size <= len(data):
        size, crc = FRAME.unpack_from(data, place)
        payload = data[place + FRAME.size : place + FRAME.size + size]
        if not size or len(payload) < size or zlib.crc32(payload) != crc:
            return  # a crash may leave zeros, and the CRC of no bytes is zero too
        place += FRAME.size + size
        yield place, payload


def _empty(described: dict[str, Any]) -> Series:
    quantities = tuple(Quantity(**quantity) for quantity in described["quantities"])
    series = Series(described["name"], quantities)
    for quantity in quantities:
        series.values[quantity.name] = []
        series.fresh[quantity.name] = []
    return series
