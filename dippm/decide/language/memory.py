"""What a language model keeps in the memory of one GPU.

memory = weights + cache + activations + workspace + context

Weights and cache follow from sizes exactly. The activations are those of the pass with the most
tokens: the hidden states, what the widest pair of products in a row reads and writes, and scores
of the vocabulary in both widths. Serving engines cut prompts into chunks. The context is what the
shipped predictor fitted for driver and framework. Engines that reserve the memory that is left for
their cache in advance will show more in `nvidia-smi`; this is what they need.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from dippm.decide.language.architecture import Attention, Decoder
from dippm.decide.language.formats import WeightFormat
from dippm.decide.language.setting import Software
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.memory import MIB, MemoryGpu, MemoryModel, log_sd

Z99 = 2.326
"""99 % of a normal distribution are below."""
CHUNK = 8192
"""Tokens of prompts that a serving engine takes at once."""
HALF, FULL = 2, 4


@dataclass(frozen=True, slots=True)
class LanguageMemory:
    """Parts of the memory of one GPU, in MiB.

    Attributes:
        weights_mb: in their formats.
        cache_mb: keys and values.
        activations_mb: of the pass with the most.
        workspace_mb: of libraries.
        context_mb: driver and framework.
        log_error: standard deviation of the log error of the last three together.
        context_software: class of software that the context is that of, "as given", or "that of
            the checkpoint".
        context_assumed: whether nobody named it.
    """

    weights_mb: float
    cache_mb: float
    activations_mb: float
    workspace_mb: float
    context_mb: float
    log_error: float
    context_software: str = ""
    context_assumed: bool = True

    @property
    def total_mb(self) -> float:
        """Return the sum."""
        return self.weights_mb + self.cache_mb + self._rest_mb

    @property
    def bound_mb(self) -> float:
        """Return what 99 of 100 such runs need at most: weights and cache are exact."""
        return self.weights_mb + self.cache_mb + self._rest_mb * exp(Z99 * self.log_error)

    @property
    def _rest_mb(self) -> float:
        return self.activations_mb + self.workspace_mb + self.context_mb


def weight_bytes(decoder: Decoder, weights: WeightFormat) -> float:
    """Return the bytes of all weights of the part of a model that one GPU has."""
    return decoder.quantisable * weights.bytes_each + decoder.others * HALF


def activation_bytes(decoder: Decoder, batch: int, queries: int, software: Software) -> float:
    """Return what a pass needs beside weights and cache, where it needs most.

    Args:
        decoder: the part of the model that the GPU has.
        batch: sequences.
        queries: new tokens of each.
        software: see `Setting`.
    """
    tokens = batch * queries if software == "eager" else min(batch * queries, CHUNK)
    widest = 0
    for layer in set(decoder.layers):
        a, network = layer.attention, layer.feed_forward
        attended = a.heads * (2 * a.head_dim + a.value_dim) + 2 * a.kv_heads * a.head_dim
        rows = max(1, network.chosen)
        routed = rows * (network.inputs + 1) * network.width + rows * decoder.hidden
        widest = max(widest, attended, routed)
    states = (2 if software != "eager" else 6) * decoder.hidden
    scores = batch * decoder.vocabulary * (HALF + FULL)
    return float(HALF * tokens * (states + widest) + scores)


def language_memory(
    decoder: Decoder,
    weights: WeightFormat,
    model: MemoryModel,
    conditions: Conditions,
    *,
    batch: int,
    prompt: int,
    longest: int,
    cache_width: int,
    software: Software,
) -> LanguageMemory:
    """Return the memory of one GPU.

    Args:
        decoder: the part of the model that the GPU has.
        weights: format of the matrices.
        model: fitted context.
        conditions: the GPU, and what is said of its context.
        batch: sequences.
        prompt: tokens of each prompt.
        longest: tokens of each sequence in the end.
        cache_width: bytes of an element of the cache.
        software: see `Setting`.
    """
    kept = cache_bytes(decoder, batch, longest, width=cache_width, software=software)
    if software == "eager" and decoder.layers:  # the step that appends to a layer holds it twice
        kept += kept // len(decoder.layers)
    asked = conditions.context_mb
    device = conditions.device
    gpu = MemoryGpu(device.sm_count, device.compute_capability)
    context = model.context_of(gpu, convolves=False, asked=asked)
    activations_mb = activation_bytes(decoder, batch, prompt, software) / MIB
    workspace_mb = gpu.workspace_mb
    return LanguageMemory(
        weights_mb=weight_bytes(decoder, weights) / MIB,
        cache_mb=kept / MIB,
        activations_mb=activations_mb,
        workspace_mb=workspace_mb,
        context_mb=context.context_mb,
        log_error=log_sd(activations_mb + workspace_mb, context, model.log_error),
        context_software=context.software,
        context_assumed=context.assumed,
    )


# The cache of keys and values: its bytes for a token, a sequence, a batch.
#
#     bytes = layers · (kv_heads · (head_dim + value_dim)) · width        grouped queries
#     bytes = layers · (rank + rotary) · width                            latent attention
#
# A layer with a window keeps no more tokens than the window holds. transformers keeps the keys and
# values of latent attention expanded to all heads; serving engines keep the latent vectors.


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
