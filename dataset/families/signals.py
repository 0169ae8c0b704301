"""Families "audio_tcn", "conformer", "tabular_mlp", "recommender" and "translator"."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from dataset.families.family import Family, InputTensor, Parameters, Scalar, Sizes
from dataset.families.grids import rotate_choices, spread

if TYPE_CHECKING:
    import torch

WAVES = ((4000,), (8000,), (16000,), (2000,), (1000,))
FRAMES = ((200,), (400,), (800,), (100,), (1200,))
TEXTS = ((64,), (128,), (256,), (32,), (512,))


def tcn_grid() -> list[dict[str, Scalar]]:
    """Return plain and gated stacks of dilated convolutions."""
    return spread(
        24,
        channels=(1, 2, 40, 80),
        width=(32, 64, 96, 128, 256),
        kernel=(3, 5, 7, 9),
        depth=(4, 6, 8),
        stacks=(1, 2, 3),
        stride=(4, 8, 2),
        norm=("batch", "none", "group"),
        act=("relu", "silu", "leaky_relu"),
        gated=(False, True),
        output=("class", "frames"),
    )


def conformer_grid() -> list[dict[str, Scalar]]:
    """Return small to large and members between them."""
    return spread(
        24,
        bands=(80, 64, 40),
        width=(144, 192, 256, 384, 512),
        depth=(4, 8, 12, 16, 6),
        heads=(4, 8),
        kernel=(15, 31, 7),
        mlp_ratio=(4.0, 2.0),
        act=("silu", "gelu", "relu"),
    )


def table_grid() -> list[dict[str, Scalar]]:
    """Return narrow to very wide members."""
    return spread(
        40,
        features=(10, 32, 100, 784, 2000),
        width=(64, 128, 256, 512, 1024, 2048, 4096),
        depth=(2, 3, 4, 6, 8, 12),
        outputs=(1, 10, 1000),
        norm=("none", "batch", "layer"),
        act=("relu", "gelu", "tanh", "elu", "silu"),
        residual=(False, True),
    )


def recommender_grid() -> list[dict[str, Scalar]]:
    """Return members whose tables hold up to a gigabyte."""
    return spread(
        32,
        lambda p: int(p["fields"]) * int(p["rows"]) * int(p["width"]) <= 2**28,
        fields=(8, 16, 26, 40),
        rows=(1000, 10000, 100000, 300000),
        width=(16, 32, 64, 128),
        numbers=(13, 4, 32),
        hidden=(128, 256, 512, 1024),
        depth=(2, 3, 4),
        act=("relu", "silu"),
        meeting=("products", "joined"),
    )


def translator_grid() -> list[dict[str, Scalar]]:
    """Return encoder-decoders of equal and unequal depths."""
    return spread(
        24,
        lambda p: int(p["width"]) // int(p["heads"]) >= 32,
        vocabulary=(32000, 8192),
        width=(256, 384, 512, 768, 1024),
        encoder=(3, 6, 12, 2),
        decoder=(3, 6, 2, 1),
        heads=(4, 8, 16),
        mlp_ratio=(4.0, 2.0),
        act=("relu", "gelu", "geglu"),
        norm=("layer", "rms"),
    )


def tcn_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return samples of sound, or bands over time."""
    return (InputTensor("signal", (int(p["channels"]), *sizes)),)


def conformer_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return a spectrogram: frames by bands."""
    return (InputTensor("spectrogram", (*sizes, int(p["bands"]))),)


def table_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return one row."""
    return (InputTensor("row", (int(p["features"]),)),)


def recommender_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return one category of each field, and numbers."""
    return (
        InputTensor("categories", (int(p["fields"]),), high=int(p["rows"])),
        InputTensor("numbers", (int(p["numbers"]),)),
    )


def translator_sizes(p: Parameters) -> list[Sizes]:
    """Return lengths of the source and of the target."""
    lengths = [n for (n,) in rotate_choices(TEXTS, p, 5)]
    return list(pairwise(lengths))


def translator_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return the tokens of both texts."""
    high = int(p["vocabulary"])
    return (
        InputTensor("source", (sizes[0],), high=high),
        InputTensor("target", (sizes[1],), high=high),
    )


def _build(name: str) -> Callable[[Parameters, Sizes], torch.nn.Module]:
    def build(p: Parameters, sizes: Sizes) -> torch.nn.Module:
        from dataset.families.networks import signals

        module: torch.nn.Module = getattr(signals, name)(**p)
        return module

    return build


def build_translator(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network, with position tables for both lengths."""
    from dataset.families.networks.signals import Translator

    return Translator(length=sizes[0], target=sizes[1], **p)


AUDIO_TCN = Family(
    name="audio_tcn",
    kind="model",
    about="dilated 1-D convolutions (Bai et al. 2018, van den Oord et al. 2016)",
    grid=tcn_grid,
    sizes=lambda p: rotate_choices(WAVES, p, 4),
    build=_build("TemporalNet"),
    inputs=tcn_inputs,
)
CONFORMER = Family(
    name="conformer",
    kind="model",
    about="speech encoders of attention and convolution (Gulati et al. 2020)",
    grid=conformer_grid,
    sizes=lambda p: rotate_choices(FRAMES, p, 4),
    build=_build("Conformer"),
    inputs=conformer_inputs,
    largest_batch=256,
)
TABULAR_MLP = Family(
    name="tabular_mlp",
    kind="model",
    about="multi-layer perceptrons over rows of a table",
    grid=table_grid,
    sizes=lambda p: [(int(p["features"]),)],
    build=_build("TableNet"),
    inputs=table_inputs,
    largest_batch=65536,
)
RECOMMENDER = Family(
    name="recommender",
    kind="model",
    about="embeddings and MLPs, after DLRM (Naumov et al. 2019)",
    grid=recommender_grid,
    sizes=lambda p: [(int(p["fields"]),)],
    build=_build("Recommender"),
    inputs=recommender_inputs,
    largest_batch=16384,
)
TRANSLATOR = Family(
    name="translator",
    kind="model",
    about="encoder-decoder transformers (Vaswani et al. 2017)",
    grid=translator_grid,
    sizes=translator_sizes,
    build=build_translator,
    inputs=translator_inputs,
    largest_batch=256,
)
