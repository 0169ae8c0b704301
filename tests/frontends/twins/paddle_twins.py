"""The twins in PaddlePaddle; written by `paddle.jit.save`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import paddle
from paddle import nn

from tests.frontends.twins.sizes import (
    DENSENETS,
    ENCODER,
    GROWTH,
    INPUTS,
    LSTM,
    MOBILENETS,
    RESNETS,
    VGG_HIDDEN,
    VGGS,
)


def conv_norm(ins, outs, size, *, stride=1, groups=1):
    conv = nn.Conv2D(ins, outs, size, stride, size // 2, groups=groups, bias_attr=False)
    return nn.Sequential(conv, nn.BatchNorm2D(outs))


class Bottleneck(nn.Layer):
    def __init__(self, ins, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(ins, width, 1),
            nn.ReLU(),
            conv_norm(width, width, 3, stride=stride),
            nn.ReLU(),
            conv_norm(width, 4 * width, 1),
        )
        same = stride == 1 and ins == 4 * width
        self.shortcut = nn.Identity() if same else conv_norm(ins, 4 * width, 1, stride=stride)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


def resnet(name):
    layers = [conv_norm(3, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2D(3, 2, 1)]
    ins = 64
    for repeats, width, stride in RESNETS[name]:
        for i in range(repeats):
            layers.append(Bottleneck(ins, width, stride if i == 0 else 1))
            ins = 4 * width
    layers += [nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(ins, 1000)]
    return nn.Sequential(*layers)


class Inverted(nn.Layer):
    def __init__(self, ins, outs, *, expansion, stride):
        super().__init__()
        width = ins * expansion
        expand = [conv_norm(ins, width, 1), nn.ReLU6()] if expansion != 1 else []
        self.body = nn.Sequential(
            *expand,
            conv_norm(width, width, 3, stride=stride, groups=width),
            nn.ReLU6(),
            conv_norm(width, outs, 1),
        )
        self.residual = stride == 1 and ins == outs

    def forward(self, x):
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet(name):
    layers = [conv_norm(3, 32, 3, stride=2), nn.ReLU6()]
    ins = 32
    for expansion, outs, repeats, stride in MOBILENETS[name]:
        for i in range(repeats):
            step = stride if i == 0 else 1
            layers.append(Inverted(ins, outs, expansion=expansion, stride=step))
            ins = outs
    layers += [conv_norm(ins, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2D(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1280, 1000))


def vgg(name):
    layers, ins = [], 3
    for repeats, width in VGGS[name]:
        for _ in range(repeats):
            layers += [nn.Conv2D(ins, width, 3, padding=1), nn.ReLU()]
            ins = width
        layers.append(nn.MaxPool2D(2, 2))
    hidden, pixels = VGG_HIDDEN[name], (INPUTS[name][1] >> len(VGGS[name])) ** 2
    layers += [nn.Flatten(), nn.Linear(ins * pixels, hidden), nn.ReLU(), nn.Dropout()]
    layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1000)]
    return nn.Sequential(*layers)


class DenseLayer(nn.Layer):
    def __init__(self, ins):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2D(ins),
            nn.ReLU(),
            nn.Conv2D(ins, 4 * GROWTH, 1, bias_attr=False),
            nn.BatchNorm2D(4 * GROWTH),
            nn.ReLU(),
            nn.Conv2D(4 * GROWTH, GROWTH, 3, padding=1, bias_attr=False),
        )

    def forward(self, x):
        return paddle.concat([x, self.body(x)], 1)


def densenet(name):
    layers = [conv_norm(3, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2D(3, 2, 1)]
    ins = 64
    for i, repeats in enumerate(DENSENETS[name]):
        for _ in range(repeats):
            layers.append(DenseLayer(ins))
            ins += GROWTH
        layers += [nn.BatchNorm2D(ins), nn.ReLU()]
        if i < len(DENSENETS[name]) - 1:
            layers += [nn.Conv2D(ins, ins // 2, 1, bias_attr=False), nn.AvgPool2D(2, 2)]
            ins //= 2
    layers += [nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(ins, 1000)]
    return nn.Sequential(*layers)


class EncoderLayer(nn.Layer):
    def __init__(self):
        super().__init__()
        width, hidden = ENCODER["width"], ENCODER["hidden"]
        self.attention = nn.MultiHeadAttention(width, ENCODER["heads"])
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.grow, self.shrink = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        x = self.first(x + self.attention(x, x, x))
        return self.second(x + self.shrink(nn.functional.gelu(self.grow(x))))


def encoder():
    return nn.Sequential(*(EncoderLayer() for _ in range(ENCODER["layers"])))


class Lstm(nn.Layer):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(LSTM["features"], LSTM["hidden"], LSTM["layers"])
        self.head = nn.Linear(LSTM["hidden"], LSTM["classes"])

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


BUILDERS = {
    **{name: partial(resnet, name) for name in RESNETS},
    **{name: partial(mobilenet, name) for name in MOBILENETS},
    **{name: partial(vgg, name) for name in VGGS},
    **{name: partial(densenet, name) for name in DENSENETS},
    "encoder": encoder,
    "lstm": Lstm,
}


def build(name):
    if name.startswith("zoo_"):
        return getattr(paddle.vision.models, name.removeprefix("zoo_"))()
    return BUILDERS[name]()


def write(folder: Path, name: str, values: str) -> Path:
    paddle.seed(0)
    model = build(name)
    model.eval()
    if values != "random":
        for tensor in model.state_dict().values():
            tensor.set_value(np.full(tensor.shape, values == "ones", "float32"))
    spec = paddle.static.InputSpec([None, *INPUTS[name.removeprefix("zoo_")]], "float32", "x")
    path = folder / f"{name}-{values}"
    paddle.jit.save(model, str(path), input_spec=[spec])
    return path.with_suffix(".json")
