"""Parts of torchvision and transformers models, built from their published sizes.

These are the libraries' own classes; nothing is downloaded. The decoder of Whisper (Radford et al.
2022), one token at a time, is ours: the keys and values of the audio are computed once per clip
(`HeardKeys`); each step then reads them and those of the tokens so far.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PYRAMID = 256
"""Channels of each level of a feature pyramid."""


class DetectionBackbone(nn.Module):
    """ResNet-50 and a feature pyramid: images (batch, 3, h, w) → five maps of 256 channels."""

    def __init__(self) -> None:
        from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
        from torchvision.ops.feature_pyramid_network import LastLevelP6P7

        super().__init__()
        self.body = resnet_fpn_backbone(
            backbone_name="resnet50",
            weights=None,
            returned_layers=[2, 3, 4],
            extra_blocks=LastLevelP6P7(PYRAMID, PYRAMID),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:  # noqa: D102
        return tuple(self.body(images).values())


class DetectionHead(nn.Module):
    """RetinaNet's head: five maps → scores and boxes of the anchors (batch, anchors, 91 or 4)."""

    def __init__(self) -> None:
        from torchvision.models.detection.retinanet import RetinaNetHead

        super().__init__()
        self.head = RetinaNetHead(PYRAMID, 9, 91)

    def forward(  # noqa: D102
        self, p3: Tensor, p4: Tensor, p5: Tensor, p6: Tensor, p7: Tensor
    ) -> tuple[Tensor, Tensor]:
        found = self.head([p3, p4, p5, p6, p7])
        return found["cls_logits"], found["bbox_regression"]


def clip_text(width: int, layers: int, heads: int, *, projected: bool) -> nn.Module:
    """Return a text encoder of CLIP, with the activation function of its publisher."""
    import transformers

    config = transformers.CLIPTextConfig(
        vocab_size=49_408,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        projection_dim=width,
        hidden_act="gelu" if projected else "quick_gelu",
    )
    kind: Any = (
        transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel
    )
    return kind(config)


def t5_encoder() -> nn.Module:
    """Return the encoder of T5 1.1 XXL."""
    import transformers

    config = transformers.T5Config(
        vocab_size=32_128,
        d_model=4096,
        d_kv=64,
        d_ff=10_240,
        num_layers=24,
        num_heads=64,
        feed_forward_proj="gated-gelu",
        use_cache=False,
    )
    kind: Any = transformers.T5EncoderModel
    return kind(config)


def whisper_encoder() -> nn.Module:
    """Return the encoder of Whisper small: (batch, 80, 3000) → (batch, 1500, 768)."""
    import transformers

    config = transformers.WhisperConfig(
        d_model=768,
        encoder_layers=12,
        encoder_attention_heads=12,
        encoder_ffn_dim=3072,
        num_mel_bins=80,
    )
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    kind: Any = WhisperEncoder
    return kind(config)


def sentence_encoder() -> nn.Module:
    """Return the encoder of all-MiniLM-L6-v2."""
    import transformers

    config = transformers.BertConfig(
        hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=12
    )
    kind: Any = transformers.BertModel
    return kind(config)


def reranker() -> nn.Module:
    """Return bge-reranker-base: XLM-RoBERTa with one score for a question and a passage."""
    import transformers

    config = transformers.XLMRobertaConfig(
        vocab_size=250_002, max_position_embeddings=514, type_vocab_size=1, num_labels=1
    )
    kind: Any = transformers.XLMRobertaForSequenceClassification
    return kind(config)


def deberta() -> nn.Module:
    """Return DeBERTa v3 base with a classifier of two classes."""
    import transformers

    config = transformers.DebertaV2Config(
        vocab_size=128_100,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        type_vocab_size=0,
        position_biased_input=False,
        pooler_hidden_size=768,
        pooler_hidden_act="gelu",
    )
    kind: Any = transformers.DebertaV2ForSequenceClassification
    return kind(config)


# The decoder of Whisper, one token at a time.

VOCABULARY, POSITIONS = 51_865, 448


class HeardKeys(nn.Module):
    """States of a clip (batch, frames, width) → keys and values of every layer."""

    def __init__(self, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.keys = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.values = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        keys = torch.stack([key(states) for key in self.keys], 1)
        return keys, torch.stack([value(states) for value in self.values], 1)


class DecoderStep(nn.Module):
    """One decoding step.

    Takes the last token (batch, 1), keys and values of the tokens so far (batch, layers, tokens,
    width) and those of the audio (batch, layers, frames, width); returns scores of all words, and
    keys and values with one more token.
    """

    def __init__(self, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(  # noqa: D102
        self, token: Tensor, keys: Tensor, values: Tensor, heard_keys: Tensor, heard_values: Tensor
    ) -> tuple[Tensor, ...]:
        token = token.long()
        place = torch.full_like(token, keys.shape[2])
        x = self.words(token) + self.positions(place)
        kept = []
        for i, layer in enumerate(self.layers):
            heard = (heard_keys[:, i], heard_values[:, i])
            x, key, value = layer(x, keys[:, i], values[:, i], heard)
            kept += [key, value]
        scores = functional.linear(self.norm(x), self.words.weight)
        return scores, *kept


class DecoderLayer(nn.Module):
    """Self-attention to the text so far, cross-attention to the audio, an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.heard_query, self.heard_out = nn.Linear(width, width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(  # noqa: D102
        self, x: Tensor, keys: Tensor, values: Tensor, heard: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        y = self.norms[0](x)
        keys = torch.cat([keys, self.key(y)], 1)
        values = torch.cat([values, self.value(y)], 1)
        x = x + self.out(self._attended(self.query(y), keys, values))
        x = x + self.heard_out(self._attended(self.heard_query(self.norms[1](x)), *heard))
        return x + self.mlp(self.norms[2](x)), keys, values

    def _attended(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        parts = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, keys, values)
        )
        return functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
