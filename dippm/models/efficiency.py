"""The efficiency network, as numpy: predicting needs no deep-learning framework.

It maps the features of a kernel on a device to the logarithm of its slow-down over the roofline.
Training lives in `training/`; the weights arrive as plain arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.errors import CheckpointError
from dippm.features.kernel_features import N_FEATURES

Array = NDArray[np.float32]
SLOWDOWN_RANGE = (-1.5, 5.0)
"""Clamp of the log slow-down: Winograd convolutions beat the roofline, strided copies of small
tensors and wide depthwise windows take a hundred times as long; little measured lies beyond."""


@dataclass(frozen=True, slots=True)
class EfficiencyNetwork:
    """An ensemble of perceptrons with SiLU activations.

    Attributes:
        mean, scale: of the features on the training part, shape (F,).
        layers: per member, per layer (weight (out, in), bias (out,)).
    """

    mean: Array
    scale: Array
    layers: tuple[tuple[tuple[Array, Array], ...], ...]

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Any], members: int, depth: int
    ) -> EfficiencyNetwork:
        """Read the arrays "mean", "scale" and "<member>.<layer>.weight|bias".

        Raises:
            CheckpointError: if an array is missing, or shapes do not follow from one another.
        """
        arrays = {name: np.asarray(t, dtype=np.float32) for name, t in tensors.items()}
        layers = tuple(
            tuple(
                (arrays[f"{member}.{layer}.weight"], arrays[f"{member}.{layer}.bias"])
                for layer in range(depth)
            )
            for member in range(members)
        )
        network = cls(arrays["mean"], arrays["scale"], layers)
        if not network._fits():
            raise CheckpointError(
                "the shapes of the network's arrays do not fit together",
                "Restore the checkpoint's folder from its release.",
            )
        return network

    def _fits(self) -> bool:
        """Tell whether layers chain from the features to one number."""
        ok = self.mean.shape == self.scale.shape == (N_FEATURES,)
        for member in self.layers:
            width = N_FEATURES
            for weight, bias in member:
                ok = ok and weight.shape == (len(bias), width) and bias.ndim == 1
                width = bias.shape[0] if bias.ndim else 0
            ok = ok and width == 1
        return ok

    def log_slowdown(self, features: Array) -> Array:
        """Return one value per member and kernel, shape (members, K).

        Args:
            features: shape (K, F), see `dippm.features.kernel_features`.
        """
        x = (features - self.mean) / self.scale
        return np.stack([_perceptron(x, member) for member in self.layers])


def _perceptron(x: Array, layers: tuple[tuple[Array, Array], ...]) -> Array:
    for weight, bias in layers[:-1]:
        x = x @ weight.T + bias
        x = np.asarray(x / (1.0 + np.exp(-np.clip(x, -30, 30))), dtype=np.float32)
    weight, bias = layers[-1]
    low, high = SLOWDOWN_RANGE
    return np.asarray(np.clip((x @ weight.T + bias)[:, 0], low, high), dtype=np.float32)
