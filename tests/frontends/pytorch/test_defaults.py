"""Inputs that nobody gave: what a model states is taken, what it leaves open is chosen and said."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

from dippm.errors import InputShapeError
from dippm.model.frontends import named, pytorch
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.torch.input_shapes import input_shape
from dippm.model.graph import build
from tests.samples import sampled

OWN = InputSpec({})
CONFIGURATIONS = [
    ({"model_type": "gpt2", "n_layer": 1}, [(128,)], True),
    ({"model_type": "bert", "num_hidden_layers": 1, "max_position_embeddings": 64}, [(64,)], True),
    ({"model_type": "t5", "num_layers": 1, "num_decoder_layers": 1}, [(128,), (128,)], True),
    ({"model_type": "vit", "num_hidden_layers": 1}, [(3, 224, 224)], False),
    ({"model_type": "whisper", "encoder_layers": 1, "decoder_layers": 1},
     [(80, 3000), (128,)], True),
    ({"model_type": "videomae", "num_hidden_layers": 1}, [(16, 3, 224, 224)], False),
    ({"model_type": "timesformer", "num_hidden_layers": 1}, [(8, 3, 224, 224)], False),
    ({"model_type": "wav2vec2", "num_hidden_layers": 1}, [(16_000,)], True),
]  # fmt: skip


def test_a_sound_that_is_cut_into_tokens_is_whole_tokens_long():
    assert input_shape("input_values", SimpleNamespace(samples_per_token=1920)) == ((17_280,), True)
    assert input_shape("input_values", SimpleNamespace()) == ((16_000,), True)


def test_the_setting_of_an_inner_recogniser_counts():
    config = SimpleNamespace(asr_config=SimpleNamespace(num_mel_bins=128))
    assert input_shape("input_features", config) == ((1_000, 128), True)


@pytest.mark.parametrize(
    ("config", "shapes", "chosen"), sampled(CONFIGURATIONS, pytest.mark.nightly(part="frontends"))
)
def test_configurations_need_no_input(config, shapes, chosen, tmp_path, vision):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(config))
    raw = named.load(f"hf-config:{tmp_path}", OWN, trust=False)
    assert raw.batch_is_symbolic
    assert [raw.values[i].shape[1:] for i in raw.inputs] == shapes
    assert any("was taken" in note for note in raw.notes) == chosen


def test_a_quantisation_that_is_asked_for_is_mentioned(tmp_path, vision):
    pytest.importorskip("transformers")
    config = {
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128,
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    raw = named.load(f"hf-config:{tmp_path}", OWN, trust=False)
    assert any("bitsandbytes, 4 bits" in note for note in raw.notes)


def test_quantised_layers_are_taken_as_float():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 4)))
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    kinds = [type(part) for part in quantised.modules()]
    raw = pytorch.convert_module(quantised, InputSpec.parse("8"))
    assert build(raw).at_batch(1).macs == 8 * 16 + 16 * 4
    assert "2 quantised layers (Linear)" in raw.notes[0]
    assert [type(part) for part in quantised.modules()] == kinds


NAMES = [
    ("torchvision:deeplabv3_mobilenet_v3_large", (3, 520, 520)),
    ("torchvision:mc3_18", (3, 16, 112, 112)),
]


@pytest.mark.parametrize(("name", "shape"), NAMES)
def test_names_whose_weights_leave_a_size_open(name, shape, vision):
    raw = named.load(name, OWN, trust=False)
    assert raw.values[raw.inputs[0]].shape[1:] == shape
    assert "was taken" in raw.notes[0]


def test_a_name_is_read_at_the_size_that_it_is_built_for(vision):
    built = named.build("torchvision:vit_h_14", "meta")
    assert built.shapes == {"": (3, 224, 224)}, "its first weights were tuned to 518"


@pytest.mark.parametrize(
    ("name", "settings", "shape"),
    [("resnet18", {"in_chans": 1}, (1, 224, 224)),
     ("vit_tiny_patch16_224", {"img_size": 160}, (3, 160, 160))],
)  # fmt: skip
def test_timm_models_that_were_built_for_another_input(name, settings, shape, vision):
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = timm.create_model(name, **settings).eval()
    raw = pytorch.convert_module(model, OWN)
    assert raw.values[raw.inputs[0]].shape[1:] == shape


class Folded(nn.Module):
    """Its stem makes 16 pixels one before the first convolution, as TResNet's does."""

    default_cfg: ClassVar = {"input_size": (3, 32, 32), "first_conv": "first"}

    def __init__(self):
        super().__init__()
        self.fold = nn.PixelUnshuffle(4)
        self.first = nn.Conv2d(48, 8, 3)

    def forward(self, x):
        return self.first(self.fold(x))


def test_a_stem_that_folds_pixels_into_channels():
    raw = pytorch.convert_module(Folded(), OWN)
    assert raw.values[raw.inputs[0]].shape[1:] == (3, 32, 32)


def test_nothing_is_chosen_where_nothing_tells():
    with pytest.raises(InputShapeError, match="does not say its input shape"):
        pytorch.convert_module(nn.Sequential(nn.Conv2d(3, 4, 3)), OWN)


