"""Text transformers: encoders like BERT, decoders like GPT and LLaMA."""

from __future__ import annotations

from torch import Tensor, nn

from dataset.families.networks.layers import PositionTable, TransformerBlock, token_norm


class TextTransformer(nn.Module):
    """Embedding, blocks, and vocabulary scores or the states of the first token."""

    def __init__(
        self,
        *,
        length: int,
        vocabulary: int,
        width: int,
        depth: int,
        heads: int,
        kv_heads: int,
        hidden: int,
        act: str,
        norm: str,
        order: str,
        positions: str,
        causal: bool,
        bias: bool,
        output: str,
    ):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = PositionTable(length, width) if positions == "learned" else nn.Identity()
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(
                    width,
                    heads,
                    hidden,
                    act=act,
                    norm_name=norm,
                    order=order,
                    kv_heads=kv_heads,
                    causal=causal,
                    rotary=positions == "rotary",
                    bias=bias,
                )
                for _ in range(depth)
            )
        )
        self.norm = token_norm(norm, width)
        self.output = output
        outs = {"scores": vocabulary, "class": 2, "states": width}[output]
        self.head = nn.Linear(width, outs, bias=bias)

    def forward(self, tokens: Tensor) -> Tensor:  # noqa: D102
        x = self.norm(self.blocks(self.positions(self.embed(tokens))))
        return self.head(x[:, 0] if self.output == "class" else x)
