"""Every published error beside that of an earlier checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dippm.estimate.pretrained.store import METRICS

KEY = ("gpu", "target", "data", "split")
ERRORS = ("n", "median_ape", "mape")
SINCE = "errors since"
"""First words of the table's title."""


def regression_table(
    earlier: Path, summary: Sequence[Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return a table for `metrics.json`: each row's errors, in percent, before and now.

    Args:
        earlier: folder of the earlier checkpoint, `<name>/<version>`.
        summary: the "summary" of the new metrics; n counts test rows.

    Returns:
        Title → rows. A row that one of the two lacks has None there.

    Raises:
        FileNotFoundError: if the folder has no metrics.
    """
    before = {
        _key(row): row
        for row in json.loads((earlier / METRICS).read_text(encoding="utf-8"))["summary"]
    }
    after = {_key(row): row for row in summary}
    rows = [
        {
            **dict(zip(KEY, key, strict=True)),
            **{
                f"{name} {when}": _rounded(found.get(key, {}).get(name))
                for name in ERRORS
                for when, found in (("before", before), ("now", after))
            },
        }
        for key in dict.fromkeys((*after, *before))
    ]
    return {f"{SINCE} {earlier.name}, percent": rows}


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def _rounded(value: float | None) -> float | None:
    return round(value, 2) if isinstance(value, float) else value
