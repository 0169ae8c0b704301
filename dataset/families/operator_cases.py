"""The list of measured single operators, each with its sizes and batch.

The first hundred are the calibration pack: 40 matrix products, 25 convolutions, 10 attentions, 15
element-wise, norm and softmax operators, and 10 launch-bound ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dataset.families.family import Parameters, Scalar, Sizes


@dataclass(frozen=True)
class Case:
    """One operator to measure: member of a family, sizes of one sample, batch."""

    family: str
    parameters: Parameters
    sizes: Sizes
    batch: int


def dense(m: int, n: int, k: int, *, bias: bool = False) -> Case:
    """Return the product of (m, k) and (k, n): a linear layer over m samples."""
    return Case("dense", {"n": n, "k": k, "bias": bias}, (k,), m)


def matmul(batch: int, m: int, n: int, k: int) -> Case:
    """Return `batch` products of (m, k) and (k, n), both activations."""
    return Case("batch_matmul", {"m": m, "n": n, "k": k}, (m, k), batch)


def convolution(
    batch: int,
    channels: int,
    width: int,
    sizes: Sizes,
    *,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
    transposed: bool = False,
) -> Case:
    """Return a convolution over one, two or three axes."""
    parameters: dict[str, Scalar] = {
        "channels": channels, "width": width, "kernel": kernel, "stride": stride, "groups": groups,
        "dilation": dilation, "transposed": transposed, "dimensions": len(sizes),
    }  # fmt: skip
    return Case("convolution", parameters, sizes, batch)


def attention(
    batch: int, heads: int, length: int, size: int, *, causal: bool = False, keys: int = 0
) -> Case:
    """Return attention of `length` queries to the same number of keys, or to `keys`."""
    parameters: dict[str, Scalar] = {"heads": heads, "size": size, "causal": causal}
    return Case("attention", parameters, (length, keys or length), batch)


def simple(family: str, batch: int, sizes: Sizes, **parameters: Scalar) -> Case:
    """Return an operator whose input shape is `sizes`."""
    return Case(family, parameters, sizes, batch)


def calibration_cases() -> list[Case]:
    """Return the hundred operators of the calibration pack, in a fixed order."""
    return [*_calibration_dense(), *_calibration_convolutions(), *_calibration_rest()]


def _calibration_dense() -> Iterator[Case]:
    cubes = [dense(s, s, s) for s in (64, 128, 256, 512, 1024, 2048, 4096, 8192)]
    layers = [
        dense(m, n, k)
        for m in (1, 16, 128, 1024, 8192)
        for n, k in ((1000, 2048), (768, 768), (3072, 768), (4096, 4096), (11008, 4096))
    ]
    products = [
        matmul(b, m, n, k)
        for b, m, n, k in (
            (12, 128, 128, 64), (96, 197, 197, 64), (96, 197, 64, 197), (512, 49, 49, 32),
            (16, 1024, 1024, 128), (32, 2048, 128, 2048), (1024, 16, 16, 16),
        )
    ]  # fmt: skip
    yield from (*cubes, *layers, *products)


def _calibration_convolutions() -> Iterator[Case]:
    for batch, channels, width, side, kernel, stride, groups in (
        (1, 3, 64, 224, 7, 2, 1), (32, 3, 64, 224, 7, 2, 1), (32, 64, 64, 56, 3, 1, 1),
        (1, 64, 64, 56, 3, 1, 1), (32, 128, 128, 28, 3, 1, 1), (32, 256, 256, 14, 3, 1, 1),
        (32, 512, 512, 7, 3, 1, 1), (8, 64, 64, 224, 3, 1, 1), (128, 64, 64, 56, 3, 1, 1),
        (32, 64, 256, 56, 1, 1, 1), (32, 256, 64, 56, 1, 1, 1), (32, 512, 128, 28, 1, 1, 1),
        (32, 1024, 2048, 14, 1, 2, 1), (1, 512, 2048, 7, 1, 1, 1), (32, 32, 32, 112, 3, 1, 32),
        (32, 96, 96, 112, 3, 2, 96), (32, 192, 192, 28, 5, 1, 192), (32, 960, 960, 7, 5, 1, 960),
        (1, 384, 384, 14, 3, 1, 384), (32, 128, 128, 56, 3, 1, 32), (32, 256, 256, 28, 3, 1, 8),
        (32, 96, 96, 56, 7, 1, 96),
    ):  # fmt: skip
        yield convolution(
            batch, channels, width, (side, side), kernel=kernel, stride=stride, groups=groups
        )
    yield convolution(32, 256, 128, (28, 28), kernel=2, stride=2, transposed=True)
    yield convolution(8, 64, 64, (8, 56, 56))
    yield convolution(32, 256, 256, (1000,), kernel=5)


def _calibration_rest() -> Iterator[Case]:
    for batch, heads, length, size, causal in (
        (1, 12, 128, 64, False), (32, 12, 197, 64, False), (16, 12, 512, 64, False),
        (8, 16, 1024, 64, False), (4, 32, 2048, 128, False), (1, 32, 2048, 128, True),
        (8, 12, 1024, 64, True), (512, 3, 49, 32, False), (32, 8, 256, 32, False),
        (1, 16, 4096, 64, True),
    ):  # fmt: skip
        yield attention(batch, heads, length, size, causal=causal)
    big = (64, 56, 56)
    yield from (simple("elementwise", 32, big, name=n) for n in ("relu", "gelu", "silu", "add"))
    yield simple("elementwise", 256, big, name="relu")
    yield from (simple("norm", 32, big, name=n) for n in ("batch", "group"))
    yield from (simple("norm", 32, (197, 768), name=n) for n in ("layer", "rms"))
    yield simple("norm", 8, (1024, 4096), name="layer")
    yield from (simple("softmax", b, (12, 197, 197)) for b in (1, 32))
    yield simple("softmax", 8, (32000,))
    yield simple("pool", 32, big, name="max", kernel=3, stride=2)
    yield simple("move", 32, big, name="channels_to_last")
    for name in ("relu", "add", "gelu"):
        yield simple("elementwise", 1, (64,), name=name)
    yield from (simple("norm", 1, (8, 64), name=n) for n in ("layer", "rms"))
    yield simple("softmax", 1, (1, 8, 8))
    yield dense(1, 8, 8)
    yield convolution(1, 8, 8, (8, 8))
    yield simple("move", 1, (8, 8), name="copy")
    yield simple("reduction", 1, (8, 8), name="mean")


def ceiling_cases() -> list[Case]:
    """Return the operators closest to a device's peaks: a product of 8192³, a copy of 256 MiB."""
    return [dense(8192, 8192, 8192), simple("move", 64, (1024, 1024), name="copy")]


