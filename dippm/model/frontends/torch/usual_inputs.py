"""Usual inputs: those that a model states itself, or that its kind of model usually gets.

Sizes that a model states (the image size of its configuration) are used silently; those that it
leaves open (the length of a text) are chosen here and mentioned in a note.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.torch.input_shapes import (
    COMPANIONS,
    IMAGE,
    SOUND,
    FallbackInputs,
    Shape,
    fallback_inputs,
    input_shape,
    packed_image,
    setting,
)
from dippm.model.relax.raw_graph import InputValue

if TYPE_CHECKING:
    import torch

CHOSEN = "input= gives another"
"""End of a note that names the chosen inputs."""

ADDED = "input= adds it"
"""End of a note that names the omitted inputs."""

KNOWN = (
    f"input {{name}}: numbers that leave nothing out were taken (no padding, one image); {CHOSEN}"
)
"""Note on an input that needs values in addition to sizes."""

PARTS = ("pixel_values", "pixel_values_videos", "input_features", "input_values")
"""Additional inputs of a language model, each processed by a part of its own."""


@dataclass(frozen=True, slots=True)
class OwnInputs:
    """Inputs that a model may accept.

    Attributes:
        shapes: shapes without the batch by input name ("" is the first).
        notes: remarks on the choices, for the user.
        values: values by input name, for inputs whose sizes do not suffice.
        is_whole: whether the shapes are complete, including any batch.
    """

    shapes: Mapping[str, Shape]
    notes: tuple[str, ...] = ()
    values: Mapping[str, InputValue] = field(default_factory=dict)
    is_whole: bool = False

    @property
    def spec(self) -> InputSpec:
        """The inputs as a user's specification."""
        axes = dict.fromkeys(self.shapes) if self.is_whole else {}
        return InputSpec(self.shapes, batch_axes=axes, values=self.values)


def own_inputs(
    module: torch.nn.Module, names: list[str], required: Collection[str] = ()
) -> list[OwnInputs]:
    """Return inputs that a model may accept, most likely first; none if nothing suggests any.

    Those after the first are for models that refuse it: they add inputs that `forward` needs
    although it has defaults for them, transpose sound to features first, or stack images (one
    of several, or the two of a pair).

    Args:
        module: any module; those of timm and transformers state most.
        names: names of its parameters of `forward`.
        required: names of those without a default.
    """
    for attribute in ("pretrained_cfg", "default_cfg"):
        settings = getattr(module, attribute, None)
        if isinstance(settings, Mapping) and settings.get("input_size"):
            return [OwnInputs({"": _image_of_timm(module, settings)})]
    config = getattr(module, "config", None)
    packed = list(packed_images(config, required))
    if packed:
        return [OwnInputs(p.shapes, (p.note,), p.values, is_whole=True) for p in packed]
    if config is not None:
        used = list(_required_inputs(module, config, names))
        if used[0] not in names and any(input_shape(name, config) for name in required):
            del used[0]
        if any(input_shape(name, config) is None for name in used):
            return []
        used += [name for name in required if name in names and name not in used]
        more = [*used, *(n for n in names if n in COMPANIONS and n not in used)]
        most = [*more, *(n for n in names if n == "input_ids" and n not in more)]
        size = _size_of_inner_timm(module)
        found = [
            _of_configuration(config, names, which, turned=turned, stacked=stacked, size=size)
            for stacked in (0, 1, 2)
            for turned in (False, True)
            for which in (used, more, most)
        ]
        return [own for i, own in enumerate(found) if own is not None and own not in found[:i]]
    own = _of_detector(module)
    return [] if own is None else [own]


def last_inputs(
    module: torch.nn.Module, names: list[str], required: Collection[str] = ()
) -> Iterator[OwnInputs]:
    """Yield inputs for models that refuse those of `own_inputs`; same arguments."""
    config = getattr(module, "config", None)
    if config is None:
        return
    main = getattr(module, "main_input_name", None)
    tried: list[FallbackInputs] = []
    for late in (
        *packed_image(config, names, main),
        *fallback_inputs(module, config, names, required),
    ):
        if late in tried:
            continue
        tried.append(late)
        notes = [chosen(f"input {name}", shape) for name, shape in late.shapes.items()]
        notes += [KNOWN.format(name=name) for name in late.values]
        yield OwnInputs(late.shapes, tuple(notes), late.values, is_whole=bool(late.values))


def chosen(what: str, sizes: Shape, why: str = "the model leaves it open") -> str:
    """Return the note for an input that was chosen."""
    return f"{what}: {','.join(map(str, sizes))} was taken ({why}); {CHOSEN}"


