"""torchvision beside a CPU build of torch."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any


@cache
def declare_vision_operators() -> Any:
    """Let torchvision import beside a CPU build of torch, whose C++ operators it lacks.

    Its wheels are GPU builds; without their library the import dies on `torchvision::nms`. The
    schemas are enough for everything but detection models.
    """
    import torch

    if importlib.util.find_spec("torchvision") is None:
        return None
    try:
        import torchvision  # noqa: F401
    except (RuntimeError, OSError, AttributeError):
        pass
    else:
        return None
    _forget("torchvision")
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _forget(package: str) -> None:
    """Drop the modules of a half-imported package, so that it can be imported again."""
    import sys

    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        del sys.modules[name]