def more_cases() -> list[Case]:
    """Return the operators beyond the calibration pack."""
    return [*_more_products(), *_more_convolutions(), *_more_attention(), *_more_simple()]


def _more_products() -> Iterator[Case]:
    for m in (1, 8, 64, 512, 4096, 32768):
        for n, k in ((256, 256), (1024, 256), (512, 2048), (2304, 768), (5120, 1280), (50257, 768)):
            if m * n <= 2**28:
                yield dense(m, n, k, bias=True)
    for batch, m, n, k in (
        (8, 64, 64, 64), (64, 256, 256, 32), (64, 256, 32, 256), (256, 64, 64, 128),
        (4, 4096, 4096, 64), (4, 4096, 64, 4096), (2048, 32, 32, 64), (128, 512, 512, 64),
        (1, 1, 4096, 128), (128, 1, 1024, 64),
    ):  # fmt: skip
        yield matmul(batch, m, n, k)


def _more_convolutions() -> Iterator[Case]:
    for batch in (1, 16, 64):
        for channels, side in ((32, 112), (48, 96), (160, 28), (320, 14), (640, 10)):
            yield convolution(batch, channels, channels, (side, side))
            yield convolution(batch, channels, 4 * channels, (side, side), kernel=1)
            yield convolution(batch, channels, channels, (side, side), kernel=5, groups=channels)
    for kernel, stride, groups, dilation in (
        (3, 1, 1, 2), (3, 1, 1, 4), (3, 1, 4, 1), (3, 2, 1, 1), (5, 1, 1, 1), (7, 1, 1, 1),
        (9, 1, 96, 1), (4, 4, 1, 1), (1, 2, 1, 1), (3, 1, 2, 1), (3, 1, 96, 2), (1, 1, 4, 1),
    ):  # fmt: skip
        for batch in (4, 48):
            yield convolution(
                batch,
                96,
                96,
                (64, 64),
                kernel=kernel,
                stride=stride,
                groups=groups,
                dilation=dilation,
            )
    for batch, channels, width, side in ((1, 64, 32, 128), (8, 512, 256, 32), (16, 128, 64, 64)):
        for kernel in (2, 4):
            yield convolution(
                batch, channels, width, (side, side), kernel=kernel, stride=2, transposed=True
            )
    for batch, channels, length, kernel in (
        (4, 64, 4000, 3),
        (16, 128, 1000, 9),
        (64, 512, 250, 1),
    ):
        yield convolution(batch, channels, channels, (length,), kernel=kernel)
        yield convolution(batch, channels, channels, (length,), kernel=kernel, dilation=4)
    for batch, channels, sizes, groups in (
        (1, 32, (16, 112, 112), 1), (4, 128, (8, 28, 28), 1), (4, 54, (16, 56, 56), 54),
        (8, 256, (4, 14, 14), 1),
    ):  # fmt: skip
        yield convolution(batch, channels, channels, sizes, groups=groups)