class Configured(nn.Module):
    """A model that tells about itself as those of transformers do."""

    def __init__(self, main="input_ids", **settings):
        super().__init__()
        self.config, self.main_input_name = SimpleNamespace(**settings), main
        self.words, self.dense = nn.Embedding(100, 8), nn.Linear(4, 8)
        self.wave, self.image = nn.Conv1d(6, 8, 3), nn.Conv2d(3, 8, 2, 2)


class WithBoxes(Configured):
    def forward(self, input_ids, bbox=None):
        if bbox is None:
            raise ValueError("You have to specify bbox")
        return self.words(input_ids) + self.dense(bbox)


class WithSound(Configured):
    def forward(self, input_features, input_features_mask=None):
        lengths = input_features_mask.sum(-1)
        return self.wave(input_features) * lengths[:, None, None]


class WithImage(Configured):
    def forward(self, input_ids, pixel_values=None):
        out = self.words(input_ids)
        return out if pixel_values is None else out + self.image(pixel_values).mean((2, 3))


class WithBoth(Configured):
    def forward(self, pixel_values, input_ids, labels=None):
        return self.words(input_ids) + self.image(pixel_values).mean((2, 3))[:, None]


def own_shapes(module):
    raw = pytorch.convert_module(module, OWN)
    return {raw.values[i].name: raw.values[i].shape[1:] for i in raw.inputs}, raw.notes


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (WithBoxes(), {"input_ids": (128,), "bbox": (128, 4)}),
        (WithSound("input_features", num_mel_bins=6),
         {"input_features": (6, 1000), "input_features_mask": (1000,)}),
        (WithBoth("pixel_values", image_size=8),
         {"pixel_values": (3, 8, 8), "input_ids": (128,)}),
    ],
)  # fmt: skip
def test_inputs_that_a_model_asks_for_are_found(module, shapes):
    assert own_shapes(module)[0] == shapes


INNER = SimpleNamespace(backbone_config=SimpleNamespace(image_size=[1024, 512]))


@pytest.mark.parametrize(
    ("name", "settings", "shape", "chosen"),
    [
        ("pixel_values", {"vision_config": INNER}, (3, 1024, 512), False),
        ("pixel_values", {"image_size": 518, "patch_size": 14, "num_windows": 4},
         (3, 504, 504), True),
        ("pixel_values", {"patch_size": 384, "scaled_images_ratios": [0.25, 0.5, 1]},
         (3, 1536, 1536), False),
        ("input_features", {"num_mel_bins": 80, "num_stacked_frames": 7}, (1000, 560), True),
        ("decoder_input_ids", {"decoder_config": SimpleNamespace(num_channels=9)}, (128, 9), True),
    ],
)  # fmt: skip
def test_sizes_are_found_in_parts_of_parts_and_follow_from_how_they_are_cut(
    name, settings, shape, chosen
):
    assert input_shape(name, SimpleNamespace(**settings)) == (shape, chosen)


def test_an_inner_timm_model_says_its_image_size():
    model = WithBoth("pixel_values", vision_config=SimpleNamespace())
    model.image.pretrained_cfg = {"input_size": (3, 32, 32)}
    assert own_shapes(model)[0] == {"pixel_values": (3, 32, 32), "input_ids": (128,)}


class Steps(nn.Module):
    """Looks up what no name tells to be whole numbers, and reads data where it is not traced."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, states, steps):
        out = states + self.table(steps)
        if not torch.compiler.is_compiling():
            out.sum().item()
        return out


def test_types_with_which_a_model_gets_as_far_as_its_data_are_right():
    raw = pytorch.convert_module(Steps(), InputSpec.parse("states=5,4;steps=5"))
    assert {raw.values[i].name: raw.values[i].dtype for i in raw.inputs} == {
        "states": "float32",
        "steps": "int64",
    }


def test_a_part_that_gets_no_input_is_named():
    shapes, notes = own_shapes(WithImage(image_size=8))
    assert shapes == {"input_ids": (128,)}
    assert "pixel_values: none" in notes[-1]


def test_a_model_that_accepts_none_of_its_inputs_is_refused_with_the_first():
    with pytest.raises(InputShapeError, match=r"input as given: .*NoneType"):
        pytorch.convert_module(WithSound("input_features", num_mel_bins=5), OWN)


class Pair(nn.Module):
    """Compares the two images of a pair."""

    main_input_name = "pixel_values"

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(image_size=16, num_channels=3)
        self.stem = nn.Conv2d(3, 4, 3)

    def forward(self, pixel_values):
        if pixel_values.dim() != 5 or pixel_values.shape[1] != 2:
            raise ValueError("a pair of images is needed")
        one, other = pixel_values.unbind(1)
        return self.stem(one) - self.stem(other)


def test_a_model_of_image_pairs_gets_a_pair():
    raw = pytorch.convert_module(Pair(), OWN)
    assert raw.values[raw.inputs[0]].shape[1:] == (2, 3, 16, 16)
    assert any("2,3,16,16" in note for note in raw.notes)


class Both(nn.Module):
    """Reads a number where it is traced, and needs a second input that has a default."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def forward(self, scale, tokens=None):
        if not torch.compiler.is_compiling():
            scale.sum().item()
        return self.words(tokens) * scale


def test_a_missing_input_is_named():
    with pytest.raises(InputShapeError, match="was not given") as caught:
        pytorch.convert_module(Both(), InputSpec({"scale": (1, 4)}))
    assert "scale, tokens" in caught.value.hint
