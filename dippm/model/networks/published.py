"""Networks by name, `dippm:NAME`, built without weights.

To add one: a row of `PUBLISHED`, and a class or function that returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PublishedNetwork:
    """A network by name.

    Attributes:
        about: description in words.
        parameters: published number of parameters; None for parts of models and for our own.
        make: function that returns the module, on the current default device.
        shapes: shapes of its inputs in their usual sizes, without the batch.
        library: required library in addition to torch; "" for none.
    """

    about: str
    parameters: int | None
    make: Callable[[], torch.nn.Module]
    shapes: Shapes
    library: str = ""


def _of(module: str, name: str, *given: Any, **named: Any) -> Callable[[], torch.nn.Module]:
    """Return a function that imports a module's class and constructs it."""

    def make() -> torch.nn.Module:
        kind = getattr(import_module(f"dippm.model.networks.{module}"), name)
        network: torch.nn.Module = kind(*given, **named)
        return network

    return make


def _sdxl() -> torch.nn.Module:
    from dippm.model.networks.diffusion_unet import SDXL, UNet

    return UNet(SDXL)


_transformer = partial(_of, "diffusion_transformers")
_library = partial(_of, "library")
_TEXT = {"input_ids": (77,)}
_FLUX = {"tokens": (4096, 64), "time": (1,), "text": (512, 4096), "pooled": (768,)}
_HEARD, _SO_FAR = (12, 1500, 768), (12, 224, 768)

PUBLISHED: Mapping[str, PublishedNetwork] = {
    "sd15-unet": PublishedNetwork(
        "U-Net of Stable Diffusion 1.x",
        859_520_964,
        _of("diffusion_unet", "UNet"),
        {"latent": (4, 64, 64), "time": (1,), "text": (77, 768)},
    ),
    "sdxl-unet": PublishedNetwork(
        "U-Net of Stable Diffusion XL",
        2_567_463_684,
        _sdxl,
        {"latent": (4, 128, 128), "time": (1,), "text": (77, 2048), "added": (2816,)},
    ),
    "sd-decoder": PublishedNetwork(
        "decoder of the autoencoder of Stable Diffusion 1.x and XL",
        49_490_199,
        _of("diffusion_unet", "PixelDecoder"),
        {"latent": (4, 64, 64)},
    ),
    "sd3-decoder": PublishedNetwork(
        "decoder of the autoencoders of Stable Diffusion 3 and FLUX.1",
        49_545_475,
        _of("diffusion_unet", "PixelDecoder", 16, quantized=False),
        {"latent": (16, 128, 128)},
    ),
    "dit-xl-2": PublishedNetwork(
        "DiT-XL/2",
        675_129_632,
        _transformer("DiT"),
        {"latent": (4, 32, 32), "time": (1,), "label": (1,)},
    ),
    "latte-xl-2": PublishedNetwork(
        "Latte-XL/2, of videos of 101 classes",
        673_680_000,
        _transformer("VideoDiT", classes=101),
        {"latent": (16, 4, 32, 32), "time": (1,), "label": (1,)},
    ),
    "sd3-transformer": PublishedNetwork(
        "transformer of Stable Diffusion 3 medium",
        2_028_328_000,
        _transformer("JointTransformer"),
        {"latent": (16, 128, 128), "time": (1,), "text": (333, 4096), "pooled": (2048,)},
    ),
    "flux-transformer": PublishedNetwork(
        "transformer of FLUX.1 dev",
        11_901_408_320,
        _transformer("Flux"),
        {**_FLUX, "guidance": (1,)},
    ),
    "clip-l": PublishedNetwork(
        "text encoder of CLIP ViT-L/14",
        123_060_480,
        _library("clip_text", 768, 12, 12, projected=False),
        _TEXT,
        "transformers",
    ),
    "clip-g": PublishedNetwork(
        "text encoder of OpenCLIP ViT-bigG/14",
        694_659_840,
        _library("clip_text", 1280, 32, 20, projected=True),
        _TEXT,
        "transformers",
    ),
    "t5-xxl": PublishedNetwork(
        "encoder of T5 1.1 XXL",
        4_762_310_656,
        _library("t5_encoder"),
        {"input_ids": (256,)},
        "transformers",
    ),
    "whisper-small-encoder": PublishedNetwork(
        "encoder of Whisper small",
        None,
        _library("whisper_encoder"),
        {"input_features": (80, 3000)},
        "transformers",
    ),
    "whisper-small-heard": PublishedNetwork(
        "keys and values that the decoder of Whisper small has of a clip",
        None,
        _library("HeardKeys"),
        {"states": (1500, 768)},
    ),
    "whisper-small-step": PublishedNetwork(
        "a token of the decoder of Whisper small",
        None,
        _library("DecoderStep"),
        {
            "token": (1,),
            **{"keys": _SO_FAR, "values": _SO_FAR},
            **{"heard_keys": _HEARD, "heard_values": _HEARD},
        },
    ),
    "retinanet-backbone": PublishedNetwork(
        "ResNet-50 and feature pyramid of RetinaNet",
        None,
        _library("DetectionBackbone"),
        {"images": (3, 800, 800)},
        "torchvision",
    ),
    "retinanet-head": PublishedNetwork(
        "head of RetinaNet, nine anchors, 91 classes",
        None,
        _library("DetectionHead"),
        {f"p{3 + i}": (256, size, size) for i, size in enumerate((100, 50, 25, 13, 7))},
        "torchvision",
    ),
    "minilm-encoder": PublishedNetwork(
        "all-MiniLM-L6-v2",
        22_713_216,
        _library("sentence_encoder"),
        {"input_ids": (256,)},
        "transformers",
    ),
    "bge-reranker": PublishedNetwork(
        "bge-reranker-base",
        278_044_417,
        _library("reranker"),
        {"input_ids": (512,)},
        "transformers",
    ),
    "deberta-v3-base": PublishedNetwork(
        "DeBERTa v3 base with a classifier",
        184_423_682,
        _library("deberta"),
        {"input_ids": (256,)},
        "transformers",
    ),
    "maelstrom-ap1": PublishedNetwork(
        "U-Net over 512 x 512 x 17, widths ours",
        None,
        _of("fields", "FieldUNet", 17, 3, width=16, levels=4),
        {"fields": (17, 512, 512)},
    ),
    "maelstrom-ap3": PublishedNetwork(
        "recurrent emulator of radiation over 138 layers, widths ours",
        None,
        _of("fields", "ColumnEmulator"),
        {"column": (138, 27)},
    ),
    "maelstrom-ap4": PublishedNetwork(
        "U-Net over 14 x 361 x 720, widths ours",
        None,
        _of("fields", "FieldUNet", 14, 2, width=32, levels=4),
        {"fields": (14, 361, 720)},
    ),
    "maelstrom-ap5": PublishedNetwork(
        "U-Net over 96 x 120 x 10, widths ours",
        None,
        _of("fields", "FieldUNet", 10, 1, width=56, levels=4),
        {"fields": (10, 96, 120)},
    ),
}
