"""The public surface: what it is, and that it costs nothing to import."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import dippm
from dippm.base.moved import MOVED

SURFACE = {
    "BatchSweep",
    "Candidate",
    "Choice",
    "Client",
    "Comparison",
    "Conditions",
    "Device",
    "Difference",
    "DippmError",
    "DippmWarning",
    "Execution",
    "Explanation",
    "Exploration",
    "Failure",
    "LanguagePrediction",
    "LoadedPredictor",
    "Measurement",
    "MemoryFit",
    "ModelGraph",
    "ParallelEstimate",
    "Pipeline",
    "PipelinePrediction",
    "Objective",
    "Options",
    "Place",
    "PowerSweep",
    "Prediction",
    "ResourceRequest",
    "RunningCost",
    "SharedGpu",
    "Space",
    "Stage",
    "Verification",
    "WhatIf",
    "calibrate",
    "choose",
    "compare",
    "cost_of",
    "declare_vision_operators",
    "diff",
    "explain",
    "language_model",
    "explore",
    "fits",
    "load",
    "measure_model",
    "parallelize",
    "pipeline",
    "predict",
    "read_graph",
    "request_resources",
    "share",
    "smallest_slice",
    "span",
    "sweep",
    "sweep_power",
    "track",
    "verify",
    "what_if",
}
HEAVY = {"torch", "tvm", "tensorflow", "keras", "paddle", "onnx", "transformers", "timm", "numpy"}


def test_surface():
    assert set(dippm.__all__) == SURFACE
    for name in SURFACE:
        assert getattr(dippm, name).__doc__
    assert set(dir(dippm)) >= SURFACE


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="prdict"):
        _ = dippm.prdict


@pytest.mark.parametrize("statement", ["import dippm", "import dippm.cli.app"])
def test_importing_loads_nothing_heavy(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not HEAVY.intersection(loaded)


def test_the_documented_call_fits_the_signature():
    signature = inspect.signature(dippm.predict)
    signature.bind(framework="pytorch", path="vgg16.pt", batch=32, input="3,224,224", device="A100")
    positional = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == ["source", "framework"]


@pytest.mark.parametrize("arguments", [{}, {"source": "a.onnx", "path": "a.onnx"}])
def test_the_model_is_given_once(arguments):
    with pytest.raises(TypeError, match="give the model once"):
        dippm.predict(**arguments)


def test_one_file_three_ways(onnx_file, checkpoint_folder):
    by_path = dippm.predict(path=str(onnx_file), batch=4, checkpoint=checkpoint_folder)
    predictor = dippm.load(checkpoint_folder)
    by_graph = predictor.predict(dippm.read_graph(onnx_file), batch=4)
    (by_grid,) = predictor.predict_grid(onnx_file, batches=[4])
    assert list(by_path) == list(by_graph) == list(by_grid)
    assert by_path.graph.batch == 4
    assert by_path.graph.macs == 4 * (8 * 27 * 32 * 32 + 80)


def test_a_module_object(checkpoint_folder):
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    out = dippm.predict(module, input=(64,), batch=16, checkpoint=checkpoint_folder)
    assert out.provenance.source == "Sequential"
    assert out.graph.macs == 16 * (64 * 32 + 32 * 8)


def test_a_grid_leaves_out_slices_that_a_gpu_does_not_have(onnx_file, checkpoint_folder):
    table = dippm.load(checkpoint_folder).predict_grid(
        onnx_file, batches=[1, 2], devices=["A100", "T4"], migs=[None, "1g.5gb"]
    )
    assert [(row["device"], row["slice"], row["batch"]) for row in table.rows()] == [
        ("A100-40GB", None, 1),
        ("A100-40GB", None, 2),
        ("A100-40GB", "1g.5gb", 1),
        ("A100-40GB", "1g.5gb", 2),
        ("T4", None, 1),
        ("T4", None, 2),
    ]


def test_compare(onnx_file, fixed_batch_file, checkpoint_folder):
    table = dippm.compare([onnx_file, fixed_batch_file], batch=4, checkpoint=checkpoint_folder)
    first, second = table
    assert first.latency_ms == second.latency_ms
    assert [p.provenance.source for p in table] == ["small.onnx", "fixed.onnx"]


def test_no_public_name_is_also_the_name_of_a_module():
    folder = Path(dippm.__file__).parent
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules & set(dippm.__all__)
    assert not set(MOVED) & set(dippm.__all__)


EVERY_MODULE = """
import importlib, pkgutil, dippm
modules = [module.name for module in pkgutil.walk_packages(dippm.__path__, "dippm.")]
for name in modules:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # of a framework that is not installed
        assert not (error.name or "").startswith("dippm"), (name, error)
for name in dippm.__all__:
    found = getattr(dippm, name)
    assert callable(found) and found.__name__ == name, name
    assert found.__module__.startswith("dippm."), name
print(len(modules))
"""


@pytest.mark.nightly(part="processes")
def test_public_names_stay_what_they_are_when_every_module_is_imported():
    assert int(python(EVERY_MODULE).split()[-1]) > 500


def python(code):
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout
