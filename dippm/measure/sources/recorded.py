"""Replay recorded readings as a source: for tests and examples without hardware.

A recording is a file of JSON lines. The first is its header:

    {"recording": 1, "source": "nvml", "origin": "measured", "device": "NVIDIA H100 80GB HBM3",
     "date": "2026-11-20T21:00:00Z", "about": "", "quantities": [{"name": "power_w", ...}]}

"origin" is "measured", or "synthetic" for invented values. Each further line is a reading:
{"t": nanoseconds since the first, "v": {name: value}, "a": {name: reason}}. A value or reason that
is missing in both is that of the previous line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dippm.errors import MeasurementError
from dippm.measure.readings import AbsentSource, Quantity, Readings, Source

VERSION = 1
Origin = Literal["measured", "synthetic"]
ENDED = "the recording has ended"
MAKE = "Make a recording with `dippm.measure.sources.recorded.record`."


@dataclass(frozen=True, slots=True)
class Recording:
    """The contents of a recording.

    Attributes:
        source: name of the recorded source.
        origin: "measured" or "synthetic".
        device: description of the device.
        date: time of the recording, UTC, ISO 8601.
        about: description of the workload.
        quantities: quantities of the source.
        readings: readings in order; their time counts from the first.
    """

    source: str
    origin: Origin
    device: str
    date: str
    about: str
    quantities: tuple[Quantity, ...]
    readings: tuple[Readings, ...]


class RecordedSource:
    """A source that replays a recording.

    Args:
        recording: the recording.
        pace: "reading" returns one recorded reading per call; "time" returns the latest one before
            the time since the first call.
        repeat: whether it starts again at the end; else the last reading is followed by absence.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        pace: Literal["reading", "time"] = "reading",
        repeat: bool = False,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = recording.source
        self.quantities = recording.quantities
        self.recording = recording
        self._pace = pace
        self._repeat = repeat
        self._clock = clock
        self._position = -1
        self._start_ns = 0
        self._closed = False

    def read(self) -> Readings:
        """Return the next reading, with the time of this call."""
        now = self._clock()
        kept = None if self._closed else self._next(now)
        if kept is None:
            reason = "the source is closed" if self._closed else ENDED
            return Readings(now, {}, {quantity.name: reason for quantity in self.quantities})
        return Readings(now, kept.values, kept.absent)

    def close(self) -> None:
        """Do nothing: there are no resources."""
        self._closed = True

    def _next(self, now: int) -> Readings | None:
        readings = self.recording.readings
        if self._position < 0:
            self._start_ns = now
        self._position += 1
        if self._pace == "time":
            passed = now - self._start_ns
            if self._repeat and readings[-1].time_ns:
                passed %= readings[-1].time_ns
            elif passed > readings[-1].time_ns:
                return None
            return [reading for reading in readings if reading.time_ns <= passed][-1]
        if self._repeat:
            return readings[self._position % len(readings)]
        return readings[self._position] if self._position < len(readings) else None


def load(path: str | Path) -> Recording:
    """Read a recording.

    Raises:
        MeasurementError: if the file is missing or is not a recording, naming the line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise MeasurementError(f"no recording at {path}: {error.strerror}", MAKE) from error
    try:
        header = json.loads(lines[0])
        if header["recording"] != VERSION or header["origin"] not in ("measured", "synthetic"):
            raise ValueError("neither measured nor synthetic, or of another version")
        quantities = tuple(Quantity(**quantity) for quantity in header["quantities"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise MeasurementError(
            f"{path}, line 1: not the header of a recording ({error})", MAKE
        ) from error
    return Recording(
        header["source"],
        header["origin"],
        header.get("device", ""),
        header.get("date", ""),
        header.get("about", ""),
        quantities,
        _readings(path, lines[1:], [quantity.name for quantity in quantities]),
    )


def _readings(path: str | Path, lines: Sequence[str], names: Sequence[str]) -> tuple[Readings, ...]:
    found: list[Readings] = []
    values: dict[str, float] = {}
    absent: dict[str, str] = {}
    for number, line in enumerate(lines, 2):
        try:
            entry = json.loads(line)
            new_values = {name: float(value) for name, value in entry.get("v", {}).items()}
            new_absent = {name: str(reason) for name, reason in entry.get("a", {}).items()}
            time_ns = int(entry["t"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines) + 1 and found:
                break  # the recorder was killed while writing the last line
            raise MeasurementError(
                f"{path}, line {number}: not a reading ({error})", MAKE
            ) from error
        values = {n: v for n, v in (values | new_values).items() if n not in new_absent}
        absent = {n: r for n, r in (absent | new_absent).items() if n not in new_values}
        missing = [name for name in names if name not in values and name not in absent]
        if missing:
            raise MeasurementError(
                f"{path}, line {number}: neither value nor reason for {missing}", MAKE
            )
        found.append(Readings(time_ns, values, absent))
    if not found:
        raise MeasurementError(f"{path}: a recording without readings", MAKE)
    return tuple(found)


def record(
    source: Source, path: str | Path, *, hz: float, seconds: float, device: str, about: str = ""
) -> Recording:
    """Read a source for some seconds, and save the readings.

    Args:
        source: any source; it stays open.
        path: path of the new file.
        hz: readings per second.
        seconds: duration.
        device: description of the device.
        about: description of the workload.

    Returns:
        The recording, as `load` reads it from the file.
    """
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    header = {"recording": VERSION, "source": source.name, "origin": "measured"}
    header |= {"device": device, "date": date, "about": about}
    quantities = [quantity._asdict() for quantity in source.quantities]
    start = time.monotonic()
    with Path(path).open("w", encoding="utf-8") as file:
        file.write(json.dumps({**header, "quantities": quantities}) + "\n")
        first = before = source.read()
        file.write(_line(first, Readings(0, {}, {}), 0))
        for tick in range(1, round(hz * seconds)):
            time.sleep(max(0.0, start + tick / hz - time.monotonic()))
            reading = source.read()
            file.write(_line(reading, before, first.time_ns))
            before = reading
    return load(path)


def _line(reading: Readings, before: Readings, start_ns: int) -> str:
    entry: dict[str, Any] = {"t": reading.time_ns - (start_ns or reading.time_ns)}
    values = {n: v for n, v in reading.values.items() if before.values.get(n) != v}
    absent = {n: r for n, r in reading.absent.items() if before.absent.get(n) != r}
    if values:
        entry["v"] = values
    if absent:
        entry["a"] = absent
    return json.dumps(entry, separators=(",", ":")) + "\n"


def open_recorded(path: str | Path, **how: Any) -> Source:
    """Open a recording; further arguments are those of `RecordedSource`."""
    try:
        return RecordedSource(load(path), **how)
    except MeasurementError as error:
        return AbsentSource("recorded", (), error.message)
