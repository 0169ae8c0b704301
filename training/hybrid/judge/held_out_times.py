"""Where the time of rows that did not train goes, by the fit that did not see them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import FEATURE_NAMES, N_KINDS
from dippm.estimate.models.kernel_law import blend_factor, clip_to_trees, tree_share
from training.hybrid.fit.batches import Batch, Batches, Indices
from training.hybrid.fit.folds import Runner, Task
from training.hybrid.fit.mixture import TREES, Mixture
from training.hybrid.fit.network import KernelNetwork
from training.hybrid.fit.trees import KernelTrees

Floats = NDArray[np.float64]
COSTLIEST = 3
CHUNK = 64
"""Rows at a time: a large model has a thousand kernels."""
_RIDGE, _M, _N, _K, _WINDOW, _ELEMENTS = (
    FEATURE_NAMES.index(name)
    for name in ("log_ridge", "log_m", "log_n", "log_k", "log_window", "log_elements")
)
_NAMES = tuple(KERNEL_CLASSES)
_MATRIX = np.array([row.matrix for row in KERNEL_CLASSES.values()])


@dataclass(frozen=True, slots=True)
class HeldOutTimes:
    """Device times of held-out rows, in the order of the rows that were asked for.

    Attributes:
        device_ms: Σ over kernels, serial steps included, shape (R,).
        compute_share: its share in kernels whose arithmetic takes longer than their memory traffic
            at peak rates, 0 to 1, shape (R,).
        costliest: kernels with the longest times: share of the device's time, class, size, number.
    """

    device_ms: Floats
    compute_share: Floats
    costliest: list[tuple[str, ...]]


def fitted(runner: Runner, task: Task) -> tuple[KernelNetwork, KernelTrees]:
    """Return what a task fitted."""
    settings = runner.settings.of_seed(task.seed)
    return runner.network(task), KernelTrees.load(runner.weights(task, TREES), settings.trees)


@torch.no_grad()
def shared_log_slowdown(
    network: KernelNetwork, trees: KernelTrees, batch: Batch, novelty: Floats, mixture: Mixture
) -> Floats:
    """Return the log slow-down of each kernel by the law that all tables share, shape (K,).

    Args:
        network: network of a fit.
        trees: trees of the same fit.
        batch: batch of rows.
        novelty: novelty of its rows, shape (R,).
        mixture: mixture of network and trees.
    """
    free = network.log_slowdown(batch).numpy().astype(np.float64)
    by_trees = trees.log_slowdown(batch.features.numpy())
    row = batch.row.numpy()
    held = free + blend_factor(novelty)[row] * (clip_to_trees(free, by_trees) - free)
    of_trees = tree_share(novelty, mixture.network_weight)[row]
    return np.asarray(held + of_trees * (by_trees - held))


def held_out_times(runner: Runner, task: Task, rows: Indices, mixture: Mixture) -> HeldOutTimes:
    """Return the times of test rows of a task."""
    network, trees = fitted(runner, task)
    batches = Batches(runner.examples, runner.tables)
    novelty = runner.novelty(task, rows)
    device_ms, compute_share = np.zeros(len(rows)), np.zeros(len(rows))
    costliest: list[tuple[str, ...]] = []
    for first in range(0, len(rows), CHUNK):
        batch = batches.take(rows[first : first + CHUNK])
        row, count = batch.row.numpy(), len(batch.table)
        part = slice(first, first + count)
        times = _kernel_ms(network, trees, batch, novelty[part], mixture)
        total = np.bincount(row, times, count) + batch.serial_ms.numpy()
        bound = np.where(batch.features[:, _RIDGE].numpy() > 0, times, 0.0)
        device_ms[part] = total
        compute_share[part] = np.bincount(row, bound, count) / total
        starts = np.searchsorted(row, np.arange(count + 1))
        for i, (begin, end) in enumerate(pairwise(starts.tolist())):
            costliest.append(_costliest(batch, slice(begin, end), times[begin:end] / total[i]))
    return HeldOutTimes(device_ms, compute_share, costliest)


@torch.no_grad()
def _kernel_ms(
    network: KernelNetwork, trees: KernelTrees, batch: Batch, novelty: Floats, mixture: Mixture
) -> Floats:
    slow = shared_log_slowdown(network, trees, batch, novelty, mixture)
    known = (batch.table >= 0)[batch.row]
    kind = batch.features[:, :N_KINDS].argmax(dim=1)
    terms = network.terms[batch.table.clamp_min(0)[batch.row], kind] * known
    times = np.exp(batch.log_roofline.numpy() + slow + terms.numpy()) * batch.count.numpy()
    return np.asarray(times, dtype=np.float64)


def _costliest(batch: Batch, part: slice, shares: Floats) -> tuple[str, ...]:
    order = np.argsort(-shares)[:COSTLIEST]
    features, count = batch.features[part].numpy(), batch.count[part].numpy()
    return tuple(
        f"{100 * shares[i]:.0f} % {_kernel(features[i])}"
        + (f" ×{count[i]:.0f}" if count[i] > 1 else "")
        for i in order
    )


def _kernel(features: NDArray[np.float32]) -> str:
    """Return class and size of a kernel in a few words."""
    kind = int(features[:N_KINDS].argmax())
    name = _NAMES[kind].replace("_", " ")
    if not _MATRIX[kind]:
        return f"{name} of {np.expm1(features[_ELEMENTS]):.2g} elements"
    m, n, k = (np.expm1(features[i]) for i in (_M, _N, _K))
    window = np.exp(features[_WINDOW])
    taps = f", window {window:.0f}" if window > 1.5 else ""
    return f"{name} {m:,.0f}×{n:,.0f}×{k:,.0f}{taps}"
