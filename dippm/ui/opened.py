"""`Opened`: a run whose samples were read, from the store or from its folder while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dippm.store.columns import Column, read_columns
from dippm.store.folder import Recorded
from dippm.store.record import Span, Start, Value
from dippm.store.stored import StoredRun
from dippm.ui.streams import Stream, streams


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that can be drawn.

    Attributes:
        start: how it started.
        spans: in the order of their ids.
        streams: what can be drawn over time, by key.
    """

    start: Start
    spans: tuple[Span, ...]
    streams: Mapping[str, Stream]

    @property
    def prediction(self) -> Mapping[str, Any] | None:
        """What was predicted for the same work, None if nothing was."""
        return self.start.prediction

    @property
    def size_bytes(self) -> int:
        """Roughly what it takes in memory."""
        samples = sum(len(stream.values) for stream in self.streams.values())
        return 16 * samples + 500 * len(self.spans) + 10_000


def opened_of_store(run: StoredRun) -> Opened:
    """Read a run of the store.

    Raises:
        RunError: if it is damaged.
        StoreError: if the store cannot be read.
    """
    run = replace(run)  # what it reads goes with it, and does not stay with the list it stands in
    return _opened(run.start, run.spans, run.values, run.columns)


def opened_of_folder(recorded: Recorded) -> Opened:
    """Read a run that goes on, as far as it is written."""
    columns, _ = read_columns(recorded.samples)
    return _opened(recorded.start, recorded.spans, recorded.values, tuple(columns))


def _opened(
    start: Start, spans: tuple[Span, ...], values: tuple[Value, ...], columns: tuple[Column, ...]
) -> Opened:
    return Opened(start, spans, streams(start, spans, values, columns))
