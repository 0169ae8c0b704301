"""Readers of a collected set: `collected` reads its rows, `read_joined` the graphs of its models.

If the writer was killed in the middle of a line of the journal, only that line is lost, and
`Collected.notes` reports it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import DippmError, shortened
from dippm.measure.collected import DamagedRowsError, RowReaderNotInstalledError, RowsNotFoundError
from dippm.measure.collected.journal import NAME as JOURNAL
from dippm.measure.collected.journal import read_campaigns, read_journal
from dippm.measure.collected.shards import read_shard, shards
from dippm.measure.columns import COLUMNS, SCHEMA_VERSION

if TYPE_CHECKING:
    import pandas as pd

    from dippm.model.graph import ModelGraph

NAMES = tuple(column.name for column in COLUMNS)
NUMBERS = tuple(column.name for column in COLUMNS if column.kind in ("integer", "real"))


@dataclass(frozen=True, slots=True)
class Collected:
    """The contents of a collected set.

    Attributes:
        folder: folder that was read.
        rows: table with one row per row id in the order of measurement, with the columns of
            `dippm.measure.columns`; JSON columns hold Python objects.
        campaigns: contents of the campaign files, oldest first.
        files: names of the shards, and of the journal if it has rows that no shard has.
        notes: problems of the files, as text.
    """

    folder: Path
    rows: pd.DataFrame
    campaigns: tuple[Mapping[str, Any], ...]
    files: tuple[str, ...]
    notes: tuple[str, ...]


def collected(folder: Path) -> Collected:
    """Read a folder of the collector.

    Raises:
        RowsNotFoundError: if there are no rows.
        RowReaderNotInstalledError: if pandas or pyarrow is missing.
        DamagedRowsError: if a shard is damaged.
        DippmError: if a row has a newer schema than this version.
    """
    _check_libraries()
    journal, damaged = read_journal(folder / JOURNAL)  # first: its rows may move to a shard
    files = shards(folder)
    records = [record for path in files for record in _check_types(path, read_shard(path))]
    journal = _check_types(folder / JOURNAL, journal)
    campaigns, notes = read_campaigns(folder)
    if damaged:
        notes.insert(0, f"{len(damaged)} broken lines of the journal were left out")
    unique = {str(record["row_id"]): record for record in [*records, *journal]}
    if not unique:
        raise RowsNotFoundError(
            f"no measured rows in {folder}",
            "Give a folder that `python -m dataset.collect --out DIR` has written.",
        )
    repeated = len(records) - len({record["row_id"] for record in records})
    if repeated:
        notes.append(f"{repeated} rows stand in the shards twice; each was read once")
    names = [path.name for path in files]
    if set(unique) - {str(record["row_id"]) for record in records}:
        names.append(JOURNAL)
    return Collected(folder, frame(unique.values()), campaigns, tuple(names), tuple(notes))


def _check_types(path: Path, records: list[Any]) -> list[dict[str, Any]]:
    """Return the records of a file after checking the type of each value.

    Raises:
        DamagedRowsError: if a value has the wrong type, naming row and column.
    """
    hint = "Move the file away to go on without its rows."
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict) or not isinstance(record.get("row_id"), str):
            raise DamagedRowsError(f"{path}: row {number} has no row_id", hint)
        for column in COLUMNS:
            value = record.get(column.name)
            if value is not None and not _TYPE_CHECKS[column.kind](value):
                what = f"{column.name} is {shortened(repr(value))}"
                raise DamagedRowsError(f"{path}: row {number}: {what}", hint)
    return records


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < _LARGEST
    return isinstance(value, float)


_LARGEST = 2**63
_TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "flag": lambda value: isinstance(value, bool),
    "integer": _is_number,
    "real": _is_number,
    "texts": lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value),
    "integers": lambda value: isinstance(value, list) and all(map(_is_number, value)),
    "reals": lambda value: isinstance(value, list) and all(map(_is_number, value)),
    "json": lambda value: True,
}


def frame(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table with exactly the columns of `dippm.measure.columns`.

    Raises:
        DippmError: if a row has a newer schema than this version.
    """
    import pandas as pd

    rows = [{name: record.get(name) for name in NAMES} for record in records]
    newest = max((row["schema_version"] or 0 for row in rows), default=0)
    if newest > SCHEMA_VERSION:
        raise DippmError(
            f"the rows have schema {newest}, this version reads up to {SCHEMA_VERSION}",
            "Upgrade DIPPM.",
        )
    table = pd.DataFrame(rows, columns=list(NAMES)).astype("object")
    table = table.where(table.notna(), None)
    for name in NUMBERS:
        table[name] = pd.to_numeric(table[name])
    return table.sort_values("measured_at", kind="stable").reset_index(drop=True)


def _check_libraries() -> None:
    missing = [name for name in ("pandas", "pyarrow") if find_spec(name) is None]
    if missing:
        raise RowReaderNotInstalledError(
            f"reading measured rows needs {' and '.join(missing)}",
            "Install what reports need: pip install 'dippm[report]'.",
        )


# Result of joining a set with graphs: graphs and totals by model.


GRAPHS, MODELS, MANIFEST = "graphs.json", "models.jsonl", "manifest.json"
"""File of a graph by model; one line for each model; what was left out and why."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Graphs and totals of the models of a set; empty if nothing was joined.

    Attributes:
        graphs: file with the raw graph, by model.
        totals: "macs_per_sample", "param_bytes" and others, by model.
    """

    graphs: Mapping[str, Path] = field(default_factory=dict)
    totals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def read_graph(self, model: str) -> ModelGraph | None:
        """Return the graph of a model; None if none was joined or its file is damaged."""
        from dippm.model.graph import build
        from dippm.model.relax.raw_graph import RawGraph, unpack

        file = self.graphs.get(model)
        if file is None:
            return None
        try:
            return build(RawGraph.from_json(unpack(file.read_bytes())))
        except (DippmError, OSError, ValueError):
            return None


def read_joined(folder: Path | None) -> Joined:
    """Read a joined folder.

    Args:
        folder: folder written by `dataset.build_collected`; None without one.

    Raises:
        DippmError: if the folder holds no joined set.
    """
    if folder is None:
        return Joined()
    try:
        files = json.loads((folder / GRAPHS).read_bytes())
        lines = (folder / MODELS).read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise DippmError(
            f"{folder} holds nothing joined: {error}",
            "Give the folder that `python -m dataset.build_collected DIR --out FOLDER` wrote.",
        ) from error
    totals = {record["model"]: record for record in records if record.get("arch_id")}
    return Joined({model: Path(file) for model, file in files.items()}, totals)
