"""The kernel network as numpy: predicting needs no deep-learning framework.

D3.5's shape on the graph of kernels: features → three GraphSAGE blocks → fully connected head, with
static features → how much slower than its roofline each kernel runs. Training lives in `training/`;
the weights arrive as plain arrays. Its products are too small for several threads: under load these
wait for one another ten times as long as one takes alone, and how they share rows changes the last
digits of an answer. So one thread of BLAS works, here and nowhere else in the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from dippm.errors import CheckpointError
from dippm.estimate.features.kernel_features import N_DEVICE_FEATURES, N_FEATURES
from dippm.estimate.models.law_kernels import LawKernels

Array = NDArray[np.float32]
ROUNDS = 3
"""Number of GraphSAGE blocks: how far information travels along the data flow."""

SLOWDOWN_RANGE = (-1.5, 5.0)
"""Clamp of the log slow-down: Winograd convolutions beat the roofline, strided copies of small
tensors and wide depthwise windows take a hundred times as long; little measured lies beyond."""

STATIC_FEATURES = ("log_roofline_sum", "log_launches", "log_input_bytes", "log_largest_share")


@dataclass(frozen=True, slots=True)
class KernelNetwork:
    """An ensemble of equal networks.

    Attributes:
        members: arrays by name, of each network.
        stacked: the arrays of all members, laid out for products with rows: weights are
            (members, in, out), lines (members, 1, width).
    """

    members: tuple[Mapping[str, Array], ...]
    stacked: Mapping[str, Array] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        stacked = {
            name: np.stack([np.atleast_2d(member[name]).T for member in self.members])
            if name.endswith("weight")
            else np.stack([member[name][None] for member in self.members])
            for name in member_shapes(1)
        }
        contiguous = {name: np.ascontiguousarray(array) for name, array in stacked.items()}
        object.__setattr__(self, "stacked", contiguous)

    @property
    def width(self) -> int:
        """Width of the layers."""
        return int(self.members[0]["enter.bias"].shape[0])

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
        self,
        features: Array,
        static: Array,
        kernels: LawKernels,
        known: NDArray[np.bool_] | None = None,
        table_heads: Array | None = None,
    ) -> Array:
        """Return one value per member, kernel and place, shape (members, C, D).

        Args:
            features: features of the unique kernels at D places, shape (U, D, F), see
                `dippm.estimate.features.kernel_features`.
            static: STATIC_FEATURES of the model at each place, shape (D, 4).
            kernels: U unique kernels and C kernels of the model.
            known: places whose device trained, shape (D,); None for all. The descriptors of others
                are hidden, as training hides those of some rows: what a network makes of figures
                that it never saw depends on its seed.
            table_heads: weights that the table of measurements of each place adds to those of the
                last layer, (members, D, width); None for nothing.
        """
        with _one_blas_thread:
            return self._log_slowdown(features, static, kernels, known, table_heads)

    def _log_slowdown(
        self,
        features: Array,
        static: Array,
        kernels: LawKernels,
        known: NDArray[np.bool_] | None,
        table_heads: Array | None,
    ) -> Array:
        w, members = self.stacked, len(self.members)
        unique, places, _ = features.shape
        rows = features.reshape(unique * places, -1)
        x = (rows - w["mean"]) / w["scale"]
        if known is not None and not known.all():
            x = x.reshape(members, unique, places, -1)
            x[:, :, ~known, -N_DEVICE_FEATURES:] = 0.0
            x = x.reshape(members, unique * places, -1)
        h = _silu(x @ w["enter.weight"], w["enter.bias"])
        h = h.reshape(members, unique, -1).take(kernels.inverse, axis=1)
        size, width = h.shape[1], w["enter.bias"].shape[-1]

        def as_rows(values: Array) -> Array:
            return values.reshape(members, size * places, width)

        for block in range(ROUNDS):
            into, out = f"blocks.{block}.inward.lin_", f"blocks.{block}.outward.lin_l.weight"
            z = as_rows(kernels.inward.mean(h)) @ w[f"{into}l.weight"]
            z += as_rows(h) @ w[f"{into}r.weight"]
            z += as_rows(kernels.outward.mean(h)) @ w[out]
            h += _silu(z, w[f"{into}l.bias"]).reshape(h.shape)
        # the head's input is (kernel state, static features); the static part is computed once
        scaled = (static - w["static_mean"]) / w["static_scale"]
        head = w["head.weight"]
        of_static = scaled @ head[:, width:] + w["head.bias"]
        z = as_rows(h) @ head[:, :width]
        z = _silu(z.reshape(members, size, places * width), of_static.reshape(members, 1, -1))
        low, high = SLOWDOWN_RANGE
        found = (as_rows(z) @ w["last.weight"] + w["last.bias"]).reshape(members, size, places)
        if table_heads is not None:
            found += np.einsum(
                "mcdw,mdw->mcd", z.reshape(members, size, places, width), table_heads
            )
        return np.asarray(np.clip(found, low, high))


class _OneBlasThread:
    """Leaves BLAS one thread while any thread of the process is inside, then what it had."""

    def __init__(self) -> None:
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._limiter = _blas().limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._yield_control()
                self._limiter.restore_original_limits()
                self._yield_control()

    def _yield_control(self) -> None:
        """Let the thread that leaves last set what the one that came first had found."""
        for library in _blas().lib_controllers:
            if hasattr(library, "clear_controlling_thread"):  # since threadpoolctl 3.8
                library.clear_controlling_thread(force=True)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


_one_blas_thread = _OneBlasThread()


def static_features(
    log_roofline: NDArray[np.floating[Any]],
    count: NDArray[Any],
    launches: float,
    input_bytes: float,
) -> Array:
    """Return STATIC_FEATURES, shape (..., 4), of kernels that stand for `count` each, (..., C)."""
    times = np.exp(log_roofline)
    total = times @ count
    rows = [
        np.log(total),
        np.full_like(total, np.log(max(launches, 1.0))),
        np.full_like(total, np.log1p(input_bytes)),
        np.log(times.max(axis=-1) / total),
    ]
    return np.stack(rows, axis=-1).astype(np.float32)


def read_table_heads(
    tensors: Mapping[str, Any], members: int, keys: Sequence[tuple[str, str]], width: int
) -> dict[tuple[str, str], Array]:
    """Return the weights that tables add to the last layer, (members, width) each.

    Args:
        tensors: of a checkpoint.
        members: networks.
        keys: GPU and mode of each table, in the order of the rows of the arrays.
        width: of the last layer.

    Raises:
        CheckpointError: if an array is missing, or its shape does not fit.
    """
    found = [np.asarray(tensors.get(f"{m}.heads", ()), dtype=np.float32) for m in range(members)]
    if any(heads.shape != (len(keys), width) for heads in found):
        raise CheckpointError(
            "the network's heads do not fit its tables",
            "Restore the checkpoint's folder from its release.",
        )
    each = np.stack(found, axis=1) if keys else ()
    return dict(zip(keys, each, strict=True))


def member_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array of a member; blocks and layers as torch names them."""
    square, line = (width, width), (width,)
    static = len(STATIC_FEATURES)
    shapes: dict[str, tuple[int, ...]] = {
        "mean": (N_FEATURES,),
        "scale": (N_FEATURES,),
        "static_mean": (static,),
        "static_scale": (static,),
        "enter.weight": (width, N_FEATURES),
        "enter.bias": line,
        "head.weight": (width, width + static),
        "head.bias": line,
        "last.weight": (1, width),
        "last.bias": (1,),
    }
    for block in range(ROUNDS):
        shapes |= {
            f"blocks.{block}.inward.lin_l.weight": square,
            f"blocks.{block}.inward.lin_l.bias": line,
            f"blocks.{block}.inward.lin_r.weight": square,
            f"blocks.{block}.outward.lin_l.weight": square,
        }
    return shapes


def _silu(x: NDArray[np.floating[Any]], bias: NDArray[np.floating[Any]]) -> Array:
    """Return z · sigmoid(z) of z = x + bias, in the memory of x."""
    x += bias
    # Below -30 the result is 0 in this precision, and exp would overflow.
    gate = np.maximum(x, np.float32(-30.0))
    np.negative(gate, out=gate)
    np.exp(gate, out=gate)
    gate += np.float32(1.0)
    x /= gate
    return np.asarray(x, dtype=np.float32)
