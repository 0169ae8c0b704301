"""Summary of a collected folder, as text and for `--json`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from dataset.collect.errors import CollectError
from dippm.measure.collected.journal import CAMPAIGNS
from dippm.measure.collected.journal import NAME as JOURNAL
from dippm.measure.collected.labels import why_not_used
from dippm.measure.collected.shards import shards
from dippm.measure.collected.store import read_rows


def status(folder: Path) -> dict[str, Any]:
    """Return counts of rows, files and campaigns.

    Raises:
        CollectError: if the folder does not exist.
        DamagedRowsError: if a shard cannot be read.
    """
    if not folder.is_dir():
        raise CollectError(f"{folder} is no folder", "Name the folder given to --out.")
    rows = list(read_rows(folder))
    files = [*shards(folder), *filter(Path.exists, [folder / JOURNAL])]
    size = sum(path.stat().st_size for path in files)
    return {
        "folder": str(folder),
        "rows": len(rows),
        "configurations": len({row["configuration_id"] for row in rows}),
        "models": len({row["model"] for row in rows}),
        "families": len({row["family"] for row in rows}),
        "statuses": dict(Counter(row["status"] for row in rows).most_common()),
        "labels": dict(Counter(why_not_used(row) or "usable" for row in rows).most_common()),
        "phases": dict(Counter(row["phase"] for row in rows).most_common()),
        "devices": dict(Counter(row["device"] for row in rows if row["device"]).most_common()),
        "bytes_per_row": round(size / len(rows)) if rows else 0,
        "files": [path.name for path in files],
        "campaigns": [_campaign(path) for path in sorted((folder / CAMPAIGNS).glob("*.json"))],
    }


def text(found: dict[str, Any]) -> str:
    """Return the summary as lines."""
    lines = [
        f"{found['folder']}: {found['rows']} rows, {found['configurations']} configurations, "
        f"{found['models']} models, {found['families']} families, {found['bytes_per_row']} B a row",
        *(
            f"  {name}: {_counts(found[name])}"
            for name in ("statuses", "labels", "phases", "devices")
        ),
    ]
    for campaign in found["campaigns"]:
        lines.append(
            f"  {campaign['campaign']} on {campaign['host']}: {campaign['ended']}, "
            f"{campaign['rows']} rows, {campaign['rows_per_minute']}/min, {campaign['left']} left"
        )
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items()) or "none"


def _campaign(path: Path) -> dict[str, Any]:
    wanted = (
        "campaign",
        "host",
        "device",
        "started_at",
        "ended",
        "rows",
        "rows_per_minute",
        "left",
    )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {name: document[name] for name in wanted}
    except (OSError, ValueError, KeyError) as error:
        raise CollectError(
            f"{path} is damaged: {error}", "Move it away; rows are not in it."
        ) from error
