"""Families "text_encoder" and "text_decoder"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataset.families.family import Family, InputTensor, Parameters, Scalar, Sizes
from dataset.families.grids import rotate_choices, spread

if TYPE_CHECKING:
    import torch

LENGTHS = ((128,), (64,), (256,), (384,), (512,), (32,), (192,))
LONG = ((128,), (512,), (256,), (1024,), (64,), (2048,), (768,))


def encoder_grid() -> list[dict[str, Scalar]]:
    """Return BERT tiny to large and members with other activations, norms and heads."""
    usual: dict[str, Scalar] = {
        "vocabulary": 30522,
        "mlp_ratio": 4.0,
        "act": "gelu",
        "norm": "layer",
        "order": "post",
        "positions": "learned",
        "output": "class",
    }
    published = [
        {**usual, "width": width, "depth": depth, "heads": width // 64}
        for width, depth in ((128, 2), (256, 4), (512, 8), (768, 6), (768, 12), (1024, 24))
    ]
    others = spread(
        24,
        _heads_fit,
        vocabulary=(30522, 50265, 8192),
        width=(192, 256, 320, 384, 512, 640, 768, 1024),
        depth=(2, 3, 4, 6, 8, 12, 16),
        heads=(4, 5, 6, 8, 12, 16),
        mlp_ratio=(4.0, 2.0, 3.0),
        act=("gelu", "relu", "geglu", "swiglu"),
        norm=("layer", "rms"),
        order=("post", "pre"),
        positions=("learned", "rotary"),
        output=("class", "states", "scores"),
    )
    return [*published, *others]


def decoder_grid() -> list[dict[str, Scalar]]:
    """Return shapes like GPT-2 and LLaMA up to some three billion parameters."""
    gpt: dict[str, Scalar] = {
        "vocabulary": 50257,
        "mlp_ratio": 4.0,
        "kv_share": 1,
        "act": "gelu",
        "norm": "layer",
        "order": "pre",
        "positions": "learned",
        "bias": True,
    }
    llama: dict[str, Scalar] = {
        "vocabulary": 32000,
        "mlp_ratio": 2.75,
        "act": "swiglu",
        "norm": "rms",
        "order": "pre",
        "positions": "rotary",
        "bias": False,
    }
    shapes = ((768, 12, 12), (1024, 24, 16), (1280, 36, 20), (1600, 48, 25))
    published = [{**gpt, "width": w, "depth": d, "heads": h} for w, d, h in shapes]
    published += [
        {**llama, "width": w, "depth": d, "heads": h, "kv_share": s}
        for w, d, h, s in (
            (576, 30, 9, 3),
            (960, 32, 15, 3),
            (2048, 16, 32, 8),
            (3072, 28, 24, 3),
            (4096, 4, 32, 4),
        )
    ]
    others = spread(
        24,
        lambda p: _heads_fit(p) and int(p["heads"]) % int(p["kv_share"]) == 0,
        vocabulary=(32000, 50257, 8192),
        width=(256, 384, 512, 640, 768, 1024, 1536, 2048),
        depth=(2, 4, 6, 8, 12, 16),
        heads=(4, 6, 8, 10, 12, 16),
        mlp_ratio=(4.0, 2.75, 3.5),
        kv_share=(1, 2, 4),
        act=("gelu", "swiglu", "relu", "geglu"),
        norm=("layer", "rms"),
        order=("pre", "parallel"),
        positions=("rotary", "learned"),
        bias=(True, False),
    )
    return [*published, *others]


def _heads_fit(p: Parameters) -> bool:
    width, heads = int(p["width"]), int(p["heads"])
    return width % heads == 0 and (width // heads) % 8 == 0 and 32 <= width // heads <= 128


def build_encoder(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the encoder, with attention between all tokens."""
    return _build({**p, "causal": False, "bias": True, "kv_share": 1}, sizes)


def build_decoder(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the decoder, with causal attention and scores of the next token."""
    return _build({**p, "causal": True, "output": "scores"}, sizes)


def _build(p: dict[str, Any], sizes: Sizes) -> torch.nn.Module:
    from dataset.families.networks.text import TextTransformer

    hidden = int(int(p["width"]) * float(p.pop("mlp_ratio"))) // 8 * 8
    kv_heads = int(p["heads"]) // int(p.pop("kv_share"))
    return TextTransformer(length=sizes[0], hidden=hidden, kv_heads=kv_heads, **p)


def tokens(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return token ids."""
    return (InputTensor("tokens", sizes, high=int(p["vocabulary"])),)


ENCODER = Family(
    name="text_encoder",
    kind="model",
    about="encoders like BERT (Devlin et al. 2019) and its successors",
    grid=encoder_grid,
    sizes=lambda p: rotate_choices(LENGTHS, p, 4),
    build=build_encoder,
    inputs=tokens,
    largest_batch=512,
)
DECODER = Family(
    name="text_decoder",
    kind="model",
    about="decoders like GPT-2 (Radford 2019) and LLaMA (Touvron 2023), prefill of a prompt",
    grid=decoder_grid,
    sizes=lambda p: rotate_choices(LONG, p, 4),
    build=build_decoder,
    inputs=tokens,
    largest_batch=256,
)
