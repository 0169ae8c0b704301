"""Configurations of many families: as many weights as the model itself has, or a typed error."""

from __future__ import annotations

import json

import pytest

from dippm.decide.language import read_decoder
from dippm.decide.language.families import CHECKED
from dippm.errors import ModelFileError, ModelNotFoundError, UnknownArchitectureError
from training.language.shapes import SHAPES

COUNTED = (
    "llama-2-7b", "llama-2-70b", "llama-3.1-8b", "llama-3.2-1b", "mistral-7b-v0.1", "mistral-nemo",
    "mixtral-8x7b", "qwen2-7b", "qwen2.5-0.5b", "qwen1.5-moe-a2.7b", "qwen3-8b", "qwen3-30b-a3b",
    "gemma-2b", "gemma-2-9b", "gemma-3-1b", "phi-2", "phi-3-mini", "deepseek-v2-lite",
    "deepseek-v3", "falcon-7b", "falcon-40b", "gpt2", "gpt-neox-20b", "gpt-j-6b", "opt-6.7b",
    "opt-350m", "bloom-7b1", "starcoder", "starcoder2-3b", "glm-4-9b", "gpt-oss-20b",
)  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_as_many_weights_as_transformers_builds(name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    shape = dict(SHAPES[name])
    config = transformers.AutoConfig.for_model(shape.pop("model_type"), **shape)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    built = sum(parameter.numel() for parameter in model.parameters())
    assert read_decoder(SHAPES[name]).parameters == pytest.approx(built, rel=0.01)
    assert read_decoder(config).parameters == pytest.approx(built, rel=0.01)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-7b", 6.738), ("llama-3.1-405b", 405.9), ("mixtral-8x7b", 46.7),
        ("deepseek-v3", 671.0), ("mistral-large", 122.6), ("bloom-176b", 176.2),
    ],
)  # fmt: skip
def test_as_many_weights_as_published(name, billions):
    assert read_decoder(SHAPES[name]).parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("name", "billions"), [("mixtral-8x7b", 12.9), ("deepseek-v3", 37.5), ("qwen3-30b-a3b", 3.3)]
)
def test_weights_that_one_token_meets(name, billions):
    assert read_decoder(SHAPES[name]).active_parameters / 1e9 == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize(
    ("name", "sharing"),
    [
        ("llama-2-7b", "MHA"), ("llama-3.1-8b", "GQA"), ("falcon-7b", "MQA"), ("starcoder", "MQA"),
        ("deepseek-v3", "MLA"),
    ],
)  # fmt: skip
def test_how_heads_share(name, sharing):
    assert {layer.attention.sharing for layer in read_decoder(SHAPES[name]).layers} == {sharing}


def windows(name):
    return [layer.attention.window for layer in read_decoder(SHAPES[name]).layers]


def test_windows():
    assert windows("mistral-7b-v0.1") == [4096] * 32
    assert windows("mistral-7b-v0.3") == windows("qwen2-7b") + [None] * 4
    assert windows("gemma-2-9b")[:4] == [4096, None, 4096, None]
    assert windows("gemma-3-1b")[:7] == [512] * 5 + [None, 512]
    assert windows("gpt-oss-20b")[:2] == [128, None]


def test_which_layers_have_experts():
    experts = [bool(x.feed_forward.experts) for x in read_decoder(SHAPES["deepseek-v3"]).layers]
    assert experts == [False] * 3 + [True] * 58
    every_other = {**SHAPES["qwen3-30b-a3b"], "decoder_sparse_step": 2, "mlp_only_layers": [1]}
    experts = [bool(x.feed_forward.experts) for x in read_decoder(every_other).layers]
    assert experts[:6] == [False, False, False, True, False, True]


def test_a_family_that_was_never_checked_is_said_to_be_so():
    checked = {SHAPES[name]["model_type"] for name in COUNTED}
    assert set(CHECKED) == checked
    unknown = read_decoder({**SHAPES["llama-2-7b"], "model_type": "brand_new"})
    assert "'brand_new' was never checked" in unknown.notes[0]
    assert not read_decoder(SHAPES["llama-2-7b"]).notes


def test_a_family_without_a_name_is_known_by_its_fields():
    nameless = {k: v for k, v in SHAPES["mixtral-8x7b"].items() if k != "model_type"}
    known = read_decoder(SHAPES["mixtral-8x7b"])
    assert read_decoder({**nameless, "model_type": "brand_new"}).layers == known.layers
    assert read_decoder(nameless).parameters == known.parameters


@pytest.mark.parametrize(
    ("quantisation", "stored"),
    [
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "awq", "w_bit": 4}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        ({"quant_method": "of tomorrow"}, "unknown"),
        (None, None),
    ],
)
def test_stored_formats(quantisation, stored):
    config = {**SHAPES["llama-2-7b"], "quantization_config": quantisation}
    assert read_decoder(config).stored == stored


def test_a_file_and_its_folder(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPES["gpt2"]))
    by_folder, by_file = read_decoder(folder), read_decoder(str(folder / "config.json"))
    assert by_folder == by_file
    assert by_folder.name == "my-model"


def test_the_language_model_of_a_model_with_images():
    text = SHAPES["llama-3.1-8b"]
    whole = {"model_type": "llava", "text_config": text, "vision_config": {"hidden_size": 1024}}
    found = read_decoder(whole)
    assert found.parameters == read_decoder(text).parameters
    assert "images" in found.notes[0]


BERT = {
    "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "vocab_size": 30_522, "intermediate_size": 3072, "hidden_act": "gelu", "type_vocab_size": 2,
}  # fmt: skip
LLAMA = SHAPES["llama-2-7b"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (BERT, "type_vocab_size"),
        ({"model_type": "mamba", "hidden_size": 768, "state_size": 16}, "state_size"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "is_encoder_decoder"),
        ({**LLAMA, "layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({**LLAMA, "layer_types": ["full_attention"] * 31}, "31 entries"),
        ({"model_type": "llama"}, "hidden_size"),
        ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, "vocab_size"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_act"}, "hidden_act"),
        ({k: v for k, v in LLAMA.items() if k != "intermediate_size"}, "intermediate_size"),
        ({**LLAMA, "num_key_value_heads": 5}, "5 of keys"),
        ({**LLAMA, "hidden_size": 4097}, "4097"),
        ({**LLAMA, "hidden_size": "4096"}, "not a whole number"),
        ({**LLAMA, "hidden_size": -1}, "not a whole number"),
        ({**LLAMA, "num_hidden_layers": 10**6}, "1,000,000 layers"),
        ({**SHAPES["mixtral-8x7b"], "num_experts_per_tok": 9}, "9 of 8"),
        ({}, "hidden_size"),
    ],
)
def test_what_is_no_known_decoder_is_refused_by_field(config, said):
    with pytest.raises(UnknownArchitectureError, match=said) as raised:
        read_decoder(config)
    assert raised.value.hint


def test_what_is_no_configuration_is_refused(tmp_path):
    with pytest.raises(ModelNotFoundError):
        read_decoder(tmp_path / "absent.json")
    with pytest.raises(ModelFileError, match="not a configuration"):
        read_decoder(7)
    for text, said in (("{", "not JSON"), ("[1]", "no JSON object"), ("[" * 100_000, "not JSON")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelFileError, match=said):
            read_decoder(tmp_path)
