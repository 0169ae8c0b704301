"""How much slower than its roofline each kernel of a model runs: the learned part of `hybrid`.

An ensemble of graph networks and of boosted trees, averaged in the log: near what was measured the
networks speak alone, the further from it the more the trees do, and the less a network may leave
them. For a table of measurements that trained (a GPU, a mode, a software) terms by kernel class add
to the law that all share, and to the networks what they left over of its models nearby; a GPU that
was not measured takes the terms that tables of other GPUs with its kind of memory usually add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import (
    DeviceView,
    kernel_features,
    roofline_ms,
    serial_ms,
)
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.gpu_effects import GpuEffects
from dippm.estimate.models.kernel_network import (
    Array,
    KernelNetwork,
    read_table_heads,
    static_features,
)
from dippm.estimate.models.kernel_trees import KernelTrees
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.novelty import MeasuredModels, Novelty, shares_of
from dippm.estimate.models.power_limit import Limited
from dippm.estimate.models.residuals import MeasuredResiduals

Floats = NDArray[np.float64]
MAX_NETWORK_DEVIATION = 1.2
"""How far, in the log, a network may leave the trees for one kernel. Networks extrapolate, trees do
not: without it a recurrent model whose architecture was held out came out ten times too slow."""

ROWS_AT_ONCE = 2048
"""Kernels × places that the networks see at once: their states stay in the cache of a core."""

BLEND_START, BLEND_END = 0.03, 0.2
"""Novelty up to which networks speak alone, and from which the trees have their whole weight. A
quarter of the models whose architecture is held out are nearer than the one to what trains, and a
quarter of those whose family is held out further than the other."""

LAW_VERSION = "5"
"""Raise it when the law reads other arrays or means something else by them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels run: a device or a slice of it.

    Attributes:
        view: view of the device or slice.
        conditions: conditions on the device; precision and batch are those of the kernels.
        ieee: whether products that may take TF32 are IEEE products instead.
    """

    view: DeviceView
    conditions: Conditions
    ieee: bool = False


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Times of the kernels of one model.

    Attributes:
        kernel_ms: time of each kernel of the whole table, shape (K,); they sum to `device_ms`.
        device_ms: geometric mean of the members' sums.
        spread: standard deviation of the log of the members' sums.
        extrapolated: share of the time in kernels whose slow-down was cut to what was measured.
        novelty: distance to the nearest measured model.
        limited: effect of a low power limit of the board on them; None without one.
        serial_ms: part of `device_ms` in serial steps, which faster arithmetic does not shorten;
            0 for inference, whose formats have the same.
    """

    kernel_ms: Floats
    device_ms: float
    spread: float
    extrapolated: float
    novelty: Novelty
    limited: Limited | None = None
    serial_ms: float = 0.0


class Law(Protocol):
    """A law of the times of kernels."""

    def times(self, kernels: LawKernels, batch: int, places: Sequence[Place]) -> list[KernelTimes]:
        """Return the times of a model's kernels at each place."""
        ...

    def laboratory_log_sd(self, c: Conditions) -> float:
        """Return the uncertainty of an unknown laboratory, standard deviation, log."""
        ...

    def has_head(self, c: Conditions) -> bool:
        """Tell whether an answer means what one laboratory measured, see `GpuEffects`."""
        ...


