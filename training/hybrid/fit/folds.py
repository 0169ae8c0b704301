"""Fits of every learner on every fold; each is kept, so that a run that was cut off goes on.

Splits are those of other people's rows. Rows of our own sets go with them: held out where they
share what is held out, else they train. Their kernel tables train as well, operator by operator,
which tells classes of kernels apart that only ever occur together in a whole model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from dataset.join.grouping import family_of
from dataset.join.latency_splits import TRAINING_ONLY, gpu_group, latency_splits
from dataset.join.splits import Fold, Split, file_name
from dippm.estimate.models.host import OVERLAP_POWER
from dippm.estimate.models.novelty import MeasuredModels
from training.evaluation.held_out import HeldOut
from training.forked import map_forked
from training.hybrid.fit.batches import Batches, Indices
from training.hybrid.fit.effects import chip_of
from training.hybrid.fit.mixture import ALONE, GUARDED, NEARBY, SAGE, TREES, Mean
from training.hybrid.fit.network import KernelNetwork, NetworkSettings
from training.hybrid.fit.network_fit import FitSettings, fit, predict_log_ms, restore
from training.hybrid.fit.novelty import measured_models, novelties, row_shares
from training.hybrid.fit.residuals import Residuals, added, mean_features, points_of, residuals_of
from training.hybrid.fit.trees import (
    TreeSettings,
    fit_trees,
    predict_guarded_log_ms,
    predict_trees_log_ms,
)
from training.hybrid.rows.examples import Examples, Row, mark_others

KEYS: Mapping[str, Callable[[Row], str]] = {
    "gpu": lambda row: gpu_group(row.device.name),
    "family_id": lambda row: row.family,
    "arch_id": lambda row: row.architecture,
    "scale": lambda row: row.scale,
}
"""What rows of our own share with those that a split holds out, by the name of its key."""
LEARNERS = (SAGE, GUARDED, ALONE, TREES)
SHIPPED = (SAGE, GUARDED, TREES)


@dataclass(frozen=True, slots=True)
class Settings:
    """Of all learners."""

    fit: FitSettings
    trees: TreeSettings

    def of_seed(self, seed: int) -> Settings:
        """Return the same with another seed."""
        return Settings(replace(self.fit, seed=seed), replace(self.trees, seed=seed))


def _no_rows() -> Indices:
    return np.array([], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Task:
    """One fit: a fold of a split, or all rows, with one seed.

    Attributes:
        split, fold: names.
        train, test: rows of other people's tables.
        seed: of every learner.
        learners: that are fitted.
        own_train, own_test: rows of our own sets; operators amid a model train only.
    """

    split: str
    fold: str
    train: Indices
    test: Indices
    seed: int
    learners: tuple[str, ...] = SHIPPED
    own_train: Indices = field(default_factory=_no_rows)
    own_test: Indices = field(default_factory=_no_rows)

    @property
    def name(self) -> str:
        """Return a file name."""
        return file_name(f"{self.split}-{self.fold}-{self.seed}")[:150]

    @property
    def taught(self) -> Indices:
        """Return all rows that train, in order."""
        return np.sort(np.concatenate([self.train, self.own_train]))

    @property
    def asked(self) -> Indices:
        """Return all rows under test, in order."""
        return np.sort(np.concatenate([self.test, self.own_test]))


class Runner:
    """Fits tasks in processes of their own and reads back what they predicted.

    Args:
        examples: all rows.
        folder: where fits are kept.
        settings: of the learners.
    """

    def __init__(self, examples: Examples, folder: Path, settings: Settings) -> None:
        self.examples, self.folder, self.settings = examples, folder, settings
        self.is_others = mark_others(examples.rows)
        names = sorted({row.table for row in examples.rows})
        self.tables: Mapping[str, int] = {name: i for i, name in enumerate(names)}
        self.position = {row.row_id: i for i, row in enumerate(examples.rows)}
        self._novelties: dict[tuple[str, str], NDArray[np.float64]] = {}
        self._added: dict[str, NDArray[np.float64]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def splits(self) -> dict[str, Split]:
        """Return every split of the rows of other people's tables."""
        return latency_splits(table_of(self.examples)[self.is_others])

    def tasks(
        self, split: Split, seeds: Sequence[int], learners: tuple[str, ...] = SHIPPED
    ) -> list[Task]:
        """Return the fits of a split; rows that the split leaves out of its table train.

        A split that holds sources out has one more task for each of our own.
        """
        inside = set(split.rows)
        others = [
            i
            for i in np.flatnonzero(self.is_others).tolist()
            if self.examples.rows[i].row_id not in inside
        ]
        found = []
        for fold in split.folds:
            train = self._indices((*split.train(fold), *fold.validation))
            train = np.sort(np.concatenate([train, self._allowed(others, fold)]))
            test = self._indices(fold.test)
            own = self._own_rows(split.keys, [self.examples.rows[i] for i in test])
            found += [
                Task(split.name, fold.name, train, test, seed, learners, *own) for seed in seeds
            ]
        if "source" in split.keys:
            found += self._own_sources(split.name, seeds)
        return found

    @cached_property
    def own(self) -> Indices:
        """Return the rows of our own sets, where there are others beside them."""
        return np.flatnonzero(~self.is_others).astype(np.int64)

    def _own_rows(self, keys: Sequence[str], tested: Sequence[Row]) -> tuple[Indices, Indices]:
        """Return our own rows that train where rows are tested, and those tested too.

        Of the chip of a GPU that is held out none trains. Operators amid a model are held out with
        it.
        """
        known = {key: {KEYS[key](row) for row in tested} for key in keys if key in KEYS}
        chips = {chip_of(row.device) for row in tested} if "gpu" in keys else set()
        rows = [self._of_whole_model(self.examples.rows[i]) for i in self.own]
        held = [any(KEYS[key](row) in values for key, values in known.items()) for row in rows]
        away = [chip_of(row.device) in chips for row in rows]
        test, other = np.array(held, dtype=bool), np.array(away, dtype=bool)
        return self.own[~(test | other)], self.own[test & ~self._amid_models]

    def _of_whole_model(self, row: Row) -> Row:
        """Return an operator amid a model with the family of the model; any other row as it is."""
        if row.node is None:
            return row
        return replace(row, family=self._own_families.get(row.graph) or family_of(row.graph))

    @cached_property
    def _amid_models(self) -> NDArray[np.bool_]:
        """Return which of our own rows are operators amid a model."""
        return np.array([self.examples.rows[i].node is not None for i in self.own], dtype=bool)

    @cached_property
    def _own_families(self) -> Mapping[str, str]:
        """Return the family of each whole model of our own that trains by its graph."""
        rows = (self.examples.rows[i] for i in self.own)
        return {row.graph: row.family for row in rows if row.node is None}

    def _own_sources(self, split: str, seeds: Sequence[int]) -> list[Task]:
        """Return a task for each of our sources on GPUs that another one teaches."""
        rows, others = self.examples.rows, np.flatnonzero(self.is_others)
        of_others = compress(rows, self.is_others)
        gpus = {row.device.name for row in of_others if row.source not in TRAINING_ONLY}
        found = []
        for source in sorted({rows[i].source for i in self.own}):
            mine = np.array([rows[i].source == source for i in self.own], dtype=bool)
            train, held = self.own[~mine], self.own[mine]
            known = gpus | {rows[i].device.name for i in train}
            asked = [rows[i].node is None and rows[i].device.name in known for i in held]
            test = held[np.array(asked, dtype=bool)]
            if len(test):
                found += [
                    Task(split, source, others, _no_rows(), seed, SHIPPED, train, test)
                    for seed in seeds
                ]
        return found

    def run(self, tasks: Sequence[Task], processes: int | None = None) -> None:
        """Fit what is not yet on disk.

        Args:
            tasks: finished or not.
            processes: that fit side by side; one per core if it is None. One is this process: what
                is forked cannot fit if PyTorch has made threads for the gradients of a GPU.
        """
        each = {task.name: task for task in tasks}
        todo = [
            task
            for task in each.values()
            if not (self._path(task).exists() and self._residuals_path(task).exists())
        ]
        threads = torch.get_num_threads()
        try:
            for _ in map_forked(self.fit, todo, what="fits", processes=processes):
                pass
        finally:
            torch.set_num_threads(threads)

    def fit(self, task: Task) -> None:
        """Fit every learner and keep weights, held-out predictions and residuals."""
        torch.set_num_threads(1)
        if not self._path(task).exists():
            self._fit_learners(task)
        if not self._residuals_path(task).exists():
            given = self.examples, self._beside(task), self.network(task)
            found = residuals_of(*given, tables=self.tables)
            keep_arrays(self._residuals_path(task), rows=found.rows, log_error=found.log_error)

    def _beside(self, task: Task) -> Indices:
        """Return the rows that train in the tables of rows under test; all if none is."""
        if not len(task.test):
            return task.train
        tested = {self.examples.rows[i].table for i in task.test}
        return np.array([i for i in task.train if self.examples.rows[i].table in tested], np.int64)

    def _fit_learners(self, task: Task) -> None:
        settings, began = self.settings.of_seed(task.seed), time.monotonic()
        predicted: dict[str, NDArray[np.float64]] = {}
        seconds: dict[str, float] = {}
        network = None
        for name in [name for name in (ALONE, SAGE) if name in task.learners]:
            shape = settings.fit.network
            if name == ALONE:
                shape = NetworkSettings(**{**_fields(shape), "rounds": 0})
            network = fit(
                self.examples, task.taught, replace(settings.fit, network=shape), tables=self.tables
            )
            torch.save(network.state_dict(), self.weights(task, name))
            if len(task.test):
                predicted[name] = predict_log_ms(
                    network, self.examples, task.test, tables=self.tables
                )
            seconds[name], began = time.monotonic() - began, time.monotonic()
        assert network is not None
        trees = fit_trees(self.examples, task.taught, network, settings.trees, tables=self.tables)
        trees.save(self.weights(task, TREES))
        if len(task.test):
            given = trees, self.examples, task.test, network
            predicted[TREES] = predict_trees_log_ms(*given, tables=self.tables)
            predicted[GUARDED] = predict_guarded_log_ms(*given, tables=self.tables)
        seconds[TREES] = time.monotonic() - began
        arrays: dict[str, Any] = {f"seconds {name}": value for name, value in seconds.items()}
        arrays |= {"test": task.test, "host": _host_ms(self, task.test, network), **predicted}
        keep_arrays(self._path(task), **arrays)

    def network(self, task: Task) -> KernelNetwork:
        """Return the network of a finished task."""
        settings = self.settings.of_seed(task.seed).fit
        return restore(self.weights(task, SAGE), settings, tables=self.tables)

    def log_ms(self, task: Task) -> dict[str, NDArray[np.float64]]:
        """Return the held-out predictions of a finished task by learner, log ms.

        Under `NEARBY` stands what residuals of measured models nearby add to the networks.
        """
        found = self._under_test(task, task.learners)
        return found | {NEARBY: self._nearby(task, found[SAGE])}

    def _nearby(self, task: Task, log_ms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what is added to the log of rows under test: kernels are slowed, launches not."""
        if task.name not in self._added:
            points, known = self.points(task), self.residuals(task)
            slower = added(self.examples, points, known, task.test)
            of_host = np.minimum(self._host_ms(task) / np.exp(log_ms), 1.0) ** OVERLAP_POWER
            self._added[task.name] = slower * (1.0 - of_host)
        return self._added[task.name]

    def points(self, task: Task) -> NDArray[np.float16]:
        """Return all rows as the residuals of a task's network see them."""
        return points_of(self._mean_features, self.network(task))

    def residuals(self, task: Task) -> Residuals:
        """Return what the network of a finished task left over of the rows that trained."""
        with np.load(self._residuals_path(task)) as file:
            return Residuals(file["rows"], file["log_error"])

    @cached_property
    def _mean_features(self) -> NDArray[np.float64]:
        return mean_features(self.examples)

    def _host_ms(self, task: Task) -> NDArray[np.float64]:
        return self._under_test(task, ["host"])["host"]

    def _under_test(self, task: Task, names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """Return arrays of a finished fit for the rows under test.

        Raises:
            ValueError: if the fit was kept when its split held other rows out.
        """
        with np.load(self._path(task)) as file:
            kept = file["test"]
            place = np.minimum(np.searchsorted(kept, task.test), max(len(kept) - 1, 0))
            if len(task.test) and not np.array_equal(kept[place], task.test):
                raise ValueError(f"{self._path(task)} is of another split: remove it, and train")
            return {name: file[name][place] for name in names}

    def held_out(self, tasks: Sequence[Task], mean: Mean, name: str) -> HeldOut:
        """Return the predictions of a mean of learners and of all seeds, in the log.

        Args:
            tasks: of one split; those of one fold are one ensemble.
            mean: of the learners.
            name: of the mean, for people.

        Returns:
            Rows with "position" in the examples, "spread" between the members (log),
            "host_share" (launch time over latency), "novelty" and "gpu_novelty" (distance to the
            models that train in the fold, on any GPU and on that of the row) besides.
        """
        folds: dict[str, list[Task]] = {}
        for task in tasks:
            if len(task.test):
                folds.setdefault(task.fold, []).append(task)
        parts = []
        for fold, members in folds.items():
            novelty, on_gpu = self._novelty(members[0], members[0].test).T
            each = [mean.answers(self.log_ms(member), novelty) for member in members]
            answers, seeds = np.concatenate(each), len(members)
            middle = (np.tile(mean.shares(novelty) / seeds, (seeds, 1)) * answers).sum(axis=0)
            rows = self._rows(members[0].test, fold, middle)
            alike = np.tile(mean.everywhere() / seeds, seeds)
            spread = np.sqrt(alike @ (answers - alike @ answers) ** 2)
            host = np.mean([self._host_ms(member) for member in members], axis=0)
            described = {"spread": spread, "host_share": host / np.exp(middle)}
            parts.append(rows.assign(**described, novelty=novelty, gpu_novelty=on_gpu))
        return HeldOut(name, tasks[0].split, pd.concat(parts, ignore_index=True), 0.0)

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        return row_shares(self.examples)

    @cached_property
    def _gpus(self) -> NDArray[np.str_]:
        return np.array([row.device.name for row in self.examples.rows])

    def novelty(self, task: Task, rows: Indices | None = None) -> NDArray[np.float64]:
        """Return the distance of rows under test, or of some of them, to the models that train."""
        return self._novelty(task, task.asked if rows is None else rows)[:, 0]

    def _novelty(self, task: Task, rows: Indices) -> NDArray[np.float64]:
        """Return the novelty on any GPU and on its own of rows under test, shape (R, 2)."""
        key = (task.split, task.fold)
        if key not in self._novelties:
            given = self._shares, self._gpus, self._models(task), task.asked
            self._novelties[key] = novelties(*given)
        return self._novelties[key][np.searchsorted(task.asked, rows)]

    def measured_models(self, task: Task) -> MeasuredModels:
        """Return the models that train in a task."""
        mine = self._models(task)
        return measured_models(self._shares[mine], self._gpus[mine])

    def _models(self, task: Task) -> Indices:
        return np.asarray(task.taught[self.examples.is_model[task.taught]])

    def _rows(self, test: Indices, fold: str, log_ms: NDArray[np.float64]) -> pd.DataFrame:
        rows = [self.examples.rows[i] for i in test]
        return pd.DataFrame(
            {
                "position": test,
                "row_id": [row.row_id for row in rows],
                "arch_id": [row.architecture for row in rows],
                "family_id": [row.family for row in rows],
                "fold": fold,
                "latency_ms": [row.latency_ms for row in rows],
                "predicted latency_ms": np.exp(log_ms),
            }
        )

    def _allowed(self, others: Sequence[int], fold: Fold) -> Indices:
        held = {self.examples.rows[self.position[row]].architecture for row in fold.test}
        kept = [i for i in others if self.examples.rows[i].architecture not in held]
        return np.array(kept, dtype=np.int64)

    def _indices(self, row_ids: Sequence[str]) -> Indices:
        return np.array(sorted(self.position[row] for row in row_ids), dtype=np.int64)

    def weights(self, task: Task, learner: str) -> Path:
        """Return the file of a learner's fit."""
        ending = "ubj" if learner == TREES else "pt"
        return self.folder / f"{task.name}.{_slug(learner)}.{ending}"

    def _path(self, task: Task) -> Path:
        return self.folder / f"{task.name}.npz"

    def _residuals_path(self, task: Task) -> Path:
        return self.folder / f"{task.name}.residuals.npz"


def keep_arrays(path: Path, **arrays: Any) -> None:
    """Write arrays so that a file is whole or is none; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part.npz")
    np.savez(unfinished, **arrays)
    unfinished.replace(path)


def _fields(settings: NetworkSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in NetworkSettings.__slots__}


def _slug(name: str) -> str:
    return name.replace(" ", "_").casefold()


@torch.no_grad()
def _host_ms(runner: Runner, rows: Indices, network: KernelNetwork) -> NDArray[np.float64]:
    """Return the time that launching the kernels of each row takes; 0 if its clock is blind."""
    batch = Batches(runner.examples, runner.tables).take(rows)
    table = batch.table.clamp_min(0)
    launch = torch.where(batch.table >= 0, network.log_launch_ms[table], network.usual).exp()
    host = torch.where(batch.kernel_timer, 0.0, batch.launches * launch)
    return host.numpy().astype(np.float64)


def table_of(examples: Examples) -> pd.DataFrame:
    """Return the rows as `dataset.join.latency_splits` wants them."""
    rows = examples.rows
    return pd.DataFrame(
        {
            "row_id": [row.row_id for row in rows],
            "source": [row.source for row in rows],
            "gpu": [row.device.name for row in rows],
            "precision": [row.precision for row in rows],
            "mode": [row.mode for row in rows],
            "model": [row.graph for row in rows],
            "batch": [row.batch for row in rows],
            "latency_ms": [row.latency_ms for row in rows],
            "arch_id": [row.architecture for row in rows],
            "family_id": [row.family for row in rows],
            "is_model": examples.is_model,
            "scale": [row.scale or None for row in rows],
            "point": [row.point or row.row_id for row in rows],
        }
    )
