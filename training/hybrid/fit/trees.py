"""Boosted trees for each kernel, with the loss on the sum of a row.

They see one kernel at a time and learn other things than the network does, so the mean of both is
better than either. What belongs to tables and machines comes from the network's fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xgboost
from numpy.typing import NDArray

from dippm.estimate.features.kernel_features import N_KINDS
from dippm.estimate.models.host import OVERLAP_POWER
from dippm.estimate.models.kernel_law import clip_to_trees
from training.hybrid.fit.batches import Batches, Indices
from training.hybrid.fit.network import KernelNetwork
from training.hybrid.rows.examples import Examples

Floats = NDArray[np.float64]
GRADIENT_SCALE = 1000.0
"""Gradients of a kernel are shares of a row; xgboost's own thresholds expect numbers near 1."""


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """How to boost.

    Attributes:
        huber: where the loss of the log error turns from square to linear.
        prior: pull of a kernel's slow-down to that of its class.
        reach: largest log step away from the class.
        balance: exponent of a table's share, see `FitSettings.balance`.
    """

    rounds: int = 150
    depth: int = 8
    rate: float = 0.15
    huber: float = 0.15
    prior: float = 0.002
    reach: float = 1.5
    smallest_leaf: float = 10.0
    balance: float = 0.5
    seed: int = 0


class KernelTrees:
    """Class multipliers and trees; see the module docstring.

    Attributes:
        classes: log slow-down by class, (N_KINDS,).
        booster: adds to it, for each kernel.
    """

    def __init__(self, classes: Floats, booster: xgboost.Booster, settings: TreeSettings) -> None:
        self.classes, self.booster, self.settings = classes, booster, settings

    def log_slowdown(self, features: NDArray[np.float32]) -> Floats:
        """Return the log slow-down of each kernel by the law that tables share, (K,)."""
        base = self.classes[features[:, :N_KINDS].argmax(axis=1)]
        data = xgboost.DMatrix(features, base_margin=np.zeros(len(features)))
        step = self.booster.predict(data, output_margin=True).astype(np.float64)
        return np.asarray(base + np.clip(step, -self.settings.reach, self.settings.reach))

    def save(self, path: Path) -> None:
        """Write both parts."""
        self.booster.set_attr(classes=" ".join(map(repr, self.classes.tolist())))
        self.booster.save_model(path)

    @classmethod
    def load(cls, path: Path, settings: TreeSettings) -> KernelTrees:
        """Read what `save` wrote."""
        booster = xgboost.Booster(model_file=path)
        words = booster.attr("classes") or ""
        return cls(np.array(words.split(), dtype=np.float64), booster, settings)


@dataclass(frozen=True, slots=True)
class KernelRows:
    """Rows as flat arrays over their kernels.

    Attributes:
        features: shape (K, F).
        base_ms: time of the kernels before anything is learned, shape (K,).
        terms: log slow-down that their tables add, shape (K,).
        row: row of each kernel, shape (K,).
        serial_ms, host_ms, copy_ms: times of each row, shape (R,).
        offset: offset of the log latency of each row, shape (R,).
        label: log ms, shape (R,).
    """

    features: NDArray[np.float32]
    base_ms: Floats
    terms: Floats
    row: Indices
    serial_ms: Floats
    host_ms: Floats
    copy_ms: Floats
    offset: Floats
    label: Floats

    def log_ms(self, kernel_ms: Floats) -> tuple[Floats, Floats]:
        """Return (log latency of rows, its derivative by each kernel's log time)."""
        count = len(self.label)
        device = np.bincount(self.row, kernel_ms, count) + self.serial_ms
        power = (self.host_ms / device) ** OVERLAP_POWER
        wall = device * (1 + power) ** (1 / OVERLAP_POWER)
        total = wall + self.copy_ms
        share = wall / total / (1 + power) / device
        return np.log(total) + self.offset, kernel_ms * share[self.row]


