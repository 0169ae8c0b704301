"""The inputs that a model states about itself, or that models of its kind usually get.

What a model states (the image size of its configuration) is taken silently; what it leaves open
(the length of a text) is chosen here and said in a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

TOKENS = 128
IMAGE = 224
FRAMES = 16
SAMPLES = 16_000
FEATURE_STEPS = 1_000

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OwnInputs:
    """Shapes without the batch, by input name ("" is the first), and what was chosen for them."""

    shapes: Mapping[str, Shape]
    notes: tuple[str, ...] = ()


def own_inputs(module: torch.nn.Module, names: list[str]) -> OwnInputs | None:
    """Return the inputs that a model is used with, None if nothing tells.

    Args:
        module: any module; timm's and transformers' say the most.
        names: parameters of its `forward`.
    """
    for attribute in ("pretrained_cfg", "default_cfg"):
        settings = getattr(module, attribute, None)
        if isinstance(settings, Mapping) and settings.get("input_size"):
            return OwnInputs({"": _image_of_timm(module, settings)})
    config = getattr(module, "config", None)
    if config is not None:
        return _of_configuration(module, config, names)
    return _of_detector(module)


def chosen(what: str, sizes: Shape, why: str = "the model leaves it open") -> str:
    """Return the note for an input that was chosen."""
    return f"{what}: {','.join(map(str, sizes))} was taken ({why}); input= gives another"


def _image_of_timm(module: torch.nn.Module, settings: Mapping[str, Any]) -> Shape:
    """Return the size that the model was built for: its settings are those of its weights."""
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


def _pixels_as_channels(module: torch.nn.Module, first: torch.nn.Module) -> int:
    """Return how many pixels a stem puts into the channels of one, before the first convolution."""
    pixels = 1
    for layer in module.modules():
        if layer is first:
            break
        block = getattr(layer, "bs", getattr(layer, "downscale_factor", None))
        if isinstance(block, int) and not list(layer.children()):
            pixels *= block * block
    return pixels


def _of_detector(module: torch.nn.Module) -> OwnInputs | None:
    """Return the size to which a detector of torchvision brings its images."""
    transform = getattr(module, "transform", None)
    shortest = getattr(transform, "min_size", None)
    if not (isinstance(shortest, tuple | list) and shortest):
        return None
    size = getattr(transform, "fixed_size", None) or (shortest[-1], shortest[-1])
    shape = (3, int(size[1]), int(size[0]))
    return OwnInputs({"": shape}, (chosen("image", shape, "a size that the model keeps"),))


def _of_configuration(module: torch.nn.Module, config: Any, names: list[str]) -> OwnInputs | None:
    """Return the inputs of a model with a configuration, as those of transformers have."""
    shapes: dict[str, Shape] = {}
    notes: list[str] = []
    for name in _used(module, config, names):
        shape, assumed = _shape_of(name, config)
        if shape is None:
            return None
        shapes[name if name in names else ""] = shape
        if assumed:
            notes.append(chosen(f"input {name}", shape))
    return OwnInputs(shapes, tuple(notes)) if shapes else None


def _used(module: torch.nn.Module, config: Any, names: list[str]) -> Iterator[str]:
    """Yield the names of the inputs that a pass needs."""
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


def _shape_of(name: str, config: Any) -> tuple[Shape | None, bool]:
    """Return the shape of an input and whether it was chosen rather than stated."""
    if name in ("input_ids", "decoder_input_ids"):
        return (min(TOKENS, _positions(config, decoder=name.startswith("decoder"))),), True
    if name in ("pixel_values", "pixel_values_videos"):
        image = _image(config)
        frames = _first(config, "num_frames", "frames_per_clip")
        shape = image or (_channels(config), IMAGE, IMAGE)
        return ((frames, *shape) if frames else shape), image is None
    bins = _first(config, "num_mel_bins", "input_feat_per_channel", "feature_size")
    if name == "input_features" and bins:
        steps = _first(config, "max_source_positions")
        if hasattr(config, "input_feat_per_channel") or not steps:
            return (FEATURE_STEPS, bins), True
        return (bins, 2 * steps), False
    if name == "input_values":
        length = _first(config, "max_length")
        if hasattr(config, "patch_size") and bins and length:
            return (length, bins), False
        return (SAMPLES,), True
    return None, False


def _image(config: Any) -> Shape | None:
    size = _first(config, "image_size", "crop_size", kinds=(int, list, tuple, Mapping))
    channels = _channels(config)
    if isinstance(size, Mapping):
        size = (size.get("height"), size.get("width"))
    if isinstance(size, int):
        return channels, size, size
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(s, int) for s in size):
        return channels, size[0], size[1]
    return None


def _channels(config: Any) -> int:
    return int(_first(config, "num_channels", "in_channels", "in_chans") or 3)


def _positions(config: Any, *, decoder: bool) -> int:
    """Return how many tokens fit into a model; a lot if it does not say."""
    first = ("max_target_positions",) if decoder else ()
    names = (
        *first,
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_target_positions",
    )
    return _first(config, *names) or TOKENS


_PARTS = ("text_config", "vision_config", "encoder", "decoder", "backbone_config", "audio_config")


def _first(config: Any, *names: str, kinds: tuple[type, ...] = (int,)) -> Any:
    """Return the first of these settings that a configuration or one of its parts has."""
    for part in (config, *(getattr(config, name, None) for name in _PARTS)):
        for name in names:
            value = getattr(part, name, None)
            usable = isinstance(value, kinds) and not isinstance(value, bool)
            if usable and value and (not isinstance(value, int) or value > 0):
                return value
    return None
