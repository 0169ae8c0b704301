"""Corrections of the law for operators of serving engines: small trees on kernel features.

The law was fitted to whole models and operators together; matrices with few rows, one query
against a long cache, and 8-bit products lie at the edge of its training data. The trees add to its
log time, by class of kernel. `python -m training.language.corrections` makes the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import KERNEL_FEATURE_VERSION, N_KINDS
from dippm.estimate.models.kernel_trees import KernelTrees

FILE = "corrections.safetensors"


@dataclass(frozen=True, slots=True)
class Corrections:
    """Trees that add to the log time of a kernel.

    Attributes:
        trees: trees over `kernel_features`.
        classes: kernel classes that the trees were fitted to; others have no correction.
    """

    trees: KernelTrees
    classes: tuple[str, ...]

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Any], metadata: Mapping[str, str]
    ) -> Corrections | None:
        """Return the corrections of a file; None if its features are of another version.

        Raises:
            CheckpointError: if an array is missing or does not fit.
        """
        if metadata.get("features") != KERNEL_FEATURE_VERSION:
            return None
        depth, reach = int(metadata["depth"]), float(metadata["reach"])
        classes = tuple(metadata["classes"].split())
        return cls(KernelTrees.from_tensors(tensors, depth, reach), classes)

    def log_factor(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the correction of the log time of each kernel, shape (K,)."""
        fitted = np.array([name in self.classes for name in KERNEL_CLASSES])
        kind = features[:, :N_KINDS].argmax(axis=1)
        return np.where(fitted[kind], self.trees.log_slowdown(features), 0.0)

    def factor(self, features: NDArray[np.float32]) -> float:
        """Return the factor on the time of the one kernel of `features`, shape (1, F)."""
        return exp(float(self.log_factor(features)[0]))


@cache
def shipped_corrections() -> Corrections | None:
    """Return the corrections of the package; None if the law has other features.

    Raises:
        CheckpointError: if the file is damaged.
    """
    from safetensors import safe_open

    path = files("dippm.decide.language").joinpath(FILE)
    with safe_open(str(path), framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return Corrections.from_tensors(tensors, file.metadata() or {})
