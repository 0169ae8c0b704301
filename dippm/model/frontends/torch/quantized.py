"""Quantised models: float layers in place of quantised ones, and notes on what is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dippm.model.frontends.torch.prepare import with_parts

AS_FLOAT = (
    "{count} quantised layers ({kinds}) were taken as layers of {dtype}: time and memory of "
    "quantised weights are not predicted"
)
CONFIGURED = (
    "the configuration asks for quantisation ({method}): the graph is of the architecture without "
    "it, in {dtype}"
)


def quantization_notes(module: nn.Module) -> tuple[str, ...]:
    """Return notes on a configuration that requests quantised weights."""
    asked = getattr(getattr(module, "config", None), "quantization_config", None)
    if not asked:
        return ()
    document = asked if isinstance(asked, Mapping) else getattr(asked, "__dict__", {})
    method = document.get("quant_method", "unnamed")
    bits = document.get("bits") or next((b for b in (4, 8) if document.get(f"load_in_{b}bit")), "")
    words = f"{getattr(method, 'value', method)}{f', {bits} bits' if bits else ''}"
    weight = next(iter(module.parameters()), torch.empty(0))
    return (CONFIGURED.format(method=words, dtype=_name(weight.dtype)),)


def with_float_layers(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the module with float layers in place of torch's quantised ones, and a note.

    The module itself is not changed: parents of such layers are copied.
    """
    found = {name: part for name, part in module.named_modules() if _is_quantised(part)}
    twins = {name: _twin(part) for name, part in found.items()}
    if not found or any(twin is None for twin in twins.values()):
        return module, ()
    kinds = sorted({type(part).__name__ for part in found.values()})
    note = AS_FLOAT.format(count=len(found), kinds=", ".join(kinds), dtype="float32")
    if "" in twins:
        return twins[""] or module, (note,)
    return with_parts(module, twins), (note,)


def _is_quantised(part: nn.Module) -> bool:
    home = type(part).__module__
    # Containers and packed weights inside a quantised layer are part of it.
    return home.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")) and (
        "PackedParams" not in type(part).__name__
    )


def _twin(part: Any) -> nn.Module | None:
    """Return a float layer with the sizes of a quantised one; None if no kind corresponds."""
    kind = type(part).__name__
    with torch.device("meta"):
        if kind in ("Linear", "LinearReLU"):
            dense = nn.Linear(part.in_features, part.out_features)
            return nn.Sequential(dense, nn.ReLU()) if kind.endswith("ReLU") else dense
        plain = kind.removesuffix("ReLU").removesuffix("d").removeprefix("Conv")
        if kind.startswith("Conv") and plain in ("1", "2", "3"):
            layer = getattr(nn, f"Conv{plain}d")(
                part.in_channels,
                part.out_channels,
                part.kernel_size,
                part.stride,
                part.padding,
                part.dilation,
                part.groups,
            )
            return nn.Sequential(layer, nn.ReLU()) if kind.endswith("ReLU") else layer
        if kind in ("LSTM", "GRU"):
            return getattr(nn, kind)(  # type: ignore[no-any-return]
                part.input_size,
                part.hidden_size,
                part.num_layers,
                batch_first=part.batch_first,
                bidirectional=part.bidirectional,
            )
        if kind == "Embedding":
            return nn.Embedding(part.num_embeddings, part.embedding_dim)
        if kind in ("Quantize", "DeQuantize"):
            return nn.Identity()
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
