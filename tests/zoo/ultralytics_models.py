"""Every model that ultralytics describes in its own package, at its smallest scale."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from dippm.model.vision_operators import declare_vision_operators
from tests.zoo.case import Case
from tests.zoo.modules import module_case

SIDE, CLASSIFIED_SIDE = 640, 224


def cases() -> Iterator[Case]:
    """Yield one case for each YAML file of the package."""
    declare_vision_operators()
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")  # it would call pip for what it misses
    import ultralytics

    folder = Path(ultralytics.__file__).parent / "cfg" / "models"
    for path in sorted(folder.rglob("*.yaml")):
        side = CLASSIFIED_SIDE if "-cls" in path.stem else SIDE
        yield module_case(path.stem, _maker(path), {"x": (3, side, side)})


def _maker(path: Path) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        from ultralytics import RTDETR, YOLO

        kind = RTDETR if path.stem.startswith("rtdetr") else YOLO
        module: torch.nn.Module = kind(path.name).model.float()
        return module

    return make
