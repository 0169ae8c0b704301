"""Who has only ONNX files needs no torch: predicting runs on numpy, and reading them on TVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from importlib import metadata

import pytest
import torch

from dippm.errors import UntestedVersionWarning
from dippm.model.frontends import registry

CODE = """
import sys, dippm
out = dippm.predict(sys.argv[1], batch=4, device="A100")
dippm.compare([sys.argv[1]], device=["T4", "H100"], precision="all")
print(out.latency_ms, sorted(name for name in sys.modules if name.split(".")[0] == "torch"))
"""


HIDES = """
from importlib.machinery import PathFinder
from importlib import metadata

HIDDEN = {"torch", "torch_geometric", "torchvision", "timm", "transformers"}
find, named = PathFinder.find_spec, metadata.Distribution.from_name.__func__


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in HIDDEN else find(name, path, target)


def from_name(cls, name):
    if name.replace("-", "_") in HIDDEN:
        raise metadata.PackageNotFoundError(name)
    return named(cls, name)


PathFinder.find_spec = find_spec
metadata.Distribution.from_name = classmethod(from_name)
"""
"""What Python runs at its start: an environment to which torch was never installed."""


@pytest.fixture
def without_torch(tmp_path):
    """An environment without torch, in the conversion worker too."""
    (tmp_path / "sitecustomize.py").write_text(HIDES)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()]
    cache = str(tmp_path / "cache")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "DIPPM_CACHE_DIR": cache}


def run(environment, *command):
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True
    )


def test_an_onnx_file_is_predicted_without_torch(onnx_file, without_torch):
    slim = run(without_torch, "-c", CODE, onnx_file)
    assert slim.returncode == 0, slim.stderr
    with_torch = run({**os.environ, "DIPPM_CACHE_DIR": without_torch["DIPPM_CACHE_DIR"]},
                     "-c", CODE, onnx_file)  # fmt: skip
    assert slim.stdout == with_torch.stdout, "the same answer, and torch is not imported either"
    assert slim.stdout.endswith("[]\n")


def test_the_command_line_too(onnx_file, without_torch):
    answer = run(without_torch, "-m", "dippm", "predict", onnx_file, "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["provenance"]["kind"] == "hybrid"


LLAMA = """{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 500,
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_act": "silu",
"max_position_embeddings": 512}"""

SPACE = """
models = ["{}"]
batch = [1, 8]
device = ["A100"]
"""


@pytest.mark.nightly(part="processes")
def test_the_other_questions_of_an_onnx_file_too(onnx_file, without_torch, tmp_path):
    (tmp_path / "config.json").write_text(LLAMA)
    (tmp_path / "space.toml").write_text(SPACE.format(onnx_file))
    for words in (
        ["compare", onnx_file, "--device", "A100,T4"],
        ["sweep", onnx_file, "--batch", "1:4"],
        ["mig", onnx_file, "--slo-ms", "1000"],
        ["explain", onnx_file],
        ["llm", tmp_path / "config.json"],
        ["explore", tmp_path / "space.toml", "--trials", "2"],
        ["doctor"],
    ):
        answer = run(without_torch, "-m", "dippm", *words)
        assert answer.returncode == 0, (words, answer.stderr)
    said = run(without_torch, "-m", "dippm", "doctor", "--json").stdout
    (torch,) = (found for found in json.loads(said)["findings"] if found["what"] == "torch")
    assert torch["state"] == "absent"
    assert 'pip install "dippm[torch]"' in torch["detail"]


def test_what_needs_torch_says_so(onnx_file, without_torch, tmp_path):
    pt_file = tmp_path / "model.pt"
    torch.save(torch.nn.Conv2d(3, 4, 3), pt_file)
    for words, kind, extra in (
        (["predict", onnx_file, "--device", "cpu"], "CheckpointError", "pmgns"),
        (["predict", pt_file, "--input", "3,8,8"], "FrameworkNotInstalledError", "torch"),
        (["predict", "timm:resnet18"], "FrameworkNotInstalledError", "timm"),
        (["measure", onnx_file, "--device", "cpu"], "FrameworkNotInstalledError", "measure"),
    ):
        answer = run(without_torch, "-m", "dippm", *words, "--json")
        error = json.loads(answer.stdout)["error"]
        assert error["type"] == kind, error
        assert "torch" in error["message"]
        assert f'pip install "dippm[{extra}]"' in error["hint"]


def test_an_untested_torch_is_used_with_one_warning(monkeypatch):
    """One that is older, newer or a build of its own; no file is refused for it."""
    entry = registry.built_in("pytorch")
    for version in ("2.12.1", "2.15.0a0+git1", "3.0", "1.13.1+cpu", "own\x1b[2J"):
        registry.warn_of_untested_torch.cache_clear()
        monkeypatch.setattr(metadata, "version", lambda _, version=version: version)
        with warnings.catch_warnings(record=True, action="always") as caught:
            entry.check_installed("a.pt")
            entry.check_installed("b.pt")
        (warning,) = caught
        assert warning.category is UntestedVersionWarning
        assert "2.13 to 2.14" in str(warning.message)
        assert "\x1b" not in str(warning.message)
    for version in ("2.13.0+cpu", "2.14.1"):
        registry.warn_of_untested_torch.cache_clear()
        monkeypatch.setattr(metadata, "version", lambda _, version=version: version)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            entry.check_installed("a.pt")
    registry.warn_of_untested_torch.cache_clear()
