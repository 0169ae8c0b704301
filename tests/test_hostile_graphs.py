"""More of the matrix: ONNX graphs against the rules, modules against all expectation, odd sizes."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dippm
from dippm.errors import ConversionError, ModelFileError
from dippm.model import convert as reading
from dippm.model import frontends, graph
from dippm.model.graph import builder, liveness
from tests.samples import sampled
from tests.test_hostile import refused
from tests.unit.graph.sketch import Sketch


def onnx_graph(path: Path, *nodes: tuple[str, str, str, dict[str, Any]], inputs: str = "x") -> Path:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    weight = numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "w")
    made = [
        helper.make_node(kind, read.split(), [written], **rest)
        for kind, read, written, rest in nodes
    ]
    value = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3, 8, 8]) for n in inputs
    ]
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(made, "g", value, result, [weight])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def conv(**rest: Any) -> tuple[str, str, str, dict[str, Any]]:
    return "Conv", "x w", "y", rest


GRAPHS = {
    "a value is written twice": (("Relu", "x", "y", {}), ("Sigmoid", "x", "y", {})),
    "an operator writes its input": (("Relu", "x", "x", {}), ("Relu", "x", "y", {})),
    "an operator writes a weight": (("Relu", "x", "w", {}), ("Relu", "x", "y", {})),
    "steps of nothing": (conv(strides=[0, 0]),),
    "steps backwards": (conv(strides=[-1, -1]),),
    "dilation of nothing": (conv(dilations=[0, 0]),),
    "a window of nothing": (("MaxPool", "x", "y", {"kernel_shape": [0, 0]}),),
    "no groups": (conv(group=0),),
    "an unknown way of padding": (conv(auto_pad="NOT_SO"),),
}

NO_WINDOWS: dict[str, tuple[str, dict[str, Any]]] = {
    "padding of less than nothing": ("Conv", {"pads": [-1] * 4}),
    "padding that wraps around": ("Conv", {"pads": [-(2**63)] * 4}),
    "padding that wraps around from above": ("Conv", {"pads": [2**63 - 1] * 4}),
    "padding without end": ("Conv", {"pads": [2**62] * 4}),
    "steps without end": ("Conv", {"strides": [2**62, 1]}),
    "steps without end and padding": ("Conv", {"strides": [2**40, 1], "auto_pad": "SAME_UPPER"}),
    "dilation without end": ("Conv", {"dilations": [2**62, 1]}),
    "a window larger than the image": ("Conv", {"dilations": [8, 8]}),
    "a window of another size": ("Conv", {"kernel_shape": [5, 5]}),
    "padding for one axis": ("Conv", {"pads": [0, 0]}),
    "a pool larger than the image": ("MaxPool", {"kernel_shape": [9, 9]}),
    "a mean larger than the image": ("AveragePool", {"kernel_shape": [9, 1]}),
    "a norm larger than the image": ("LpPool", {"kernel_shape": [9, 9]}),
    "a pool of padding alone": ("MaxPool", {"kernel_shape": [3, 3], "pads": [5] * 4}),
    "a pool with less than nothing": ("MaxPool", {"kernel_shape": [3, 3], "pads": [-(2**63)] * 4}),
    "all is cut off": ("ConvTranspose", {"pads": [5] * 4}),
    "less than nothing is cut off": ("ConvTranspose", {"pads": [-(2**63)] * 4}),
    "less than nothing is added": ("ConvTranspose", {"output_padding": [-5, -5]}),
    "a result of less than nothing": ("ConvTranspose", {"output_shape": [-5, -5]}),
    "a result without end": ("ConvTranspose", {"output_padding": [2**62, 1]}),
}
"""Windows that no runtime moves: of each, or of its like, there was an answer."""


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_against_the_rules(tmp_path, name):
    refused("ModelFileError", "predict", onnx_graph(tmp_path / "m.onnx", *GRAPHS[name]))


def test_windows_that_cannot_be_moved(tmp_path):
    for number, (name, (kind, rest)) in enumerate(NO_WINDOWS.items()):
        image = "v" if kind == "ConvTranspose" else "x"
        of_four_channels = ("Conv", "x w", "v", {}) if image == "v" else ("Relu", "x", "unused", {})
        read = image if kind.endswith("Pool") else f"{image} w"
        nodes = (of_four_channels, (kind, read, "y", rest))
        path = onnx_graph(tmp_path / f"{number}.onnx", *nodes)
        with pytest.raises(ModelFileError):
            pytest.fail(f"{name}: {dippm.predict(path, device='A100', timeout_s=60)}")
    for kind, rest in (
        ("Conv", {"dilations": [3, 3]}),
        ("Conv", {"pads": [9] * 4, "strides": [7, 1]}),
        ("MaxPool", {"kernel_shape": [8, 8]}),
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [2] * 4}),
        ("MaxPool", {"kernel_shape": [2, 2], "dilations": [4, 4], "pads": [4] * 4}),
    ):
        read = "x" if kind.endswith("Pool") else "x w"
        path = onnx_graph(tmp_path / "runs.onnx", (kind, read, "y", rest))
        assert dippm.predict(path, device="A100").latency_ms


def test_an_input_twice(tmp_path):
    path = onnx_graph(tmp_path / "m.onnx", ("Relu", "x", "y", {}), inputs="xx")
    refused("ModelFileError", "predict", path)


def test_a_permutation_of_fewer_axes(tmp_path):
    path = onnx_graph(tmp_path / "m.onnx", ("Transpose", "x", "y", {"perm": [0]}))
    refused("InputShapeError", "predict", path)


def test_what_keeps_to_the_rules_is_read(tmp_path):
    path = onnx_graph(tmp_path / "m.onnx", conv(strides=[2, 2], auto_pad="SAME_UPPER", group=1))
    assert dippm.read_graph(path).at_batch(1).macs == 4 * 4 * 4 * 27


LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip
FIELDS = {
    "no width": {"hidden_size": 0},
    "a negative width": {"hidden_size": -64},
    "a width in words": {"hidden_size": "wide"},
    "no heads": {"num_attention_heads": 0},
    "code of its own": {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}},
}


@pytest.mark.parametrize("name", FIELDS)
def test_configurations_that_no_model_has(tmp_path, name):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **FIELDS[name]}))
    refused("ModelFileError", "predict", f"hf-config:{tmp_path}", in_words=False)


def test_an_address_is_not_fetched():
    found = refused("ModelNotFoundError", "predict", "https://example.com/model.onnx")
    assert "Nothing is downloaded" in found["hint"]


def test_the_folder_here_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("UnknownFormatError", "predict", ".")["message"].startswith(".:")


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Exits(Dense):
    def forward(self, x):
        raise SystemExit(3)


class HidesItsConfig(Dense):
    @property
    def config(self):
        raise RuntimeError("not for you")


class Text(Dense):
    def forward(self, x):
        return "text"


class Nothing(Dense):
    def forward(self, x):
        return None


class HoldsItself(Dense):
    def __init__(self) -> None:
        super().__init__()
        self._modules["me"] = self


class IsInItsResult(Dense):
    def forward(self, x):
        result: dict[str, Any] = {"y": self.layer(x)}
        result["me"] = result
        return result


class NoHash(Dense):
    __hash__ = None

    def __eq__(self, other):
        raise ValueError("not to be compared")


@pytest.mark.parametrize(
    "kind",
    sampled(
        [Exits, HidesItsConfig, Text, Nothing, HoldsItself, IsInItsResult, NoHash],
        pytest.mark.nightly(part="hostile"),
    ),
)
def test_modules_against_all_expectation(kind):
    with pytest.raises(ConversionError) as caught:
        dippm.predict(kind(), input=(4,))
    assert caught.value.hint


class NoTruth(Dense):
    def __bool__(self):
        raise ValueError("neither")

    def __repr__(self):
        raise ValueError("no words")


def test_modules_that_only_look_odd_are_read():
    assert dippm.read_graph(NoTruth(), input=(4,)).at_batch(1).macs == 16


class Overwrites(nn.Module):
    def forward(self, x):
        x[...] = 0
        return x


def test_a_module_that_only_writes_over_its_input_is_answered():
    answer = dippm.predict(Overwrites(), input=(4,))
    assert answer.memory_mb > 0
    assert str(answer)
    assert answer.to_dict()


LAYERS = {
    "a thousand million": 10**9,
    "one more than there are weights for": 3,
    "none": 0,
    "less than none": -(10**9),
}


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_layers_that_have_no_weights(tmp_path, kind):
    for name, layers in LAYERS.items():
        module = kind(3, 4, num_layers=2)
        module.num_layers = layers
        torch.save(module, path := tmp_path / "layers.pt")
        with pytest.raises(ModelFileError) as caught:
            dippm.read_graph(path, input="5,3", timeout_s=600)
        assert caught.value.hint, name
    for hidden, layers in ((1, 4), (4, 7)):
        torch.save(kind(3, hidden, num_layers=layers), path := tmp_path / "whole.pt")
        found = dippm.read_graph(path, input="5,3")
        assert sum(node.op == kind.__name__.lower() for node in found.nodes) == layers


def test_layers_that_a_converter_makes_up():
    for name, words in {
        "packed.lstm": {"num_layers": 10**9},
        "onnx.LSTM": {"layers": 65, "hidden_size": 4},
        "packed.gru": {"layers": 2, "directions": 10**9},
        "packed.rnn": {"layers": 0},
    }.items():
        s = Sketch()
        x = s.calls(name, [s.input(5, 1009, 3), s.weight(16, 3)], [(5, 1009, 4)], **words)
        with pytest.raises(ConversionError, match="layers"):
            graph.build(s.raw(x[0]))


def test_a_path_with_very_many_dots():
    s = Sketch()
    s.path = "a." * 50_000
    x = s.call("nn.relu", [s.input(1009, 4)], 1009, 4)
    found = s.graph(x)
    assert found.program is not None
    tracemalloc.start()
    liveness.eager_lifetimes(found.program)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 << 20


def endless(*_: Any) -> Any:
    while True:
        pass


def test_graph_and_features_have_the_time_limit_of_the_caller(monkeypatch, checkpoint_folder):
    s = Sketch()
    raw = s.raw(s.call("nn.relu", [s.input(1009, 4)], 1009, 4))
    monkeypatch.setattr(frontends, "load", lambda *_, **__: raw)
    monkeypatch.setattr(reading, "LEAST_S", 0.2)
    ready = graph.build(raw)
    kind = type(dippm.load(checkpoint_folder).checkpoint.predictor)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "predict", endless)
        patch.setattr(kind, "predict_many", endless)
        with pytest.raises(ConversionError, match="its features") as caught:
            dippm.predict(ready, checkpoint=checkpoint_folder, timeout_s=0.2)
        assert "timeout_s" in caught.value.hint
        (row,) = dippm.compare([ready], checkpoint=checkpoint_folder, timeout_s=0.2).failures
        assert "its features" in str(row.error)
    monkeypatch.setattr(builder, "RULES", (endless,))
    with pytest.raises(ConversionError, match=r"its graph.*1 operators") as caught:
        dippm.read_graph("m.onnx", timeout_s=0.2)
    assert "timeout_s" in caught.value.hint
