"""The shape of an input, derived from its name and the configuration of its model.

The names are those of `forward` parameters in transformers, which are the same for all its models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
"""A shape, and whether it was chosen here rather than stated by the configuration."""

SOUND = ("input_features", "input_values")
"""Inputs that some models take with features before steps, and others in reverse."""

COMPANIONS = frozenset(
    """
    actions audio_mel_mask bbox encoder_hidden_states image input_features input_features_mask
    pixel_values pixel_values_videos prompt_masks prompt_pixel_values returns_to_go rewards
    timesteps visual_feats visual_pos
    """.split()
)
"""Inputs that models may require although their `forward` has a default for them."""


def input_shape(name: str, config: Any) -> Found | None:
    """Return the shape of an input without the batch, None if it is unknown.

    Args:
        name: name of the parameter of `forward`.
        config: configuration of the model.
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
    """Return the number of tokens for a model, within its own maximum."""
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
        height, width = (_cut(config, s) for s in size)
        return (channels, height, width), (height, width) != tuple(size)
    return (channels, IMAGE, IMAGE), True


def _cut(config: Any, size: int) -> int:
    """Return the side of an image that splits into windows of whole patches."""
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


def _waves(config: Any) -> Found:
    bins, length = setting(config, "num_mel_bins", "feature_size"), setting(config, "max_length")
    if hasattr(config, "patch_size") and bins and length:
        return (length, bins), False
    token = setting(config, "samples_per_token") or 1
    return (-(-SAMPLES // token) * token,), True


def _steps_of_sound(config: Any) -> Found | None:
    found = _sound_features(config)
    return found and ((max(found[0][-2:]),), found[1])


def _series(config: Any) -> Found | None:
    return _stated(config, "context_length", "num_input_channels")


def _task(config: Any) -> Found | None:
    return _stated(config, "task_seq_len")


def _latent_rows(config: Any) -> Found | None:
    return _stated(config, "max_position_embeddings", "d_model")


def _stated(config: Any, *names: str) -> Found | None:
    sizes = tuple(setting(config, name) for name in names)
    return (sizes, False) if all(sizes) else None


def _rows(count: int, *names: str) -> Callable[[Any], Found | None]:
    """Return the rule for this number of rows, with the width in a setting of these names."""

    def rule(config: Any) -> Found | None:
        width = setting(config, *names)
        return ((count, width), True) if width else None

    return rule


def _always(*shape: int) -> Callable[[Any], Found | None]:
    return lambda _: (shape, True)


def _boxes(config: Any) -> Found:
    return (_tokens(config), 4), True


_RULES: dict[str, Callable[[Any], Found | None]] = {
    "actions": _rows(DECISIONS, "act_dim"),
    "audio_mel": _sound_features,
    "audio_mel_mask": _steps_of_sound,
    "bbox": _boxes,
    "encoder_hidden_states": _rows(PATCHES, "encoder_hidden_size"),
    "image": _image,
    "input_features": _sound_features,
    "input_features_mask": _steps_of_sound,
    "input_values": _waves,
    "inputs": _latent_rows,
    "past_values": _series,
    "pixel_values": _images,
    "pixel_values_videos": _clips,
    "prompt_masks": _image,
    "prompt_pixel_values": _image,
    "returns_to_go": _always(DECISIONS, 1),
    "rewards": _always(DECISIONS, 1),
    "states": _rows(DECISIONS, "state_dim"),
    "task_inputs": _task,
    "timesteps": _always(DECISIONS),
    "visual_feats": _rows(REGIONS, "visual_feat_dim"),
    "visual_pos": _rows(REGIONS, "visual_pos_dim"),
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
