from __future__ import annotations

from dataclasses import replace

import pytest

from dataset.join.grouping import architecture_id, family_of
from dippm.errors import UnknownNameError
from dippm.model.graph.model_graph import ModelGraph, OpNode, TensorSpec


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("timm:vgg16@224", "vgg"),
        ("torchvision:vgg16_bn@224", "vgg"),
        ("timm:wide_resnet50_2@224", "resnet"),
        ("timm:gluon_seresnext101_32x4d@224", "resnet"),
        ("timm:resnet50.a1_in1k@160", "resnet"),
        ("timm:deit3_base_patch16_224@224", "vit"),
        ("timm:vit_base_r50_s16_224@224", "vit_hybrid"),
        ("timm:tf_efficientnetv2_s@300", "efficientnet"),
        ("timm:ens_adv_inception_resnet_v2@299", "inception"),
        ("timm:inception_next_tiny@224", "inception_next"),
        ("timm:efficientvit_m4@224", "efficientvit_msra"),
        ("timm:efficientvit_b1@224", "efficientvit_mit"),
        ("timm:mobilenet_edgetpu_v2_s@224", "mobilenet_edgetpu"),
        ("torchvision:mobilenet_v2@224", "mobilenet_v2"),
        ("timm:regnetz_b16_evos@224", "regnet"),
        ("timm:repvgg_b0@224", "repvgg"),
        ("hwgpt:17", "hwgpt"),
        ("TheBloke/Llama-2-7B-GPTQ", "llama"),
    ],
)
def test_a_name_has_its_family(model: str, family: str) -> None:
    assert family_of(model) == family


def test_a_name_without_family_says_where_to_add_it() -> None:
    with pytest.raises(UnknownNameError, match=r"families\.toml"):
        family_of("timm:quxnet_17@224")


def convolution(batch: int, size: int, channels: int, dtype: str = "float32") -> OpNode:
    shape = (batch, 3, size, size)
    return OpNode(
        op="conv2d",
        attributes={
            "kernel": (3, 3), "strides": (1, 1), "padding": (size % 2, 1, 1, 1),
            "dilation": (1, 1), "groups": 1, "in_channels": 3, "out_channels": channels,
        },
        in_shapes=(shape,),
        out_shapes=((batch, channels, size, size),),
        dtype=dtype,
        macs=batch * size,
        flops=2 * batch * size,
        bytes_read=4,
        bytes_written=4,
        param_bytes=4,
    )  # fmt: skip


def graph_of(*nodes: OpNode, batch: int = 2) -> ModelGraph:
    edges = tuple((i, i + 1) for i in range(len(nodes) - 1))
    spec = TensorSpec("x", nodes[0].in_shapes[0], "float32")
    return ModelGraph(nodes, edges, (spec,), (), 0, {}, "1", batch)


def test_batch_size_image_size_and_precision_do_not_make_an_architecture() -> None:
    reference = architecture_id(graph_of(convolution(2, 32, 8)))
    assert architecture_id(graph_of(convolution(64, 33, 8, "float16"), batch=64)) == reference


def test_rearranging_does_not_make_an_architecture() -> None:
    first, second = convolution(2, 32, 8), convolution(2, 32, 9)
    pad = replace(first, op="pad", attributes={})
    assert architecture_id(graph_of(first, second)) == architecture_id(graph_of(first, pad, second))


def test_channels_and_wiring_make_an_architecture() -> None:
    first, second = convolution(2, 32, 8), convolution(2, 32, 9)
    chain = graph_of(first, second)
    assert architecture_id(chain) != architecture_id(graph_of(second, first))
    assert architecture_id(chain) != architecture_id(replace(chain, edges=()))
