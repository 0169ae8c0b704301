"""More of the matrix: ONNX graphs against the rules, modules against all expectation, odd sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import dippm
from dippm.errors import ConversionError
from tests.test_hostile import refused


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


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_against_the_rules(tmp_path, name):
    refused("ModelFileError", "predict", onnx_graph(tmp_path / "m.onnx", *GRAPHS[name]))


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
    "kind", [Exits, HidesItsConfig, Text, Nothing, HoldsItself, IsInItsResult, NoHash]
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
