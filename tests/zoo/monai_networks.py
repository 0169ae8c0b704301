"""Networks of `monai.networks.nets` that build with ordinary arguments, in 2D and 3D."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from typing import Any

import torch

from dippm.model.vision_operators import declare_vision_operators
from tests.zoo.case import Case
from tests.zoo.modules import Given, module_case

LAYERS = {"channels": (16, 32, 64), "strides": (2, 2)}
CODER = {"channels": (16, 32, 64), "strides": (2, 2, 2)}
DIFFUSION = {"channels": (32, 64, 64), "attention_levels": (False, True, True), "num_res_blocks": 1}
CROSS = {**DIFFUSION, "with_conditioning": True, "cross_attention_dim": 64}
TRANSFORMER = {"hidden_size": 192, "mlp_dim": 384, "num_heads": 6}
DYNAMIC = {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2]}

# name → arguments without `spatial_dims`, for networks that take one image of any dimension
IN_2D_AND_3D: dict[str, dict[str, Any]] = {
    "AHNet": {},
    "AttentionUnet": {"in_channels": 1, "out_channels": 2, **LAYERS},
    "AutoEncoder": {"in_channels": 1, "out_channels": 1, **CODER},
    "AutoencoderKL": {"channels": (32, 64, 64), "attention_levels": (False, False, True),
                      "num_res_blocks": 1},
    "BasicUNet": {},
    "BasicUNetPlusPlus": {},
    "DenseNet121": {"in_channels": 1, "out_channels": 2},
    "DenseNet169": {"in_channels": 1, "out_channels": 2},
    "DynUNet": {"in_channels": 1, "out_channels": 2, **DYNAMIC},
    "EfficientNetBN": {"model_name": "efficientnet-b0", "pretrained": False, "in_channels": 1},
    "FlexibleUNet": {"in_channels": 1, "out_channels": 2, "backbone": "efficientnet-b0"},
    "HighResNet": {"in_channels": 1, "out_channels": 2},
    "MedNeXtS": {"in_channels": 1, "out_channels": 2},
    "PatchDiscriminator": {"channels": 32, "in_channels": 1},
    "ResNetFeatures": {"model_name": "resnet18", "pretrained": False},
    "resnet50": {"n_input_channels": 1, "num_classes": 2},
    "RegUNet": {"in_channels": 1, "num_channel_initial": 16, "depth": 3},
    "LocalNet": {"in_channels": 1, "num_channel_initial": 16, "extract_levels": (0, 1, 2)},
    "SEResNet50": {"in_channels": 1, "num_classes": 2},
    "SegResNet": {},
    "SegResNetDS": {"in_channels": 1, "out_channels": 2},
    "SegResNetDS2": {"in_channels": 1, "out_channels": 2},
    "SwinUNETR": {"in_channels": 1, "out_channels": 2, "feature_size": 12},
    "UNet": {"in_channels": 1, "out_channels": 2, "num_res_units": 2, **LAYERS},
    "VNet": {},
    "VoxelMorphUNet": {"in_channels": 1, "unet_out_channels": 16, "channels": (16, 32, 32, 32),
                       "final_conv_channels": (16, 16)},
    "VQVAE": {"in_channels": 1, "out_channels": 1},
}  # fmt: skip

# name, network, arguments, inputs: those with several inputs or sizes of their own
OTHERS: tuple[tuple[str, str, dict[str, Any], Given], ...] = (
    ("Classifier.2d", "Classifier", {"in_shape": (1, 64, 64), "classes": 4, **LAYERS},
     {"x": (1, 64, 64)}),
    ("Critic.2d", "Critic", {"in_shape": (1, 64, 64), **LAYERS}, {"x": (1, 64, 64)}),
    ("Discriminator.3d", "Discriminator", {"in_shape": (1, 32, 32, 32), **LAYERS},
     {"x": (1, 32, 32, 32)}),
    ("Regressor.2d", "Regressor", {"in_shape": (1, 64, 64), "out_shape": (2,), **LAYERS},
     {"x": (1, 64, 64)}),
    ("Generator.2d", "Generator", {"latent_shape": (64,), "start_shape": (32, 8, 8),
                                   "channels": (32, 16, 1), "strides": (2, 2, 1)}, {"x": (64,)}),
    ("VarAutoEncoder.2d", "VarAutoEncoder",
     {"spatial_dims": 2, "in_shape": (1, 64, 64), "out_channels": 1, "latent_size": 32, **CODER},
     {"x": (1, 64, 64)}),
    ("FullyConnectedNet", "FullyConnectedNet",
     {"in_channels": 64, "out_channels": 4, "hidden_channels": (128, 64)}, {"input": (64,)}),
    ("VarFullyConnectedNet", "VarFullyConnectedNet",
     {"in_channels": 64, "out_channels": 64, "latent_size": 8, "encode_channels": (32, 16),
      "decode_channels": (16, 32)}, {"x": (64,)}),
    ("DAF3D", "DAF3D", {"in_channels": 1, "out_channels": 2}, {"x": (1, 64, 64, 64)}),
    ("DiffusionModelUNet.2d", "DiffusionModelUNet",
     {"spatial_dims": 2, "in_channels": 1, "out_channels": 1, **DIFFUSION},
     {"x": (1, 64, 64), "timesteps": ()}),
    ("DiffusionModelUNet.3d", "DiffusionModelUNet",
     {"spatial_dims": 3, "in_channels": 1, "out_channels": 1, **DIFFUSION},
     {"x": (1, 32, 32, 32), "timesteps": ()}),
    ("DiffusionModelUNet.conditioned", "DiffusionModelUNet",
     {"spatial_dims": 2, "in_channels": 1, "out_channels": 1, **CROSS},
     {"x": (1, 64, 64), "timesteps": (), "context": (8, 64)}),
    ("ControlNet.2d", "ControlNet",
     {"spatial_dims": 2, "in_channels": 1, **DIFFUSION,
      "conditioning_embedding_num_channels": (16, 32)},
     {"x": (1, 32, 32), "timesteps": (), "controlnet_cond": (1, 64, 64)}),
    ("SPADEDiffusionModelUNet.2d", "SPADEDiffusionModelUNet",
     {"spatial_dims": 2, "in_channels": 1, "out_channels": 1, "label_nc": 3, **DIFFUSION},
     {"x": (1, 64, 64), "timesteps": (), "seg": (3, 64, 64)}),
    ("SPADEAutoencoderKL.2d", "SPADEAutoencoderKL",
     {"spatial_dims": 2, "label_nc": 3, "channels": (32, 64), "num_res_blocks": (1, 1),
      "attention_levels": (False, True)}, {"x": (1, 64, 64), "seg": (3, 64, 64)}),
    ("SPADENet.2d", "SPADENet",
     {"spatial_dims": 2, "in_channels": 1, "out_channels": 1, "label_nc": 3,
      "input_shape": [64, 64], "channels": [32, 64], "z_dim": 16, "is_vae": False},
     {"seg": (3, 64, 64)}),
    ("GlobalNet.3d", "GlobalNet",
     {"image_size": [32, 32, 32], "spatial_dims": 3, "in_channels": 2, "num_channel_initial": 8,
      "depth": 2}, {"x": (2, 32, 32, 32)}),
    ("HoVerNet.fast", "HoVerNet", {"mode": "fast", "out_classes": 5}, {"x": (3, 256, 256)}),
    ("HoVerNet.original", "HoVerNet", {"mode": "original", "out_classes": 5},
     {"x": (3, 270, 270)}),
    ("MaskedAutoEncoderViT.2d", "MaskedAutoEncoderViT",
     {"in_channels": 1, "img_size": 96, "patch_size": 16, "spatial_dims": 2, **TRANSFORMER,
      "num_layers": 4}, {"x": (1, 96, 96)}),
    ("MILModel", "MILModel", {"num_classes": 4, "mil_mode": "att_trans", "pretrained": False},
     {"x": (8, 3, 128, 128)}),
    ("MultiScalePatchDiscriminator.2d", "MultiScalePatchDiscriminator",
     {"num_d": 2, "num_layers_d": 3, "spatial_dims": 2, "channels": 16, "in_channels": 1},
     {"i": (1, 256, 256)}),
    ("Quicknat", "Quicknat", {"num_channels": 1, "num_classes": 4}, {"input": (1, 64, 64)}),
    ("SegResNetVAE.3d", "SegResNetVAE", {"input_image_size": (64, 64, 64)},
     {"x": (1, 64, 64, 64)}),
    ("SwinUNETR.v2", "SwinUNETR",
     {"in_channels": 1, "out_channels": 2, "feature_size": 12, "use_v2": True},
     {"x_in": (1, 64, 64, 64)}),
    ("TorchVisionFCModel", "TorchVisionFCModel", {"model_name": "resnet18", "num_classes": 4},
     {"x": (3, 224, 224)}),
    ("DecoderOnlyTransformer", "DecoderOnlyTransformer",
     {"num_tokens": 32, "max_seq_len": 128, "attn_layers_dim": 64, "attn_layers_depth": 3,
      "attn_layers_heads": 4}, {"x": (128,)}),
    ("DecoderOnlyTransformer.cross", "DecoderOnlyTransformer",
     {"num_tokens": 32, "max_seq_len": 128, "attn_layers_dim": 64, "attn_layers_depth": 3,
      "attn_layers_heads": 4, "with_cross_attention": True}, {"x": (128,), "context": (8, 64)}),
    ("UNETR.3d", "UNETR", {"in_channels": 1, "out_channels": 2, "img_size": (64, 64, 64)},
     {"x_in": (1, 64, 64, 64)}),
    ("UNETR.2d", "UNETR", {"in_channels": 1, "out_channels": 2, "img_size": 96, "spatial_dims": 2},
     {"x_in": (1, 96, 96)}),
    ("ViT.2d", "ViT", {"in_channels": 1, "img_size": (96, 96), "patch_size": 16,
                       "spatial_dims": 2, "classification": True}, {"x": (1, 96, 96)}),
    ("ViT.3d", "ViT", {"in_channels": 1, "img_size": (64, 64, 64), "patch_size": 16,
                       "proj_type": "perceptron"}, {"x": (1, 64, 64, 64)}),
    ("ViT.saved", "ViT", {"in_channels": 1, "img_size": (64, 64, 64), "patch_size": 16,
                          "save_attn": True}, {"x": (1, 64, 64, 64)}),
    ("ViTAutoEnc.3d", "ViTAutoEnc",
     {"in_channels": 1, "img_size": (64, 64, 64), "patch_size": 16, **TRANSFORMER},
     {"x": (1, 64, 64, 64)}),
    ("VISTA3D", "vista3d132", {"in_channels": 1}, {"input_images": (1, 64, 64, 64),
                                                  "class_vector": (1,)}),
    ("VoxelMorph.3d", "VoxelMorph", {}, {"moving": (1, 32, 32, 32), "fixed": (1, 32, 32, 32)}),
    ("VoxelMorph.2d", "VoxelMorph", {"spatial_dims": 2},
     {"moving": (1, 64, 64), "fixed": (1, 64, 64)}),
    ("Restormer", "restormer.Restormer", {"dim": 24}, {"x": (3, 64, 64)}),
    ("NaViT.2d", "NaViT",
     {"image_size": 64, "patch_size": 16, "num_classes": 4, "spatial_dims": 2, "num_layers": 2,
      **TRANSFORMER}, {"batched_images.0.0": "fixed:1,64,64"}),
)  # fmt: skip


def cases() -> Iterator[Case]:
    """Yield one case for each network and number of dimensions."""
    declare_vision_operators()
    for name, arguments in IN_2D_AND_3D.items():
        for dims, image in ((2, (1, 128, 128)), (3, (1, 64, 64, 64))):
            if name == "VoxelMorphUNet":
                arguments, image = {**arguments, "in_channels": 2}, (2, *image[1:])
            if name == "AHNet" and dims == 3:
                image = (1, 128, 128, 32)  # its widest pool covers 64 × 64 of half the image
            make = _maker(name, {"spatial_dims": dims, **arguments})
            yield module_case(f"{name}.{dims}d", make, {"": image})
    for name, network, arguments, given in OTHERS:
        yield module_case(name, _maker(network, arguments), given)


def _maker(network: str, arguments: dict[str, Any]) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        place, _, name = network.rpartition(".")
        nets = import_module(".".join(["monai.networks.nets", place]).rstrip("."))
        # some networks turn a list that they are given around, and the next one would differ
        module: torch.nn.Module = getattr(nets, name)(**deepcopy(arguments))
        return module

    return make
