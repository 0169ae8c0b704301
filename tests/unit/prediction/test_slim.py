"""Who has only ONNX files needs no torch: predicting runs on numpy, and reading them on TVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CODE = """
import sys, dippm
out = dippm.predict(sys.argv[1], batch=4, device="A100")
dippm.compare([sys.argv[1]], device=["T4", "H100"], precision="all")
print(out.latency_ms, sorted(name for name in sys.modules if name.split(".")[0] == "torch"))
"""


@pytest.fixture
def without_torch(tmp_path):
    """An environment in which importing torch fails, in the conversion worker too."""
    for name in ("torch", "torch_geometric"):
        stub = f"raise ModuleNotFoundError('not installed here', name={name!r})"
        (tmp_path / f"{name}.py").write_text(stub)
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


def test_what_needs_torch_says_so(onnx_file, without_torch):
    answer = run(without_torch, "-m", "dippm", "predict", onnx_file, "--device", "cpu", "--json")
    error = json.loads(answer.stdout)["error"]
    assert error["type"] == "CheckpointError"
    assert "torch" in error["message"]
    assert "pip install" in error["hint"]
