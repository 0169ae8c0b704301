"""Detectors: boxes are selected by data, so their number is stated, and said."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dippm.errors import ConversionError
from dippm.model import frontends
from dippm.model.frontends import pytorch
from dippm.model.frontends.frontend import InputSpec
from dippm.model.graph import build

PUBLISHED = [  # at the size to which the model brings an image, in GMACs, as torchvision gives them
    # published: 0.719, with few proposals of 150
    pytest.param(
        "fasterrcnn_mobilenet_v3_large_320_fpn", 2.873, marks=pytest.mark.nightly(part="frontends")
    ),
    pytest.param(
        "ssdlite320_mobilenet_v3_large", 0.583, marks=pytest.mark.nightly(part="frontends")
    ),
    pytest.param("fasterrcnn_resnet50_fpn", 134.38, marks=pytest.mark.nightly(part="zoo")),
    pytest.param("retinanet_resnet50_fpn", 151.54, marks=pytest.mark.nightly(part="zoo")),
    pytest.param("fcos_resnet50_fpn", 128.21, marks=pytest.mark.nightly(part="zoo")),
    pytest.param("ssd300_vgg16", 34.86, marks=pytest.mark.nightly(part="zoo")),
]


def is_said(raw):
    """Check that what data selects is bounded, and said to be."""
    assert not raw.batch_is_symbolic
    assert any("upper bound" in note for note in raw.notes)
    assert any("nms" in operator.name for operator in raw.operators)


@pytest.mark.parametrize(("name", "gmacs"), PUBLISHED)
def test_detectors_by_name(name, gmacs, vision):
    raw = frontends.load(f"torchvision:{name}")
    graph = build(raw)
    is_said(raw)
    assert graph.macs / 1e9 == pytest.approx(gmacs, rel=0.01)


@pytest.mark.nightly(part="zoo")
@pytest.mark.parametrize("name", ["maskrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn"])
def test_what_follows_the_last_layer_is_left_out_and_said(name, vision):
    with torch.device("meta"):
        model = vision.models.get_model(name, weights=None, weights_backbone=None).eval()
    raw = pytorch.convert_module(model, InputSpec.parse("3,256,256"))
    assert any("after the last layer" in note for note in raw.notes)
    heads = build(raw).histogram()["conv_transpose"]
    assert heads == 1  # the head for 100 detections is there


def test_a_list_of_images(vision):
    kind = vision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn
    with torch.device("meta"):
        model = kind(weights=None, weights_backbone=None).eval()
    one, two = (
        pytorch.convert_module(model, InputSpec.parse(shapes))
        for shapes in ("3,320,320", "images.0=3,320,320;images.1=3,320,320")
    )
    is_said(one)
    one, two = build(one), build(two)
    assert one.macs / 1e9 == pytest.approx(2.873, rel=0.01)
    assert 1.9 < two.macs / one.macs < 2.1


class Selecting(nn.Module):
    """A detector of our own: boxes above a threshold, the best of them kept."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 5, 3)

    def forward(self, x):
        found = self.body(x).flatten(2).transpose(1, 2)[0]
        found = found[found[:, 4] > 0.5]
        best = found[:, 4].argsort(descending=True)
        if best.numel() > 10:
            best = best[:10]
        return [found[i] for i in best.tolist()]


def test_a_selection_after_the_last_layer():
    raw = pytorch.convert_module(Selecting(), InputSpec.parse("3,8,8"))
    assert build(raw).macs == 36 * 27 * 5
    assert any("after the last layer" in note for note in raw.notes)


class Selected(nn.Module):
    """What a layer chooses goes into the next one: an upper bound would be far from the truth."""

    def __init__(self):
        super().__init__()
        self.gate, self.dense = nn.Linear(8, 1), nn.Linear(8, 8)

    def forward(self, x):
        return self.dense(x[self.gate(x)[:, 0] > 0])


@pytest.mark.parametrize(("module", "shapes"), [(Selected(), "8")])
def test_layers_whose_work_depends_on_data_are_refused(module, shapes):
    with pytest.raises(ConversionError) as caught:
        pytorch.convert_module(module, InputSpec.parse(shapes))
    assert caught.value.hint
