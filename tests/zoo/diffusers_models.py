"""Models of diffusers: U-Nets, autoencoders, control nets and transformers of known pipelines.

The U-Nets of Stable Diffusion have their published sizes; transformers have fewer layers, because
their layers are all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from dippm.model.vision_operators import declare_vision_operators
from tests.zoo.case import Case
from tests.zoo.modules import Given, module_case

LATENT = {"sample": (4, 64, 64), "timestep": ()}
SD15 = {"cross_attention_dim": 768}
SD21 = {"cross_attention_dim": 1024, "attention_head_dim": (5, 10, 20, 20),
        "use_linear_projection": True}  # fmt: skip
SDXL = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "cross_attention_dim": 2048,
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
    "use_linear_projection": True,
}
SDXL_UP = {"up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")}
SDXL_INPUT = {
    "sample": (4, 128, 128),
    "timestep": (),
    "encoder_hidden_states": (77, 2048),
    "added_cond_kwargs.text_embeds": (1280,),
    "added_cond_kwargs.time_ids": (6,),
}
KL = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
}
SMALL = {"num_attention_heads": 4, "attention_head_dim": 32, "num_layers": 2}
VIDEO_UNET = {"block_out_channels": (64, 128, 256, 256)}
IMAGE, CLIP = {"sample": (3, 256, 256)}, {"sample": (3, 9, 64, 64)}
FLUX_INPUT = {
    "hidden_states": (256, 64),
    "encoder_hidden_states": (64, 4096),
    "pooled_projections": (768,),
    "timestep": (),
    "img_ids": "fixed:256,3",
    "txt_ids": "fixed:64,3",
}
FLUX = {**SMALL, "num_single_layers": 2, "axes_dims_rope": (8, 12, 12)}
SD3_INPUT = {
    "hidden_states": (16, 64, 64),
    "encoder_hidden_states": (77, 4096),
    "pooled_projections": (2048,),
    "timestep": (),
}
SD3 = {"num_layers": 4, "caption_projection_dim": 1152}
VIDEO_LATENT = {"hidden_states": (16, 5, 16, 16), "timestep": ()}

NEED_DATA = ("AutoencoderKLTemporalDecoder", "SVD.unet", "Lumina2", "Mochi")
"""They make tensors on the CPU, or look at numbers, while they are built or run."""

# name, class, configuration, inputs
MODELS: tuple[tuple[str, str, dict[str, Any], Given], ...] = (
    ("UNet1D", "UNet1DModel", {"sample_size": 4096, "in_channels": 2, "extra_in_channels": 64},
     {"sample": (2, 4096), "timestep": ()}),
    ("UNet1D.value-function", "UNet1DModel",
     {"sample_size": 64, "in_channels": 14, "out_channels": 14, "time_embedding_type": "positional",
      "use_timestep_embedding": True, "flip_sin_to_cos": False, "freq_shift": 1,
      "down_block_types": ("DownResnetBlock1D",) * 3, "up_block_types": ("UpResnetBlock1D",) * 2,
      "mid_block_type": "MidResTemporalBlock1D", "out_block_type": "OutConv1DBlock",
      "block_out_channels": (32, 128, 256), "act_fn": "mish"},
     {"sample": (14, 64), "timestep": ()}),
    ("UNet2D", "UNet2DModel", {}, {"sample": (3, 64, 64), "timestep": ()}),
    ("UNet2D.classes", "UNet2DModel", {"num_class_embeds": 10, "sample_size": 64},
     {"sample": (3, 64, 64), "timestep": (), "class_labels": ()}),
    ("UNet2D.scale-shift", "UNet2DModel",
     {"resnet_time_scale_shift": "scale_shift", "downsample_type": "resnet",
      "upsample_type": "resnet", "block_out_channels": (64, 128, 192, 256)},
     {"sample": (3, 64, 64), "timestep": ()}),
    ("SD1.5.unet", "UNet2DConditionModel", SD15, {**LATENT, "encoder_hidden_states": (77, 768)}),
    ("SD1.5.unet.number", "UNet2DConditionModel", SD15,
     {**LATENT, "timestep": "value:10", "encoder_hidden_states": (77, 768)}),
    ("SD2.1.unet", "UNet2DConditionModel", SD21, {**LATENT, "encoder_hidden_states": (77, 1024)}),
    ("SDXL.unet", "UNet2DConditionModel", {**SDXL, **SDXL_UP}, SDXL_INPUT),
    ("SD1.5.vae", "AutoencoderKL", KL, IMAGE),
    ("SDXL.vae", "AutoencoderKL", {**KL, "scaling_factor": 0.13025}, {"sample": (3, 512, 512)}),
    ("SD3.vae", "AutoencoderKL",
     {**KL, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}, IMAGE),
    ("AsymmetricAutoencoderKL", "AsymmetricAutoencoderKL",
     {"down_block_types": ("DownEncoderBlock2D",) * 2, "down_block_out_channels": (64, 128),
      "up_block_types": ("UpDecoderBlock2D",) * 2, "up_block_out_channels": (96, 192)}, IMAGE),
    ("AutoencoderTiny", "AutoencoderTiny", {}, IMAGE),
    ("AutoencoderDC", "AutoencoderDC",
     {"encoder_block_types": ("ResBlock",) * 2 + ("EfficientViTBlock",),
      "decoder_block_types": ("ResBlock",) * 2 + ("EfficientViTBlock",),
      "encoder_block_out_channels": (64, 128, 256), "decoder_block_out_channels": (64, 128, 256),
      "encoder_layers_per_block": (1, 1, 1), "decoder_layers_per_block": (1, 1, 1),
      "encoder_qkv_multiscales": ((), (), (5,)), "decoder_qkv_multiscales": ((), (), (5,)),
      "decoder_norm_types": "rms_norm"}, IMAGE),
    ("VQModel", "VQModel", {}, IMAGE),
    ("VQModel.deep", "VQModel",
     {"down_block_types": ("DownEncoderBlock2D",) * 3, "up_block_types": ("UpDecoderBlock2D",) * 3,
      "block_out_channels": (128, 256, 512), "num_vq_embeddings": 8192}, IMAGE),
    ("AutoencoderKLTemporalDecoder", "AutoencoderKLTemporalDecoder", {},
     {"sample": "fixed:4,3,64,64", "num_frames": "value:4"}),
    ("AutoencoderKLCogVideoX", "AutoencoderKLCogVideoX", {"block_out_channels": (32, 64, 64, 128)},
     CLIP),
    ("AutoencoderKLWan", "AutoencoderKLWan", {"base_dim": 32}, CLIP),
    ("AutoencoderKLQwenImage", "AutoencoderKLQwenImage", {"base_dim": 32},
     {"sample": (3, 1, 128, 128)}),
    ("AutoencoderKLLTXVideo", "AutoencoderKLLTXVideo", {}, {"sample": (3, 9, 128, 128)}),
    ("AutoencoderKLHunyuanVideo", "AutoencoderKLHunyuanVideo",
     {"block_out_channels": (64, 64, 128, 128)}, CLIP),
    ("AutoencoderKLCosmos", "AutoencoderKLCosmos",
     {"encoder_block_out_channels": (64, 128, 128, 128),
      "decode_block_out_channels": (64, 128, 128, 128)}, {"sample": (3, 9, 128, 128)}),
    ("AutoencoderOobleck", "AutoencoderOobleck", {}, {"sample": (2, 32768)}),
    ("UNet3DCondition", "UNet3DConditionModel", VIDEO_UNET,
     {"sample": (4, 8, 32, 32), "timestep": (), "encoder_hidden_states": (77, 1024)}),
    ("UNetMotion", "UNetMotionModel", {**VIDEO_UNET, "cross_attention_dim": 768},
     {"sample": "fixed:1,4,8,32,32", "timestep": "fixed:1",
      "encoder_hidden_states": "fixed:8,77,768"}),
    ("SVD.unet", "UNetSpatioTemporalConditionModel",
     {**VIDEO_UNET, "num_attention_heads": (2, 4, 8, 8)},
     {"sample": (8, 8, 32, 32), "timestep": (), "encoder_hidden_states": (1, 1024),
      "added_time_ids": (3,)}),
    ("I2VGenXL", "I2VGenXLUNet", VIDEO_UNET,
     {"sample": (4, 8, 32, 32), "timestep": (), "fps": (), "image_latents": (4, 8, 32, 32),
      "image_embeddings": (1024,), "encoder_hidden_states": (77, 1024)}),
    ("Kandinsky3", "Kandinsky3UNet", {"block_out_channels": (64, 128, 256, 512)},
     {"sample": (4, 64, 64), "timestep": (), "encoder_hidden_states": (77, 4096),
      "encoder_attention_mask": (77,)}),
    ("StableCascade.prior", "StableCascadeUNet",
     {"block_out_channels": (256, 256), "num_attention_heads": (4, 4),
      "down_num_layers_per_block": (2, 2), "up_num_layers_per_block": (2, 2)},
     {"sample": (16, 24, 24), "timestep_ratio": (), "clip_text_pooled": (1, 1280)}),
    ("UVit2D", "UVit2DModel", {"num_hidden_layers": 4},
     {"input_ids": (16, 16), "encoder_hidden_states": (77, 768), "pooled_text_emb": (768,),
      "micro_conds": (5,)}),
    ("SD1.5.controlnet", "ControlNetModel", SD15,
     {**LATENT, "encoder_hidden_states": (77, 768), "controlnet_cond": (3, 512, 512)}),
    ("SDXL.controlnet", "ControlNetModel", SDXL,
     {**SDXL_INPUT, "controlnet_cond": (3, 1024, 1024)}),
    ("SD3.controlnet", "SD3ControlNetModel", SD3, {**SD3_INPUT, "controlnet_cond": (16, 64, 64)}),
    ("Flux.controlnet", "FluxControlNetModel", FLUX,
     {**FLUX_INPUT, "controlnet_cond": (256, 64)}),
    ("T2IAdapter", "T2IAdapter", {}, {"x": (3, 512, 512)}),
    ("T2IAdapter.light", "T2IAdapter", {"adapter_type": "light_adapter"}, {"x": (3, 512, 512)}),
    ("DiT", "DiTTransformer2DModel", {"num_layers": 4},
     {"hidden_states": (4, 32, 32), "timestep": (), "class_labels": ()}),
    ("Transformer2D", "Transformer2DModel",
     {**SMALL, "in_channels": 64, "cross_attention_dim": 768},
     {"hidden_states": (64, 32, 32), "encoder_hidden_states": (77, 768)}),
    ("TransformerTemporal", "TransformerTemporalModel", {**SMALL, "in_channels": 64},
     {"hidden_states": "fixed:8,64,32,32", "num_frames": "value:8"}),
    ("PixArt", "PixArtTransformer2DModel",
     {"num_layers": 4, "sample_size": 64, "caption_channels": 4096,
      "use_additional_conditions": False},
     {"hidden_states": (4, 64, 64), "encoder_hidden_states": (120, 4096), "timestep": ()}),
    ("SD3", "SD3Transformer2DModel", SD3, SD3_INPUT),
    ("SD3.5", "SD3Transformer2DModel",
     {**SD3, "qk_norm": "rms_norm", "dual_attention_layers": (0, 1)}, SD3_INPUT),
    ("Flux", "FluxTransformer2DModel", FLUX, FLUX_INPUT),
    ("Flux.dev", "FluxTransformer2DModel", {**FLUX, "guidance_embeds": True},
     {**FLUX_INPUT, "guidance": ()}),
    ("Chroma", "ChromaTransformer2DModel",
     {**FLUX, "approximator_hidden_dim": 256, "approximator_layers": 2},
     {name: sizes for name, sizes in FLUX_INPUT.items() if name != "pooled_projections"}),
    ("AuraFlow", "AuraFlowTransformer2DModel",
     {"num_mmdit_layers": 1, "num_single_dit_layers": 2, "attention_head_dim": 64,
      "caption_projection_dim": 768},
     {"hidden_states": (4, 64, 64), "encoder_hidden_states": (77, 2048), "timestep": ()}),
    ("CogVideoX", "CogVideoXTransformer3DModel",
     {**SMALL, "sample_width": 16, "sample_height": 16, "sample_frames": 17},
     {"hidden_states": (5, 16, 16, 16), "encoder_hidden_states": (226, 4096), "timestep": ()}),
    ("HunyuanDiT", "HunyuanDiT2DModel",
     {"num_layers": 4, "in_channels": 4, "patch_size": 2, "sample_size": 32, "hidden_size": 1408,
      "num_attention_heads": 16},
     {"hidden_states": (4, 32, 32), "timestep": (), "encoder_hidden_states": (77, 1024),
      "text_embedding_mask": (77,), "encoder_hidden_states_t5": (256, 2048),
      "text_embedding_mask_t5": (256,), "image_meta_size": (6,), "style": (),
      "image_rotary_emb.0": "fixed:256,88", "image_rotary_emb.1": "fixed:256,88"}),
    ("Latte", "LatteTransformer3DModel",
     {"num_layers": 2, "in_channels": 4, "patch_size": 2, "sample_size": 32, "video_length": 8,
      "caption_channels": 4096, "cross_attention_dim": 1408, "norm_type": "ada_norm_single",
      "num_embeds_ada_norm": 1000, "activation_fn": "gelu-approximate"},
     {"hidden_states": (4, 8, 32, 32), "timestep": (), "encoder_hidden_states": (120, 4096)}),
    ("Lumina2", "Lumina2Transformer2DModel",
     {"hidden_size": 384, "num_layers": 2, "num_attention_heads": 4, "num_kv_heads": 2},
     {"hidden_states": (16, 32, 32), "timestep": (), "encoder_hidden_states": (64, 1024),
      "encoder_attention_mask": (64,)}),
    ("PriorTransformer", "PriorTransformer", {"num_layers": 4},
     {"hidden_states": (768,), "timestep": (), "proj_embedding": (768,),
      "encoder_hidden_states": (77, 768), "attention_mask": (77,)}),
    ("Sana", "SanaTransformer2DModel",
     {"num_layers": 4, "num_attention_heads": 18, "num_cross_attention_heads": 8,
      "cross_attention_head_dim": 72, "cross_attention_dim": 576},
     {"hidden_states": (32, 32, 32), "encoder_hidden_states": (300, 2304), "timestep": ()}),
    ("StableAudio", "StableAudioDiTModel", {"num_layers": 4},
     {"hidden_states": (64, 1024), "timestep": (), "encoder_hidden_states": (130, 768),
      "global_hidden_states": (1, 1536), "rotary_embedding.0": "fixed:1025,32",
      "rotary_embedding.1": "fixed:1025,32"}),
    ("T5Film", "T5FilmDecoder", {"num_layers": 2},
     {"encodings_and_masks.0.0": (64, 768), "encodings_and_masks.0.1": (64,),
      "decoder_input_tokens": (256, 128), "decoder_noise_time": ()}),
    ("CogView3Plus", "CogView3PlusTransformer2DModel",
     {"num_layers": 2, "num_attention_heads": 16},
     {"hidden_states": (16, 32, 32), "encoder_hidden_states": (64, 4096), "timestep": (),
      "original_size": (2,), "target_size": (2,), "crop_coords": (2,)}),
    ("CogView4", "CogView4Transformer2DModel",
     {"num_layers": 2, "num_attention_heads": 16, "attention_head_dim": 128},
     {"hidden_states": (16, 32, 32), "encoder_hidden_states": (64, 4096), "timestep": (),
      "original_size": (2,), "target_size": (2,), "crop_coords": (2,)}),
    ("Cosmos", "CosmosTransformer3DModel",
     {**SMALL, "attention_head_dim": 128, "max_size": (16, 32, 32)},
     {**VIDEO_LATENT, "encoder_hidden_states": (64, 1024), "padding_mask": "fixed:1,1,16,16"}),
    ("HunyuanVideo", "HunyuanVideoTransformer3DModel",
     {**SMALL, "attention_head_dim": 128, "num_single_layers": 2},
     {**VIDEO_LATENT, "encoder_hidden_states": (64, 4096), "encoder_attention_mask": (64,),
      "pooled_projections": (768,), "guidance": ()}),
    ("LTXVideo", "LTXVideoTransformer3DModel",
     {"num_layers": 2, "num_attention_heads": 4, "cross_attention_dim": 256},
     {"hidden_states": (256, 128), "encoder_hidden_states": (64, 4096), "timestep": (),
      "encoder_attention_mask": (64,), "num_frames": "value:4", "height": "value:8",
      "width": "value:8"}),
    ("Mochi", "MochiTransformer3DModel",
     {**SMALL, "attention_head_dim": 128, "pooled_projection_dim": 256},
     {"hidden_states": (12, 4, 16, 16), "encoder_hidden_states": (256, 4096), "timestep": (),
      "encoder_attention_mask": (256,)}),
    ("Wan", "WanTransformer3DModel", {**SMALL, "attention_head_dim": 128, "ffn_dim": 1024},
     {**VIDEO_LATENT, "encoder_hidden_states": (64, 4096)}),
    ("EasyAnimate", "EasyAnimateTransformer3DModel",
     {"num_attention_heads": 4, "num_layers": 2, "mmdit_layers": 2, "in_channels": 16,
      "out_channels": 16, "patch_size": 2},
     {**VIDEO_LATENT, "encoder_hidden_states": (64, 3584)}),
)  # fmt: skip


def cases() -> Iterator[Case]:
    """Yield one case for each model of the table."""
    declare_vision_operators()
    for name, kind, configuration, given in MODELS:
        yield module_case(
            name, _maker(kind, configuration), given, without_data=name not in NEED_DATA
        )


def _maker(kind: str, configuration: dict[str, Any]) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        import diffusers

        module: torch.nn.Module = getattr(diffusers, kind)(**configuration)
        return module

    return make
