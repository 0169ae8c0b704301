"""How much slower than its roofline each kernel of a model runs: the learned part of `hybrid`.

An ensemble of graph networks and of boosted trees, averaged in the log. For a table of measurements
that trained (a GPU, a mode, a software) terms by kernel class add to the law that all share; where
nothing was measured there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.conditions import Conditions
from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.features.kernel_features import DeviceView, kernel_features, roofline_ms, serial_ms
from dippm.features.kernel_graph import KernelGraph
from dippm.models.kernel_network import KernelNetwork, Neighbours, static_features
from dippm.models.kernel_trees import KernelTrees
from dippm.models.novelty import shares_of

Floats = NDArray[np.float64]
GUARD = 1.2
"""How far, in the log, a network may leave the trees for one kernel. Networks extrapolate, trees do
not: without it a recurrent model whose architecture was held out came out ten times too slow."""

LAW_VERSION = "3"
"""Raise it when the law reads other arrays or means something else by them."""


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Times of the kernels of one model.

    Attributes:
        kernel_ms: of each kernel of the whole table; they sum to `device_ms`, shape (K,).
        device_ms: the mean of the members' sums, in the log.
        spread: standard deviation of the log of the members' sums.
        extrapolated: share of the time in kernels whose slow-down was cut to what was measured.
        shares: of roofline time by class of kernels, (classes,).
    """

    kernel_ms: Floats
    device_ms: float
    spread: float
    extrapolated: float
    shares: Floats


@dataclass(frozen=True, slots=True)
class KernelLaw:
    """Networks, trees, and what bounds them.

    Attributes:
        network: its members share `weights[0]`.
        trees: has `weights[1]`.
        weights: of the two in the mean; they sum to 1.
        lowest, highest: log slow-down by class that measured rows had, (classes,).
        terms: by (GPU, mode): log slow-down by class that its newest table adds, (classes,).
    """

    network: KernelNetwork
    trees: KernelTrees
    weights: tuple[float, float]
    lowest: Floats
    highest: Floats
    terms: Mapping[tuple[str, str], Floats]

    @classmethod
    def from_checkpoint(cls, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> KernelLaw:
        """Read arrays and the part "law" of the configuration.

        Raises:
            CheckpointError: if an array is missing or does not fit.
        """
        law = config["law"]
        bounds = np.array([law["range"][name] for name in KERNEL_CLASSES], dtype=np.float64)
        terms = {
            (table["device"], table["mode"]): np.array(
                [table["terms"].get(name, 0.0) for name in KERNEL_CLASSES], dtype=np.float64
            )
            for table in law["tables"]
        }
        return cls(
            network=KernelNetwork.from_tensors(tensors, law["members"]),
            trees=KernelTrees.from_tensors(tensors, law["tree_depth"], law["tree_reach"]),
            weights=(law["network_weight"], 1.0 - law["network_weight"]),
            lowest=bounds[:, 0],
            highest=bounds[:, 1],
            terms=terms,
        )

    def times(
        self, kernels: KernelGraph, batch: int, view: DeviceView, conditions: Conditions
    ) -> KernelTimes:
        """Return the times of a model's kernels under some conditions."""
        table, kind = kernels.table, kernels.table.kind
        if not len(kind):
            return KernelTimes(np.zeros(0), 0.0, 0.0, 0.0, np.zeros(len(KERNEL_CLASSES)))
        roofline = roofline_ms(table, batch, view)
        slow = self._log_slowdown(kernels, batch, view, conditions, np.log(roofline))
        bounded = np.clip(slow, self.lowest[kind], self.highest[kind])
        added = self._added(conditions)[kind]
        each = roofline * np.exp(bounded + added) + serial_ms(table, batch)
        weights = self._member_weights()
        totals = np.log(np.maximum(each @ kernels.count, 1e-12))
        middle = float(weights @ totals)
        times = np.exp(weights @ np.log(each))
        device_ms = float(np.exp(middle))
        times *= device_ms / max(float(times @ kernels.count), 1e-12)
        cut = np.abs(weights @ (slow - bounded)) > np.log(1.05)
        return KernelTimes(
            kernel_ms=times[kernels.class_of],
            device_ms=device_ms,
            spread=float(np.sqrt(weights @ (totals - middle) ** 2)),
            extrapolated=float((times * kernels.count)[cut].sum() / max(device_ms, 1e-12)),
            shares=shares_of(kind, roofline * kernels.count),
        )

    def _added(self, conditions: Conditions) -> Floats:
        """Return what measurements of this device add, by class."""
        found = conditions.device.calibration
        name = found.base if found else conditions.device.name
        added = self.terms.get((name, conditions.mode), np.zeros(len(KERNEL_CLASSES)))
        if found is None:
            return added
        own = [found.log_slowdown + found.classes.get(kind, 0.0) for kind in KERNEL_CLASSES]
        return np.asarray(added + np.array(own), dtype=np.float64)

    def _log_slowdown(
        self,
        kernels: KernelGraph,
        batch: int,
        view: DeviceView,
        conditions: Conditions,
        log_roofline: Floats,
    ) -> Floats:
        table = kernels.table
        features = kernel_features(
            table,
            batch,
            view,
            channels_last=conditions.channels_last,
            compiled=conditions.mode == "compiled",
        )
        input_bytes = table.input_bytes[0] * batch + table.input_bytes[1]
        static = static_features(log_roofline, kernels.count, kernels.launches, input_bytes)
        size = len(kernels.count)
        network = self.network.log_slowdown(
            features,
            static,
            Neighbours.of(kernels.inward, size),
            Neighbours.of(kernels.outward, size),
        )
        trees = self.trees.log_slowdown(features)
        return np.concatenate([guarded(network.astype(np.float64), trees), trees[None]])

    def _member_weights(self) -> Floats:
        members: Sequence[float] = [self.weights[0] / len(self.network.members)] * len(
            self.network.members
        )
        return np.array([*members, self.weights[1]])


def guarded(network: Floats, trees: Floats) -> Floats:
    """Return log slow-downs of networks, (K,) or (members, K), within GUARD of the trees."""
    return np.asarray(np.clip(network, trees - GUARD, trees + GUARD), dtype=np.float64)
