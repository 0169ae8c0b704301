"""Collected rows + graphs → one training table per device, its splits and its manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from dataset.collected.exclusions import exclusions
from dataset.collected.rows import LICENCE, as_table
from dataset.join import raw_graphs, splits
from dataset.join.grouping import family_version
from dataset.join.manifest import counts_of, sha256_of_file, write_json
from dataset.join.models import TOTALS, describe_all, join
from dippm.measure.collected.labels import noise_floor
from dippm.measure.collected.rows import GRAPHS, MANIFEST, MODELS, Collected, collected
from dippm.model.graph.model_graph import GRAPH_VERSION

NESTED = ("parameters", "sizes", "absent", "throttle_reasons", "libraries", "flags")
FOLDS_OF_FAMILIES = 5
FEWEST_GROUPS = 2


def build(folder: Path, graphs: Path, out: Path, workers: int = 1) -> dict[str, Any]:
    """Join a collected folder with graphs; return the manifest.

    Raises:
        RowsNotFoundError: if the folder has no rows.
    """
    found = collected(folder)
    rows = found.rows
    reasons = exclusions(rows)
    usable = as_table(rows[reasons.isna()], f"own/{folder.resolve().name}")
    specs = list(dict.fromkeys(usable["model"].dropna()))
    convert(specs, graphs, workers)
    out.mkdir(parents=True, exist_ok=True)
    described = list(describe_all(specs, graphs, out / MODELS, workers))
    models = pd.DataFrame(described, columns=_columns_of(described))
    table = join(usable[usable["model"].notna()], models)
    _as_text(table).to_parquet(out / "rows.parquet", compression="zstd")
    written = save_splits(table, out / "splits")
    files = {spec: str(raw_graphs.path_of(spec, graphs).resolve()) for spec in table["model"]}
    write_json(out / GRAPHS, files)
    document = manifest(found, reasons, models, table) | {"splits": written}
    write_json(out / MANIFEST, document)
    return document


def convert(specs: list[str], graphs: Path, workers: int) -> None:
    """Convert models without a raw graph, with progress on a terminal."""
    from rich.console import Console
    from rich.progress import track

    outcomes = raw_graphs.build(specs, graphs, workers)
    talk = Console(stderr=True)
    for _ in track(outcomes, total=len(specs), description="graphs", console=talk):
        pass


def save_splits(table: pd.DataFrame, folder: Path) -> list[dict[str, Any]]:
    """Write the splits of each phase; return their names, sizes and SHA-256.

    A phase with too few architectures or families for a split has none, with a message.
    """
    written = []
    for phase, part in table.groupby("phase"):
        rows = part.sort_values("row_id").reset_index(drop=True)
        for name, make, groups in _standard(rows):
            about: dict[str, Any] = {"phase": phase, "split": name}
            if groups < FEWEST_GROUPS:
                written.append({**about, "absent": f"only {groups} group to hold out"})
                continue
            split = make()
            path = folder / str(phase) / f"{name}.json"
            about |= {"folds": len(split.folds), "rows": len(rows), "sha256": split.save(path)}
            written.append(about)
    return written


def manifest(
    found: Collected, reasons: pd.Series[str], models: pd.DataFrame, table: pd.DataFrame
) -> dict[str, Any]:
    """Return the manifest: sources, exclusions with reasons, and the noise floor."""
    rows = found.rows
    failed = models[models["arch_id"].isna()] if "error" in models else models.iloc[:0]
    usable = rows[reasons.isna()]
    without = usable["model"].isin(failed["model"]) & (usable["kind"] == "model")
    floors, absent = noise_floor(rows)
    failures = rows[~rows["status"].isin(["ok"])]
    return {
        "schema": 1,
        "folder": str(found.folder.resolve()),
        "graph_version": GRAPH_VERSION,
        "families": family_version(),
        "licence": LICENCE,
        "devices": sorted(rows["device"].dropna().unique()),
        "campaigns": sorted(rows["campaign"].dropna().unique()),
        "files": {
            name: sha256_of_file(found.folder / name)
            for name in found.files
            if name.startswith("shard-")
        },
        "notes": list(found.notes),
        "rows": len(rows),
        "rows_by_status": rows["status"].value_counts().to_dict(),
        "rows_joined": len(table),
        "rows_of_operators": int((usable["kind"] == "operator").sum()),
        **counts_of(models),
        "excluded": [
            *({"reason": r, "rows": int(n)} for r, n in reasons.value_counts().items()),
            *([{"reason": "no graph", "rows": int(without.sum())}] if without.any() else []),
        ],
        "failures": _count_rows(failures, ["status", "reason"]),
        "models_without_graph": dict(zip(failed["model"], failed.get("error", ()), strict=False)),
        "noise_floor": [floor.to_dict() for floor in floors],
        "noise_floor_absent": dict(absent),
    }


def _standard(rows: pd.DataFrame) -> Iterable[tuple[str, Any, int]]:
    """Yield name, maker and number of groups of each standard split."""
    architectures, families = rows["arch_id"].nunique(), rows["family_id"].nunique()
    several = f"S2-{FOLDS_OF_FAMILIES}"
    yield "S0", lambda: splits.random_split(rows), len(rows)
    yield "S1", lambda: splits.by_architecture(rows), architectures
    yield "S2", lambda: splits.family_out(rows), families
    yield several, lambda: splits.family_out(rows, FOLDS_OF_FAMILIES), families


def _columns_of(described: list[dict[str, Any]]) -> list[str]:
    names = ["model", "arch_id", "family_id", *TOTALS]
    return list(dict.fromkeys([*names, *(key for record in described for key in record)]))


def _as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with nested values as JSON text, the form in Parquet files."""
    nested = [name for name in NESTED if name in table]
    return table.assign(**{name: table[name].map(_json) for name in nested})


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True)


def _count_rows(rows: pd.DataFrame, columns: list[str]) -> list[dict[str, Any]]:
    counts = rows.fillna({"reason": "no reason recorded"}).groupby(columns).size()
    ordered = counts.sort_values(ascending=False)
    return [{**dict(zip(columns, key, strict=True)), "rows": int(n)} for key, n in ordered.items()]
