"""How much slower than its roofline each kernel of a model runs: the learned part of `hybrid`.

An ensemble of graph networks and of boosted trees, averaged in the log. For a table of measurements
that trained (a GPU, a mode, a software) terms by kernel class add to the law that all share; a GPU
that was not measured takes those that tables of other GPUs with its kind of memory usually add.
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
from dippm.features.kernel_table import KernelTable
from dippm.models.kernel_network import KernelNetwork, static_features
from dippm.models.kernel_trees import KernelTrees
from dippm.models.law_kernels import LawKernels
from dippm.models.novelty import shares_of

Floats = NDArray[np.float64]
GUARD = 1.2
"""How far, in the log, a network may leave the trees for one kernel. Networks extrapolate, trees do
not: without it a recurrent model whose architecture was held out came out ten times too slow."""

ROWS_AT_ONCE = 2048
"""Kernels × places that the networks see at once: their states stay in the cache of a core."""

LAW_VERSION = "3"
"""Raise it when the law reads other arrays or means something else by them."""

ANY_MEMORY = "any"
"""In place of `Device.memory_family` where it is not known."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels run: a device or a slice of it.

    Attributes:
        view: of the device or slice.
        conditions: of the device; its precision and batch are those of the kernels.
        ieee: whether products that may take TF32 are IEEE products instead.
    """

    view: DeviceView
    conditions: Conditions
    ieee: bool = False


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
        usual: by (memory family or ANY_MEMORY, mode): the same for a GPU without terms.
    """

    network: KernelNetwork
    trees: KernelTrees
    weights: tuple[float, float]
    lowest: Floats
    highest: Floats
    terms: Mapping[tuple[str, str], Floats]
    usual: Mapping[tuple[str, str], Floats]

    @classmethod
    def from_checkpoint(cls, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> KernelLaw:
        """Read arrays and the part "law" of the configuration.

        Raises:
            CheckpointError: if an array is missing or does not fit.
        """
        law = config["law"]
        bounds = np.array([law["range"][name] for name in KERNEL_CLASSES], dtype=np.float64)
        terms = {
            (table["device"], table["mode"]): by_class(table["terms"]) for table in law["tables"]
        }
        usual = {
            (family, mode): by_class(added)
            for family, modes in law["usual"].items()
            for mode, added in modes.items()
        }
        return cls(
            network=KernelNetwork.from_tensors(tensors, law["members"]),
            trees=KernelTrees.from_tensors(tensors, law["tree_depth"], law["tree_reach"]),
            weights=(law["network_weight"], 1.0 - law["network_weight"]),
            lowest=bounds[:, 0],
            highest=bounds[:, 1],
            terms=terms,
            usual=usual,
        )

    def times(self, kernels: LawKernels, batch: int, places: Sequence[Place]) -> list[KernelTimes]:
        """Return the times of a model's kernels at each place."""
        size = len(kernels.graph.count)
        if not size:
            return [
                KernelTimes(np.zeros(0), 0.0, 0.0, 0.0, np.zeros(len(KERNEL_CLASSES)))
                for _ in places
            ]
        at_once = max(1, ROWS_AT_ONCE // size)
        parts = [places[first : first + at_once] for first in range(0, len(places), at_once)]
        return [found for part in parts for found in self._times(kernels, batch, part)]

    def _times(self, kernels: LawKernels, batch: int, places: Sequence[Place]) -> list[KernelTimes]:
        looks, kind = kernels.looks, kernels.graph.table.kind
        count = kernels.graph.count.astype(np.float64)
        each_look = [roofline_ms(_looks(kernels, p), batch, p.view) for p in places]
        roofline = np.stack(each_look)[:, kernels.look_of]
        slow = self._log_slowdown(kernels, batch, places, np.log(roofline))
        bounded = np.clip(slow, self.lowest[kind], self.highest[kind])
        added = np.stack([self._added(p.conditions)[kind] for p in places])
        serial = serial_ms(looks, batch)[kernels.look_of]
        each = roofline * np.exp(bounded + added) + serial
        weights = self._member_weights()
        totals = np.log(np.maximum(each @ count, 1e-12))
        middle = weights @ totals
        times = np.exp(np.tensordot(weights, np.log(each), 1))
        device_ms = np.exp(middle)
        times *= (device_ms / np.maximum(times @ count, 1e-12))[:, None]
        cut = np.abs(np.tensordot(weights, slow - bounded, 1)) > np.log(1.05)
        spread = np.sqrt(weights @ (totals - middle) ** 2)
        extrapolated = (times * cut) @ count / np.maximum(device_ms, 1e-12)
        of_all = times[:, kernels.graph.class_of]
        shares = [shares_of(kind, each_roofline * count) for each_roofline in roofline]
        numbers = zip(
            device_ms.tolist(), spread.tolist(), extrapolated.tolist(), shares, strict=True
        )
        return [KernelTimes(own, *one) for own, one in zip(of_all, numbers, strict=True)]

    def _added(self, conditions: Conditions) -> Floats:
        """Return what measurements of this device add, by class, or usually add on such a one."""
        found = conditions.device.calibration
        name = found.base if found else conditions.device.name
        added = self.terms.get((name, conditions.mode))
        if added is None:
            family = conditions.device.memory_family or ANY_MEMORY
            added = self.usual.get((family, conditions.mode), np.zeros(len(KERNEL_CLASSES)))
        if found is None:
            return added
        own = [found.log_slowdown + found.classes.get(kind, 0.0) for kind in KERNEL_CLASSES]
        return np.asarray(added + np.array(own), dtype=np.float64)

    def _log_slowdown(
        self, kernels: LawKernels, batch: int, places: Sequence[Place], log_roofline: Floats
    ) -> Floats:
        """Return what members and trees say, shape (members + 1, D, C)."""
        features = np.stack(
            [
                kernel_features(
                    _looks(kernels, place),
                    batch,
                    place.view,
                    channels_last=place.conditions.channels_last,
                    compiled=place.conditions.mode == "compiled",
                )
                for place in places
            ],
            axis=1,
        )
        graph = kernels.graph
        per_sample, fixed = graph.table.input_bytes
        static = static_features(
            log_roofline, graph.count, graph.launches, per_sample * batch + fixed
        )
        network = self.network.log_slowdown(features, static, kernels).transpose(0, 2, 1)
        looks = self.trees.log_slowdown(features.reshape(-1, features.shape[2]))
        trees = looks.reshape(features.shape[:2])[kernels.look_of].T
        return np.concatenate([guarded(network.astype(np.float64), trees), trees[None]])

    def _member_weights(self) -> Floats:
        members: Sequence[float] = [self.weights[0] / len(self.network.members)] * len(
            self.network.members
        )
        return np.array([*members, self.weights[1]])


def by_class(values: Mapping[str, float]) -> Floats:
    """Return values by name of class as an array, (classes,); 0 where there is none."""
    return np.array([values.get(name, 0.0) for name in KERNEL_CLASSES], dtype=np.float64)


def _looks(kernels: LawKernels, place: Place) -> KernelTable:
    plain = kernels.ieee_looks if place.ieee else None
    return plain or kernels.looks


def guarded(network: Floats, trees: Floats) -> Floats:
    """Return log slow-downs of networks, (..., K), within GUARD of the trees, (K,) or (D, K)."""
    return np.asarray(np.clip(network, trees - GUARD, trees + GUARD), dtype=np.float64)
