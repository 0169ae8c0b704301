"""Campaign files: the request of each start of the collector, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dippm.measure.collected.journal import write_whole

FOLDER = "campaigns"


def write_campaign(folder: Path, name: str, document: Mapping[str, Any]) -> Path:
    """Write the file of a campaign, replacing an earlier one.

    Raises:
        OSError: if it cannot be written.
    """
    path = folder / FOLDER / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())
    return path


def read_campaigns(folder: Path) -> tuple[tuple[Mapping[str, Any], ...], list[str]]:
    """Return the campaigns of a set, oldest first, and the names of unreadable files."""
    found, notes = [], []
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            found.append({"campaign": path.stem, **json.loads(path.read_bytes())})
        except (TypeError, ValueError):
            notes.append(f"{FOLDER}/{path.name} cannot be read")
    return tuple(found), notes


def mark_killed(folder: Path, statuses: Mapping[str, Mapping[str, int]]) -> None:
    """Mark campaigns without an end as killed, and count their rows.

    Their file dates from their start or first row, so the rows since then are subtracted from what
    it lists as left.

    Args:
        folder: folder of the set; its lock must be held, so that no campaign can be running.
        statuses: number of rows by campaign and status.

    Raises:
        OSError: if a file cannot be written.
    """
    for campaign in read_campaigns(folder)[0]:
        if campaign.get("ended") == "running":
            name = campaign["campaign"]
            found = dict(statuses.get(name, {}))
            rows = sum(found.values())
            left = campaign.get("left", 0) + campaign.get("rows", 0) - rows
            ended = {"ended": "killed", "statuses": found, "rows": rows, "left": max(0, left)}
            write_campaign(folder, name, {**campaign, **ended})
