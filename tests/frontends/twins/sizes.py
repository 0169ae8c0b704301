"""Sizes that all twins share."""

from __future__ import annotations

RESNET50_BLOCKS = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""(blocks, width, first stride) of each stage; the 3 × 3 convolution strides."""

MOBILENETV2_BLOCKS = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
    (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""(expansion, channels, repeats, first stride)."""

DENSENET121_BLOCKS = (6, 12, 24, 16)
GROWTH = 32
VGG16_BLOCKS = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))

ENCODER = {"length": 64, "width": 128, "heads": 4, "hidden": 512, "layers": 2}
LSTM = {"steps": 32, "features": 48, "hidden": 96, "layers": 2, "classes": 10}

INPUTS = {
    "resnet50": (3, 224, 224),
    "mobilenetv2": (3, 224, 224),
    "vgg16": (3, 224, 224),
    "densenet121": (3, 224, 224),
    "encoder": (ENCODER["length"], ENCODER["width"]),
    "lstm": (LSTM["steps"], LSTM["features"]),
}
"""Shape of the only input without the batch; images as channels first."""
