"""What the predictor of inference says of a kernel: where the law of training steps starts.

Of that predictor the boosted trees are taken, which see a kernel alone: its networks look along the
data flow of a forward pass, and have seen no backward pass. A step that is held out starts from a
fit of inference that did not see its architecture either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataset.join.splits import Split
from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.models.gpu_effects import ANY_MEMORY, by_class
from training.hybrid.fit.folds import Task
from training.hybrid.fit.mixture import SAGE, TREES
from training.hybrid.fit.trees import KernelTrees, TreeSettings
from training.hybrid.rows.example_cache import ROWS
from training.hybrid.rows.examples import Row

Floats = NDArray[np.float64]
NOTHING = np.array([], dtype=np.int64)
SHIPPED = Task("shipped", "all", NOTHING, NOTHING, 0)


@dataclass(frozen=True)
class InferenceFits:
    """The working folder of a finished training of the predictor of inference.

    Attributes:
        work: the folder, see `training.hybrid.train`.
        config: of the checkpoint that it ended with.
    """

    work: Path
    config: Mapping[str, Any]

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """What inference was fitted to, by row id."""
        (path,) = self.work.glob(f"examples-*/{ROWS}")
        return {row["row_id"]: row for row in json.loads(path.read_text(encoding="utf-8"))}

    @cached_property
    def tables(self) -> dict[str, int]:
        """Position of the terms of each table."""
        names = sorted({row["table"] for row in self.rows.values()})
        return {name: position for position, name in enumerate(names)}

    def split(self, name: str) -> Split:
        """Return a split of inference."""
        return Split.load(self.work / "splits" / f"{name}.json")

    def fit(self, task: Task = SHIPPED) -> Base:
        """Return the fit of a task."""
        folder = self.work / "fits"
        trees = folder / f"{task.name}.{_slug(TREES)}.ubj"
        network = folder / f"{task.name}.{_slug(SAGE)}.pt"
        settings = TreeSettings(**self.config["training"]["trees"])
        state = torch.load(network, weights_only=True)
        return Base(KernelTrees.load(trees, settings), state, self.tables, self.config["law"])


@dataclass(frozen=True)
class Base:
    """One fit of inference.

    Attributes:
        trees: its trees.
        state: of its network: what belongs to tables and machines.
        tables: position of each table in it.
        law: part "law" of the published configuration.
    """

    trees: KernelTrees
    state: Mapping[str, torch.Tensor]
    tables: Mapping[str, int]
    law: Mapping[str, Any]

    def log_slowdown(self, features: NDArray[np.float32]) -> Floats:
        """Return the log slow-down of kernels by the shared law, within what was measured, (K,)."""
        bounds = np.array([self.law["range"][name] for name in KERNEL_CLASSES], dtype=np.float64)
        kind = features[:, : len(KERNEL_CLASSES)].argmax(axis=1)
        slow = self.trees.log_slowdown(features)
        return np.asarray(np.clip(slow, bounds[kind, 0], bounds[kind, 1]), dtype=np.float64)

    def terms(self, row: Row) -> Floats:
        """Return what the GPU of a row adds by class: as predictions take it, else its own table's.

        A prediction takes the published table of a GPU. The benchmarks of a GPU that has none are
        older software, which the usual terms do not know.
        """
        table = self._published(row) or (row.table if row.table in self.tables else "")
        if table:
            position = self.tables[table]
            added = self.state["terms"][position] + self.state["offset"][position]
            return np.asarray(added.numpy(), dtype=np.float64)
        family = row.device.memory_family or ANY_MEMORY
        return by_class(self.law["usual"].get(family, {}).get(row.mode, {}))

    def launch_ms(self, row: Row) -> float:
        """Return the time of a launch on the machine of a row."""
        table = row.table if row.table in self.tables else self._published(row)
        log_ms = self.state["log_launch_ms"][self.tables[table]] if table else self.state["usual"]
        return float(log_ms.exp())

    @property
    def copy_bytes_per_ms(self) -> float:
        """Return the rate at which inputs are copied to the device."""
        return float(self.state["log_copy"].exp())

    def _published(self, row: Row) -> str:
        key = row.device.name, row.mode
        names = (t["table"] for t in self.law["tables"] if (t["device"], t["mode"]) == key)
        return next((name for name in names if name in self.tables), "")


def _slug(learner: str) -> str:
    return learner.replace(" ", "_").casefold()
