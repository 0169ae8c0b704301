"""Writes models of keras.applications, and counts them from the shapes of their layers.

    python -m tests.zoo.keras_writer list | write NAME FOLDER

Weights are zeros: what is measured does not depend on their values.
"""

from __future__ import annotations

import json
import os
import sys
from math import prod
from pathlib import Path
from typing import Any

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

import keras

from tests.zoo.keras_applications import KINDS

KERNELS = {
    "Conv1D": ("kernel",), "Conv2D": ("kernel",), "Conv3D": ("kernel",), "Dense": ("kernel",),
    "DepthwiseConv2D": ("kernel",), "SeparableConv2D": ("depthwise_kernel", "pointwise_kernel"),
}  # fmt: skip


def names() -> list[str]:
    """Return the models of keras.applications."""
    found = vars(keras.applications)
    return sorted(n for n in found if n[0].isupper() and callable(found[n]))


def build(name: str) -> Any:
    """Return a model without trained weights, at a size of its own."""
    for kind in ("GlorotUniform", "VarianceScaling", "TruncatedNormal", "RandomNormal"):
        setattr(getattr(keras.initializers, kind), "__call__", _zeros)  # noqa: B010
    make = getattr(keras.applications, name)
    model = make(weights=None)
    if None in model.inputs[0].shape[1:]:
        model = make(weights=None, input_shape=(224, 224, 3))
    return model


def _zeros(_: Any, shape: Any, dtype: Any = None, **__: Any) -> Any:
    return keras.ops.zeros(shape, dtype=dtype)


def macs(model: Any) -> int | None:
    """Count multiply-accumulates of one sample; None if a layer is not known here."""
    total = 0
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.Model):
            continue
        kernels = KERNELS.get(type(layer).__name__)
        if kernels is None:
            if any(len(weight.shape) > 1 for weight in layer.weights):
                return None
            continue
        for call in layer._inbound_nodes:
            positions = prod(call.output_tensors[0].shape[1:-1])
            total += positions * sum(prod(getattr(layer, kernel).shape) for kernel in kernels)
    return total


def write(name: str, folder: Path) -> dict[str, Any]:
    """Write a model as each kind of file; return its facts."""
    model = build(name)
    failed = {}
    for kind, file in KINDS.items():
        try:
            if kind == "savedmodel":
                model.export(folder / file, verbose=False)
            else:
                model.save(folder / file)
        except Exception as error:
            failed[kind] = f"{type(error).__name__}: {error}"[:200]
    outputs = [[1, *tensor.shape[1:]] for tensor in model.outputs]
    return {"macs": macs(model), "outputs": outputs, "failed": failed}


if __name__ == "__main__":
    print(json.dumps(names() if sys.argv[1] == "list" else write(sys.argv[2], Path(sys.argv[3]))))