@dataclass(frozen=True, slots=True)
class KernelLaw:
    """Networks, trees, and what bounds them.

    Attributes:
        network: ensemble of networks, which share the weight that the trees leave.
        trees: boosted trees, the other kind of member.
        network_weight: weight of the networks far from measured models, see `tree_share`.
        measured: models that the law was fitted to.
        known: devices with measurements; the networks see descriptors of no others.
        lowest, highest: range of log slow-downs of measured rows by class, (classes,).
        effects: effects of GPUs.
        table_heads: weights that the newest table of a (GPU, mode) adds to the last layer of each
            network, (members, width).
        residuals: residuals of the networks on rows that trained, of the newest tables.
    """

    network: KernelNetwork
    trees: KernelTrees
    network_weight: float
    measured: MeasuredModels
    known: frozenset[str]
    lowest: Floats
    highest: Floats
    effects: GpuEffects
    table_heads: Mapping[tuple[str, str], Array]
    residuals: MeasuredResiduals

    @classmethod
    def from_checkpoint(cls, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> KernelLaw:
        """Read arrays and the part "law" of the configuration.

        Raises:
            CheckpointError: if an array is missing or does not fit.
        """
        law = config["law"]
        bounds = np.array([law["range"][name] for name in KERNEL_CLASSES], dtype=np.float64)
        network = KernelNetwork.from_tensors(tensors, law["members"])
        with_table_head = [
            (own["device"], own["mode"]) for own in law.get("heads", law.get("tables", ()))
        ]
        return cls(
            network=network,
            trees=KernelTrees.from_tensors(tensors, law["tree_depth"], law["tree_reach"]),
            network_weight=law["network_weight"],
            measured=MeasuredModels.from_tensors(tensors, law.get("measured_gpus", ())),
            known=frozenset(config["seen"]["devices"]),
            lowest=bounds[:, 0],
            highest=bounds[:, 1],
            effects=GpuEffects.from_law(law),
            table_heads=read_table_heads(tensors, law["members"], with_table_head, network.width),
            residuals=MeasuredResiduals.from_checkpoint(
                tensors,
                law.get("residuals", ()),
                network.members[0]["mean"],
                network.members[0]["scale"],
            ),
        )

    def laboratory_log_sd(self, c: Conditions) -> float:
        """Return the uncertainty of an unknown laboratory, standard deviation, log."""
        return self.effects.log_sd(c)

    def has_head(self, c: Conditions) -> bool:
        """Tell whether an answer means what one laboratory measured, see `GpuEffects`."""
        return self.effects.has_head(c)

    def times(self, kernels: LawKernels, batch: int, places: Sequence[Place]) -> list[KernelTimes]:
        """Return the times of a model's kernels at each place."""
        size = len(kernels.graph.count)
        if not size:
            nothing = np.zeros(len(KERNEL_CLASSES))
            novelties = self._novelties([nothing] * len(places), places)
            return [KernelTimes(np.zeros(0), 0.0, 0.0, 0.0, novelty) for novelty in novelties]
        at_once = max(1, ROWS_AT_ONCE // size)
        parts = [places[first : first + at_once] for first in range(0, len(places), at_once)]
        return [found for part in parts for found in self._times(kernels, batch, part)]

    def _times(self, kernels: LawKernels, batch: int, places: Sequence[Place]) -> list[KernelTimes]:
        """Return the times at D places that are worked out at once.

        Axes: m members of the ensemble (networks, then the trees), d places, c kernels that differ.
        """
        kind, count = kernels.graph.table.kind, kernels.graph.count.astype(np.float64)
        tables = [unique_kernels_at(kernels, p) for p in places]
        pairs = list(zip(tables, places, strict=True))
        unique_roofline = np.stack([roofline_ms(table, batch, p.view) for table, p in pairs])
        roofline = unique_roofline[:, kernels.inverse]
        shares = [shares_of(kind, each_roofline * count) for each_roofline in roofline]
        novelties = self._novelties(shares, places)
        novelty = np.array([found.on_any for found in novelties])
        features = self._features(kernels, batch, places)
        slow = self._log_slowdown(kernels, batch, places, features, np.log(roofline), novelty)
        bounded = np.clip(slow, self.lowest[kind], self.highest[kind])
        launches = kernels.graph.launches
        of_gpus = [
            self.effects.kernel_log_slowdown(table, batch, p.view, p.conditions, launches)
            for table, p in pairs
        ]
        offsets = np.stack([unique[kernels.inverse] for unique in of_gpus])
        # residuals are those of the networks, so the trees take none of them
        nearby = self._nearby(kernels, places, features, unique_roofline)
        of_networks = np.append(np.ones(len(slow) - 1), 0.0)
        offsets = offsets + of_networks[:, None, None] * nearby[:, None]
        serial = serial_ms(kernels.unique_kernels, batch)[kernels.inverse]
        each = roofline * np.exp(bounded + offsets) + serial
        # the mean is that of the members' sums, in the log; kernels are scaled to sum to it
        weights = self._weights(tree_share(novelty, self.network_weight))
        totals = np.log(np.maximum(each @ count, 1e-12))
        times = np.exp(np.einsum("md,mdc->dc", weights, np.log(each)))
        device_ms = np.exp((weights * totals).sum(axis=0))
        times *= (device_ms / np.maximum(times @ count, 1e-12))[:, None]
        # extrapolated: the bounds changed a kernel's mean slow-down by more than 5 %
        changed = np.einsum("md,mdc->dc", weights, slow - bounded)
        cut = np.abs(changed) > np.log(1.05)
        extrapolated = (times * cut) @ count / np.maximum(device_ms, 1e-12)
        of_all = times[:, kernels.graph.class_of]
        numbers = zip(
            device_ms.tolist(), self._spread(totals).tolist(), extrapolated.tolist(), strict=True
        )
        each_found = zip(of_all, numbers, novelties, strict=True)
        return [KernelTimes(own, *one, far) for own, one, far in each_found]

    def _novelties(self, shares: Sequence[Floats], places: Sequence[Place]) -> list[Novelty]:
        gpus = [place.conditions.device.measured_name for place in places]
        return [self.measured.novelty(*pair) for pair in zip(shares, gpus, strict=True)]

    def _spread(self, totals: Floats) -> Floats:
        """Return the members' disagreement at each place, with the weights far from data, (D,)."""
        weights = self._weights(np.full(totals.shape[1], 1.0 - self.network_weight))
        middle = (weights * totals).sum(axis=0)
        return np.asarray(np.sqrt((weights * (totals - middle) ** 2).sum(axis=0)))

    def _nearby(
        self, kernels: LawKernels, places: Sequence[Place], features: Array, roofline: Floats
    ) -> Floats:
        """Return the correction by residuals of measured models nearby, at each place, (D,).

        Args:
            kernels: kernels of the model.
            places: D places.
            features: features of the unique kernels, (U, D, F).
            roofline: roofline time of each unique kernel, (D, U).
        """
        times = roofline * np.bincount(kernels.inverse, kernels.graph.count, len(features))
        found = [
            self.residuals.log_correction(
                place.conditions, place.conditions.device.measured_name, features[:, i], times[i]
            )
            for i, place in enumerate(places)
        ]
        return np.array(found, dtype=np.float64)

    def _features(self, kernels: LawKernels, batch: int, places: Sequence[Place]) -> Array:
        """Return the features of the unique kernels, shape (U, D, F)."""
        return np.stack(
            [
                kernel_features(
                    unique_kernels_at(kernels, place),
                    batch,
                    place.view,
                    channels_last=place.conditions.channels_last,
                    compiled=place.conditions.mode == "compiled",
                )
                for place in places
            ],
            axis=1,
        )

    def _log_slowdown(
        self,
        kernels: LawKernels,
        batch: int,
        places: Sequence[Place],
        features: Array,
        log_roofline: Floats,
        novelty: Floats,
    ) -> Floats:
        """Return the log slow-downs by networks and trees, shape (members + 1, D, C)."""
        graph = kernels.graph
        per_sample, fixed = graph.table.input_bytes
        static = static_features(
            log_roofline, graph.count, graph.launches, per_sample * batch + fixed
        )
        known = np.array([place.conditions.device.measured_name in self.known for place in places])
        table_heads = self._table_heads_at(places)
        network = self.network.log_slowdown(features, static, kernels, known, table_heads)
        network = network.transpose(0, 2, 1)
        by_trees = self.trees.log_slowdown(features.reshape(-1, features.shape[2]))
        trees = by_trees.reshape(features.shape[:2])[kernels.inverse].T
        free = network.astype(np.float64)
        held = free + blend_factor(novelty)[:, None] * (clip_to_trees(free, trees) - free)
        return np.concatenate([held, trees[None]])

    def _table_heads_at(self, places: Sequence[Place]) -> Array | None:
        """Return the tables' weights of the last layer at each place, (members, D, width)."""
        asked = [(p.conditions.device.measured_name, p.conditions.mode) for p in places]
        if not any(key in self.table_heads for key in asked):
            return None
        nothing = np.zeros((len(self.network.members), self.network.width), dtype=np.float32)
        return np.stack([self.table_heads.get(key, nothing) for key in asked], axis=1)

    def _weights(self, of_trees: Floats) -> Floats:
        """Return the weights of members and trees at each place, (members + 1, D)."""
        members = len(self.network.members)
        return np.stack([*[(1.0 - of_trees) / members] * members, of_trees])


def blend_factor(novelty: Floats) -> Floats:
    """Return how far from what was measured a novelty is: 0 up to BLEND_START, 1 from BLEND_END."""
    step = np.log(np.maximum(novelty, BLEND_START) / BLEND_START)
    step /= np.log(BLEND_END / BLEND_START)
    return np.asarray(np.minimum(step, 1.0), dtype=np.float64)


def tree_share(novelty: Floats, network_weight: float) -> Floats:
    """Return the weight of the trees in the mean.

    Args:
        novelty: distance to the nearest measured model, any shape.
        network_weight: weight of the networks far from it, 0 to 1.
    """
    return np.asarray(blend_factor(novelty) * (1.0 - network_weight), dtype=np.float64)


def unique_kernels_at(kernels: LawKernels, place: Place) -> KernelTable:
    """Return the unique kernels at a place, with IEEE products for TF32 where it says so."""
    plain = kernels.ieee_unique_kernels if place.ieee else None
    return plain or kernels.unique_kernels


def clip_to_trees(network: Floats, trees: Floats) -> Floats:
    """Return log slow-downs of networks, (..., K), near the trees', (K,) or (D, K)."""
    low, high = trees - MAX_NETWORK_DEVIATION, trees + MAX_NETWORK_DEVIATION
    return np.asarray(np.clip(network, low, high), dtype=np.float64)
