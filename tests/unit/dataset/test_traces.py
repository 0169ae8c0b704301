from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dataset.traces import graph_of

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


def test_a_trace_becomes_a_graph_of_canonical_operators(tmp_path: Path) -> None:
    (tmp_path / "problems.json").write_text(json.dumps({"t": TRACE}))
    graph = graph_of("t", tmp_path)
    assert [node.op for node in graph.nodes] == ["dense", "reduce_min", "relu"]
    assert graph.edges == ((0, 1), (1, 2))
    assert graph.macs == 8 * 16 * 32
    assert graph.nodes[0].param_bytes == 4 * 16 * 32
    assert not graph.unknown_ops
    assert not graph.batch_is_symbolic
