"""The file format of the sampler: compact, append-only, and readable after any crash.

    file    := frame*
    frame   := length u32, CRC-32 of the payload u32, payload       (little-endian)
    payload := record*
    record  := 255, length u32, one JSON document                   an event
             | number of the source u8, time_ns i64,
               bit mask "changed", bit mask "absent", f64 per changed value

The first event describes the sampling, with one pair of monotonic and wall-clock time. A value that
is unchanged since the last reading is a zero in both masks, which saves 8 bytes. Reasons of absence
are events, written when they change. With 10 quantities a reading takes 13 bytes plus 8 per changed
value, so a value costs 9.3 bytes at most, and 2 to 5 when most are unchanged.

Arrow's stream format would be as compact, but its library takes 43 MB and 0.2 s, three times as
much as the whole sampler; JSON lines take 22 bytes a value and twice the time.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dippm.measure.readings import Readings, Source

VERSION = 1
EVENT = 255
FRAME = struct.Struct("<II")
TEXT = struct.Struct("<BI")
HEAD = struct.Struct("<Bq")


class Writer:
    """Appends readings to a new file, one frame per `flush`.

    `add` only collects them: between readings other processes evict the caches, so packing fifty at
    once costs a fraction of packing each as it comes.
    """

    def __init__(
        self, path: str | os.PathLike[str], sources: Sequence[Source], header: dict[str, Any]
    ) -> None:
        """Create the file; it stays empty until the first `flush`.

        Raises:
            FileExistsError: if it exists: samples of two runs are never mixed.
            OSError: if it cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o666)
        self._packers = [_Packer(number, source) for number, source in enumerate(sources)]
        self._kept: list[tuple[int, Readings]] = []
        described = [
            {"name": source.name, "quantities": [q._asdict() for q in source.quantities]}
            for source in sources
        ]
        self._records = [_event({"sampler": VERSION, **header, **anchor(), "sources": described})]

    def add(self, number: int, readings: Readings) -> None:
        """Collect a reading of source `number` for the next frame; it must not change any more."""
        self._kept.append((number, readings))

    def flush(self) -> None:
        """Write a frame.

        Raises:
            OSError: if the write fails, for instance on a full disk; earlier frames stay readable.
        """
        records, self._records = self._records, []
        kept, self._kept = self._kept, []
        for number, readings in kept:
            records += self._packers[number].pack(readings)
        if records:
            self._write(b"".join(records))

    def close(self, end: dict[str, Any] | None = None) -> None:
        """Write the remaining readings and the end event, and close the file.

        Raises:
            OSError: as `flush`.
        """
        try:
            self.flush()
            if end is not None:
                self._write(_event(end))
        finally:
            os.close(self._file)

    def _write(self, payload: bytes) -> None:
        frame = FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        while frame:
            frame = frame[os.write(self._file, frame) :]


class _Packer:
    """Turns readings of one source into records."""

    def __init__(self, number: int, source: Source) -> None:
        self._number = number
        self._names = [quantity.name for quantity in source.quantities]
        self._mask_bytes = mask_bytes(len(self._names))
        self._last: list[float | None] = [None] * len(self._names)
        self._absent = (1 << len(self._names)) - 1
        self._reasons: Mapping[str, str] = {}

    def pack(self, readings: Readings) -> Iterator[bytes]:
        """Yield the record of a reading, then an event if reasons have changed."""
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
        size = self._mask_bytes
        masks = changed.to_bytes(size, "little") + self._absent.to_bytes(size, "little")
        numbers = struct.pack(f"<{len(stored)}d", *stored)
        yield HEAD.pack(self._number, readings.time_ns) + masks + numbers
        if readings.absent is not self._reasons:
            reasons, self._reasons = self._reasons, readings.absent
            news = {n: r for n, r in readings.absent.items() if reasons.get(n) != r}
            if news:
                event = {"source": self._number, "time_ns": readings.time_ns, "absent": news}
                yield _event(event)


def anchor() -> dict[str, int]:
    """Return wall-clock and monotonic time of the same moment."""
    return {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}


def mask_bytes(count: int) -> int:
    """Return the number of bytes of a bit mask for `count` quantities."""
    return (count + 7) // 8


def _event(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, separators=(",", ":")).encode()
    return TEXT.pack(EVENT, len(text)) + text
