"""Subtotals by module: they add up, equal layers are summed up, hostile names do no harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dippm
from dippm import devices
from dippm.decide.explanation.explanation import Explanation
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.targets import Estimate, Estimates, Interval, MemoryParts, OperatorCost
from dippm.estimate.module_tree import HOST, MAX_DEPTH, OTHER_WEIGHTS, ModuleCost, module_tree
from dippm.estimate.prediction import Prediction, Provenance
from dippm.model.graph import ModelGraph
from dippm.show.report.predictions import render_report
from tests.unit.graph.sketch import BATCH, Sketch

PROVENANCE = Provenance("net.onnx", "test 1.0.0", "test", "ab" * 32, "1", "0.1.0")


def transformer(layers: int = 4, *, odd: bool = False) -> ModelGraph:
    """Equal layers of two products each, an addition of their own, and a head."""
    s = Sketch()
    x = s.input(BATCH, 8)
    for i in range(layers):
        width = 24 if odd and i == 1 else 16
        s.path = f"layers.{i}.mlp.up"
        y = s.call("matmul", [x, s.weight(8, width)], BATCH, width)
        s.path = f"layers.{i}.mlp.act"
        y = s.call("nn.relu", [y], BATCH, width)
        s.path = f"layers.{i}.mlp.down"
        y = s.call("matmul", [y, s.weight(width, 8)], BATCH, 8)
        s.path = f"layers.{i}"
        x = s.call("add", [x, y], BATCH, 8)
    s.path = "head"
    x = s.call("matmul", [x, s.weight(8, 3)], BATCH, 3)
    s.path = ""
    return s.graph(s.call("tanh", [x], BATCH, 3)).at_batch(2)


def costs(graph: ModelGraph) -> list[OperatorCost]:
    times = [1.0 + i for i in range(len(graph.nodes))]
    total = sum(times) + 5.0
    rows = [
        OperatorCost(i, node.op, 1, t, t / total, "compute", node.macs, 0, node.path)
        for i, (node, t) in enumerate(zip(graph.nodes, times, strict=True))
    ]
    return [*rows, OperatorCost(None, "host", 0, 5.0, 5.0 / total, "host", 0, 0)]


def every(module: ModuleCost) -> Iterator[ModuleCost]:
    yield module
    for child in module.children:
        yield from every(child)


def below(module: ModuleCost, *names: str) -> ModuleCost:
    for name in names:
        module = next(child for child in module.children if child.name == name)
    return module


@pytest.mark.parametrize("collapsed", [False, True])
def test_children_sum_to_their_parent(collapsed: bool):
    graph = transformer()
    tree = module_tree(graph, costs(graph))
    tree = tree.collapsed() if collapsed else tree
    for module in every(tree):
        if module.children:
            children = module.children
            assert module.macs == sum(child.macs for child in children)
            assert module.weight_bytes == sum(child.weight_bytes for child in children)
            assert module.time_ms == pytest.approx(sum(child.time_ms or 0 for child in children))
            for op, count in module.operators.items():
                assert count == sum(child.operators.get(op, 0) for child in children)
    assert tree.macs == graph.macs
    assert tree.weight_bytes == graph.param_bytes
    assert tree.time_ms == pytest.approx(sum(cost.time_ms for cost in costs(graph)))
    assert tree.share == pytest.approx(1.0)
    assert below(tree, HOST).time_ms == 5.0


def test_what_a_module_runs_itself_stands_beside_its_submodules():
    layer = below(module_tree(transformer()), "layers", "0")
    assert [child.name for child in layer.children] == ["mlp", ""]
    assert layer.children[1].operators == {"add": 1}


def test_equal_layers_are_one_row():
    tree = module_tree(transformer(layers=12))
    layers = below(tree, "layers").collapsed()
    (one,) = layers.children
    assert (one.name, one.count) == ("0–11", 12)
    assert below(one, "mlp", "up").operators == {"dense": 12}
    labels = [cells[0] for _, cells in tree.rows()]
    assert "0–11 ×12" in labels
    assert labels.count("up") == 1


def test_layers_that_differ_stay_apart():
    layers = below(module_tree(transformer(odd=True)), "layers").collapsed()
    assert [child.name for child in layers.children] == ["0", "1", "2–3"]


def test_depth_limits_rows_but_not_subtotals():
    tree = module_tree(transformer(odd=True))
    assert [cells[0] for _, cells in tree.rows(0)] == ["model"]
    assert max(level for level, _ in tree.rows(2)) <= 3  # equal layers are not a level
    assert [cells[2] for _, cells in tree.rows(0)] == [cells[2] for _, cells in tree.rows(9)][:1]


def test_a_module_that_only_holds_another_is_one_row_with_it():
    s = Sketch()
    x = s.input(BATCH, 8)
    s.path = "model.encoder.block.dense"
    x = s.call("matmul", [x, s.weight(8, 8)], BATCH, 8)
    s.path = "scope/other"
    x = s.call("tanh", [x], BATCH, 8)
    tree = module_tree(s.graph(x))
    assert [child.name for child in tree.children] == ["model.encoder.block.dense", "scope/other"]


def test_without_times_none_is_shown():
    tree = module_tree(transformer())
    assert tree.time_ms is None
    assert all(cells[4:] == ("", "") for _, cells in tree.rows())


def test_hostile_names():
    s = Sketch()
    x = s.input(BATCH, 8)
    for path in (".".join("a" * 100_000), "....", "/", "\x1b[2J<script>/x"):
        s.path = path
        x = s.call("tanh", [x], BATCH, 8)
    tree = module_tree(s.graph(x).at_batch(1))
    assert sum(tree.operators.values()) == 4
    assert len(list(tree.rows(MAX_DEPTH))) < 100
    assert "\x1b" not in str(tree)
    assert "<script>" not in tree._repr_html_(depth=MAX_DEPTH)
    assert tree.to_dict()["operators"] == {"tanh": 4}


def prediction(*, parts: bool = True) -> Prediction:
    graph = transformer()
    interval = Interval(1.0, 2.0, 0.9)
    operators = costs(graph)
    latency = sum(cost.time_ms for cost in operators)
    values = {"latency_ms": Estimate(latency, interval), "memory_mb": Estimate(107.0, interval)}
    memory = MemoryParts(4.0, 2.0, 1.0, 100.0, 0, "dense", "layers.0.mlp.up<b>") if parts else None
    return Prediction.of(
        Estimates(values, operators=tuple(operators), memory_parts=memory),
        graph,
        conditions=Conditions(device=devices.find("A100"), batch=2),
        provenance=PROVENANCE,
    )


def test_a_prediction_has_its_tree_everywhere():
    answer = prediction()
    assert answer.tree.name == "net.onnx"
    assert answer.tree.time_ms == pytest.approx(answer.latency_ms)
    assert "0–3 ×4" in answer._repr_html_()
    page = render_report(answer)
    assert "By module" in page
    assert "layers.3.mlp.down" in page
    assert answer.to_dict()["operators"][0]["path"] == "layers.0.mlp.up"


def test_memory_is_explained_everywhere():
    answer = prediction()
    line = "weights 4.000 + activations 2.000 + workspace 1.000 + context 100.0"
    assert f"   {line}\n   nvidia-smi shows the sum; 7.000 of it is the allocator's\n" in str(
        answer
    )
    assert "   peak at layers.0.mlp.up<b> dense\n" in str(answer)
    assert "&lt;b&gt; dense" in answer._repr_html_()
    assert "<b>" not in render_report(answer)
    assert answer.to_dict()["memory_parts"]["context_mb"] == 100.0


def test_memory_without_parts_says_why():
    answer = prediction(parts=False)
    assert answer.memory_parts is None
    assert answer.absent["memory_parts"] == "test 1.0.0 predicts the memory as one number"
    assert answer.to_dict()["memory_parts"] is None
    assert "activations" not in str(answer)


@pytest.fixture(scope="module")
def tied():
    """A graph whose head has the weights of its embedding, as language models have."""
    import torch

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(5000, 256)
            self.body = torch.nn.Linear(256, 256)
            self.head = torch.nn.Linear(256, 5000, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.words(tokens)))

    return dippm.read_graph(Tied(), input={"tokens": "int:16"})


WIDTHS = [
    ({}, 4.0),
    ({"precision": "fp16"}, 2.0),
    ({"precision": "amp"}, 4.0),
    ({"precision": "fp16", "runtime": "tensorrt"}, 2.0),
    ({"precision": "int8", "runtime": "tensorrt"}, None),
    ({"phase": "train"}, 4.0),
    ({"phase": "train", "precision": "fp16"}, 2.0),
]


@pytest.mark.parametrize(("conditions", "width"), WIDTHS)
def test_weights_of_modules_add_up_to_those_in_memory(tied, conditions, width):
    answer = dippm.predict(tied, **conditions)
    tree, parts = answer.tree, answer.memory_parts
    assert parts is not None
    assert tree.weight_bytes / 2**20 == pytest.approx(parts.weights_mb, abs=1e-5)
    assert tree.weight_bytes == sum(child.weight_bytes for child in tree.children)
    words, body, head = (below(tree, name).weight_bytes for name in ("words", "body", "head"))
    if width is None:  # what an engine keeps in 8 bits: less than half precision, at least a half
        width = words / (5000 * 256)
        assert 1.0 <= width < 2.0
    assert (words, body) == (round(width * 5000 * 256), round(width * 256 * 256))
    assert head == 0  # stored once
    other = [child.weight_bytes for child in tree.children if child.name == OTHER_WEIGHTS]
    copies = 2 * (5000 * 256 + 256 * 256) if conditions.get("precision") == "amp" else 0
    assert sum(other) == pytest.approx(copies + width * 256, abs=600)
    explained = Explanation.of(answer).memory()
    assert explained["weights of operators"] * 2**20 == pytest.approx(words + body, abs=2)
    assert explained["other weights"] * 2**20 == pytest.approx(sum(other), abs=8)


def test_copies_of_autocast_are_a_row(tied):
    def listed(precision):
        rows = dippm.predict(tied, precision=precision).tree.rows()
        return [cells[0] for _, cells in rows if cells[0] == OTHER_WEIGHTS]

    assert (listed("fp32"), listed("amp")) == ([], [OTHER_WEIGHTS])
