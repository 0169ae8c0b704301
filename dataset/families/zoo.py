"""Well-known architectures as built by their zoos: families "timm" and "hf".

They do not take turns with the other families: the plan has them once, near its beginning, so that
a set can be compared with published tables. If the zoo is not installed, their points are skipped
with that reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, InputTensor, Parameters, Sizes

if TYPE_CHECKING:
    import torch

SIDE, TOKENS = 224, 128
IMAGE_MODELS = (
    "resnet50",
    "vit_base_patch16_224",
    "mobilenetv2_100",
    "swin_tiny_patch4_window7_224",
    "vgg16",
    "efficientnet_b0",
    "convnext_tiny",
    "densenet121",
    "poolformer_s12",
    "mnasnet_100",
    "visformer_small",
)
"""One model of each family of deliverable D3.5, and a ConvNeXt."""
TEXT_MODELS = ("bert-base",)
TEXT_VOCABULARY = 30_000


def _image_model(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    import timm

    module: torch.nn.Module = timm.create_model(p["name"], pretrained=False).eval()
    return module


def _text_model(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    from dataset.families.language_models import module_of

    module: torch.nn.Module = module_of(p["name"], "cpu")
    return module


TIMM = Family(
    name="timm",
    kind="model",
    about="PyTorch Image Models (Wightman 2019)",
    grid=lambda: [{"name": name} for name in IMAGE_MODELS],
    sizes=lambda p: [(SIDE,)],
    build=_image_model,
    inputs=lambda p, sizes: (InputTensor("image", (3, sizes[0], sizes[0])),),
    images=True,
)
HF = Family(
    name="hf",
    kind="model",
    about="Transformers (Wolf et al. 2020)",
    grid=lambda: [{"name": name} for name in TEXT_MODELS],
    sizes=lambda p: [(TOKENS,)],
    build=_text_model,
    inputs=lambda p, sizes: (InputTensor("input_ids", (sizes[0],), high=TEXT_VOCABULARY),),
)
