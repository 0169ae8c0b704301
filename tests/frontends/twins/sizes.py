"""Sizes that all twins share: of each kind of network one that is quick, and the published one."""

from __future__ import annotations

RESNETS = {
    "resnet": ((2, 64, 1), (1, 128, 2)),
    "resnet50": ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)),
}
"""(blocks, width, first stride) of each stage; the 3 × 3 convolution strides."""

MOBILENETS = {
    "mobilenet": ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 1, 2)),
    "mobilenetv2": (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ),
}  # fmt: skip
"""(expansion, channels, repeats, first stride)."""

DENSENETS = {"densenet": (2, 3, 1), "densenet121": (6, 12, 24, 16)}
"""Layers of each block."""

GROWTH = 32
VGGS = {
    "vgg": ((1, 16), (2, 32)),
    "vgg16": ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)),
}
"""(convolutions, width) of each stage."""

VGG_HIDDEN = {"vgg": 64, "vgg16": 4096}
ENCODER = {"length": 64, "width": 128, "heads": 4, "hidden": 512, "layers": 2}
LSTM = {"steps": 32, "features": 48, "hidden": 96, "layers": 2, "classes": 10}

SMALL, LARGE = (3, 64, 64), (3, 224, 224)
INPUTS = {
    "resnet": SMALL,
    "resnet50": LARGE,
    "mobilenet": SMALL,
    "mobilenetv2": LARGE,
    "densenet": SMALL,
    "densenet121": LARGE,
    "vgg": SMALL,
    "vgg16": LARGE,
    "encoder": (ENCODER["length"], ENCODER["width"]),
    "lstm": (LSTM["steps"], LSTM["features"]),
}
"""Shape of the only input without the batch; images as channels first."""
