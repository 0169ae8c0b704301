"""Folders of runs as workloads and samplers leave them, made without waiting for either."""

from __future__ import annotations

import math
import os
import uuid
from pathlib import Path

from dippm.measure.readings import Quantity, Readings
from dippm.measure.sampler_writer import Writer
from dippm.runs.store.folder import RunFolder
from dippm.runs.store.record import End, Moment, Span, Start, Value

START_NS, WALL_NS = 5_000_000_000_000, 1_790_000_000_000_000_000
QUANTITIES = (
    Quantity("rss_mb", "MB", "tree", "memory"),
    Quantity("cpu_s", "s", "tree", "processor time", counter=True),
    Quantity("power_w", "W", "device", "power"),
)
REASON = "no sensor of power here"


class _Tree:
    name, quantities = "tree", QUANTITIES


def write_samples(folder: Path, ticks: int, hz: float = 10.0, *, name: str = "samples-1.dippm"):
    """Write what a sampler writes: memory that climbs, a core that is half busy, no power."""
    writer = Writer(folder / name, [_Tree()], {"pid": 1, "hz": hz})
    for tick in range(ticks):
        at = START_NS + int(tick * 1e9 / hz)
        memory = 100 + 50 * math.sin(tick / 40) + tick % 7
        writer.add(
            0,
            Readings(at, {"rss_mb": memory, "cpu_s": tick / hz / 2}, {"power_w": REASON}),
        )
        if tick % 50 == 0:
            writer.flush()
    writer.close({"end": "the watched process has ended", "missed": 0, "cpu_s": 0.1})


def make_run(
    root: Path,
    *,
    name: str = "training",
    experiment: str = "vision",
    ticks: int = 100,
    status: str | None = "finished",
    number: int = 0,
    **start,
) -> Path:
    """Make the folder of a run with spans, values of every kind and samples; return it."""
    seconds = max(ticks / 10, 1)
    begun = Moment(START_NS, WALL_NS + number * 60_000_000_000)
    given = {
        "description": "a run of a test",
        "params": {"lr": "0.1", "batch": "32"},
        "tags": {"team": "a"},
        "environment": {"python": "3.11.7", "git_commit": "0123456"},
        "host": os.uname().nodename,
        **start,
    }
    folder = RunFolder.create(Start(uuid.uuid4().hex, name, experiment, begun, **given), root)
    for call in range(3):
        at = START_NS + call * 1_000_000_000
        folder.span(Span(call + 1, "forward", at, at + 500_000_000, values={"time_s": 0.5}))
    folder.span(Span(4, "backward", at, at + 9, status="failed", error="ValueError"))
    for step in range(5):
        at = START_NS + step * 1_000_000_000
        folder.value(Value("loss", "metric", 1 / (step + 1) + number, at, step=step))
    values = (
        ("training loss", "loss", [3.0, 2.0, 1.5]),
        ("labels", "confusion_matrix", {"matrix": [[5, 1], [2, 7]], "labels": ["cat", "dog"]}),
        ("tuning", "hyperparameters", [{"lr": 0.1, "depth": 3, "target": 0.8 + number / 100}]),
        ("accuracy", "time_to_accuracy", [0.5, 0.7, 0.9]),
        ("timed", "timed_time_to_accuracy", {"target": 0.9, "reached": True, "time_s": 4.2}),
    )
    for told, kind, data in values:
        folder.value(Value(told, kind, data, START_NS + 3_000_000_000, description="first"))
    if ticks:
        write_samples(folder.path, ticks)
    if status:
        at = Moment(START_NS + int(seconds * 1e9), begun.wall_ns + int(seconds * 1e9))
        folder.end(End(status, at, exit_code=0))
    folder.close()
    return folder.path
