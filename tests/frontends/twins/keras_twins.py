"""The twins in Keras on TensorFlow; written as `.keras` or as SavedModel."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from keras import layers as kl

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


def padded(x, size):
    return kl.ZeroPadding2D(size // 2)(x) if size > 1 else x


def conv_norm(x, outs, size, *, stride=1, depthwise=False):
    x = padded(x, size)
    if depthwise:
        x = kl.DepthwiseConv2D(size, stride, use_bias=False)(x)
    else:
        x = kl.Conv2D(outs, size, stride, use_bias=False)(x)
    return kl.BatchNormalization()(x)


def bottleneck(x, width, stride):
    y = kl.ReLU()(conv_norm(x, width, 1))
    y = kl.ReLU()(conv_norm(y, width, 3, stride=stride))
    y = conv_norm(y, 4 * width, 1)
    if stride != 1 or x.shape[-1] != 4 * width:
        x = conv_norm(x, 4 * width, 1, stride=stride)
    return kl.ReLU()(kl.Add()([y, x]))


def stem(x):
    x = kl.ReLU()(conv_norm(x, 64, 7, stride=2))
    return kl.MaxPooling2D(3, 2)(kl.ZeroPadding2D(1)(x))


def resnet(name, x):
    x = stem(x)
    for repeats, width, stride in RESNETS[name]:
        for i in range(repeats):
            x = bottleneck(x, width, stride if i == 0 else 1)
    return kl.Dense(1000)(kl.GlobalAveragePooling2D()(x))


def mobilenet(name, x):
    x = kl.ReLU(max_value=6)(conv_norm(x, 32, 3, stride=2))
    for expansion, outs, repeats, stride in MOBILENETS[name]:
        for i in range(repeats):
            step, ins, y = stride if i == 0 else 1, x.shape[-1], x
            if expansion != 1:
                y = kl.ReLU(max_value=6)(conv_norm(y, ins * expansion, 1))
            y = kl.ReLU(max_value=6)(conv_norm(y, 0, 3, stride=step, depthwise=True))
            y = conv_norm(y, outs, 1)
            x = kl.Add()([x, y]) if step == 1 and ins == outs else y
    x = kl.ReLU(max_value=6)(conv_norm(x, 1280, 1))
    return kl.Dense(1000)(kl.GlobalAveragePooling2D()(x))


def vgg(name, x):
    for repeats, width in VGGS[name]:
        for _ in range(repeats):
            x = kl.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = kl.MaxPooling2D(2)(x)
    hidden = VGG_HIDDEN[name]
    x = kl.Dense(hidden, activation="relu")(kl.Flatten()(x))
    return kl.Dense(1000)(kl.Dense(hidden, activation="relu")(kl.Dropout(0.5)(x)))


def densenet(name, x):
    x = stem(x)
    for i, repeats in enumerate(DENSENETS[name]):
        for _ in range(repeats):
            y = kl.ReLU()(kl.BatchNormalization()(x))
            y = kl.Conv2D(4 * GROWTH, 1, use_bias=False)(y)
            y = kl.ReLU()(kl.BatchNormalization()(y))
            y = kl.Conv2D(GROWTH, 3, padding="same", use_bias=False)(y)
            x = kl.Concatenate()([x, y])
        x = kl.ReLU()(kl.BatchNormalization()(x))
        if i < len(DENSENETS[name]) - 1:
            x = kl.Conv2D(x.shape[-1] // 2, 1, use_bias=False)(x)
            x = kl.AveragePooling2D(2)(x)
    return kl.Dense(1000)(kl.GlobalAveragePooling2D()(x))


def encoder(x):
    width, heads = ENCODER["width"], ENCODER["heads"]
    for _ in range(ENCODER["layers"]):
        y = kl.MultiHeadAttention(heads, width // heads)(x, x)
        x = kl.LayerNormalization(epsilon=1e-5)(kl.Add()([x, y]))
        y = kl.Dense(width)(kl.Dense(ENCODER["hidden"], activation="gelu")(x))
        x = kl.LayerNormalization(epsilon=1e-5)(kl.Add()([x, y]))
    return x


def lstm(x):
    for i in range(LSTM["layers"]):
        x = kl.LSTM(LSTM["hidden"], return_sequences=i < LSTM["layers"] - 1)(x)
    return kl.Dense(LSTM["classes"])(x)


BUILDERS = {
    **{name: partial(resnet, name) for name in RESNETS},
    **{name: partial(mobilenet, name) for name in MOBILENETS},
    **{name: partial(vgg, name) for name in VGGS},
    **{name: partial(densenet, name) for name in DENSENETS},
    "encoder": encoder,
    "lstm": lstm,
}


ZOO = {"zoo_vgg16": "VGG16", "zoo_densenet121": "DenseNet121"}


def build(name: str) -> keras.Model:
    if name in ZOO:
        return getattr(keras.applications, ZOO[name])(weights=None)
    shape = INPUTS[name]
    shape = (*shape[1:], shape[0]) if len(shape) == 3 else shape
    source = keras.Input(shape, name="x")
    return keras.Model(source, BUILDERS[name](source))


def write(folder: Path, name: str, values: str, kind: str) -> Path:
    keras.utils.clear_session()  # the process writes many
    keras.utils.set_random_seed(0)
    model = build(name)
    if values != "random":
        for variable in model.variables:
            if variable.dtype.startswith("float"):
                variable.assign(variable * 0 + (values == "ones"))
    path = folder / f"{name}-{values}{'.keras' if kind == 'keras' else ''}"
    model.save(path) if kind == "keras" else model.export(path, verbose=False)
    return path
