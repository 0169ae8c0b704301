from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from dataset.join import raw_graphs
from dataset.measured.traces import why_not
from dippm.model.graph import ModelGraph, build

TRACE: dict[str, Any] = {
    "problems": ["v0/level2/1_made_up"],
    "model_inputs": [{"shape": [8, 16], "dtype": "float32"}, {"dtype": "float", "value": 2.0}],
    "parameters": {"gemm.weight": [32, 16], "gemm.bias": [32], "bn.weight": [32]},
    "buffers": {"bn.num_batches_tracked": []},
    "nodes": [
        {
            "name": "linear", "op": "aten.linear.default", "dtype": "float32",
            "inputs": ["input:0", "param:gemm.weight", "param:gemm.bias"],
            "input_shapes": [[8, 16], [32, 16], [32]], "output_shape": [8, 32],
        },
        {
            "name": "add_", "op": "aten.add_.Tensor", "inputs": ["buffer:bn.num_batches_tracked"],
            "input_shapes": [[]], "output_shape": [], "dtype": "int64", "attrs": {"other": 1},
        },
        {
            "name": "min_1", "op": "aten.min.dim", "inputs": ["linear"],
            "input_shapes": [[8, 32]], "output_shape": [[8, 1], [8, 1]],
            "attrs": {"dim": 1, "keepdim": True},
        },
        {
            "name": "getitem", "op": "getitem", "inputs": ["min_1"], "input_shapes": [None],
            "output_shape": [8, 1], "dtype": "float32", "attrs": {"arg1": 0},
        },
        {
            "name": "relu", "op": "aten.relu.default", "inputs": ["getitem"],
            "input_shapes": [[8, 1]], "output_shape": [8, 1], "dtype": "float32",
        },
    ],
    "outputs": ["relu"],
}  # fmt: skip


def graph_of(trace: dict[str, Any], data_dir: Path) -> ModelGraph:
    folder = data_dir / "kernelbench"
    folder.mkdir()
    (folder / "problems.json").write_text(json.dumps({"t": trace}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build(raw_graphs.convert("kernelbench:t", data_dir))


def test_a_trace_becomes_a_graph_of_canonical_operators(tmp_path: Path) -> None:
    graph = graph_of(TRACE, tmp_path)
    assert [node.op for node in graph.nodes] == ["dense", "reduce_min", "relu"]
    assert graph.edges == ((0, 1), (1, 2))
    assert graph.macs == 8 * 16 * 32
    assert graph.param_bytes == 4 * (16 * 32 + 32)
    assert not graph.unknown_ops
    assert not graph.batch_is_symbolic
    assert graph.batch == 8


def node(op: str, inputs: list[str], out: list[int], **attrs: Any) -> dict[str, Any]:
    shapes = [[4, 6]] * len(inputs)
    return {
        "name": op.split(".")[1], "op": op, "dtype": "float32", "inputs": inputs,
        "input_shapes": shapes, "output_shape": out, "attrs": attrs,
    }  # fmt: skip


def test_lists_constants_and_settings_find_their_arguments(tmp_path: Path) -> None:
    nodes = [
        node("aten.cat.default", ["input:0", "input:0"], [4, 12], dim=1),
        node("aten.slice.Tensor", ["cat"], [4, 6], dim=1, start=0, end=4),
        node("aten.minimum.default", ["slice", "const:c"], [4, 6]),
        node("aten.instance_norm.default", ["minimum"], [4, 6], use_input_stats=True,
             momentum=0.1, eps=1e-5, cudnn_enabled=True),
        node("aten.mul.Tensor", ["instance_norm"], [4, 6], other=2.0),
    ]  # fmt: skip
    inputs = [{"shape": [1, 4, 6], "dtype": "float32"}]
    trace = {"model_inputs": inputs, "parameters": {}, "buffers": {}, "nodes": nodes,
             "outputs": ["mul"]}  # fmt: skip
    count = graph_of(trace, tmp_path).histogram()
    for op in ("concat", "minimum", "instance_norm", "multiply"):
        assert count[op] == 1


@pytest.mark.parametrize(
    ("op", "attrs", "reason"),
    [
        ("aten.batch_norm.default", {"training": True}, "statistics"),
        ("aten.dropout.default", {"train": True, "p": 0.5}, "dropout"),
        ("aten.dropout.default", {"train": False, "p": 0.5}, ""),
    ],
)
def test_what_a_graph_cannot_say_is_left_out(op: str, attrs: dict[str, Any], reason: str) -> None:
    trace = {"model_inputs": TRACE["model_inputs"], "nodes": [node(op, ["input:0"], [8], **attrs)]}
    assert reason in why_not(trace)
    assert bool(reason) == bool(why_not(trace))


def test_a_problem_that_is_left_out_leaves_its_reason(tmp_path: Path) -> None:
    dropped = node("aten.dropout.default", ["input:0"], [8, 16], train=True, p=0.5)
    with pytest.raises(ValueError, match="dropout"):
        graph_of({**TRACE, "nodes": [dropped], "outputs": ["dropout"]}, tmp_path)
