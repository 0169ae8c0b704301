"""segmentation_models_pytorch: every architecture, and U-Nets with an encoder of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from dippm.model.vision_operators import declare_vision_operators
from tests.zoo.case import Case
from tests.zoo.modules import module_case

ENCODERS_OF_TIMM = (
    "tu-convnext_tiny",
    "tu-mobilenetv3_small_100",
    "tu-regnety_004",
    "tu-resnest14d",
    "tu-swin_tiny_patch4_window7_224",
    "tu-tf_efficientnetv2_b0",
)
VITS = {"dpt": "tu-vit_base_patch16_224.augreg_in21k", "segformer": "mit_b0"}


def cases() -> Iterator[Case]:
    """Yield one case for each architecture, each kind of encoder, and options of heads."""
    declare_vision_operators()
    import segmentation_models_pytorch as smp

    for architecture in smp.MODEL_ARCHITECTURES_MAPPING:
        yield _case(architecture, VITS.get(architecture, "resnet34"))
    kinds = {entry["encoder"]: name for name, entry in reversed(smp.encoders.encoders.items())}
    for encoder in sorted(kinds.values()):
        yield _case("unet", encoder)
    for encoder in ENCODERS_OF_TIMM:
        yield _case("unet", encoder, size=224 if "swin" in encoder else 256)
    yield _case("unet", "resnet18", decoder_attention_type="scse")
    yield _case("unet", "resnet18", aux_params={"classes": 4, "pooling": "avg"})
    yield _case("fpn", "mit_b0")
    yield _case("deeplabv3plus", "efficientnet-b0")
    yield _case("upernet", "tu-convnext_tiny")


def _case(architecture: str, encoder: str, size: int = 0, **options: Any) -> Case:
    name = ".".join([architecture, encoder, *options])
    side = size or (224 if architecture == "dpt" else 256)
    return module_case(name, _maker(architecture, encoder, options), {"x": (3, side, side)})


def _maker(
    architecture: str, encoder: str, options: dict[str, Any]
) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        import segmentation_models_pytorch as smp

        module: torch.nn.Module = smp.create_model(
            architecture, encoder, encoder_weights=None, classes=2, **options
        )
        return module

    return make
