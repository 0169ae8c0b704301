"""The twins in PyTorch; written as a module, and to ONNX by either exporter."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

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


def conv_norm(ins: int, outs: int, size: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(ins, outs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outs))


class Bottleneck(nn.Module):
    def __init__(self, ins: int, width: int, stride: int) -> None:
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

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(name: str) -> nn.Module:
    layers: list[nn.Module] = [conv_norm(3, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    ins = 64
    for repeats, width, stride in RESNETS[name]:
        for i in range(repeats):
            layers.append(Bottleneck(ins, width, stride if i == 0 else 1))
            ins = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 1000)]
    return nn.Sequential(*layers)


class Inverted(nn.Module):
    def __init__(self, ins: int, outs: int, *, expansion: int, stride: int) -> None:
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

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet(name: str) -> nn.Module:
    layers: list[nn.Module] = [conv_norm(3, 32, 3, stride=2), nn.ReLU6()]
    ins = 32
    for expansion, outs, repeats, stride in MOBILENETS[name]:
        for i in range(repeats):
            step = stride if i == 0 else 1
            layers.append(Inverted(ins, outs, expansion=expansion, stride=step))
            ins = outs
    layers += [conv_norm(ins, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1280, 1000))


def vgg(name: str) -> nn.Module:
    layers: list[nn.Module] = []
    ins = 3
    for repeats, width in VGGS[name]:
        for _ in range(repeats):
            layers += [nn.Conv2d(ins, width, 3, padding=1), nn.ReLU()]
            ins = width
        layers.append(nn.MaxPool2d(2))
    hidden, pixels = VGG_HIDDEN[name], (INPUTS[name][1] >> len(VGGS[name])) ** 2
    layers += [nn.Flatten(), nn.Linear(ins * pixels, hidden), nn.ReLU(), nn.Dropout()]
    layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1000)]
    return nn.Sequential(*layers)


class DenseLayer(nn.Module):
    def __init__(self, ins: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(ins),
            nn.ReLU(),
            nn.Conv2d(ins, 4 * GROWTH, 1, bias=False),
            nn.BatchNorm2d(4 * GROWTH),
            nn.ReLU(),
            nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet(name: str) -> nn.Module:
    layers: list[nn.Module] = [conv_norm(3, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    ins = 64
    for i, repeats in enumerate(DENSENETS[name]):
        for _ in range(repeats):
            layers.append(DenseLayer(ins))
            ins += GROWTH
        layers += [nn.BatchNorm2d(ins), nn.ReLU()]
        if i < len(DENSENETS[name]) - 1:
            layers += [nn.Conv2d(ins, ins // 2, 1, bias=False), nn.AvgPool2d(2)]
            ins //= 2
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 1000)]
    return nn.Sequential(*layers)


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width, hidden = ENCODER["width"], ENCODER["hidden"]
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.grow, self.shrink = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def heads(self, x: Tensor) -> Tensor:
        heads = ENCODER["heads"]
        return x.unflatten(-1, (heads, ENCODER["width"] // heads)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self.heads(f(x)) for f in (self.query, self.key, self.value))
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        x = self.first(x + self.out(attended.transpose(1, 2).flatten(2)))
        return self.second(x + self.shrink(nn.functional.gelu(self.grow(x))))


def encoder() -> nn.Module:
    return nn.Sequential(*(EncoderLayer() for _ in range(ENCODER["layers"])))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(LSTM["features"], LSTM["hidden"], LSTM["layers"], batch_first=True)
        self.head = nn.Linear(LSTM["hidden"], LSTM["classes"])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


BUILDERS = {
    **{name: partial(resnet, name) for name in RESNETS},
    **{name: partial(mobilenet, name) for name in MOBILENETS},
    **{name: partial(vgg, name) for name in VGGS},
    **{name: partial(densenet, name) for name in DENSENETS},
    "encoder": encoder,
    "lstm": Lstm,
}


def fill(model: nn.Module, values: str) -> None:
    if values == "random":
        return
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(0 if values == "zeros" else 1)


def write(folder: Path, name: str, values: str, exporter: str) -> Path:
    dynamo = exporter == "new"
    torch.manual_seed(0)
    model = BUILDERS[name]().eval()
    fill(model, values)
    path = folder / f"{name}-{values}-{exporter}.onnx"
    batch = torch.export.Dim("batch", min=1, max=4096)
    sizes = {"dynamic_shapes": ({0: batch},)} if dynamo else {"dynamic_axes": {"x": {0: "batch"}}}
    example = torch.zeros(2, *INPUTS[name])
    torch.onnx.export(
        model, (example,), str(path), dynamo=dynamo, input_names=["x"], verbose=False, **sizes
    )
    return path
