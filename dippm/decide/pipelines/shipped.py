"""Pipelines by name, from published configurations, without weights.

A pipeline is a function from its parameters to a `Pipeline`. To add one: a function here, and a row
of `SHIPPED`. Networks are those of `dippm.model.networks.published`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from dippm.base.written import is_finite
from dippm.decide.pipelines.stage import MOST_REPEATS, Pipeline, Stage
from dippm.errors import PipelineError, shortened

LARGEST_SIDE = 4096
PLACE = 8
"""Downsampling factor of a latent image: pixels per latent position along each side."""
BETWEEN = (
    "what runs between the stages (the scheduler, tokenizers, pictures from tensors) is not part "
    "of it"
)


@dataclass(frozen=True, slots=True)
class Shipped:
    """A pipeline by name.

    Attributes:
        about: description in words.
        make: function that returns the pipeline; its keywords are the parameters.
    """

    about: str
    make: Callable[..., Pipeline]


def parameters_of(name: str) -> dict[str, Any]:
    """Return the parameters of a shipped pipeline with their defaults."""
    found = inspect.signature(SHIPPED[name].make).parameters
    return {key: parameter.default for key, parameter in found.items()}


def sd15(
    width: int = 512,
    height: int = 512,
    steps: int = 50,
    guidance: float = 7.5,
    decoder: str = "fp16",
) -> Pipeline:
    """Return Stable Diffusion 1.5: a text, steps of a U-Net, a picture."""
    places = _places(width, height, 64)
    stages = (
        Stage("text", "dippm:clip-l", "int:77", batch_factor=_both(guidance)),
        Stage(
            "unet",
            "dippm:sd15-unet",
            {"latent": f"4,{places}", "time": "1", "text": "@text"},
            repeat=_count("steps", steps),
            batch_factor=_both(guidance),
        ),
        Stage("decoder", "dippm:sd-decoder", "@unet", precision=decoder),
    )
    return Pipeline("sd15", stages, "fp16", (BETWEEN,))


def sdxl(
    width: int = 1024,
    height: int = 1024,
    steps: int = 30,
    guidance: float = 7.0,
    decoder: str = "fp32",
) -> Pipeline:
    """Return Stable Diffusion XL, the base model: two texts, steps of a U-Net, a picture."""
    places = _places(width, height, 32)
    stages = (
        Stage("text", "dippm:clip-l", "int:77", batch_factor=_both(guidance)),
        Stage("text 2", "dippm:clip-g", "int:77", batch_factor=_both(guidance)),
        Stage(
            "unet",
            "dippm:sdxl-unet",
            {"latent": f"4,{places}", "time": "1", "text": "77,2048", "added": "2816"},
            after=("text", "text 2"),
            repeat=_count("steps", steps),
            batch_factor=_both(guidance),
        ),
        Stage("decoder", "dippm:sd-decoder", "@unet", precision=decoder),
    )
    return Pipeline("sdxl", stages, "fp16", (BETWEEN,))


def sd3(
    width: int = 1024, height: int = 1024, steps: int = 28, guidance: float = 7.0, tokens: int = 256
) -> Pipeline:
    """Return Stable Diffusion 3 medium; `tokens` is what T5 reads, CLIP reads 77."""
    places, words = _places(width, height, 16), _count("tokens", tokens, 512)
    stages = (
        Stage("text", "dippm:clip-l", "int:77", batch_factor=_both(guidance)),
        Stage("text 2", "dippm:clip-g", "int:77", batch_factor=_both(guidance)),
        Stage("text 3", "dippm:t5-xxl", f"int:{words}", batch_factor=_both(guidance)),
        Stage(
            "transformer",
            "dippm:sd3-transformer",
            {"latent": f"16,{places}", "time": "1", "text": f"{77 + words},4096", "pooled": "2048"},
            after=("text", "text 2", "text 3"),
            repeat=_count("steps", steps),
            batch_factor=_both(guidance),
        ),
        Stage("decoder", "dippm:sd3-decoder", "@transformer"),
    )
    return Pipeline("sd3", stages, "fp16", (BETWEEN,))


def flux(width: int = 1024, height: int = 1024, steps: int = 28, tokens: int = 512) -> Pipeline:
    """Return FLUX.1 dev, whose guidance is an input and doubles nothing."""
    _places(width, height, 16)
    patches = (width // 16) * (height // 16)
    inputs = {"tokens": f"{patches},64", "time": "1", "text": "@text 2", "pooled": "@text[1]"}
    stages = (
        Stage("text", "dippm:clip-l", "int:77"),
        Stage("text 2", "dippm:t5-xxl", f"int:{_count('tokens', tokens, 512)}"),
        Stage(
            "transformer",
            "dippm:flux-transformer",
            {**inputs, "guidance": "1"},
            repeat=_count("steps", steps),
        ),
        Stage(
            "decoder",
            "dippm:sd3-decoder",
            f"16,{height // PLACE},{width // PLACE}",
            after=("transformer",),
        ),
    )
    return Pipeline("flux", stages, "bf16", (BETWEEN,))


def dit(size: int = 256, steps: int = 250, guidance: float = 4.0) -> Pipeline:
    """Return DiT-XL/2: a class, steps of a transformer, a picture."""
    places = _places(size, size, 16)
    if size > 512:
        raise PipelineError(f"size is {size}", "DiT-XL/2 was made for 256 and 512.")
    stages = (
        Stage(
            "transformer",
            "dippm:dit-xl-2",
            {"latent": f"4,{places}", "time": "1", "label": "int:1"},
            repeat=_count("steps", steps),
            batch_factor=_both(guidance),
        ),
        Stage("decoder", "dippm:sd-decoder", f"4,{places}", after=("transformer",)),
    )
    return Pipeline("dit", stages, "fp16", (BETWEEN,))


def latte(size: int = 256, frames: int = 16, steps: int = 250, guidance: float = 7.0) -> Pipeline:
    """Return Latte-XL/2: a class, steps of a transformer over all frames, each frame decoded."""
    places, count = _places(size, size, 16), _count("frames", frames, 256)
    if size > 512:
        raise PipelineError(f"size is {size}", "Latte-XL/2 was made for 256; 512 at the most.")
    stages = (
        Stage(
            "transformer",
            "dippm:latte-xl-2",
            {"latent": f"{count},4,{places}", "time": "1", "label": "int:1"},
            repeat=_count("steps", steps),
            batch_factor=_both(guidance),
        ),
        Stage(
            "decoder", "dippm:sd-decoder", f"4,{places}", after=("transformer",), batch_factor=count
        ),
    )
    return Pipeline("latte", stages, "fp16", (BETWEEN,))


def whisper(seconds: float = 30.0, tokens: int = 100) -> Pipeline:
    """Return Whisper small: clips of 30 s, of each `tokens` words one after the other.

    The text so far has half of its words, the mean over a clip: time is linear in them.
    """
    clips = ceil(_number("seconds", seconds, 1e-3, 30 * 10_000) / 30)
    words = _count("tokens", tokens, 446)
    so_far = f"12,{max(1, words // 2)},768"
    heard = {"heard_keys": "@heard", "heard_values": "@heard[1]"}
    stages = (
        Stage("encoder", "dippm:whisper-small-encoder", "80,3000", repeat=clips),
        Stage("heard", "dippm:whisper-small-heard", "@encoder", repeat=clips),
        Stage(
            "decoder",
            "dippm:whisper-small-step",
            {"token": "int:1", "keys": so_far, "values": so_far, **heard},
            repeat=_count("seconds times tokens", clips * words),
        ),
    )
    note = "what is heard is spectrograms of 30 s; making them is not part of it"
    return Pipeline("whisper", stages, "fp16", (note,))


def detection(width: int = 800, height: int = 800, frames: int = 1) -> Pipeline:
    """Return RetinaNet on ResNet-50; the frames of a video are one batch."""
    for name, side in (("width", width), ("height", height)):
        if _count(name, side, LARGEST_SIDE) < 128:
            raise PipelineError(f"{name} is {side}", "Give 128 or more pixels.")
    count = _count("frames", frames, 10_000)
    maps = {f"p{level}": f"@backbone[{i}]" for i, level in enumerate(range(3, 8))}
    stages = (
        Stage("backbone", "dippm:retinanet-backbone", f"3,{height},{width}", batch_factor=count),
        Stage("head", "dippm:retinanet-head", maps, batch_factor=count),
    )
    note = (
        "what depends on what is seen (choosing boxes, leaving out those that overlap) is not part"
    )
    return Pipeline("detection", stages, "fp32", (note,))


def retrieval(passages: int = 100, question: int = 32, tokens: int = 256) -> Pipeline:
    """Return a sentence encoder for the question, and a re-ranker over the passages found."""
    count = _count("passages", passages, 10_000)
    words = _count("question", question, 256) + _count("tokens", tokens, 256)
    stages = (
        Stage("encoder", "dippm:minilm-encoder", f"int:{question}"),
        Stage("re-ranker", "dippm:bge-reranker", f"int:{words}", ("encoder",), batch_factor=count),
    )
    return Pipeline("retrieval", stages, "fp16", ("the search in the index is not part of it",))


SHIPPED: Mapping[str, Shipped] = {
    "sd15": Shipped("Stable Diffusion 1.5: text to picture", sd15),
    "sdxl": Shipped("Stable Diffusion XL: text to picture", sdxl),
    "sd3": Shipped("Stable Diffusion 3 medium: text to picture", sd3),
    "flux": Shipped("FLUX.1 dev: text to picture", flux),
    "dit": Shipped("DiT-XL/2: class to picture", dit),
    "latte": Shipped("Latte-XL/2: class to video", latte),
    "whisper": Shipped("Whisper small: speech to text", whisper),
    "detection": Shipped("RetinaNet: objects in pictures, or in the frames of a video", detection),
    "retrieval": Shipped("sentence encoder and re-ranker: question to passages", retrieval),
}


def _places(width: int, height: int, multiple: int) -> str:
    """Return height and width of the latent image as text.

    Raises:
        PipelineError: if the network cannot halve them as often as it has to.
    """
    for name, side in (("width", width), ("height", height)):
        _count(name, side, LARGEST_SIDE)
        if side % multiple:
            near = max(multiple, round(side / multiple) * multiple)
            raise PipelineError(
                f"{name} is {side}, not a multiple of {multiple} pixels", f"Give {near}."
            )
    return f"{height // PLACE},{width // PLACE}"


def _both(guidance: float) -> int:
    """Return 2 if a step runs with and without the text, for guidance above 1."""
    return 2 if _number("guidance", guidance, 0.0, 1000.0) > 1 else 1


def _count(name: str, value: int, most: int = MOST_REPEATS) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise PipelineError(
            f"{name} is {shortened(repr(value))}", f"Give a whole number from 1 to {most:,}."
        )
    return value


def _number(name: str, value: float, least: float, most: float) -> float:
    if not is_finite(value) or not least <= value <= most:
        raise PipelineError(
            f"{name} is {shortened(repr(value))}", f"Give a number from {least:g} to {most:g}."
        )
    return float(value)
