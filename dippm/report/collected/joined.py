"""What `dataset.build_collected` adds to a collected set: graphs and totals of its models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dippm.errors import DippmError

USUAL = Path("build/collected")


@dataclass(frozen=True, slots=True)
class Joined:
    """Models of a set by name; both mappings are empty if nothing was joined.

    Attributes:
        graphs: file of the raw graph by model.
        totals: "macs_per_sample", "param_bytes" and others by model.
    """

    graphs: Mapping[str, Path] = field(default_factory=dict)
    totals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_joined(folder: Path | None, collected: Path) -> Joined:
    """Read what was joined.

    Args:
        folder: that `dataset.build_collected` wrote; None takes "build/collected/<name>" if that
            was made from this very collected folder.
        collected: folder of the collector.

    Raises:
        DippmError: if a folder was named that holds nothing joined.
    """
    place = folder or USUAL / collected.resolve().name
    try:
        manifest = json.loads((place / "manifest.json").read_bytes())
        files = json.loads((place / "graphs.json").read_bytes())
        lines = (place / "models.jsonl").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        if folder is None:
            return Joined()
        raise DippmError(
            f"{folder} holds nothing joined: {error}",
            "Give the folder that `python -m dataset.build_collected DIR --out FOLDER` wrote.",
        ) from error
    if folder is None and Path(manifest["folder"]) != collected.resolve():
        return Joined()
    records = [json.loads(line) for line in lines]
    totals = {record["model"]: record for record in records if record.get("arch_id")}
    return Joined({model: Path(file) for model, file in files.items()}, totals)
