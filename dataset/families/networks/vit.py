"""Vision transformers (Dosovitskiy et al. 2021; Touvron et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dataset.families.networks.layers import PositionTable, TransformerBlock, token_norm


class VisionTransformer(nn.Module):
    """Patches, a class token or a mean, blocks, head."""

    def __init__(
        self,
        *,
        image: tuple[int, int],
        patch: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: float,
        pool: str,
        act: str,
        norm: str,
        order: str,
    ):
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, stride=patch)
        tokens = (image[0] // patch) * (image[1] // patch)
        self.token = nn.Parameter(torch.empty(1, 1, width)) if pool == "token" else None
        self.positions = PositionTable(tokens + (self.token is not None), width)
        hidden = int(width * mlp_ratio)
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(width, heads, hidden, act=act, norm_name=norm, order=order)
                for _ in range(depth)
            )
        )
        self.norm = token_norm(norm, width)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.embed(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = self.norm(self.blocks(self.positions(x)))
        return self.head(x.mean(1) if self.token is None else x[:, 0])
