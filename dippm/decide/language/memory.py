"""Memory of a language model on one GPU.

memory = weights + cache + activations + workspace + context

Weights and cache follow exactly from sizes. Activations are those of the pass with the most tokens:
hidden states, operands and results of the widest two consecutive products, and logits in both
precisions. Serving engines split prompts into chunks. The context (driver and framework) is the
value that the shipped predictor fitted. Engines that reserve all free memory for their cache show
more in `nvidia-smi`; this is what they need.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from dippm.decide.language.architecture import Attention, Decoder
from dippm.decide.language.setting import Software, WeightFormat
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.memory import MIB, MemoryGpu, MemoryModel, log_sd

Z99 = 2.326
"""99 % quantile of the standard normal distribution."""
CHUNK = 8192
"""Prompt tokens per pass of a serving engine (chunked prefill)."""
HALF, FULL = 2, 4


@dataclass(frozen=True, slots=True)
class LanguageMemory:
    """Parts of the memory of one GPU, in MiB.

    Attributes:
        weights_mb: weights in their formats.
        cache_mb: cache of keys and values.
        activations_mb: activations of the pass with the most tokens.
        workspace_mb: workspace of libraries.
        context_mb: context of driver and framework.
        log_error: standard deviation of the log error of the last three together.
        context_software: class of software that the context is taken from, "as given", or "that of
            the checkpoint".
        context_assumed: whether the context is a default that the user did not name.
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
        """Return the sum of the parts."""
        return self.weights_mb + self.cache_mb + self._rest_mb

    @property
    def bound_mb(self) -> float:
        """Return the upper 99 % bound; weights and cache are exact."""
        return self.weights_mb + self.cache_mb + self._rest_mb * exp(Z99 * self.log_error)

    @property
    def _rest_mb(self) -> float:
        return self.activations_mb + self.workspace_mb + self.context_mb


def weight_bytes(decoder: Decoder, weights: WeightFormat) -> float:
    """Return the bytes of all weights of a model, or of the shard of one GPU."""
    return decoder.quantisable * weights.bytes_each + decoder.others * HALF


def activation_bytes(decoder: Decoder, batch: int, queries: int, software: Software) -> float:
    """Return the peak bytes of a pass in addition to weights and cache.

    Args:
        decoder: the model, or the shard of the GPU.
        batch: number of sequences.
        queries: new tokens per sequence.
        software: see `ServingSetting`.
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
        decoder: the model, or the shard of the GPU.
        weights: format of the matrices.
        model: fitted context.
        conditions: the GPU and its context.
        batch: number of sequences.
        prompt: tokens per prompt.
        longest: tokens per sequence at the end.
        cache_width: bytes per element of the cache.
        software: see `ServingSetting`.
    """
    kept = cache_bytes(decoder, batch, longest, width=cache_width, software=software)
    if software == "eager" and decoder.layers:  # appending to a layer's cache holds it twice
        kept += kept // len(decoder.layers)
    asked = conditions.context_mb
    device = conditions.device
    gpu = MemoryGpu(device.sm_count, device.compute_capability)
    context = model.context_of(gpu, convolves=False, asked=asked)
    activations_mb = activation_bytes(decoder, batch, prompt, software) / MIB
    workspace_mb = gpu.workspace_bytes / MIB
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


# Size of the cache of keys and values.
#
#     bytes = layers · (kv_heads · (head_dim + value_dim)) · width        grouped queries
#     bytes = layers · (rank + rotary) · width                            latent attention
#
# A layer with a window keeps only the tokens of the window. transformers stores keys and values of
# latent attention expanded to all heads; serving engines store the latent vectors.


CACHE_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes per element by format of the cache."""


def elements_per_token(attention: Attention, software: Software) -> int:
    """Return the number of elements that one layer stores per token."""
    if attention.latent is not None and software != "eager":
        return attention.latent.rank + attention.latent.rotary
    return attention.kv_heads * (attention.head_dim + attention.value_dim)


def kept_tokens(attention: Attention, context: int) -> int:
    """Return the number of tokens of a sequence that a layer stores."""
    return context if attention.window is None else min(context, attention.window)


def cache_bytes(
    decoder: Decoder, batch: int, context: int, *, width: int = 2, software: Software = "graph"
) -> int:
    """Return the bytes of the cache on one GPU.

    Args:
        decoder: the model, or the shard of the GPU.
        batch: number of sequences.
        context: tokens per sequence.
        width: bytes per element.
        software: see `ServingSetting`.
    """
    return (
        width
        * batch
        * sum(
            elements_per_token(layer.attention, software) * kept_tokens(layer.attention, context)
            for layer in decoder.layers
        )
    )
