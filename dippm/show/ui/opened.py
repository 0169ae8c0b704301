"""`Opened`: a run whose samples were read, from the store or from its folder while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dippm.errors import DippmError
from dippm.runs.store.columns import Column, read_columns
from dippm.runs.store.folder import RecordedRun
from dippm.runs.store.record import End, Span, Start, Value
from dippm.runs.store.stored_run import StoredRun
from dippm.runs.store.summary import Summary, summarise
from dippm.show.ui.streams import Stream, streams


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
        return 24 * samples + 500 * len(self.spans) + 10_000


@dataclass(frozen=True, slots=True)
class Record:
    """All that a page about one run tells, without its samples.

    Attributes:
        start: how it started.
        end: how it ended, None while it goes on.
        spans: in the order of their ids.
        values: that it told, in their order.
        summaries: of series, by name; those that could not be had with the reason.
        artifacts: paths of files that it told of.
        remarks: what went wrong beside it.
        comparison: with what was predicted, as `RunComparison.to_dict` gives it; None without.
        comparison_reason: why there is none, "" if there is one or nothing was predicted.
    """

    start: Start
    end: End | None
    spans: tuple[Span, ...]
    values: tuple[Value, ...]
    summaries: Mapping[str, Summary]
    artifacts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    comparison: Mapping[str, Any] | None = None
    comparison_reason: str = ""


def record_of_store(run: StoredRun) -> Record:
    """Read what a page tells of a run of the store, and hold it against its prediction.

    Raises:
        RunError: if it is damaged.
        StoreError: if the store cannot be read.
    """
    run = replace(run)
    comparison, reason = run.comparison, ""
    if comparison is None and run.prediction is not None:
        from dippm.runs.tracking.run_comparison import compare_run

        try:
            comparison = compare_run(run).to_dict()
        except DippmError as error:
            reason = str(error)
        except (KeyError, TypeError, ValueError) as error:  # of another program, or by hand
            reason = f"the prediction beside it cannot be read: {type(error).__name__}: {error}"
    return Record(
        run.start,
        run.end,
        run.spans,
        run.values,
        dict(run.summaries),
        run.artifacts,
        run.remarks,
        comparison,
        reason,
    )


def record_of_folder(recorded: RecordedRun) -> Record:
    """Read what a page tells of a run that no store has yet."""
    columns, _ = read_columns(recorded.samples)
    found = {column.series: summarise(column) for column in columns}
    waits = "it is held against its prediction when it has ended and stands in the store"
    reason = waits if recorded.start.prediction is not None else ""
    ends = recorded.start, recorded.end, recorded.spans, recorded.values
    return Record(*ends, found, comparison_reason=reason)


def opened_of_store(run: StoredRun) -> Opened:
    """Read a run of the store.

    Raises:
        RunError: if it is damaged.
        StoreError: if the store cannot be read.
    """
    run = replace(run)  # what it reads goes with it, and does not stay with the list it stands in
    return _opened(run.start, run.spans, run.values, run.columns)


def opened_of_folder(recorded: RecordedRun) -> Opened:
    """Read a run that goes on, as far as it is written."""
    columns, _ = read_columns(recorded.samples)
    return _opened(recorded.start, recorded.spans, recorded.values, tuple(columns))


def _opened(
    start: Start, spans: tuple[Span, ...], values: tuple[Value, ...], columns: tuple[Column, ...]
) -> Opened:
    return Opened(start, spans, streams(start, spans, values, columns))
