"""Common parts of the manifests of both builds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd


def counts_of(models: pd.DataFrame) -> dict[str, int]:
    """Return the number of described models, and their totals."""
    return {
        "models": len(models),
        "models_with_graph": int(models["arch_id"].notna().sum()),
        "architectures": int(models["arch_id"].nunique()),
        "families_present": int(models["family_id"].nunique()),
    }


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, document: Any) -> None:
    """Write a document as indented JSON."""
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
