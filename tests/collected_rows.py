"""A made-up collected folder, for tests only: nothing in it was measured."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import random
from pathlib import Path
from typing import Any

import torch

from dataset.families.family import Workload
from dataset.join import raw_graphs
from dataset.plan.configuration import Point, configuration_id
from dippm.measure.columns import COLUMNS, MEASURED
from dippm.model.frontends.frontend import MARKER_BATCHES

DEVICE = "made-up CPU"
WIDTHS, BATCHES = (8, 12, 16, 24, 32), (1, 2, 4, 8)
FAMILIES = ("tinyconv", "tinydeep", "tinymlp")
FAILED = {
    "oom": "CUDA out of memory <script>alert(1)</script>",
    "timeout": "no step within 60 s",
    "crash": "killed by signal 11",
}


def workload(family: str, width: int) -> Workload:
    return Workload(family, {"width": width}, (16,) if family == "tinymlp" else (3, 16, 16))


def module(family: str, width: int) -> torch.nn.Module:
    if family == "tinymlp":
        return torch.nn.Sequential(
            torch.nn.Linear(16, 4 * width), torch.nn.ReLU(), torch.nn.Linear(4 * width, 10)
        )
    depth = 4 if family == "tinydeep" else 1
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, width, 3, padding=1), torch.nn.ReLU()]
    for _ in range(depth):
        layers += [torch.nn.Conv2d(width, width, 3, padding=1), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


def write_graphs(folder: Path) -> None:
    """Convert every model of the made-up set, as `dataset.raw_graphs` would."""
    from dippm.model.relax.torch import ShapeOnlyImporter
    from dippm.model.relax.walk import walk

    folder.mkdir(parents=True, exist_ok=True)
    batch = MARKER_BATCHES[0]
    for family in FAMILIES:
        for width in WIDTHS:
            work = workload(family, width)
            shape = (batch, *work.sizes)
            with torch.no_grad():
                program = torch.export.export(
                    module(family, width).eval(), (torch.zeros(shape),), strict=False
                )
            raw = walk(ShapeOnlyImporter().import_program(program), batch)
            with gzip.open(raw_graphs.path_of(work.model, folder), "wt") as file:
                file.write(raw.to_json())


def rows(*, energy: bool = True, seed: int = 0) -> list[dict[str, Any]]:
    """Return rows of three families: usable ones, repeats, disturbed ones, an operator."""
    rng = random.Random(seed)
    made = []
    for family in FAMILIES:
        for width in WIDTHS:
            for batch in BATCHES:
                made.append(_row(rng, family, width, Point(batch), energy=energy))
    for day, campaign in enumerate(("c1", "c2", "c3"), start=1):
        for batch in BATCHES:
            point = Point(batch, repeat=day)
            repeated = _row(rng, "tinyconv", 8, point, energy=energy, campaign=campaign)
            made.append(repeated | {"measured_at": f"2030-01-0{day}T12:00:00Z"})
    for status, reason in FAILED.items():
        failed = _row(rng, "tinydeep", 32, Point(512), energy=energy, campaign=status)
        empty = dict.fromkeys(MEASURED)
        made.append(failed | empty | {"status": status, "reason": reason, "absent": {}})
    disturbed = _row(rng, "tinymlp", 8, Point(16), energy=energy)
    made.append(disturbed | {"other_processes": 2})
    slowed = _row(rng, "tinymlp", 8, Point(32), energy=energy)
    made.append(slowed | {"throttle_reasons": ["sw_thermal_slowdown"]})
    capped = _row(rng, "tinymlp", 8, Point(64), energy=energy)
    made.append(capped | {"throttle_reasons": ["sw_power_cap"]})
    operator = _row(rng, "tinymlp", 8, Point(128), energy=energy)
    made.append(operator | {"kind": "operator", "family": "dense", "model": "own:dense(k=8)@8"})
    return made


def write(folder: Path, records: list[dict[str, Any]], *, in_journal: int = 3) -> Path:
    """Write a folder: two shards, the last rows in the journal, whose last line is cut off."""
    import pyarrow as pa
    from pyarrow import parquet

    (folder / "campaigns").mkdir(parents=True, exist_ok=True)
    nested = {column.name for column in COLUMNS if column.kind == "json"}
    flat = [
        {k: json.dumps(v) if k in nested and v is not None else v for k, v in record.items()}
        for record in records
    ]
    middle = len(flat) // 2
    for i, part in enumerate((flat[:middle], flat[middle : len(flat) - in_journal])):
        parquet.write_table(pa.Table.from_pylist(part), folder / f"shard-{i:04d}.parquet")
    lines = [json.dumps(record) for record in records[len(records) - in_journal - 1 :]]
    (folder / "journal.jsonl").write_text("\n".join([*lines, lines[-1][:40]]))
    campaign = {"started_at": "2030-01-01T00:00:00Z", "command": "made up", "part": "cpu"}
    (folder / "campaigns" / "c1.json").write_text(json.dumps(campaign))
    return folder


def _row(
    rng: random.Random,
    family: str,
    width: int,
    point: Point,
    *,
    energy: bool,
    campaign: str = "c1",
) -> dict[str, Any]:
    work = workload(family, width)
    size = width**2 * (4 if family == "tinydeep" else 1) / (8 if family == "tinymlp" else 1)
    latency = (0.2 + 0.001 * size * point.batch) * math.exp(rng.gauss(0, 0.01))
    memory = 200 + 0.01 * size * (1 + point.batch)
    row: dict[str, Any] = dict.fromkeys(column.name for column in COLUMNS)
    configuration = configuration_id(work, point)
    row |= {
        "row_id": hashlib.sha256(f"{configuration}{point.repeat}{campaign}".encode()).hexdigest()[
            :16
        ],
        "configuration_id": configuration,
        "campaign": campaign,
        "schema_version": 1,
        "collector_version": "0.0.0",
        "measured_at": f"2030-01-01T00:{point.batch % 60:02d}:00Z",
        "kind": "model",
        "family": family,
        "model": work.model,
        "architecture": work.architecture,
        "parameters": dict(work.parameters),
        "sizes": list(work.sizes),
        "phase": "inference",
        "batch": point.batch,
        "precision": "fp32",
        "mode": "eager",
        "channels_last": False,
        "repeat": point.repeat,
        "status": "ok",
        "timer": "wall",
        "latency_ms": latency,
        "latencies_ms": [latency] * 3,
        "latency_median_ms": latency,
        "warm_up_steps": 5,
        "timed_steps": 3,
        "memory_mb": memory,
        "memory_method": "made up",
        "throttle_reasons": [],
        "device": DEVICE,
        "device_kind": "cpu",
        "framework": "torch 2.13.0",
        "libraries": {},
        "flags": {},
        "host_cores": 2,
        "threads": 1,
    }
    if energy:
        row |= {"energy_j": 0.05 * latency, "power_w": 50.0, "energy_method": "made up"}
    measured = {name for name in MEASURED if row[name] is None}
    return row | {"absent": dict.fromkeys(sorted(measured), "made up without it")}
