"""What exporters left of module paths in ONNX nodes."""

from __future__ import annotations

import pytest
from onnx import helper

from dippm.model.relax.onnx.tracing import path_of


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/layer1/layer1.0/conv1/Conv_1", "layer1.0.conv1"),
        ("/blocks.3/mlp/fc1/Conv", "blocks.3.mlp.fc1"),  # a list that is never called
        ("/stages/stages.1/stages.1.0/Conv", "stages.1.0"),
        ("/conv/conv/Conv", "conv.conv"),  # a module named like the one it is in
        ("/Conv", ""),  # the outermost module's own
        ("resnetv17_conv0_fwd", "resnetv17_conv0_fwd"),
        ("/model/other", "/model/other"),
        ("", ""),
    ],
)
def test_names(name: str, path: str):
    assert path_of(helper.make_node("Conv", ["x", "w"], ["y"], name=name), []) == path


def test_weights_tell_where_names_do_not():
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="Conv_12")
    assert path_of(node, ["features.0.weight", "features.0.bias"]) == "features.0"
    assert path_of(node, ["conv2d_3.w_0"]) == "conv2d_3"
    assert path_of(node, ["onnx::Conv_497"]) == "Conv_12"


@pytest.mark.parametrize("scopes", ["['', 'a', 'a.b', 'conv2d']", "['', 'a', 'a.b', 'x' + 1]", "3"])
def test_metadata_is_read_as_data(scopes: str):
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="node_conv2d")
    entry = node.metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", scopes
    assert path_of(node, []) == ("a.b" if "conv2d" in scopes else "")
