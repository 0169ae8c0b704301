"""The kernel network as numpy: predicting needs no deep-learning framework.

D3.5's shape on the graph of kernels: features → three GraphSAGE blocks → fully connected head, with
static features → how much slower than its roofline each kernel runs. Training lives in `training/`;
the weights arrive as plain arrays.
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
Integers = NDArray[np.int64]
ROUNDS = 3
"""GraphSAGE blocks: how far a kernel looks along the data flow."""

SLOWDOWN_RANGE = (-1.5, 5.0)
"""Clamp of the log slow-down: Winograd convolutions beat the roofline, strided copies of small
tensors and wide depthwise windows take a hundred times as long; little measured lies beyond."""

STATIC_FEATURES = ("log_roofline_sum", "log_launches", "log_input_bytes", "log_largest_share")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """For each kernel the mean over its neighbours, as gather and sum of runs.

    Attributes:
        source: neighbours, grouped by the kernel they belong to, shape (E,).
        first: where the group of each kernel that has neighbours begins, shape (H,).
        kernel: those kernels, shape (H,).
        share: 1 / neighbours of each of them, shape (H, 1).
        size: kernels in all.
    """

    source: Integers
    first: Integers
    kernel: Integers
    share: Array
    size: int

    @classmethod
    def of(cls, flows: Integers, size: int) -> Neighbours:
        """Group data flows, shape (2, E) of (neighbour, kernel), by kernel."""
        order = np.argsort(flows[1], kind="stable")
        kernel, first, count = np.unique(flows[1][order], return_index=True, return_counts=True)
        share = (1.0 / count[:, None]).astype(np.float32)
        return cls(flows[0][order], first, kernel, share, size)

    def mean(self, x: Array) -> Array:
        """Return the mean over neighbours, zero without any, shape (K, W) from (K, W)."""
        result = np.zeros((self.size, x.shape[1]), dtype=np.float32)
        if len(self.source):
            sums = np.add.reduceat(x[self.source], self.first, axis=0)
            result[self.kernel] = sums * self.share
        return result


@dataclass(frozen=True, slots=True)
class KernelNetwork:
    """An ensemble of equal networks.

    Attributes:
        members: arrays by name, of each network.
    """

    members: tuple[Mapping[str, Array], ...]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any], members: int) -> KernelNetwork:
        """Read the arrays "<member>.<name>", named as torch names them; see `member_shapes`.

        Raises:
            CheckpointError: if an array is missing, or its shape does not fit.
        """
        found = []
        for member in range(members):
            try:
                arrays = {
                    name: np.asarray(tensors[f"{member}.{name}"], dtype=np.float32)
                    for name in member_shapes(1)
                }
            except KeyError as error:
                raise CheckpointError(
                    f"the network has no array {error}",
                    "Restore the checkpoint's folder from its release.",
                ) from None
            width = arrays["enter.bias"].shape[-1] if arrays["enter.bias"].ndim else 0
            if any(arrays[name].shape != shape for name, shape in member_shapes(width).items()):
                raise CheckpointError(
                    "the shapes of the network's arrays do not fit together",
                    "Restore the checkpoint's folder from its release.",
                )
            found.append(arrays)
        return cls(tuple(found))

    def log_slowdown(
        self, features: Array, static: Array, inward: Neighbours, outward: Neighbours
    ) -> Array:
        """Return one value per member and kernel, shape (members, K).

        Args:
            features: shape (K, F), see `dippm.features.kernel_features`.
            static: STATIC_FEATURES of the model, shape (4,).
            inward: what each kernel reads.
            outward: what reads it.
        """
        return np.stack(
            [_network(features, static, inward, outward, member) for member in self.members]
        )


def static_features(
    log_roofline: NDArray[np.floating[Any]],
    count: NDArray[Any],
    launches: float,
    input_bytes: float,
) -> Array:
    """Return STATIC_FEATURES, shape (4,), from kernels of which each stands for `count`."""
    times = np.exp(log_roofline)
    total = float((times * count).sum())
    return np.array(
        [
            np.log(total),
            np.log(max(launches, 1.0)),
            np.log1p(input_bytes),
            np.log(float(times.max()) / total),
        ],
        dtype=np.float32,
    )


def member_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array of a member; blocks and layers as torch names them."""
    square, line = (width, width), (width,)
    static = len(STATIC_FEATURES)
    shapes: dict[str, tuple[int, ...]] = {
        "mean": (N_FEATURES,), "scale": (N_FEATURES,),
        "static_mean": (static,), "static_scale": (static,),
        "enter.weight": (width, N_FEATURES), "enter.bias": line,
        "head.weight": (width, width + static), "head.bias": line,
        "last.weight": (1, width), "last.bias": (1,),
    }  # fmt: skip
    for block in range(ROUNDS):
        shapes |= {
            f"blocks.{block}.inward.lin_l.weight": square,
            f"blocks.{block}.inward.lin_l.bias": line,
            f"blocks.{block}.inward.lin_r.weight": square,
            f"blocks.{block}.outward.lin_l.weight": square,
        }
    return shapes


def _network(
    features: Array, static: Array, inward: Neighbours, outward: Neighbours, w: Mapping[str, Array]
) -> Array:
    x = (features - w["mean"]) / w["scale"]
    h = _silu(x @ w["enter.weight"].T + w["enter.bias"])
    for block in range(ROUNDS):
        into, out = f"blocks.{block}.inward.lin_", f"blocks.{block}.outward.lin_l.weight"
        z = inward.mean(h) @ w[f"{into}l.weight"].T + w[f"{into}l.bias"]
        z = z + h @ w[f"{into}r.weight"].T + outward.mean(h) @ w[out].T
        h = h + _silu(z)
    told = (static - w["static_mean"]) / w["static_scale"]
    head = w["head.weight"]
    width = h.shape[1]
    h = _silu(h @ head[:, :width].T + (head[:, width:] @ told + w["head.bias"]))
    low, high = SLOWDOWN_RANGE
    return np.asarray(np.clip(h @ w["last.weight"][0] + w["last.bias"], low, high))


def _silu(x: NDArray[np.floating[Any]]) -> Array:
    return np.asarray(x / (1.0 + np.exp(-np.clip(x, -30, 30))), dtype=np.float32)