def fit_trees(
    examples: Examples,
    train: Indices,
    network: KernelNetwork,
    settings: TreeSettings,
    *,
    tables: Mapping[str, int],
) -> KernelTrees:
    """Fit on the given rows."""
    rows = merged(_rows(examples, train, network, tables))
    weight = _weights(examples, train, settings)
    kind = rows.features[:, :N_KINDS].argmax(axis=1)
    classes = _class_multipliers(rows, kind, weight)
    return KernelTrees(
        classes, boosted(rows, classes[kind] + rows.terms, weight, settings), settings
    )


def merged(rows: KernelRows) -> KernelRows:
    """Return the same rows with one kernel for all of a row that trees cannot tell apart.

    Examples keep those apart whose surroundings differ, which only networks see. The sums of times
    and of gradients are what they were.
    """
    _, stands, group = np.unique(_hashed(rows), return_index=True, return_inverse=True)
    place = np.argsort(stands)  # kernels stay in the order of their rows
    chosen = stands[place]
    return replace(
        rows,
        features=rows.features[chosen],
        base_ms=np.asarray(np.bincount(group, rows.base_ms)[place], dtype=np.float64),
        terms=rows.terms[chosen],
        row=rows.row[chosen],
    )


def _hashed(rows: KernelRows) -> NDArray[np.uint64]:
    """Return a number for each kernel that two of a row share only if their features are equal."""
    width = rows.features.shape[1]
    drawn = np.random.default_rng(0).integers(0, 2**62, size=(width + 1,), dtype=np.uint64)
    factors = 2 * np.asarray(drawn) + np.uint64(1)  # odd ones lose no bit
    bits = np.ascontiguousarray(rows.features).view(np.uint32)
    found = factors[width] * rows.row.astype(np.uint64)
    for place in range(width):
        found += factors[place] * bits[:, place]
    return np.asarray(found)


def boosted(
    rows: KernelRows,
    base: Floats,
    weight: Floats,
    settings: TreeSettings,
    *,
    free: NDArray[np.bool_] | None = None,
) -> xgboost.Booster:
    """Return trees that add to the log slow-down of each kernel, with the loss on the rows.

    Args:
        rows: rows that train.
        base: log slow-down without trees, shape (K,).
        weight: weights of the rows, shape (R,).
        settings: how to boost.
        free: which kernels the trees change, shape (K,); None for all.
    """
    s = settings
    is_free = 1.0 if free is None else free.astype(np.float64)

    def gradients(margin: NDArray[np.float32], _: xgboost.DMatrix) -> tuple[Floats, Floats]:
        step = is_free * np.clip(margin.astype(np.float64), -s.reach, s.reach)
        predicted, share = rows.log_ms(rows.base_ms * np.exp(base + step))
        error = predicted - rows.label
        bend = 1 / np.sqrt(1 + (error / s.huber) ** 2)
        weighed = is_free * share * weight[rows.row]
        first = weighed * (error * bend)[rows.row] + s.prior * weighed * step
        second = weighed * (bend[rows.row] + s.prior) + 1e-8
        return GRADIENT_SCALE * first, GRADIENT_SCALE * second

    parameters: dict[str, Any] = {
        "max_depth": s.depth,
        "eta": s.rate,
        "subsample": 0.7,
        "colsample_bynode": 0.6,
        "tree_method": "hist",
        "max_bin": 128,
        "min_child_weight": s.smallest_leaf,
        "nthread": torch.get_num_threads(),
        "seed": s.seed,
        "base_score": 0.0,
        "disable_default_eval_metric": 1,
    }
    data = xgboost.QuantileDMatrix(rows.features, max_bin=128)
    return xgboost.train(parameters, data, s.rounds, obj=gradients)


def predict_trees_log_ms(
    trees: KernelTrees,
    examples: Examples,
    chosen: Indices,
    network: KernelNetwork,
    *,
    tables: Mapping[str, int],
) -> Floats:
    """Return the predicted log latency of rows, shape (len(chosen),)."""
    rows = _rows(examples, chosen, network, tables)
    slow = trees.log_slowdown(rows.features) + rows.terms
    return rows.log_ms(rows.base_ms * np.exp(slow))[0]


