"""Attach folders of runs to a store, and read rows from it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.errors import RunError

if TYPE_CHECKING:
    from dippm.measure.readings import Absent
    from dippm.runs.store.stored_run import StoredRun
    from dippm.umlaut.rows import CallRow, SampledSeries

MOST_RUNS = 1000
DATABASE = "umlaut.database"
"""Tag of an imported run: the name of the database."""


def attach_now(folders: Iterable[Path], store: str | None) -> tuple[int, str]:
    """Attach folders to a store; return their number, and why others are still waiting."""
    from dippm.runs.store.attach import attach

    count = 0
    for folder in folders:
        try:
            attach(folder, store)
        except RunError as error:
            return count, f"{error.message}. {error.hint}".strip()
        count += 1
    return count, ""


def attach_again(folders: Iterable[Path], store: str | None) -> tuple[int, str]:
    """Attach imported runs to a store that lacks them; return the same as `attach_now`.

    A run that waits for another store goes there first. A run with the same uuid that was not
    imported is left alone.
    """
    from dippm.runs.store.attach import attached_to
    from dippm.runs.store.folder import read_folder
    from dippm.runs.store.location import locate_store

    count = 0
    for folder in folders:
        try:
            asked, there = locate_store(store).shown(), attached_to(folder)
            start = read_folder(folder).start
            if there == asked or DATABASE not in start.tags:
                continue
            waits = start.store and not there and locate_store(start.store).shown() != asked
            for address in (start.store, store) if waits else (store,):
                _, waiting = attach_now([folder], address)
                if waiting:
                    return count, waiting
        except RunError as error:
            return count, f"{error.message}. {error.hint}".strip()
        count += 1
    return count, ""


def stored_rows(store: str, uuid: str = "") -> list[CallRow]:
    """Attach the runs that wait in the spool, and return the rows of runs in a store.

    Args:
        store: address of the store.
        uuid: uuid of one run or its prefix; "" for all.

    Raises:
        StoreError: if the store cannot be read.
        RunError: if there is no such run.
    """
    from dippm.runs.store.attach import attach_all
    from dippm.runs.store.runs import open_store
    from dippm.umlaut.rows import rows_of

    attach_all()
    opened = open_store(store)
    runs = [opened.run(uuid.replace("-", ""))] if uuid else opened.runs(limit=MOST_RUNS)
    return [
        row
        for run in reversed(runs)
        for row in rows_of(run.start, run.spans, run.values, _read_series(run))
    ]


def call_values(
    run: StoredRun, functions: Iterable[str], metric: str
) -> dict[str, list[float | Absent]]:
    """Return a metric of each call of some functions; a sampled one as its value per call.

    Args:
        run: run in a store.
        functions: names of the spans.
        metric: name as in `MeasuredCalls.metrics`; calls without it are left out.
    """
    from dippm.umlaut.rows import MeasuredCalls

    calls = MeasuredCalls(run.start)
    found: dict[str, list[float | Absent]] = {function: [] for function in functions}
    sampled: dict[tuple[str, str], SampledSeries] = {}
    for series in {calls.series(function, metric) for function in found} - {""}:
        sampled |= _read_series(run, series)
    for span in run.spans:
        value = calls.value(span, metric, sampled) if span.name in found else None
        if value is not None:
            found[span.name].append(value)
    return found


def _read_series(run: StoredRun, series: str = "") -> dict[tuple[str, str], SampledSeries]:
    """Return the readings of all series of a run, or of one series on all devices."""
    from dippm.umlaut.rows import SampledSeries

    found = {}
    for column in run.columns:
        source, _, quantity = column.series.partition(".")
        source, _, device = source.partition(":")  # present if there are several devices
        if series not in ("", f"{source}.{quantity}"):
            continue
        pairs = zip(column.time_ns.tolist(), column.values.tolist(), strict=True)
        there = [(at, value) for at, value in pairs if value == value]
        reason = column.reasons[-1][1] if column.reasons else ""
        readings = SampledSeries([at for at, _ in there], [value for _, value in there], reason)
        found[f"{source}.{quantity}", device] = readings
    return found
