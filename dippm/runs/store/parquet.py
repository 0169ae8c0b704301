"""Raw samples as Parquet: one file per source, readable by any Parquet reader.

    <source>.parquet   time_ns, and one column per quantity, null where absent
    absent.parquet     series, time_ns, reason: start of each absence, and its reason

Quantities of a source mostly share their times, so a sample costs only its value. Quantities that
were read at other times are in separate files, <source>_1.parquet and so on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import RunError
from dippm.runs.store.columns import Column

if TYPE_CHECKING:
    import pyarrow

ABSENT = "absent.parquet"
ABOUT = b"dippm"


def write_samples(columns: Iterable[Column], folder: Path) -> None:
    """Write columns to a new folder.

    Raises:
        OSError: if it cannot be written.
    """
    import numpy as np
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    columns = list(columns)
    taken = {ABSENT.removesuffix(".parquet")}
    for of_it in _of_equal_times(columns):
        source = of_it[0].source
        names = [column.series.partition(".")[2] for column in of_it]
        arrays = [_numbers(column.values, nulls=True) for column in of_it]
        table = pyarrow.table([_numbers(of_it[0].time_ns), *arrays], ["time_ns", *names])
        about = {
            "source": source,
            "quantities": {
                name: {"unit": column.unit, "scope": column.scope, "counter": column.counter}
                for name, column in zip(names, of_it, strict=True)
            },
        }
        parquet.write_table(
            table.replace_schema_metadata({ABOUT: json.dumps(about)}),
            folder / f"{_file_name(source, taken)}.parquet",
            compression="zstd",
            use_dictionary=False,
            column_encoding={
                "time_ns": "DELTA_BINARY_PACKED",
                **dict.fromkeys(names, "BYTE_STREAM_SPLIT"),
            },
        )
    reasons = [(column.series, at, why) for column in columns for at, why in column.reasons]
    parquet.write_table(
        pyarrow.table(
            [
                _texts([series for series, _, _ in reasons]),
                _numbers(np.array([at for _, at, _ in reasons], np.int64)),
                _texts([why for _, _, why in reasons]),
            ],
            ["series", "time_ns", "reason"],
        ),
        folder / ABSENT,
        compression="zstd",
    )


def _numbers(values: Any, *, nulls: bool = False) -> pyarrow.Array:
    """Return numbers as an Arrow array without copying, NaN as null on request.

    `pyarrow.array` would import pandas to recognise its types, which takes longer than writing a
    run.
    """
    import numpy as np
    import pyarrow

    values = np.ascontiguousarray(values)
    there = pyarrow.py_buffer(np.packbits(~np.isnan(values), bitorder="little")) if nulls else None
    kind = pyarrow.from_numpy_dtype(values.dtype)
    return pyarrow.Array.from_buffers(kind, len(values), [there, pyarrow.py_buffer(values)])


def _texts(texts: list[str]) -> pyarrow.Array:
    """Return texts as an Arrow array, without pandas too."""
    import numpy as np
    import pyarrow

    held = [text.encode(errors="replace") for text in texts]
    ends = np.cumsum([0, *map(len, held)], dtype=np.int32)
    buffers = (pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(held)))
    return pyarrow.StringArray.from_buffers(len(held), *buffers)


def read_samples(folder: Path) -> list[Column]:
    """Read columns back.

    Raises:
        RunError: if a file cannot be read.
    """
    from pyarrow import ArrowException, parquet

    columns: list[Column] = []
    try:
        reasons: dict[str, list[tuple[int, str]]] = {}
        if (folder / ABSENT).exists():
            for row in parquet.read_table(folder / ABSENT, use_threads=False).to_pylist():
                reasons.setdefault(row["series"], []).append((row["time_ns"], row["reason"]))
        for file in sorted(folder.glob("*.parquet")):
            if file.name == ABSENT:
                continue
            table = parquet.read_table(file, use_threads=False)
            about = json.loads(table.schema.metadata[ABOUT])
            time_ns = table["time_ns"].to_numpy()
            for name, of_it in about["quantities"].items():
                series = f"{about['source']}.{name}"
                values = table[name].to_numpy().astype("float64", copy=False)
                kind = (of_it["unit"], of_it["scope"], of_it["counter"])
                columns.append(
                    Column(series, *kind, time_ns, values, tuple(reasons.get(series, ())))
                )
    except (OSError, ArrowException, KeyError, ValueError, TypeError) as error:
        hint = "The artifacts of the run are damaged; take them from a copy."
        raise RunError(f"{folder}: the samples cannot be read: {error}", hint) from error
    return columns


def long_table(columns: Iterable[Column]) -> pyarrow.Table:
    """Return one row per sample: series, time_ns, value, and in "absent" the reason for none."""
    import numpy as np
    import pyarrow

    columns = list(columns)
    sizes = [len(column.values) for column in columns]
    values: Any = np.concatenate([c.values for c in columns]) if columns else np.empty(0)
    times: Any = np.concatenate([c.time_ns for c in columns]) if columns else np.empty(0, np.int64)
    index = pyarrow.array(np.repeat(np.arange(len(columns), dtype=np.int32), sizes))
    names = pyarrow.array([column.series for column in columns], pyarrow.string())
    reasons = [reason for column in columns for reason in _reasons(column)]
    return pyarrow.table(
        {
            "series": pyarrow.DictionaryArray.from_arrays(index, names),
            "time_ns": times,
            "value": pyarrow.array(values, from_pandas=True),
            "absent": pyarrow.array(reasons, pyarrow.string()),
        }
    )


def _reasons(column: Column) -> list[str | None]:
    """Return the reason for each missing value."""
    import numpy as np

    missing = np.flatnonzero(np.isnan(column.values))
    found: list[str | None] = [None] * len(column.values)
    places = np.searchsorted(
        [at for at, _ in column.reasons], column.time_ns[missing], side="right"
    )
    for row, place in zip(missing.tolist(), places.tolist(), strict=True):
        found[row] = column.reasons[place - 1][1] if place else "no reason was given"
    return found


def _of_equal_times(columns: Iterable[Column]) -> list[list[Column]]:
    """Return the columns of each source, grouped by equal times."""
    groups: dict[tuple[str, bytes], list[Column]] = {}
    for column in columns:
        groups.setdefault((column.source, column.time_ns.tobytes()), []).append(column)
    return list(groups.values())


def _file_name(source: str, taken: set[str]) -> str:
    """Reserve and return an unused file name; sources of plug-ins may have any name."""
    name = stem = source if source.isidentifier() else "source"
    number = 0
    while name.casefold() in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name.casefold())
    return name
