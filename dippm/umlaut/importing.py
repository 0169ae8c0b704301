"""Import a database of UMLAUT as folders of runs, with its values and times."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dippm.errors import RunError, shortened
from dippm.measure.readings import Quantity, Readings
from dippm.measure.sampler_writer import Writer
from dippm.runs.store.folder import RunFolder, spool
from dippm.runs.store.record import End, Moment, Span, Start, Value
from dippm.umlaut.database import LONGEST_TEXT, DatabaseRow, moment, read_database
from dippm.umlaut.descriptions import DESCRIPTIONS, KINDS, TYPES, LoggedNames

MOST_RUNS = 10_000
"""Most runs of a database, each of which becomes a folder."""
MOST = {"memory", "gpumemory"}
"""Sampled kinds whose value is the maximum; that of the others is the mean."""
SOURCE = "umlaut"
DATABASE = "umlaut.database"
"""Tag of an imported run: the name of the database."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import.

    Attributes:
        folders: folders of the runs that were written now.
        already: folders of runs that existed before.
        measurements: number of rows that were written now.
        notes: descriptions of unreadable parts.
    """

    folders: tuple[Path, ...]
    already: tuple[Path, ...]
    measurements: int
    notes: tuple[str, ...]


def import_database(path: Path, root: Path | None = None, *, store: str = "") -> ImportResult:
    """Write every run of a database of UMLAUT to its own folder; the database is not changed.

    Args:
        path: path of the database.
        root: parent of the folders, by default the spool.
        store: address of the store that they are meant for.

    Raises:
        RunError: if it is not a database of UMLAUT, or is unreadable.
        OSError: if a folder cannot be written.
    """
    database = read_database(path)
    by_run: dict[str, list[DatabaseRow]] = {uuid: [] for uuid in database.runs}
    for row in database.measurements:
        by_run.setdefault(row.uuid, []).append(row)
    if len(by_run) > MOST_RUNS:
        raise RunError(
            f"{path} has measurements of {len(by_run):,} runs",
            f"Split it: at most {MOST_RUNS:,} are imported at once.",
        )
    notes = list(database.notes)
    strangers = [uuid for uuid in by_run if uuid not in database.runs]
    notes += [f"run {shortened(uuid)} has measurements and no metadata" for uuid in strangers[:20]]
    offset_ns = time.time_ns() - time.monotonic_ns()
    folders, already, count = [], [], 0
    for uuid, rows in by_run.items():
        start = _start(uuid, database.runs.get(uuid, {}), rows, path, offset_ns, store)
        try:
            folders.append(_write(start, rows, root, offset_ns))
            count += len(rows)
        except FileExistsError:
            already.append((root or spool()) / start.uuid)
    return ImportResult(tuple(folders), tuple(already), count, tuple(notes))


def _start(
    uuid: str,
    about: Mapping[str, Any],
    rows: Sequence[DatabaseRow],
    path: Path,
    offset_ns: int,
    store: str,
) -> Start:
    began = moment(about.get("start")) or next((row.at for row in rows if row.at), None)
    wall_ns = _wall_ns(began) if began else 0
    digits = uuid.replace("-", "").lower()
    if len(digits) != 32 or set(digits) - set("0123456789abcdef"):
        digits = hashlib.sha256(uuid.encode()).hexdigest()[:32]
    tags = {
        DATABASE: path.name,
        "umlaut.uuid": uuid,
        "umlaut.start_time": str(about.get("start") or "")[:LONGEST_TEXT],
        DESCRIPTIONS: json.dumps(_descriptions(rows)),
    }
    if logged := _logged(rows).said:
        tags[TYPES] = json.dumps(logged)
    return Start(
        uuid=digits,
        name=str(about.get("name") or path.stem)[:LONGEST_TEXT],
        experiment=path.stem,
        at=Moment(wall_ns - offset_ns, wall_ns),
        description=str(about.get("description") or "")[:LONGEST_TEXT],
        tags=tags,
        store=store,
    )


def _write(start: Start, rows: Sequence[DatabaseRow], root: Path | None, offset_ns: int) -> Path:
    folder = RunFolder.create(start, root)
    about = json.loads(start.tags[DESCRIPTIONS])
    fallback_ns = last_ns = start.at.monotonic_ns
    series: dict[str, list[tuple[int, float]]] = {}
    for call in _calls(rows):
        span, found = _span(call, about, offset_ns, fallback_ns)
        folder.span(span)
        last_ns = max(last_ns, span.end_ns or 0)
        for name, points in found.items():
            series.setdefault(name, []).extend(points)
    logged = _logged(rows)
    for row in rows:
        if _is_value(row):
            at_ns = _at_ns(row, offset_ns, fallback_ns)
            folder.value(_value(row, at_ns, logged))
            last_ns = max(last_ns, at_ns)
    _write_series(folder.path, series)
    folder.end(End("finished", Moment(last_ns, last_ns + offset_ns)))
    folder.close()
    return folder.path


def _is_value(row: DatabaseRow) -> bool:
    """Return whether a row is a tracker's value, and not a metric of a call."""
    return row.type in KINDS or not (_is_number(row.data) or _is_sampled(row.data))


def _is_number(data: Any) -> bool:
    return isinstance(data, int | float) and not isinstance(data, bool)


