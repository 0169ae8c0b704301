"""A few models of every suite on each run; `make zoo` runs them all."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from dippm.model.graph.model_graph import TensorSpec
from tests.zoo.__main__ import SUITES, cases
from tests.zoo.case import Case
from tests.zoo.run import run
from tests.zoo.torch_macs import flop_counter

SAMPLE = {
    "onnx_backend": (),
    "torchvision": (),
    "timm_models": (),
    "smp_models": ("unet.resnet18.aux_params", "segformer.mit_b0"),
    "monai_networks": ("Generator.2d", "DecoderOnlyTransformer.cross"),
    "diffusers_models": ("T2IAdapter.light", "Flux"),
    "ultralytics_models": ("yolo11-cls", "yolov3-tiny"),
    "transformers_models": ("bert", "segformer"),
    "keras_applications": ("MobileNet.keras", "MobileNet.h5"),
    "paddle_vision": ("mobilenet_v3_small.pdmodel", "mobilenet_v3_small.json"),
}
"""Small ones by name; without names two, far apart in the list."""

PACKAGES = {
    "onnx_backend": "onnx",
    "torchvision": "torchvision",
    "timm_models": "timm",
    "smp_models": "segmentation_models_pytorch",
    "monai_networks": "monai",
    "diffusers_models": "diffusers",
    "ultralytics_models": "ultralytics",
    "transformers_models": "transformers",
    "keras_applications": "tensorflow",
    "paddle_vision": "paddle",
}


@pytest.mark.nightly(part="zoo")
@pytest.mark.parametrize("suite", SUITES)
def test_a_sample_is_right_or_says_so(suite: str):
    package = PACKAGES[suite]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; `make zoo` installs it")
    names = SAMPLE[suite]
    try:
        found = [c for c in cases(suite) if c.name in names] if names else list(cases(suite, 2))
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    outcomes = [run(suite, case) for case in found]
    assert len(outcomes) == 2
    assert [o for o in outcomes if o.verdict in ("wrong", "crashed", "not built")] == []


def test_a_wrong_count_is_wrong(onnx_file):
    def outcome(macs: int):
        return run("own", Case("small", lambda _: onnx_file, macs=lambda _: macs))

    right = outcome(0).macs
    assert outcome(right).verdict == "right"
    assert outcome(right + right // 100).verdict == "wrong"


def test_a_refusal_and_a_crash_are_told_apart(tmp_path):
    def broken(_):
        return object.__new__(type("NotAModel", (), {}))

    assert run("own", Case("object", broken)).verdict == "refused"
    assert run("own", Case("nothing", lambda _: None)).verdict in ("refused", "crashed")


class Configured(torch.nn.Module):
    main_input_name = "input_ids"

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(max_position_embeddings=8)
        self.words, self.experts = torch.nn.Embedding(10, 8), torch.nn.Linear(8, 32, bias=False)

    def forward(self, input_ids):
        rows = self.words(input_ids).flatten(0, 1)
        ends = torch.tensor([1, rows.shape[0]], dtype=torch.int32, device=rows.device)
        weights = self.experts.weight.view(2, 8, 16).bfloat16()
        return torch.nn.functional.grouped_mm(rows.bfloat16(), weights, offs=ends)


def test_a_note_about_the_inputs_is_no_excuse():
    outcome = run("own", Case("small", lambda _: Configured(), macs=lambda _: 7))
    assert "was taken" in outcome.detail
    assert outcome.verdict == "wrong"


def test_grouped_products_are_counted_where_torch_passes_over_them():
    count = flop_counter(Configured, traced=True)
    assert count((TensorSpec("input_ids", (1, 8), "int64"),)) == 8 * 8 * 16


class Nearest(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.points = torch.nn.Parameter(torch.zeros(40, 8))

    def forward(self, x):
        return torch.cdist(x, self.points)


def test_distances_of_many_points_are_counted():
    count = flop_counter(Nearest)
    assert count((TensorSpec("x", (30, 8), "float32"),)) == 30 * 40 * 8


def test_recurrent_layers_are_counted_with_data():
    count = flop_counter(lambda: torch.nn.LSTM(3, 5, num_layers=2, batch_first=True))
    first, second = 4 * 5 * (3 + 5), 4 * 5 * (5 + 5)
    assert count((TensorSpec("input", (2, 7, 3), "float32"),)) == 2 * 7 * (first + second)
