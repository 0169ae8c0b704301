"""Writes models of paddle.vision, and counts them by hooks on their layers.

python -m tests.zoo.paddle_writer list | write NAME FOLDER
"""

from __future__ import annotations

import json
import sys
from math import prod
from pathlib import Path
from typing import Any

import paddle
from paddle.vision import models

SIZES = {"inception_v3": 299}


def names() -> list[str]:
    """Return the models of paddle.vision."""
    found = vars(models)
    return sorted(n for n in models.__all__ if n[0].islower() and callable(found[n]))


def build(name: str) -> Any:
    """Return a model without trained weights."""
    model = getattr(models, name)(pretrained=False)
    model.eval()
    return model


def count(model: Any, shape: list[int]) -> tuple[int, list[list[int]]]:
    """Return the multiply-accumulates of a pass, and the shapes of the results."""
    total = 0

    def of_convolution(layer: Any, _: Any, result: Any) -> None:
        nonlocal total
        total += prod(result.shape) * prod(layer.weight.shape[1:])

    def of_product(layer: Any, _: Any, result: Any) -> None:
        nonlocal total
        total += prod(result.shape) * layer.weight.shape[0]

    for layer in model.sublayers():
        if isinstance(layer, paddle.nn.Conv2D):
            layer.register_forward_post_hook(of_convolution)
        elif isinstance(layer, paddle.nn.Linear):
            layer.register_forward_post_hook(of_product)
    with paddle.no_grad():
        results = model(paddle.zeros(shape))
    results = results if isinstance(results, list | tuple) else [results]
    return total, [list(result.shape) for result in results]


def write(name: str, folder: Path) -> dict[str, Any]:
    """Write a model in both formats; return its facts."""
    size = SIZES.get(name, 224)
    failed = {}
    spec = paddle.static.InputSpec([None, 3, size, size], "float32", "x")
    try:
        paddle.jit.save(build(name), str(folder / "present" / "model"), input_spec=[spec])
    except Exception as error:
        failed["json"] = f"{type(error).__name__}: {error}"[:200]
    total, outputs = count(build(name), [1, 3, size, size])
    try:
        _write_former(name, folder / "former" / "model", size)
    except Exception as error:
        failed["pdmodel"] = f"{type(error).__name__}: {error}"[:200]
    return {"macs": total, "outputs": outputs, "failed": failed}


def _write_former(name: str, prefix: Path, size: int) -> None:
    paddle.enable_static()
    with paddle.pir_utils.OldIrGuard():
        program, start = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(program, start):
            x = paddle.static.data("x", [None, 3, size, size], "float32")
            results = build(name)(x)
        results = list(results) if isinstance(results, list | tuple) else [results]
        executor = paddle.static.Executor(paddle.CPUPlace())
        executor.run(start)
        prefix.parent.mkdir(exist_ok=True)
        paddle.static.save_inference_model(str(prefix), [x], results, executor, program=program)


if __name__ == "__main__":
    print(json.dumps(names() if sys.argv[1] == "list" else write(sys.argv[2], Path(sys.argv[3]))))
