"""The cache of keys and values: its bytes for a token, a sequence, a batch.

    bytes = layers · (kv_heads · (head_dim + value_dim)) · width        grouped queries
    bytes = layers · (rank + rotary) · width                            latent attention

A layer with a window keeps no more tokens than the window holds. transformers keeps the keys and
values of latent attention expanded to all heads; serving engines keep the latent vectors.
"""

from __future__ import annotations

from dippm.decide.language.architecture import Attention, Decoder
from dippm.decide.language.setting import Software

CACHE_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of an element by the format of the cache."""


def elements_per_token(attention: Attention, software: Software) -> int:
    """Return what one layer keeps of a token, in elements."""
    if attention.latent is not None and software != "eager":
        return attention.latent.rank + attention.latent.rotary
    return attention.kv_heads * (attention.head_dim + attention.value_dim)


def kept_tokens(attention: Attention, context: int) -> int:
    """Return how many tokens of a sequence a layer keeps."""
    return context if attention.window is None else min(context, attention.window)


def cache_bytes(
    decoder: Decoder, batch: int, context: int, *, width: int = 2, software: Software = "graph"
) -> int:
    """Return the bytes of the cache on one GPU.

    Args:
        decoder: the part of the model that the GPU has.
        batch: sequences.
        context: tokens of each.
        width: bytes of an element.
        software: see `Setting`.
    """
    return (
        width
        * batch
        * sum(
            elements_per_token(layer.attention, software) * kept_tokens(layer.attention, context)
            for layer in decoder.layers
        )
    )
