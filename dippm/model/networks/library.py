"""Parts of torchvision and transformers models, built from their published sizes.

These are the libraries' own classes; nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

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
