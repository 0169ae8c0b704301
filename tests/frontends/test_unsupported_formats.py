"""Formats that no frontend reads are named, by content before the suffix, with the way out."""

from __future__ import annotations

import gzip
import json
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dippm.errors import ModelFileError, ModelNotFoundError, UnknownFormatError
from dippm.model import frontends
from dippm.model.frontends import registry, unsupported_formats

BERT = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}  # fmt: skip

BEGINNINGS = {
    "a TensorFlow Lite model": "1c00000054464c33140020001c001800",
    "GGUF": "4747554603000000",
    "an engine of TensorRT": "667472740000000000",
    "ExecuTorch": "2c0000004554313200000000",
    "onnxruntime (.ort)": "240000004f52544d00000000",
    "ncnn": "373736373531370a33203320",
    "RKNN": "524b4e4e00000000",
    "msgpack": "81a6706172616d7382a6436f6e765f3082a66b65726e656cc8",
    "checkpoint of TensorFlow": b"model_checkpoint_path: 'm'\n".hex(),
    "OpenVINO": b'<?xml version="1.0"?>\n<net name="n" version="11">'.hex(),
    "a web page": b"\n<!DOCTYPE html><html>".hex(),
}
"""What its own tool writes at the beginning of a file."""

SUFFIXES = {
    ".mlmodel": "Core ML",
    ".mnn": "MNN",
    ".meta": "TensorFlow 1",
    ".data-00000-of-00001": "checkpoint of TensorFlow",
    ".py": "Python",
    ".engine": "TensorRT",
    ".onnx.data": "weights of an ONNX model",
    ".pdparams": "Paddle",
    ".caffemodel": "Caffe",
}


def refused(path, kind=UnknownFormatError):
    with pytest.raises(kind) as caught:
        registry.find(path)
    assert caught.value.hint
    assert "unknown format" not in caught.value.message
    assert "first bytes" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("name", ["model", "model.bin", "model.onnx", "model.pt"])
def test_content_names_the_format_whatever_the_suffix(tmp_path, name):
    path = tmp_path / name
    for words, content in BEGINNINGS.items():
        path.write_bytes(bytes.fromhex(content) + bytes(64))
        error = refused(path)
        assert words in error.message
        assert "suffix" not in error.message
        assert error.hint != registry.FORMATS


def test_the_suffix_names_it_where_the_content_says_nothing(tmp_path):
    for suffix, words in SUFFIXES.items():
        path = tmp_path / f"model{suffix}"
        path.write_bytes(b"\x0a\x05hello" + bytes(64))
        error = refused(path)
        assert words in error.message
        assert "by its suffix" in error.message


def test_weights_without_an_architecture(tmp_path):
    save_file({"weight": torch.zeros(2, 3)}, tmp_path / "model.safetensors")
    np.savez(tmp_path / "weights.npz", a=np.zeros(3))
    np.save(tmp_path / "weights.npy", np.zeros(3))
    for name in ("model.safetensors", "weights.npz", "weights.npy"):
        assert "hf-config:FOLDER" in refused(tmp_path / name).hint
    with pytest.raises(UnknownFormatError, match="in safetensors"):
        registry.find(tmp_path / "model.safetensors", "pytorch")
    (tmp_path / "cut.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + b"{")
    assert "by its suffix" in refused(tmp_path / "cut.safetensors").message


def test_the_folder_of_a_hub_model_is_given_by_its_configuration(tmp_path):
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(BERT))
    save_file({"weight": torch.zeros(2, 3)}, folder / "model.safetensors")
    torch.save({"weight": torch.zeros(2, 3)}, folder / "pytorch_model.bin")
    way = f"hf-config:{folder}"
    for path in (folder, folder / "config.json", folder / "model.safetensors"):
        assert way in refused(path).hint
    with pytest.raises(ModelFileError, match="state_dict") as caught:
        frontends.load(folder / "pytorch_model.bin", "8")
    assert way in caught.value.hint
    assert frontends.load(way, "8").operators


def test_the_folder_of_a_timm_model_names_it(tmp_path):
    (tmp_path / "config.json").write_text('{"architecture": "resnet18", "pretrained_cfg": {}}')
    save_file({"weight": torch.zeros(2, 3)}, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors", tmp_path / "config.json"):
        assert "timm:resnet18" in refused(path).hint


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("checkpoint", "c.index", "c.data-00000-of-00001"), "checkpoint of TensorFlow"),
        (("checkpoint", "c.index", "c.meta"), "TensorFlow 1"),
        (("m.xml", "m.bin"), "OpenVINO"),
        (("model_index.json",), "diffusers"),
        (("adapter_config.json", "adapter_model.safetensors"), "PEFT"),
        (("_METADATA", "manifest.ocdbt"), "Orbax"),
        (("Manifest.json", "Data"), "Core ML"),
        (("train.py", "README.md"), "Python"),
        (("model.onnx", "labels.txt"), "holds model.onnx"),
    ],
)
def test_folders(tmp_path, names, words):
    for name in names:
        (tmp_path / name).write_text("{}")
    assert words in refused(tmp_path).message


