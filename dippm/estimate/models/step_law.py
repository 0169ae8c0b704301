"""How much slower than its roofline each kernel of a training step runs.

    log slow-down = inference + what the GPU adds + part and class + trees

The first two are the law of inference as its boosted trees have it, so that a GPU of which only
inferences were measured is known. The rest was learned from training steps: a number for each part
of the step and class of kernels, and boosted trees that see each kernel with its part. Trees of a
checkpoint with `forward_as_inference` say nothing of the forward pass, which inference taught.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel import PARTS
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import (
    N_FEATURES,
    kernel_features,
    roofline_ms,
    serial_ms,
)
from dippm.estimate.models.gpu_effects import GpuEffects, by_class
from dippm.estimate.models.kernel_law import KernelTimes, Place, unique_kernels_at
from dippm.estimate.models.kernel_trees import KernelTrees
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.novelty import MeasuredModels, shares_of

Floats = NDArray[np.float64]
MARKED = ("backward_input", "backward_weight", "optimizer")
"""Parts that the trees distinguish from a forward pass; recomputed kernels count as forward."""
N_STEP_FEATURES = N_FEATURES + len(MARKED) + 1


def step_features(
    features: NDArray[np.float32], part: NDArray[np.int64], log_slowdown: Floats
) -> NDArray[np.float32]:
    """Return the features of the trees of training steps, shape (K, N_STEP_FEATURES).

    Args:
        features: features of the kernels as for inference, shape (K, N_FEATURES).
        part: index of each kernel's part in PARTS, shape (K,).
        log_slowdown: log slow-down by the shared law of inference, shape (K,).
    """
    marks = [part == PARTS.index(name) for name in MARKED]
    columns = np.stack([*marks, log_slowdown], axis=1).astype(np.float32)
    return np.concatenate([features, columns], axis=1)


def is_beyond_forward(part: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which kernels are of gradients or of the update, by their parts, shape (K,)."""
    return np.isin(part, [PARTS.index(name) for name in MARKED])


@dataclass(frozen=True, slots=True)
class StepLaw:
    """The law of training steps.

    Attributes:
        trees: boosted trees of inference.
        steps: boosted trees of training steps.
        multipliers: log slow-down by part and class, shape (PARTS, classes).
        measured: training steps that it was fitted to.
        lowest, highest: range of log slow-downs of measured inferences by class, (classes,).
        effects: effects of GPUs.
        forward_as_inference: whether `steps` speaks of gradients and the update alone.
    """

    trees: KernelTrees
    steps: KernelTrees
    multipliers: Floats
    measured: MeasuredModels
    lowest: Floats
    highest: Floats
    effects: GpuEffects
    forward_as_inference: bool

    @classmethod
    def from_checkpoint(cls, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> StepLaw:
        """Read arrays and the part "law" of the configuration.

        Raises:
            CheckpointError: if an array is missing or does not fit.
        """
        law = config["law"]
        bounds = np.array([law["range"][name] for name in KERNEL_CLASSES], dtype=np.float64)
        by_part = {**law["multipliers"], "recompute": law["multipliers"]["forward"]}
        return cls(
            trees=KernelTrees.from_tensors(tensors, law["tree_depth"], law["tree_reach"]),
            steps=KernelTrees.from_tensors(
                tensors, law["step_depth"], law["step_reach"], "steps", N_STEP_FEATURES
            ),
            multipliers=np.stack([by_class(by_part[name]) for name in PARTS]),
            measured=MeasuredModels.from_tensors(tensors),
            lowest=bounds[:, 0],
            highest=bounds[:, 1],
            effects=GpuEffects.from_law(law),
            forward_as_inference=bool(law.get("forward_as_inference", False)),
        )

    def laboratory_log_sd(self, c: Conditions) -> float:
        """Return the uncertainty of an unknown laboratory, standard deviation, log."""
        return self.effects.log_sd(c)

    def has_head(self, c: Conditions) -> bool:
        """Tell whether an answer means what one laboratory measured, see `GpuEffects`."""
        return self.effects.has_head(c)

    def times(self, kernels: LawKernels, batch: int, places: Sequence[Place]) -> list[KernelTimes]:
        """Return the times of a step's kernels at each place.

        The spread is how far the answers with and without the trees of training steps are apart.
        """
        return [self._times(kernels, batch, place) for place in places]

    def _times(self, kernels: LawKernels, batch: int, place: Place) -> KernelTimes:
        if not len(kernels.graph.count):
            nothing = self.measured.novelty(np.zeros(len(KERNEL_CLASSES)))
            return KernelTimes(np.zeros(0), 0.0, 0.0, 0.0, nothing)
        unique = unique_kernels_at(kernels, place)
        features = kernel_features(
            unique, batch, place.view, channels_last=place.conditions.channels_last
        )
        free = self.trees.log_slowdown(features)
        base = np.clip(free, self.lowest[unique.kind], self.highest[unique.kind])
        launches = kernels.graph.launches
        added = self.effects.kernel_log_slowdown(
            unique, batch, place.view, place.conditions, launches
        )
        plain = base + added + self.multipliers[unique.part, unique.kind]
        step = self.steps.log_slowdown(step_features(features, unique.part, base))
        if self.forward_as_inference:
            step = np.where(is_beyond_forward(unique.part), step, 0.0)
        slow = plain + step
        roofline, serial = roofline_ms(unique, batch, place.view), serial_ms(unique, batch)
        count = np.bincount(kernels.inverse, kernels.graph.count, len(unique.kind))
        each = roofline * np.exp(slow) + serial
        device_ms = float(each @ count)
        without = float((roofline * np.exp(plain) + serial) @ count)
        cut = np.abs(free - base) > np.log(1.05)
        return KernelTimes(
            kernel_ms=each[kernels.inverse][kernels.graph.class_of],
            device_ms=device_ms,
            spread=abs(float(np.log(device_ms / without))) / 2,
            extrapolated=float((each * cut) @ count) / device_ms,
            novelty=self.measured.novelty(shares_of(unique.kind, roofline * count)),
            serial_ms=float(serial @ count),
        )
