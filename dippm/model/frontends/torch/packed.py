"""The inputs of vision towers that take patches of many images in one row, and their grids.

They have no batch: the patches of all images follow each other, and `grid_thw` says in numbers how
many frames, rows and columns each image has. Transformers names these parameters alike everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from dippm.model.frontends.torch.input_shapes import IMAGE, Shape, setting
from dippm.model.relax.raw_graph import InputValue

GRIDS = ("grid_thw", "image_grid_thw")
PATCHES = ("hidden_states", "pixel_values")
MERGED = "merge_sizes"
NOTE = (
    "one image of {side} × {side} patches was taken (the model leaves it open); for another give "
    'input="{patches}=fixed:{sizes};{grid}=value:[[1,{side},{side}]]" with as many patches as the '
    "frames, rows and columns of all images make"
)


@dataclass(frozen=True, slots=True)
class Packed:
    """Complete sizes by input name, numbers by input name, and what was chosen for them."""

    shapes: dict[str, Shape]
    values: dict[str, InputValue]
    note: str


def packed_images(config: Any, required: Collection[str]) -> Iterator[Packed]:
    """Yield what a tower may be given, the likeliest first; nothing if it is no such tower.

    Args:
        config: of the model.
        required: parameters of its `forward` that have no default.
    """
    grid = next((name for name in GRIDS if name in required), None)
    patches = next((name for name in PATCHES if name in required), None)
    patch = setting(config, "patch_size")
    if grid is None or patches is None or patch is None:
        return
    if set(required) - {grid, patches, MERGED}:
        return
    channels = setting(config, "in_channels", "num_channels") or 3
    frames = setting(config, "temporal_patch_size", "patch_temporal") or 1
    merge = setting(config, "spatial_merge_size", "merge_size") or 2
    side = max(IMAGE // patch // merge, 1) * merge
    values: dict[str, InputValue] = {grid: ((1, side, side),)}
    if MERGED in required:
        values[MERGED] = (merge,)
    rows = side * side
    for sizes in ((rows, channels * frames * patch * patch), (rows, channels, patch, patch)):
        text = ",".join(map(str, sizes))
        note = NOTE.format(side=side, patches=patches, sizes=text, grid=grid)
        yield Packed({patches: sizes}, values, note)
