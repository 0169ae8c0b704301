"""Measured training steps → their kernels as arrays, kept on disk part by part.

A kernel is seen alone, without its surroundings, so kernels that look alike are one with a count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataset.join.grouping import architecture_id
from dippm.devices import find
from dippm.estimate.features.kernel import PARTS
from dippm.estimate.features.kernel_features import (
    N_KINDS,
    DeviceView,
    kernel_features,
    roofline_ms,
    serial_ms,
)
from dippm.estimate.features.kernel_table import KernelGraph, KernelTable
from dippm.estimate.models.gpu_effects import arithmetic_share, effect_column
from dippm.estimate.models.phases import BACKWARD, step_launches
from dippm.model.graph.model_graph import ModelGraph
from training.forked import map_forked
from training.hybrid.rows.example_cache import VERSION
from training.steps.rows import StepRow, known

STEPS_VERSION = 4
"""Raised where arrays or kernels of steps change and those of inference do not."""
FOLDER = f"steps-{VERSION}-{STEPS_VERSION}"
CHUNK = 60
_UPDATE = PARTS.index("optimizer")


@dataclass(frozen=True, slots=True)
class StepExamples:
    """Rows with their kernels.

    Attributes:
        rows: measured rows, length R.
        features: features of the kernels as for inference, shape (K, N_FEATURES).
        part: index in PARTS, shape (K,).
        column: column of EFFECT_UNITS of the arithmetic, shape (K,).
        share: weight of the arithmetic, see `dippm.estimate.models.gpu_effects`, shape (K,).
        log_roofline: roofline time in log ms, shape (K,).
        count: how many kernels it stands for, shape (K,).
        start: kernels of row r are start[r] to start[r + 1], shape (R + 1,).
        launches: what occupies the host, see `step_launches`, shape (R, 3); nothing for a sum of
            kernels, which knows no host.
        input_bytes, serial_ms: shape (R,).
    """

    rows: Sequence[StepRow]
    features: NDArray[np.float32]
    part: NDArray[np.int64]
    column: NDArray[np.int64]
    share: NDArray[np.float64]
    log_roofline: NDArray[np.float64]
    count: NDArray[np.float64]
    start: NDArray[np.int64]
    launches: NDArray[np.float64]
    input_bytes: NDArray[np.float64]
    serial_ms: NDArray[np.float64]

    @property
    def kind(self) -> NDArray[np.int64]:
        """Return the class of each kernel, shape (K,)."""
        return np.asarray(self.features[:, :N_KINDS].argmax(axis=1), dtype=np.int64)

    @property
    def row_of(self) -> NDArray[np.int64]:
        """Return the row of each kernel, shape (K,)."""
        return np.repeat(np.arange(len(self.rows)), np.diff(self.start))

    @property
    def latency_ms(self) -> NDArray[np.float64]:
        """Return the labels, shape (R,)."""
        return np.array([step.latency_ms for step in self.rows], dtype=np.float64)

    def only(self, chosen: NDArray[np.int64]) -> StepExamples:
        """Return some rows, given by position, with their kernels."""
        kernels = np.isin(self.row_of, chosen)
        of_kernels = ("features", "part", "column", "share", "log_roofline", "count")
        of_rows = ("launches", "input_bytes", "serial_ms")
        sizes = np.diff(self.start)[chosen]
        return StepExamples(
            rows=[self.rows[i] for i in chosen],
            start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            **{name: getattr(self, name)[kernels] for name in of_kernels},
            **{name: getattr(self, name)[chosen] for name in of_rows},
        )

    def class_roofline_ms(self) -> NDArray[np.float64]:
        """Return the roofline time of each class of kernels, in ms, shape (R, classes)."""
        place = self.row_of * N_KINDS + self.kind
        time = np.exp(self.log_roofline) * self.count
        sums = np.bincount(place, time, len(self.rows) * N_KINDS).astype(np.float64)
        return sums.reshape(len(self.rows), N_KINDS)


_ARRAYS = tuple(field.name for field in fields(StepExamples) if field.name != "rows")


def step_table(graph: ModelGraph, step: StepRow) -> KernelTable:
    """Return the kernels of a measured step."""
    table = KernelTable.of_training(
        graph,
        step.precision,
        step.optimizer or "sgd",
        channels_last=step.channels_last,
        attention=step.attention,
    )
    return table if step.optimizer else table.only(np.flatnonzero(table.part != _UPDATE))


def build_steps(
    rows: Sequence[StepRow], graph: Callable[[str], ModelGraph]
) -> tuple[list[StepRow], dict[str, NDArray[Any]]]:
    """Expand rows, those of one graph one after another; return them with the arrays.

    A row of an operator has the kernels of its gradients alone.

    Left out is a row whose graph runs nothing by our account, fixes another batch, or is by now of
    another model.
    """
    tables: dict[tuple[object, ...], KernelTable] = {}  # of whole steps, once for all operators
    graphs: dict[tuple[object, ...], tuple[KernelGraph, NDArray[np.float64]]] = {}
    current, architecture = "", ""
    kept: list[StepRow] = []
    found: list[dict[str, NDArray[Any]]] = []
    for step in rows:
        if step.graph != current:
            current, tables, graphs = step.graph, {}, {}
            architecture = architecture_id(graph(current))
        now = known(step, graph(current), architecture)
        if now is None:
            continue
        key = (step.precision, step.channels_last, step.optimizer, step.attention)
        if (*key, step.node) not in graphs:
            if key not in tables:
                tables[key] = step_table(graph(current), step)
            table = tables[key]
            if step.node is not None:
                gradients = np.isin(table.part, BACKWARD) & (table.node == step.node)
                table = table.only(np.flatnonzero(gradients))
            graphs[*key, step.node] = KernelGraph.of(table, 0), step_launches(table)
        kernels, launches = graphs[*key, step.node]
        if len(kernels.count) and kernels.table.batch in (None, step.batch):
            kept.append(now)
            found.append(_arrays(kernels, launches, step))
    sizes = [len(arrays["count"]) for arrays in found]
    joined = {name: np.concatenate([a[name] for a in found]) for name in found[0]} if found else {}
    return kept, {**joined, "start": np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)}


def load_steps(
    work: Path,
    rows: Callable[[], tuple[Sequence[StepRow], Callable[[str], ModelGraph]]],
    processes: int | None = None,
    *,
    sets: str = "",
) -> StepExamples:
    """Return the examples of a folder; parts that it lacks are made of what `rows` returns.

    Args:
        work: folder that keeps them.
        rows: returns what was measured, and the graph of each key.
        processes: number of parallel processes; None for one per core.
        sets: what tells the sets of our own among the rows from others.
    """
    folder = work / f"{FOLDER}-{sets}" if sets else work / FOLDER
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        wanted, graph = rows()
        ordered = sorted(wanted, key=lambda step: (step.graph, step.row_id))
        starts = [s for s in range(0, len(ordered), CHUNK) if not _part(folder, s).exists()]
        chunk, what = partial(_chunk, ordered, graph, folder), "kernels of measured steps"
        for _ in map_forked(chunk, starts, what=what, processes=processes):
            pass
        (folder / "done").touch()
    return _joined([_read(path) for path in sorted(folder.glob("*.npz"))])


def _arrays(
    kernels: KernelGraph, launches: NDArray[np.float64], row: StepRow
) -> dict[str, NDArray[Any]]:
    table, view = kernels.table, DeviceView.of(row.device, row.mig)
    count = kernels.count.astype(np.float64)
    return {
        "features": kernel_features(table, row.batch, view, channels_last=row.channels_last),
        "part": table.part,
        "column": effect_column(table.unit),
        "share": arithmetic_share(table, row.batch, view),
        "log_roofline": np.log(roofline_ms(table, row.batch, view)),
        "count": count,
        "launches": launches[None] * (row.timer != "kernel"),
        "input_bytes": np.array([table.input_bytes[0] * row.batch + table.input_bytes[1]]),
        "serial_ms": np.array([float(serial_ms(table, row.batch) @ count)]),
    }


def _part(folder: Path, start: int) -> Path:
    return folder / f"{start:06d}.npz"


def _chunk(
    rows: Sequence[StepRow], graph: Callable[[str], ModelGraph], folder: Path, start: int
) -> None:
    """Write the part of the examples that begins with a row."""
    kept, arrays = build_steps(rows[start : start + CHUNK], graph)
    path = _part(folder, start)
    document = json.dumps([_document(step) for step in kept])
    written: dict[str, Any] = {"rows": np.array(document), **arrays}
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        np.savez(file, **written)
    unfinished.replace(path)


def _document(step: StepRow) -> dict[str, Any]:
    return {**asdict(step), "device": step.device.name, "mig": step.mig.name if step.mig else None}


def _step(document: dict[str, Any]) -> StepRow:
    plain = dict(document)
    device, name = find(plain.pop("device")), plain.pop("mig")
    profile = next((p for p in device.mig_profiles if p.name == name), None)
    return StepRow(**plain, device=device, mig=profile)


def _read(path: Path) -> StepExamples:
    with np.load(path) as file:
        rows = [_step(document) for document in json.loads(str(file["rows"]))]
        return StepExamples(rows, **{name: file[name] for name in _ARRAYS if name in file})


def _joined(parts: Sequence[StepExamples]) -> StepExamples:
    sizes = np.concatenate([np.diff(part.start) for part in parts])
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in _ARRAYS
        if name != "start"
    }
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return StepExamples([step for part in parts for step in part.rows], start=start, **arrays)