class Witness:
    """Leaves a trace when a pickle of it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickles_are_named_and_not_opened(tmp_path):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(torch.nn.Linear(2, 3)))
    error = refused(path)
    assert "not written by torch.save" in error.message
    path.write_bytes(b"\x80\x04\x8c\x10sklearn.pipeline\x94\x8c\x08Pipeline\x94\x93\x94)\x81.")
    assert "skl2onnx.to_onnx" in refused(path).hint
    ran = tmp_path / "ran"
    for protocol in (2, 3, 4, 5):
        path.write_bytes(pickle.dumps(Witness(ran), protocol=protocol))
        assert "can run code" in refused(path).message
    path.write_bytes(pickle.dumps(Witness(ran))[:-20])
    refused(path)
    assert not ran.exists()


def test_archives_are_to_be_unpacked(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"net")
    with zipfile.ZipFile(tmp_path / "net.zip", "w") as archive:
        archive.write(tmp_path / "net.onnx", "inner/net.onnx")
    with tarfile.open(tmp_path / "net.tar", "w") as archive:
        archive.add(tmp_path / "net.onnx", "net.onnx")
    with gzip.open(tmp_path / "net.onnx.gz", "wb") as packed:
        packed.write(b"net")
    for name in ("net.zip", "net.tar", "net.onnx.gz"):
        assert "Unpack" in refused(tmp_path / name).hint


def test_json_of_other_tools(tmp_path):
    path = tmp_path / "model.json"
    documents = {
        "Keras architecture": {"class_name": "Functional", "config": {}},
        "TensorFlow.js": {"format": "layers-model", "modelTopology": {}},
        "safetensors": {"metadata": {}, "weight_map": {}},
        "Python": {"cells": [], "nbformat": 4},
    }
    for words, document in documents.items():
        path.write_text(json.dumps(document))
        assert words in refused(path).message
    for text in ("{" * 100_000, '{"a":' * 100_000, "{}", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(UnknownFormatError):
            registry.find(path)


def test_a_hostile_configuration_is_read_within_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(unsupported_formats, "MOST_JSON_BYTES", 1000)
    (tmp_path / "config.json").write_text(json.dumps({**BERT, "pad": "x" * 2000}))
    assert unsupported_formats.hub_folder_hint(tmp_path) == ""
    (tmp_path / "config.json").write_text(
        json.dumps({"architecture": "\x1b[31m" * 90, "pretrained_cfg": {}})
    )
    with pytest.raises(UnknownFormatError) as caught:
        registry.find(tmp_path)
    assert "\x1b" not in str(caught.value)
    assert len(caught.value.hint) < 300


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("bert-base-uncased", "hf download bert-base-uncased config.json"),
        ("meta-llama/Llama-2-7b-hf", "hf-config:Llama-2-7b-hf"),
        ("Qwen/Qwen2.5-0.5B", "dippm llm Qwen2.5-0.5B"),
        ("hf:bert-base-uncased", "hf download bert-base-uncased config.json"),
        ("https://huggingface.co/google/vit-base/tree/main", "hf download google/vit-base config"),
        ("resnet50", "timm:resnet50"),
        ("timm/resnet50.a1_in1k", "timm:resnet50.a1_in1k"),
        ("hf-hub:timm/resnet50.a1_in1k", "timm:resnet50.a1_in1k"),
    ],
)
def test_names_of_the_hub_say_how_they_are_given(name, way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert way in refused(name, ModelNotFoundError).hint


@pytest.mark.parametrize("name", ["models/net.pt", "a/b/c", "net.onnx", "../net", "a b", "x" * 99])
def test_paths_are_no_names_of_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "hf download" not in refused(name, ModelNotFoundError).hint
