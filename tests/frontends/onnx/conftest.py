"""Small real ONNX files: hand-written ones, and what PyTorch's exporters write."""

from __future__ import annotations

import importlib.util
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dippm.model.frontends import onnx as route
from dippm.model.frontends.frontend import InputSpec


@pytest.fixture
def convert(tmp_path):
    """Write a model and convert it in this process."""

    def run(model, shapes=None):
        spec = InputSpec.parse(shapes) if isinstance(shapes, str) else InputSpec(shapes or {})
        path = tmp_path / "model.onnx"
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        return route.load(path, spec, trust=False)

    return run


@pytest.fixture
def optimized():
    """Return what ONNX Runtime's optimizer makes of a file, beside that file."""
    runtime = pytest.importorskip("onnxruntime")

    def run(path):
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
        options.log_severity_level = 4
        runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return path.with_suffix(".optimized.onnx")

    return run


@pytest.fixture
def make():
    """Build a model from nodes; weights are zeros of the given shapes."""

    def build(nodes, inputs, outputs, *, weights=None, constants=None, opset=17, domains=()):
        stored = [
            numpy_helper.from_array(np.zeros(shape, np.float32), name)
            for name, shape in (weights or {}).items()
        ]
        stored += [
            numpy_helper.from_array(np.asarray(v), name) for name, v in (constants or {}).items()
        ]
        graph = helper.make_graph(
            nodes, "g", [_value(*i) for i in inputs], [_value(*o) for o in outputs], stored
        )
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
        return helper.make_model(graph, opset_imports=opsets)

    return build


def _value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.fixture
def count():
    """Count the raw operators by name."""
    return lambda raw: Counter(operator.name for operator in raw.operators)


@pytest.fixture(scope="session")
def vision():
    """torchvision, beside a build of torch that lacks its operators."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    from dippm.model.vision_operators import declare_vision_operators

    declare_vision_operators()
    import torchvision

    return torchvision


@pytest.fixture(scope="session")
def export(tmp_path_factory):
    """Export a module with one of PyTorch's exporters, with a dynamic or a fixed batch."""
    import torch

    folder = tmp_path_factory.mktemp("exports")

    def run(module, example, *, exporter, opset=17, is_dynamic=True):
        path = folder / f"{len(list(folder.iterdir()))}.onnx"
        module = module.eval()
        if exporter == "dynamo":
            batch = torch.export.Dim("batch")
            shapes = tuple({0: batch} for _ in example) if is_dynamic else None
            torch.onnx.export(
                module, example, path, dynamo=True, dynamic_shapes=shapes, external_data=False,
                verbose=False,
            )  # fmt: skip
        else:
            names = [f"x{i}" for i in range(len(example))]
            axes = {name: {0: "batch"} for name in names} if is_dynamic else None
            torch.onnx.export(
                module, example, path, dynamo=False, opset_version=opset, input_names=names,
                dynamic_axes=axes,
            )  # fmt: skip
        assert onnx.load(path, load_external_data=False).graph.node
        return path

    return run