def _is_sampled(data: Any) -> bool:
    parts = ("timestamps", "measurements")
    return isinstance(data, dict) and all(isinstance(data.get(part), list) for part in parts)


def _logged(rows: Iterable[DatabaseRow]) -> LoggedNames:
    names = LoggedNames()
    for row in rows:
        if _is_value(row) and row.type not in KINDS:
            names.name(row.description, row.type)
    return names


def _value(row: DatabaseRow, at_ns: int, logged: LoggedNames) -> Value:
    data = row.data
    if row.type == "hyperparameters" and isinstance(data, dict) and "df" in data:
        data = {**{k: v for k, v in data.items() if k != "df"}, "columns": data["df"]}
    if isinstance(data, dict) and set(data) == {"accuracies"}:
        data = data["accuracies"]
    kind = KINDS.get(row.type, "metric")
    name = row.description if row.type in KINDS else logged.name(row.description, row.type)
    return Value(name, kind, data, at_ns, row.unit, row.method)


def _descriptions(rows: Iterable[DatabaseRow]) -> dict[str, Any]:
    """Return the descriptions of each function's metrics, as `rows_of` reads them."""
    found: dict[str, Any] = {}
    for row in rows:
        if _is_value(row):
            continue
        name = _metric_name(row)
        about = {"type": row.type, "unit": row.unit, "description": row.description, "name": name}
        if _is_sampled(row.data):
            about |= {"series": name, "reducer": "max" if row.type in MOST else "mean"}
        found.setdefault(_call_name(row), {})[name] = about
    return found


def _metric_name(row: DatabaseRow) -> str:
    same = row.description in ("", row.type)
    return f"{SOURCE}.{row.type}" if same else f"{SOURCE}.{row.type} {row.description}"


def _call_name(row: DatabaseRow) -> str:
    return row.method or row.description or row.type


def _calls(rows: Iterable[DatabaseRow]) -> Iterator[list[DatabaseRow]]:
    """Yield the rows of each call: UMLAUT logged all metrics of a call together."""
    call: list[DatabaseRow] = []
    for row in rows:
        if _is_value(row):
            continue
        known = {_metric_name(other) for other in call}
        if call and (_call_name(row) != _call_name(call[0]) or _metric_name(row) in known):
            yield call
            call = []
        call.append(row)
    if call:
        yield call


def _span(
    call: Sequence[DatabaseRow], about: Mapping[str, Any], offset_ns: int, fallback_ns: int
) -> tuple[Span, dict[str, list[tuple[int, float]]]]:
    """Return the span of a call and its series; it starts at the start of its first metric."""
    end_ns = max(_at_ns(row, offset_ns, fallback_ns) for row in call)
    starts, values, series = [end_ns], {}, {}
    for row in call:
        name = _metric_name(row)
        if _is_sampled(row.data):
            points = _points(row.data, offset_ns)
            series[name] = points
            starts += [at for at, _ in points[:1]]
            end_ns = max([end_ns, *(at for at, _ in points)])
            continue
        values[name] = float(row.data)
        if row.type == "time":
            starts.append(_at_ns(row, offset_ns, fallback_ns) - round(row.data * 1e9))
    first = call[0]
    asked = {about_it["name"] for about_it in about.get(_call_name(first), {}).values()}
    present = {*values, *(name for name, points in series.items() if points)}
    absent = dict.fromkeys(sorted(asked - present), "UMLAUT has no value of this call")
    span = Span(first.id, _call_name(first), min(starts), end_ns, values=values, absent=absent)
    return span, series


def _points(data: Mapping[str, Any], offset_ns: int) -> list[tuple[int, float]]:
    points = []
    for written, value in zip(data["timestamps"], data["measurements"], strict=False):
        at = moment(written)
        if at is not None and _is_number(value):
            points.append((_wall_ns(at) - offset_ns, float(value)))
    return points


def _write_series(folder: Path, series: Mapping[str, list[tuple[int, float]]]) -> None:
    """Write series in the sampler's format, one file each."""
    for number, (name, points) in enumerate(series.items()):
        source = _ImportedSource(name)
        writer = Writer(folder / f"samples-umlaut-{number}.dippm", [source], {"pid": 0, "hz": 0})
        for at_ns, value in sorted(points):
            writer.add(0, Readings(at_ns, {source.quantities[0].name: value}))
        writer.close({"end": "imported"})


class _ImportedSource:
    """A source for the readings that UMLAUT recorded."""

    def __init__(self, series: str) -> None:
        self.name, _, quantity = series.partition(".")
        about = "as UMLAUT measured it"
        self.quantities = (Quantity(quantity, "", "process", about),)

    def read(self) -> Readings:
        raise NotImplementedError

    def close(self) -> None:
        pass


def _at_ns(row: DatabaseRow, offset_ns: int, fallback_ns: int) -> int:
    return fallback_ns if row.at is None else _wall_ns(row.at) - offset_ns


def _wall_ns(at: datetime) -> int:
    """Return nanoseconds since 1970 of a time (local if it has no zone), to the microsecond."""
    whole = at.replace(microsecond=0)
    return int(whole.timestamp()) * 1_000_000_000 + at.microsecond * 1000


# Imported runs, attached to a store.


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
