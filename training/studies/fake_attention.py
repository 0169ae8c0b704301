"""Attention as one library call, which a torch without CUDA would decompose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._inductor import lowering
from torch._inductor.fx_passes import fuse_attention

from training.studies.cuda_fakes import FUSED_RANK, fused_operands

SCHEMA = "attention(Tensor query, Tensor key, Tensor value, Tensor? mask) -> Tensor"


@cache
def _operator() -> Any:
    """Declare the operator once, with its shapes and as a library call for inductor."""
    library = torch.library.Library("dippm_studies", "DEF")
    library.define(SCHEMA)
    _KEPT.append(library)

    def result(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        batch, heads, rows = query.shape[:3]
        return query.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2)

    torch.library.register_fake("dippm_studies::attention", result, lib=library)
    operator = torch.ops.dippm_studies.attention.default
    lowering.make_fallback(operator, lowering.sdpa_constraint, warn=False)
    return operator


_KEPT: list[torch.library.Library] = []
"""Libraries, kept alive because a collected library forgets its operators."""


@contextlib.contextmanager
def attention_as_one_call(half: torch.dtype | None) -> Iterator[None]:
    """Make attention one call inside the context, also where inductor recognises it.

    Args:
        half: dtype to which autocast lowers operands; None without autocast.
    """
    operator = _operator()
    spelled_out = nn.functional.scaled_dot_product_attention

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if query.dim() != FUSED_RANK:
            return spelled_out(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
        query, key, value, attn_mask = fused_operands(query, key, value, attn_mask, half)
        result: torch.Tensor = operator(query, key, value, attn_mask)
        return result

    with (
        patch.object(nn.functional, "scaled_dot_product_attention", attention),
        patch.object(fuse_attention, "_scaled_dot_product_attention", attention),
    ):
        yield
