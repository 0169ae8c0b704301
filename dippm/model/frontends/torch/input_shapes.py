"""Shapes of a model's inputs by name and configuration, and fallback inputs.

The names are those of `forward` parameters in transformers, which all of its models share.
`input_shape` gives the usual shape of an input. A model that rejects its usual inputs may accept
fallback inputs: masks without padding, latents of a decoder, codebooks in addition to tokens,
features stacked to the width of the first layer, an image that is half of a canvas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import isqrt
from typing import TYPE_CHECKING, Any

from dippm.model.frontends.frontend import InputSpec
from dippm.model.relax.raw_graph import InputValue

if TYPE_CHECKING:
    import torch

# Sizes that are chosen where the configuration states none.

TOKENS = 128
IMAGE = 224
FRAMES = 16
SAMPLES = 16_000
FEATURE_STEPS = 1_000
SPECTROGRAM_STEPS = 1_001
REGIONS = 36
PATCHES = 257
DECISIONS = 20

Shape = tuple[int, ...]
Found = tuple[Shape, bool]
"""A shape without the batch, and whether it was chosen here rather than by the configuration."""

SOUND = ("input_features", "input_values")
"""Inputs whose axes are features, steps in some models, and steps, features in others."""

COMPANIONS = frozenset(
    """
    actions audio_mel_mask bbox encoder_hidden_states image input_features input_features_mask
    pixel_values pixel_values_videos prompt_masks prompt_pixel_values returns_to_go rewards
    timesteps visual_feats visual_pos
    """.split()
)
"""Inputs that models may require although their `forward` has a default for them."""


def input_shape(name: str, config: Any) -> Found | None:
    """Return the shape of an input without the batch; None if it is unknown.

    Args:
        name: name of the parameter of `forward`.
        config: configuration of the model.

    Returns:
        The shape, and whether it was chosen here rather than by the configuration.
    """
    if name in _RULES:
        return _RULES[name](config)
    if name.endswith("input_ids"):
        is_decoder = name.startswith("decoder")
        tokens = _tokens(config, decoder=is_decoder)
        codebooks = _own_setting(getattr(config, "decoder_config", None), "num_channels")
        return ((tokens, codebooks) if is_decoder and codebooks else (tokens,)), True
    if name.endswith("_embeds"):
        return _embeddings(name, config)
    return None


def _tokens(config: Any, *, decoder: bool = False) -> int:
    """Return the number of tokens for a model, at most the maximum of its configuration."""
    first = ("max_target_positions",) if decoder else ()
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
    return min(TOKENS, setting(config, *first, *names) or TOKENS)


def _embeddings(name: str, config: Any) -> Found | None:
    width = setting(config, "hidden_size", "d_model")
    rows = setting(config, "num_query_tokens") if name.startswith("query") else None
    return ((rows or _tokens(config), width), True) if width else None


def _images(config: Any) -> Found:
    return _frames(config, setting(config, "num_frames", "frames_per_clip"))


def _clips(config: Any) -> Found:
    return _frames(config, setting(config, "num_frames", "frames_per_clip") or FRAMES)


def _frames(config: Any, frames: int | None) -> Found:
    shape, assumed = _image(config)
    return ((frames, *shape) if frames else shape), assumed


def _image(config: Any) -> Found:
    channels = int(setting(config, "num_channels", "in_channels", "in_chans") or 3)
    size = setting(config, "image_size", "crop_size", kinds=(int, list, tuple, Mapping))
    scales = setting(config, "scaled_images_ratios", kinds=(list, tuple))
    if scales and (patch := setting(config, "patch_size")):
        size = round(patch / min(scales))  # so that the smallest copy of the image is one patch
    if isinstance(size, Mapping):
        size = (size.get("height"), size.get("width"))
    if isinstance(size, int):
        size = (size, size)
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(s, int) for s in size):
        height, width = (_cropped_side(config, s) for s in size)
        return (channels, height, width), (height, width) != tuple(size)
    return (channels, IMAGE, IMAGE), True


def _cropped_side(config: Any, size: int) -> int:
    """Return the largest side of an image that divides into windows of whole patches."""
    windows, patch = setting(config, "num_windows"), setting(config, "patch_size")
    return size - size % (windows * patch) if windows and patch else size


def _sound_features(config: Any) -> Found | None:
    bins = setting(config, "num_mel_bins", "input_feat_per_channel", "feature_size")
    if bins is None:  # the sound encoder of a model with a text encoder
        bins = setting(getattr(config, "decoder_config", None), "feature_size")
    if bins is not None and (stacked := setting(config, "num_stacked_frames")):
        return (FEATURE_STEPS, bins * stacked), True
    if bins is None:
        width = setting(config, "feature_projection_input_dim", "input_feat_size")
        return ((FEATURE_STEPS, width), True) if width else None
    if setting(config, "spec_size"):
        return (1, SPECTROGRAM_STEPS, bins), True
    steps = setting(config, "max_source_positions")
    if hasattr(config, "input_feat_per_channel") or not steps:
        return (FEATURE_STEPS, bins), True
    return (bins, 2 * steps), False


def _waveform(config: Any) -> Found:
    bins, length = setting(config, "num_mel_bins", "feature_size"), setting(config, "max_length")
    if hasattr(config, "patch_size") and bins and length:
        return (length, bins), False
    token = setting(config, "samples_per_token") or 1
    return (-(-SAMPLES // token) * token,), True


def _sound_steps(config: Any) -> Found | None:
    found = _sound_features(config)
    return found and ((max(found[0][-2:]),), found[1])


def _series(config: Any) -> Found | None:
    return _from_settings(config, "context_length", "num_input_channels")


def _task(config: Any) -> Found | None:
    return _from_settings(config, "task_seq_len")


def _latent_rows(config: Any) -> Found | None:
    return _from_settings(config, "max_position_embeddings", "d_model")


def _from_settings(config: Any, *names: str) -> Found | None:
    sizes = tuple(setting(config, name) for name in names)
    return (sizes, False) if all(sizes) else None


def _rows_of_setting(count: int, *names: str) -> Callable[[Any], Found | None]:
    """Return the rule for `count` rows whose width is the first of the named settings."""

    def rule(config: Any) -> Found | None:
        width = setting(config, *names)
        return ((count, width), True) if width else None

    return rule


def _fixed_shape(*shape: int) -> Callable[[Any], Found | None]:
    return lambda _: (shape, True)


def _boxes(config: Any) -> Found:
    return (_tokens(config), 4), True


_RULES: dict[str, Callable[[Any], Found | None]] = {
    "actions": _rows_of_setting(DECISIONS, "act_dim"),
    "audio_mel": _sound_features,
    "audio_mel_mask": _sound_steps,
    "bbox": _boxes,
    "encoder_hidden_states": _rows_of_setting(PATCHES, "encoder_hidden_size"),
    "image": _image,
    "input_features": _sound_features,
    "input_features_mask": _sound_steps,
    "input_values": _waveform,
    "inputs": _latent_rows,
    "past_values": _series,
    "pixel_values": _images,
    "pixel_values_videos": _clips,
    "prompt_masks": _image,
    "prompt_pixel_values": _image,
    "returns_to_go": _fixed_shape(DECISIONS, 1),
    "rewards": _fixed_shape(DECISIONS, 1),
    "states": _rows_of_setting(DECISIONS, "state_dim"),
    "task_inputs": _task,
    "timesteps": _fixed_shape(DECISIONS),
    "visual_feats": _rows_of_setting(REGIONS, "visual_feat_dim"),
    "visual_pos": _rows_of_setting(REGIONS, "visual_pos_dim"),
}

_PARTS = (
    "text_config",
    "vision_config",
    "encoder",
    "decoder",
    "backbone_config",
    "audio_config",
    "encoder_config",
    "image_config",
    "qformer_config",
    "asr_config",
)


def setting(config: Any, *names: str, kinds: tuple[type, ...] = (int,)) -> Any:
    """Return the first of these settings in a configuration or its nested parts."""
    parts = [getattr(config, name, None) for name in _PARTS]
    inner = [getattr(part, name, None) for part in parts if part is not None for name in _PARTS]
    for part in (config, *parts, *inner):
        if (value := _own_setting(part, *names, kinds=kinds)) is not None:
            return value
    return None


def _own_setting(config: Any, *names: str, kinds: tuple[type, ...] = (int,)) -> Any:
    for name in names:
        value = getattr(config, name, None)
        usable = isinstance(value, kinds) and not isinstance(value, bool)
        if usable and value and (not isinstance(value, int) or value > 0):
            return value
    return None


# Fallback inputs, for models that refuse the usual inputs of their kind.

LATENTS = 100
MEL_BINS = 128
FLOWS = 50
STEPS = 1024
MOST_NUMBERS = 1024
"""Maximum number of elements of a mask of ones."""


@dataclass(frozen=True, slots=True)
class FallbackInputs:
    """Inputs that a module may accept.

    Attributes:
        shapes: shape by input name, without the batch; if there are values, with a batch of 1.
        values: contents of the inputs that are given as numbers, with a batch of 1.
    """

    shapes: Mapping[str, Shape]
    values: Mapping[str, InputValue] = field(default_factory=dict)


def fallback_inputs(
    module: torch.nn.Module, config: Any, names: list[str], required: Collection[str]
) -> Iterator[FallbackInputs]:
    """Yield inputs that a module may accept, the most likely first.

    Args:
        module: any module.
        config: configuration of the module.
        names: names of the parameters of its `forward`.
        required: names of the parameters without a default.
    """
    main = getattr(module, "main_input_name", None)
    base = [main] if isinstance(main, str) and main in names else []
    if not base and not required and "input_ids" in names:
        base = ["input_ids"]
    if "decoder_input_ids" in names and getattr(config, "is_encoder_decoder", False):
        base.append("decoder_input_ids")
    base += [name for name in required if name not in base]
    most = [*base, *(n for n in names if n in (*COMPANIONS, "input_ids") and n not in base)]
    masks = [n for n in names if n in _MASKS and n not in base]
    for which in (base, [*base, *masks], [*most, *masks]):
        shapes = {name: _fallback_shape(name, config) for name in which}
        if any(shapes[name] is None for name in (*base, *required)):
            continue
        known = {name: shape for name, shape in shapes.items() if shape is not None}
        held = [name for name in known if name in _MASKS]
        ways = list(_size_variants(module, config, known))
        yield from map(FallbackInputs, ways)
        for sizes in ways if held else ():
            yield from _with_full_masks(sizes, held)


def _size_variants(
    module: torch.nn.Module, config: Any, sizes: dict[str, Shape]
) -> Iterator[dict[str, Shape]]:
    """Yield the sizes, then variants of them that some kinds of modules expect."""
    yield sizes
    if "pixel_values" in sizes and len(sizes["pixel_values"]) == 3:
        if "prompt_pixel_values" in sizes:
            halved = [n for n in sizes if n in ("pixel_values", *COMPANIONS) and len(sizes[n]) == 3]
            yield {**sizes, **{n: _upper_half(sizes[n]) for n in halved}}
        else:
            yield {**sizes, "pixel_values": (1, *sizes["pixel_values"])}
    for name in _FALLBACK_SOUND & sizes.keys():
        shape = sizes[name]
        yield {**sizes, name: (*shape[:-2], *reversed(shape[-2:]))}
        times = _stacked_steps(module, shape[-1])
        if times > 1:
            yield {**sizes, name: (*shape[:-2], shape[-2] // times, shape[-1] * times)}
    if "input_values" in sizes and len(sizes["input_values"]) == 1:
        yield {**sizes, "input_values": (1, *sizes["input_values"])}
    codebooks = setting(config, "num_codebooks")
    if codebooks and "input_ids" in sizes:
        yield {**sizes, "input_ids": (*sizes["input_ids"], codebooks + 1)}


def _with_full_masks(sizes: dict[str, Shape], masks: list[str]) -> Iterator[FallbackInputs]:
    """Yield shapes with a batch of 1 and masks of ones.

    Modules that read the length of a sequence from its mask need the contents of the mask.
    """
    if all(_element_count(sizes[name]) <= MOST_NUMBERS for name in masks):
        whole = {name: (1, *shape) for name, shape in sizes.items() if name not in masks}
        yield FallbackInputs(whole, {name: _ones((1, *sizes[name])) for name in masks})


def with_full_masks(inputs: InputSpec) -> InputSpec | None:
    """Return one sample of these inputs with masks of ones; None if they have no such masks."""
    one = {"bool": True, "float": 1.0}
    masks = {
        name: _ones((1, *shape), one.get(inputs.kinds.get(name, ""), 1))
        for name, shape in inputs.shapes.items()
        if name.endswith("mask")
        and name not in inputs.batch_axes
        and _element_count(shape) <= MOST_NUMBERS
    }
    if not masks or any(axis is not None for axis in inputs.batch_axes.values()):
        return None
    shapes = {
        name: shape if name in inputs.batch_axes else (1, *shape)
        for name, shape in inputs.shapes.items()
        if name not in masks
    }
    kinds = {name: kind for name, kind in inputs.kinds.items() if name not in masks}
    return InputSpec(shapes, dict.fromkeys(shapes), {**inputs.values, **masks}, kinds)


def packed_image(config: Any, names: Collection[str], main: object) -> Iterator[FallbackInputs]:
    """Yield a square image as a sequence of patches, with the patch grid as numbers.

    Args:
        config: configuration of the model.
        names: names of the parameters of its `forward`.
        main: name of its main input.
    """
    patch, channels = setting(config, "patch_size"), setting(config, "num_channels") or 3
    if patch is None or "pixel_values" not in names:
        return
    text = {"input_ids": (1, *_token_shape(config)[0])} if main == "input_ids" in names else {}
    if "spatial_shapes" in names:
        side = isqrt(setting(config, "num_patches") or 256)
        sizes = {"pixel_values": (1, side * side, channels * patch * patch)}
        mask = {"pixel_attention_mask": _ones((1, side * side))}
        masked = mask if "pixel_attention_mask" in names else {}
        yield FallbackInputs({**text, **sizes}, {"spatial_shapes": ((side, side),), **masked})
    elif "target_sizes" in names:
        side = 16
        row = (1, channels, patch, side * side * patch)
        yield FallbackInputs({**text, "pixel_values": row}, {"target_sizes": ((side, side),)})
    elif "pixel_position_ids" in names:
        pool = setting(config, "pooling_kernel_size") or 1
        side = max(16 // pool, 1) * pool
        places = tuple((x, y) for y in range(side) for x in range(side))
        sizes = {"pixel_values": (1, side * side, channels * patch * patch)}
        yield FallbackInputs(sizes, {"pixel_position_ids": (places,)})


def _fallback_shape(name: str, config: Any) -> Shape | None:
    rule = _FALLBACK_RULES.get(name)
    found = (rule(config) if rule is not None else None) or input_shape(name, config)
    return found[0] if found is not None else None


def _stacked_steps(module: torch.nn.Module, width: int) -> int:
    """Return the number of consecutive steps that the first layer of a module takes as one."""
    first = next((part for part in module.modules() if list(part.parameters(recurse=False))), None)
    wanted = getattr(first, "in_features", None)
    return wanted // width if isinstance(wanted, int) and width and wanted % width == 0 else 1


def _upper_half(shape: Shape) -> Shape:
    channels, height, width = shape
    return channels, height // 2, width


def _element_count(shape: Shape) -> int:
    return shape[0] * _element_count(shape[1:]) if shape else 1


def _ones(shape: Shape, one: float = 1) -> InputValue:
    return tuple(_ones(shape[1:], one) for _ in range(shape[0])) if shape else one


def _token_shape(config: Any) -> Found:
    found = input_shape("input_ids", config)
    assert found is not None
    return found


def _images_of_text(config: Any) -> Found:
    return (*_token_shape(config)[0], 1), True


def _hidden_rows(count: int) -> Callable[[Any], Found | None]:
    def rule(config: Any) -> Found | None:
        inner = getattr(config, "dit_config", config)
        width = setting(inner, "hidden_size")
        return ((count, width), True) if width else None

    return rule


def _any_sound_features(config: Any) -> Found | None:
    if found := input_shape("input_features", config):
        return found
    inner = getattr(config, "semantic_model_config", None)
    width = getattr(inner, "feature_projection_input_dim", None)
    if width:  # in addition to the sound itself, one step per 20 ms
        return (SAMPLES // 320, width), True
    return (FEATURE_STEPS, MEL_BINS), True


def _latents(config: Any) -> Found | None:
    width = setting(config, "hidden_size")
    return ((width, LATENTS), True) if width else None


def _patched_series(config: Any) -> Found | None:
    length, patch = setting(config, "context_length"), setting(config, "patch_length")
    return ((max(min(length, STEPS) // patch, 1) * patch,), True) if length and patch else None


def _target_layers(config: Any) -> Found | None:
    width, layers = setting(config, "hidden_size"), getattr(config, "target_layer_ids", None)
    return ((TOKENS, width * len(layers)), True) if width and layers else None


def _noise(config: Any) -> Found | None:
    width, block = setting(config, "hidden_size"), setting(config, "block_size")
    return ((block, width), True) if width and block else None


_FALLBACK_RULES: dict[str, Callable[[Any], Found | None]] = {
    "action_embeds": _hidden_rows(FLOWS),
    "attention_mask": _token_shape,
    "classes_attention_mask": _token_shape,
    "context_hidden_states": _target_layers,
    "decoder_attention_mask": _token_shape,
    "freq": lambda _: ((1,), True),
    "hidden_states": _hidden_rows(TOKENS),
    "image_attention_mask": _images_of_text,
    "image_embeds_position_mask": _token_shape,
    "input_features": _any_sound_features,
    "latents": _latents,
    "noise_embeds": _noise,
    "past_values": _patched_series,
    "past_values_padding": _patched_series,
    "tasks_attention_mask": _token_shape,
}

_MASKS = frozenset(
    """
    attention_mask decoder_attention_mask image_attention_mask image_embeds_position_mask
    input_features_mask
    """.split()
)

_FALLBACK_SOUND = frozenset({"hidden_states", "input_features", "latents"})
