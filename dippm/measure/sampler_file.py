"""The file that the sampler writes: compact, appended to, and readable after any crash.

    file    := frame*
    frame   := length u32, CRC-32 of the payload u32, payload       (little-endian)
    payload := record*
    record  := 255, length u32, one JSON document                   an event
             | number of the source u8, time_ns i64,
               bit mask "changed", bit mask "absent", f64 per changed value

The first event says what is sampled, with one pair of monotonic and wall-clock time. A value that
was read again and is the same is a zero in both masks, 8 bytes less: it is marked, not repeated.
Reasons of absence are events, written when they change. At 10 quantities a reading takes 13 bytes
plus 8 per changed value, so a value costs 9.3 bytes at most, and 2 to 5 when most stay as they are.

Arrow's stream format would be as compact, but its library takes 43 MB and 0.2 s, thrice what the
whole sampler does; JSON lines take 22 bytes a value and twice the time.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dippm.errors import MeasurementError
from dippm.measure.readings import Quantity, Readings, Source

VERSION = 1
EVENT = 255
WRITE = "Write the file with `python -m dippm.measure.sampler --pid PID --out FILE`."
FRAME = struct.Struct("<II")
TEXT = struct.Struct("<BI")
HEAD = struct.Struct("<Bq")


class Writer:
    """Appends readings to a new file, a frame per `flush`."""

    def __init__(self, path: str | Path, sources: Sequence[Source], header: dict[str, Any]) -> None:
        """Create the file; it stays empty until the first `flush`.

        Raises:
            FileExistsError: if there is one: samples of two runs are never mixed.
            OSError: if it cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o666)
        self._packers = [_Packer(number, source) for number, source in enumerate(sources)]
        self._records: list[bytes] = []
        described = [
            {"name": source.name, "quantities": [asdict(q) for q in source.quantities]}
            for source in sources
        ]
        self.event({"sampler": VERSION, **header, **anchor(), "sources": described})

    def add(self, number: int, readings: Readings) -> None:
        """Keep a reading of source `number` for the next frame."""
        packer = self._packers[number]
        self._records.append(packer.pack(readings))
        if packer.news:
            self.event({"source": number, "time_ns": readings.time_ns, "absent": packer.news})

    def event(self, document: dict[str, Any]) -> None:
        """Keep a document for the next frame."""
        text = json.dumps(document, separators=(",", ":")).encode()
        self._records.append(TEXT.pack(EVENT, len(text)) + text)

    def flush(self) -> None:
        """Write a frame.

        Raises:
            OSError: if the disk is full or the like; what was written before stays readable.
        """
        if not self._records:
            return
        payload = b"".join(self._records)
        frame = FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        self._records = []
        while frame:
            frame = frame[os.write(self._file, frame) :]

    def close(self) -> None:
        """Write what is left and close the file."""
        try:
            self.flush()
        finally:
            os.close(self._file)


class _Packer:
    """Turns readings of one source into records."""

    def __init__(self, number: int, source: Source) -> None:
        self._number = number
        self._names = [quantity.name for quantity in source.quantities]
        self._mask_bytes = _mask_bytes(len(self._names))
        self._last: list[float | None] = [None] * len(self._names)
        self._absent = (1 << len(self._names)) - 1
        self._reasons: Mapping[str, str] = {}
        self.news: dict[str, str] = {}

    def pack(self, readings: Readings) -> bytes:
        """Return a record; `news` then holds reasons that changed."""
        changed, stored = 0, []
        now = [readings.values.get(name) for name in self._names]
        if now != self._last:
            self._absent = 0
            for place, (value, before) in enumerate(zip(now, self._last, strict=True)):
                if value is None:
                    self._absent |= 1 << place
                elif value != before:
                    changed |= 1 << place
                    stored.append(value)
            self._last = now
        self.news = {}
        if readings.absent is not self._reasons:
            reasons, self._reasons = self._reasons, readings.absent
            self.news = {n: r for n, r in readings.absent.items() if reasons.get(n) != r}
        size = self._mask_bytes
        masks = changed.to_bytes(size, "little") + self._absent.to_bytes(size, "little")
        numbers = struct.pack(f"<{len(stored)}d", *stored)
        return HEAD.pack(self._number, readings.time_ns) + masks + numbers


@dataclass(frozen=True, slots=True)
class Series:
    """What one source said, as columns.

    Attributes:
        source: its name.
        quantities: of it.
        time_ns: monotonic time of each reading.
        values: by quantity, one per reading; None where absent.
        fresh: by quantity: whether the value differs from that of the reading before. A counter
            that was not updated in between is not fresh.
        reasons: (time_ns, quantity, reason) from when on a quantity was absent, in order.
    """

    source: str
    quantities: tuple[Quantity, ...]
    time_ns: array[int] = field(default_factory=lambda: array("q"))
    values: dict[str, list[float | None]] = field(default_factory=dict)
    fresh: dict[str, list[bool]] = field(default_factory=dict)
    reasons: list[tuple[int, str, str]] = field(default_factory=list)

    def readings(self) -> tuple[Readings, ...]:
        """Return the same as readings, for `RecordedSource`."""
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
    """What a sampler wrote.

    Attributes:
        header: its first event: pid, hz, wall_ns and monotonic_ns.
        series: by name of the source.
        end: its last event: why it ended, ticks missed, its own CPU seconds; None if it was killed.
        damaged_bytes: at the end of the file that are no whole frame.
    """

    header: dict[str, Any]
    series: dict[str, Series]
    end: dict[str, Any] | None
    damaged_bytes: int

    def wall_ns(self, time_ns: int) -> int:
        """Return the wall-clock time (since 1970) of a monotonic time."""
        return int(time_ns - self.header["monotonic_ns"] + self.header["wall_ns"])


def read(path: str | Path) -> Samples:
    """Read what a sampler wrote, also while it writes or after it was killed.

    Raises:
        MeasurementError: if the file is missing or no sampler wrote it.
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


def anchor() -> dict[str, int]:
    """Return wall-clock and monotonic time of one moment."""
    return {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}


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
        size = _mask_bytes(len(series.quantities))
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
    """Yield the end and payload of each whole frame."""
    place = 0
    while place + FRAME.size <= len(data):
        size, crc = FRAME.unpack_from(data, place)
        payload = data[place + FRAME.size : place + FRAME.size + size]
        if not size or len(payload) < size or zlib.crc32(payload) != crc:
            return  # a crash of the machine may leave zeros, a CRC of nothing is zero too
        place += FRAME.size + size
        yield place, payload


def _empty(described: dict[str, Any]) -> Series:
    quantities = tuple(Quantity(**quantity) for quantity in described["quantities"])
    series = Series(described["name"], quantities)
    for quantity in quantities:
        series.values[quantity.name] = []
        series.fresh[quantity.name] = []
    return series


def _mask_bytes(count: int) -> int:
    return (count + 7) // 8