@torch.no_grad()
def predict_guarded_log_ms(
    trees: KernelTrees,
    examples: Examples,
    chosen: Indices,
    network: KernelNetwork,
    *,
    tables: Mapping[str, int],
) -> Floats:
    """Return predictions of the network clipped to the trees, shape (len(chosen),)."""
    batches = Batches(examples, tables)
    found = [np.zeros(0)]
    for chunk in np.array_split(chosen, len(chosen) // 64 + 1):
        if len(chunk):
            rows = _rows(examples, chunk, network, tables)
            free = network.log_slowdown(batches.take(chunk)).numpy().astype(np.float64)
            by_trees = trees.log_slowdown(rows.features)
            slow = clip_to_trees(free, by_trees) + rows.terms
            found.append(rows.log_ms(rows.base_ms * np.exp(slow))[0])
    return np.concatenate(found)


@torch.no_grad()
def _rows(
    examples: Examples, chosen: Indices, network: KernelNetwork, tables: Mapping[str, int]
) -> KernelRows:
    batch = Batches(examples, tables).take(chosen)
    known = batch.table >= 0
    table = batch.table.clamp_min(0)
    kind = batch.features[:, :N_KINDS].argmax(dim=1)
    terms = network.terms[table[batch.row], kind] * known[batch.row]
    launch = torch.where(known, network.log_launch_ms[table], network.usual).exp()
    host = torch.where(batch.kernel_timer, 0.0, batch.launches * launch)
    copy = torch.where(batch.copies, batch.input_bytes / network.log_copy.exp(), 0.0)

    def floats(values: torch.Tensor) -> Floats:
        return values.numpy().astype(np.float64)

    return KernelRows(
        features=batch.features.numpy(),
        base_ms=floats(batch.log_roofline.exp() * batch.count),
        terms=floats(terms),
        row=batch.row.numpy(),
        serial_ms=floats(batch.serial_ms),
        host_ms=floats(host),
        copy_ms=floats(copy),
        offset=floats(network.offset[table] * known),
        label=floats(batch.label),
    )


def _weights(examples: Examples, train: Indices, settings: TreeSettings) -> Floats:
    """Return the weight of each row: mean 1 over models, and as much in all for the rest."""
    models = examples.is_model[train]
    sizes = Counter(examples.rows[i].table for i in train)
    raw = np.array([sizes[examples.rows[i].table] ** (settings.balance - 1) for i in train])
    total = models.sum() or len(train)
    for part in (models, ~models):
        if part.any():
            raw[part] *= total / raw[part].sum()
    return raw


def _class_multipliers(rows: KernelRows, kind: Indices, weight: Floats) -> Floats:
    """Return one log slow-down for each class: a few Gauss-Newton steps, pulled to their mean."""
    classes = np.zeros(N_KINDS)
    count = len(rows.label)
    present = np.bincount(kind, minlength=N_KINDS) > 0
    for _ in range(12):
        predicted, share = rows.log_ms(rows.base_ms * np.exp(classes[kind] + rows.terms))
        error = predicted - rows.label
        slopes = np.zeros((count, N_KINDS))
        np.add.at(slopes, (rows.row, kind), share)
        bend = weight / np.sqrt(1 + (error / 0.1) ** 2)
        normal = (slopes * bend[:, None]).T @ slopes + 1e-3 * weight.sum() * np.eye(N_KINDS)
        pull = 1e-3 * weight.sum() * (classes - np.median(classes[present]))
        step = np.linalg.solve(normal, (slopes * bend[:, None]).T @ error + pull)
        classes = np.clip(classes - np.clip(step, -1, 1), -2, 4)
    classes[~present] = np.median(classes[present])
    return np.asarray(classes)