def _more_attention() -> Iterator[Case]:
    for causal in (False, True):
        for batch, heads, length, size in (
            (1, 8, 64, 64), (64, 8, 64, 64), (4, 20, 768, 64), (2, 16, 1024, 256),
            (16, 6, 196, 96), (2, 8, 4096, 64), (64, 4, 256, 32),
        ):  # fmt: skip
            yield attention(batch, heads, length, size, causal=causal)
    for batch, length, keys in ((8, 1, 1024), (64, 1, 512), (4, 4096, 77)):
        yield attention(batch, 16, length, 64, keys=keys)


def _more_simple() -> Iterator[Case]:
    maps = ((1, (64, 112, 112)), (64, (64, 56, 56)), (32, (512, 14, 14)), (16, (1024, 1024)))
    for batch, sizes in maps:
        names = ("sigmoid", "tanh", "hardswish", "multiply", "exp", "square", "maximum")
        yield from (simple("elementwise", batch, sizes, name=name) for name in names)
    for batch, sizes in maps[:3]:
        yield from (simple("norm", batch, sizes, name=n) for n in ("batch", "instance", "group"))
    for batch, sizes in ((1, (512, 1024)), (64, (128, 768)), (16, (49, 384)), (4, (2048, 2048))):
        yield from (simple("norm", batch, sizes, name=name) for name in ("layer", "rms"))
        yield simple("softmax", batch, sizes)
        yield from (
            simple("reduction", batch, sizes, name=n)
            for n in ("sum", "mean", "amax", "var", "sum_first")
        )
    for batch, sizes in maps[:3]:
        yield simple("pool", batch, sizes, name="max", kernel=2, stride=2)
        yield simple("pool", batch, sizes, name="avg", kernel=3, stride=1)
        yield simple("pool", batch, sizes, name="global", kernel=1, stride=1)
        moves = ("copy", "transpose", "concat", "slice", "roll", "pad")
        yield from (simple("move", batch, sizes, name=name) for name in moves)
        yield simple("resize", batch, sizes, name="nearest", factor=2.0)
        yield simple("resize", batch, sizes, name="bilinear", factor=2.0)
        yield simple("resize", batch, sizes, name="bilinear", factor=0.5)
    for vocabulary, width in ((32000, 512), (50257, 768), (1000000, 64), (100, 128)):
        for batch, length in ((1, 128), (64, 128), (512, 26)):
            yield simple("embedding", batch, (length,), vocabulary=vocabulary, width=width)
    for cell in ("lstm", "gru"):
        for batch, length, width, depth, both in (
            (1, 64, 128, 1, False), (64, 64, 256, 1, False), (64, 128, 512, 2, True),
            (1024, 60, 64, 2, True), (16, 256, 1024, 1, False), (256, 32, 256, 3, False),
        ):  # fmt: skip
            yield Case(
                "recurrent",
                {"cell": cell, "width": width, "depth": depth, "bidirectional": both},
                (length, width),
                batch,
            )