def _image_of_timm(module: torch.nn.Module, settings: Mapping[str, Any]) -> Shape:
    """Return the size that the model was built for, rather than that of its weights' settings."""
    channels, height, width = (int(size) for size in settings["input_size"])
    name = settings.get("first_conv")
    name = name if isinstance(name, str) else next(iter(name or ()), "")
    try:
        first: Any = module.get_submodule(name) if name else None
    except AttributeError:
        first = None
    found = getattr(first, "in_channels", None)
    if isinstance(found, int) and isinstance(name, str) and settings["input_size"][0] in (1, 3):
        channels = found // _pixels_as_channels(module, first)
    built_for = getattr(getattr(module, "patch_embed", None), "img_size", None)
    if isinstance(built_for, tuple) and len(built_for) == 2:
        height, width = (int(size) for size in built_for)
    return channels, height, width


def _size_of_inner_timm(module: torch.nn.Module) -> Shape | None:
    """Return the height and width of a timm model inside the module."""
    for part in module.modules():
        settings = getattr(part, "pretrained_cfg", None)
        if isinstance(settings, Mapping) and settings.get("input_size"):
            return _image_of_timm(part, settings)[1:]
    return None


def _pixels_as_channels(module: torch.nn.Module, first: torch.nn.Module) -> int:
    """Return how many pixels a stem merges into channels before the first convolution."""
    pixels = 1
    for layer in module.modules():
        if layer is first:
            break
        block = getattr(layer, "bs", getattr(layer, "downscale_factor", None))
        if isinstance(block, int) and not list(layer.children()):
            pixels *= block * block
    return pixels


def _of_detector(module: torch.nn.Module) -> OwnInputs | None:
    """Return the size to which a torchvision detector resizes its images."""
    transform = getattr(module, "transform", None)
    shortest = getattr(transform, "min_size", None)
    if not (isinstance(shortest, tuple | list) and shortest):
        return None
    size = getattr(transform, "fixed_size", None) or (shortest[-1], shortest[-1])
    shape = (3, int(size[1]), int(size[0]))
    return OwnInputs({"": shape}, (chosen("image", shape, "a size that the model keeps"),))


def _of_configuration(
    config: Any,
    names: list[str],
    used: list[str],
    *,
    turned: bool,
    stacked: int,
    size: Shape | None,
) -> OwnInputs | None:
    """Return the inputs of a model with a configuration in the style of transformers."""
    shapes: dict[str, Shape] = {}
    notes: list[str] = []
    for name in used:
        found = input_shape(name, config)
        if found is None:
            continue
        shape, assumed = found
        if size and assumed and name.startswith("pixel_values") and len(shape) >= 3:
            shape = (*shape[:-2], *size)
        if turned and name in SOUND:
            shape, assumed = _transposed_sound(shape), True
        if stacked and name == "pixel_values" and len(shape) == 3:
            shape, assumed = (stacked, *shape), True
        shapes[name if name in names else ""] = shape
        if assumed:
            notes.append(chosen(f"input {name}", shape))
    absent = [name for name in PARTS if name in names and name not in shapes]
    if absent and any(name.endswith("input_ids") for name in shapes):
        notes.append(f"{', '.join(absent)}: none, so the work on it is not in the graph; {ADDED}")
    return OwnInputs(shapes, tuple(notes)) if shapes else None


def _required_inputs(module: torch.nn.Module, config: Any, names: list[str]) -> Iterator[str]:
    """Yield the names of the inputs that a pass requires."""
    main = getattr(module, "main_input_name", None)
    if not isinstance(main, str):
        yield "pixel_values"
        return
    yield main
    both = "input_ids" in names and "pixel_values" in names
    inserts_images = any(hasattr(config, f"image_token_{end}") for end in ("id", "index"))
    if both and hasattr(config, "text_config") and hasattr(config, "vision_config"):
        if not inserts_images:
            yield "pixel_values" if main == "input_ids" else "input_ids"
    elif "decoder_input_ids" in names and getattr(config, "is_encoder_decoder", False):
        yield "decoder_input_ids"


def _transposed_sound(shape: Shape) -> Shape:
    """Return a sound's shape with features before steps, or a wave's with a channel axis."""
    return (1, *shape) if len(shape) == 1 else (*shape[:-2], shape[-1], shape[-2])


# Inputs of vision towers that take patches of many images in one sequence, and their grids.
#
# They have no batch: the patches of all images follow each other, and `grid_thw` contains the
# numbers of frames, rows and columns of each image. The parameters have the same names throughout
# transformers.


GRIDS = ("grid_thw", "image_grid_thw")
PATCHES = ("hidden_states", "pixel_values")
MERGED = "merge_sizes"
NOTE = (
    "one image of {side} × {side} patches was taken (the model leaves it open); for another give "
    'input="{patches}=fixed:{sizes};{grid}=value:[[1,{side},{side}]]" with as many patches as the '
    "frames, rows and columns of all images make"
)


@dataclass(frozen=True, slots=True)
class PackedImages:
    """Complete sizes and values by input name, and remarks on the choices."""

    shapes: dict[str, Shape]
    values: dict[str, InputValue]
    note: str


def packed_images(config: Any, required: Collection[str]) -> Iterator[PackedImages]:
    """Yield inputs that a tower may accept, most likely first; none for other models.

    Args:
        config: configuration of the model.
        required: names of its parameters of `forward` without a default.
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
        yield PackedImages({patches: sizes}, values, note)
