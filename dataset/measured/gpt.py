"""The GPTs of HW-GPT-Bench as modules of our own: training sample and names.

A decoder as described by the source and its settings: embedding; blocks; a final layer norm and an
untied output layer without bias. A block adds attention and a gated MLP in parallel, each after its
own layer norm, to its input. Queries, keys and values come from one product; rotary embeddings
cover a quarter of the 64 dimensions of a head, by tables of cosines and sines; attention is causal.

A name contains the whole architecture, so that it can be built on any machine:
"gpt:768x2(heads=4-12,ratios=2-4,bias=1)@1024" has two blocks of width 768, for 1,024 tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional

HEAD_DIM = 64
ROTARY_DIM = HEAD_DIM // 4
ROTARY_BASE = 10_000
VOCABULARY = 50_254
ARCHITECTURES_PER_SCALE = 72
NAME = re.compile(
    r"(?P<width>\d+)x(?P<depth>\d+)"
    r"\(heads=(?P<heads>[\d-]+),ratios=(?P<ratios>[\d-]+),bias=(?P<bias>[01])\)"
)


def key_of(architecture: Mapping[str, Any]) -> str:
    """Return the name of an architecture.

    Args:
        architecture: a row with embed_dim, n_layer, n_head, mlp_ratio, bias and seq_len.
    """
    heads, ratios = ("-".join(map(str, architecture[c])) for c in ("n_head", "mlp_ratio"))
    shape = f"{architecture['embed_dim']}x{architecture['n_layer']}"
    bias, length = int(architecture["bias"]), architecture["seq_len"]
    return f"gpt:{shape}(heads={heads},ratios={ratios},bias={bias})@{length}"


def sample_architectures(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the training sample of architectures, the same on every GPU.

    A scale has ten thousand architectures of one grammar; `ARCHITECTURES_PER_SCALE` represent it,
    the same number for each width and depth, from the cheapest to the most expensive.

    Args:
        table: table of `dataset.measured.sources.hwgpt`.
    """
    gpus = table.groupby("arch_id")["gpu"].nunique()
    wanted = table.groupby("scale")["gpu"].nunique()
    known = table.drop_duplicates("arch_id")
    everywhere = known[known["arch_id"].map(gpus) == known["scale"].map(wanted)]
    chosen: list[int] = []
    for _, scale in everywhere.groupby("scale"):
        shapes = scale.sort_values(["macs", "arch_id"]).groupby(["embed_dim", "n_layer"])
        each = -(-ARCHITECTURES_PER_SCALE // shapes.ngroups)
        for _, shape in shapes:
            places = [int((i + 0.5) * len(shape) / each) for i in range(each)]
            chosen += shape["arch_id"].iloc[places].tolist()
    return table[table["arch_id"].isin(chosen)]


def module_of(name: str) -> nn.Module:
    """Return the module of a name such as "768x2(heads=4-12,ratios=2-4,bias=1)", on no device.

    Raises:
        ValueError: if the name has another form.
    """
    found = NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} names no GPT")
    heads, ratios = ([int(n) for n in found[c].split("-")] for c in ("heads", "ratios"))
    if len({len(heads), len(ratios), int(found["depth"])}) > 1:
        raise ValueError(f"{name!r} does not say heads and ratio of every block")
    with torch.device("meta"):
        return Gpt(int(found["width"]), heads, ratios, bias=found["bias"] == "1").eval()


class Gpt(nn.Module):
    """Tokens (batch, length) → scores (batch, length, vocabulary)."""

    def __init__(self, width: int, heads: list[int], ratios: list[int], *, bias: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        blocks = zip(heads, ratios, strict=True)
        self.blocks = nn.ModuleList(Block(width, h, r * width, bias) for h, r in blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:  # noqa: D102
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, *rotary_tables(tokens.shape[1], x.device))
        return self.head(self.norm(x))


class Block(nn.Module):
    """Attention and a gated MLP in parallel."""

    def __init__(self, width: int, heads: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * heads * HEAD_DIM, bias=bias)
        self.out = nn.Linear(heads * HEAD_DIM, width, bias=bias)
        self.gate = nn.Linear(width, hidden, bias=bias)
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: D102
        attended = self.attend(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return self.down(functional.silu(self.gate(y)) * self.up(y)) + attended + x

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: D102
        batch, length = x.shape[:2]
        qkv = self.qkv(x).view(batch, length, self.heads, 3, HEAD_DIM)
        query, key, value = qkv.permute(0, 2, 3, 1, 4).unbind(2)
        query, key = rotate_features(query, cos, sin), rotate_features(key, cos, sin)
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, self.heads * HEAD_DIM))


def rotary_tables(length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each (length, ROTARY_DIM), per block as in the source."""
    steps = torch.arange(0, ROTARY_DIM, 2, device=device).float() / ROTARY_DIM
    angles = torch.outer(torch.arange(length, device=device).float(), ROTARY_BASE**-steps)
    angles = angles.repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate_features(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embeddings to ROTARY_DIM features of (batch, heads, length, HEAD_DIM)."""
    first, rest = x[..., :ROTARY_DIM], x[..., ROTARY_DIM:]
    half = ROTARY_DIM // 2
    rotated = torch.cat((-first[..., half:], first[..., :half]), -1)
    roped = (first * cos + rotated * sin).to(x.dtype)
    return torch.cat((roped, rest), -1)
