"""A model on many GPUs: what must hold for any estimate, and every question that has none."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.decide.parallel.shards import shards
from dippm.decide.parallel.work import micro_batch_of
from dippm.errors import ConditionsError, DippmError


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def transformer(layers=4, width=1024, heads=16):
    """Blocks as Megatron-LM splits them: two all-reduces each."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, s, _ = x.shape
            y = self.qkv(self.norm1(x)).view(b, s, 3, heads, width // heads)
            q, k, v = y.permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(y.transpose(1, 2).reshape(b, s, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    return nn.Sequential(*(Block() for _ in range(layers)))


WHERE = {"input": (512, 1024), "batch": 8, "precision": "fp16"}


@pytest.fixture(scope="module")
def graph():
    return dippm.read_graph(transformer(), input=(512, 1024))


def at(graph, **asked):
    return dippm.parallelize(graph, **{"batch": 8, "precision": "fp16", **asked})


def test_one_gpu_is_the_prediction(graph):
    for timer in ("wall", "kernel", "wall+copy"):
        found = at(graph, gpus=1, timer=timer)
        assert found.step_ms == pytest.approx(found.prediction.latency_ms, rel=1e-9)
        assert found.speedup == pytest.approx(1)
        assert found.energy_j == pytest.approx(found.prediction.energy_j, rel=1e-9)
        assert found.memory_mb == found.prediction.memory_mb


def test_copies_that_only_infer_do_not_wait_for_each_other(graph):
    found = at(graph, gpus=8)
    assert found.samples == 64
    assert found.speedup == pytest.approx(8)
    assert found.exchange_ms == 0
    assert found.energy_j == pytest.approx(8 * found.prediction.energy_j)


def test_a_transformer_is_split_as_megatron_splits_it(graph):
    bound = graph.at_batch(8)
    found = shards(bound, 4)
    exchanged = [(n.path, e) for n, s in zip(bound.nodes, found, strict=True) for e in s.exchanged]
    assert [path for path, _ in exchanged] == [
        f"{i}.{name}" for i in range(4) for name in ("out", "down")
    ]
    assert {(e.kind, e.elements) for _, e in exchanged} == {("all-reduce", 8 * 512 * 1024)}
    split = {n.path.split(".")[-1] for n, s in zip(bound.nodes, found, strict=True) if s.is_split}
    assert {"qkv", "out", "up", "down"} <= split
    assert not split & {"norm1", "norm2"}
    whole = {n.op for n, s in zip(bound.nodes, found, strict=True) if not s.is_split}
    assert "attention" not in whole
    assert "layer_norm" in whole


def test_every_weight_matrix_is_on_one_gpu_only(graph):
    for ways in (2, 4, 8):
        found = at(graph, gpus=ways, strategy="tensor")
        one, all_ = found.prediction.memory_parts, found.memory_mb
        saved = found.prediction.memory_mb - all_
        assert saved == pytest.approx(one.weights_mb * (1 - 1 / ways), rel=0.02)


def test_tensor_parallelism_is_faster_and_less_than_linear(graph):
    times = [at(graph, gpus=n, strategy="tensor", batch=64).step_ms for n in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert all(times[0] / t < n for n, t in zip((2, 4, 8), times[1:], strict=True))


def test_slower_links_take_longer(graph):
    asked = {"gpus": 4, "strategy": "tensor", "batch": 64}
    fast, slow = at(graph, **asked), at(graph, **asked, link="pcie")
    assert fast.step_ms < slow.step_ms
    assert slow.exposed_ms > 3 * fast.exposed_ms
    assert any("shared switches" in warning for warning in slow.warnings)
    nodes = at(graph, gpus=8, nodes=4, strategy="tensor", batch=64)
    assert any("between nodes" in warning for warning in nodes.warnings)


def test_widths_that_do_not_divide_stay_whole(graph):
    with pytest.raises(ConditionsError, match="can be shared by 7") as caught:
        at(graph, gpus=7, strategy="tensor")
    assert "multiple" in caught.value.hint


def test_a_pipeline_hides_its_bubble_behind_micro_batches(graph):
    few = at(graph, gpus=4, strategy="pipeline", batch=64, micro_batches=1)
    many = at(graph, gpus=4, strategy="pipeline", batch=64, micro_batches=16)
    assert few.idle_share == pytest.approx(0.75, abs=0.05)
    assert many.idle_share < 0.4
    assert many.speedup > few.speedup
    assert few.speedup <= 1.0
    assert at(graph, gpus=4, strategy="pipeline", batch=8).plan.micro_batches == 8


def test_stages_hold_a_part_of_the_weights(graph):
    found = at(graph, gpus=4, strategy="pipeline", batch=8, micro_batches=1)
    parts = found.prediction.memory_parts
    assert found.memory_mb < found.prediction.memory_mb
    least = parts.context_mb + parts.workspace_mb + parts.activations_mb + parts.weights_mb / 4
    assert found.memory_mb >= least - 1e-6


def test_all_three_together(graph):
    found = at(graph, gpus=16, tensor=2, pipeline=2, nodes=2, batch=16)
    plan = found.plan
    assert (plan.data, plan.tensor, plan.pipeline, plan.nodes) == (4, 2, 2, 2)
    assert found.samples == 64
    assert 1 < found.speedup < 16
    assert plan.data_group.per_node == 2
    assert plan.data_group.network is not None
    assert plan.tensor_group.network is None


def test_work_of_all_stages_is_the_work_of_one(graph):
    found = at(graph, gpus=4, strategy="pipeline", batch=8, micro_batches=1, timer="kernel")
    assert sum(found.stage_ms) == pytest.approx(found.prediction.latency_ms, rel=1e-9)
    one = found.prediction
    whole = micro_batch_of(one, shards(one.graph, 1), found.plan)
    weights = one.graph.param_bytes / 2 / 2**20
    assert sum(whole.weights_mb) == pytest.approx(weights, rel=1e-6)
    gradients = sum(size for stage in whole.gradients for _, size in stage)
    assert gradients == pytest.approx(one.graph.param_bytes / 2, rel=1e-6)


def test_a_convolutional_model_is_split_too(onnx_file):
    found = dippm.parallelize(onnx_file, gpus=2, strategy="tensor", batch=256)
    assert found.split_operators >= 2
    assert found.exchange_ms > 0


def test_an_estimate_says_that_it_is_one(graph):
    found = at(graph, gpus=2)
    assert any("estimated" in warning for warning in found.warnings)
    assert "estimated" in found.to_dict()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "number of GPUs"),
        ({"gpus": 0}, "gpus is 0"),
        ({"gpus": 2.5}, "gpus is 2.5"),
        ({"gpus": 8, "strategy": "expert"}, "unknown strategy"),
        ({"gpus": 8, "strategy": "data", "tensor": 2}, "both a strategy"),
        ({"gpus": 8, "tensor": 3}, "8 GPUs are not"),
        ({"gpus": 8, "tensor": 2, "data": 2}, "8 GPUs are not"),
        ({"gpus": 8, "nodes": 3}, "same number on each"),
        ({"gpus": 16}, "joins at most 8"),
        ({"gpus": 4, "device": "RTX-3090", "link": "nvlink"}, "joins at most 2"),
        ({"gpus": 2, "device": "T4", "link": "nvlink"}, "no NVLink"),
        ({"gpus": 12, "nodes": 3, "tensor": 6}, "do not fit nodes"),
        ({"gpus": 2, "mig": "3g.20gb"}, "MIG slices are not joined"),
        ({"gpus": 4, "strategy": "pipeline", "micro_batches": 3}, "no 3 equal parts"),
        ({"gpus": 4, "micro_batches": 2}, "micro-batches are for a pipeline"),
        ({"gpus": 2, "device": "cpu"}, "is not known"),
        ({"gpus": 2, "nodes": 2, "network": "modem"}, "unknown network"),
        ({"gpus": 4096, "strategy": "pipeline", "nodes": 512}, "operators have no 4096 stages"),
    ],
)
def test_questions_without_an_answer_say_the_next_step(graph, asked, words):
    with pytest.raises(DippmError, match=words) as caught:
        at(graph, **asked)
    assert caught.value.hint


def test_the_command_in_every_form(onnx_file):
    words = ["parallel", onnx_file, "--gpus", "4", "--strategy", "tensor", "--batch", "64"]
    answer = run(*words)
    assert answer.exit_code == 0, answer.output
    assert "4 GPUs (NVLink 3 x12) · tensor 4" in answer.stdout
    assert "all, estimated" in answer.stdout
    document = json.loads(run(*words, "--json").stdout)
    assert document["plan"]["tensor"] == 4
    assert document["estimated"]["step_ms"] > 0
    wrong = run("parallel", onnx_file, "--gpus", "16")
    assert wrong.exit_code == 1
    assert "--nodes 2" in wrong.stderr


def test_one_process_launches_for_all_and_copies_every_step(graph):
    asked = {"batch": 1, "host": 30.0}
    apart, together = at(graph, gpus=4, **asked), at(graph, gpus=4, one_process=True, **asked)
    assert together.step_ms > 3.5 * apart.step_ms, "launches of four copies, one after the other"
    by_hand = together.prediction.graph.param_bytes / 2 / 240e6
    assert together.step_ms > 4 * apart.step_ms * 0.9 + by_hand
    alone = at(graph, gpus=1, one_process=True, **asked)
    assert alone.step_ms == pytest.approx(alone.prediction.latency_ms)
    with pytest.raises(ConditionsError, match="on one node") as caught:
        at(graph, gpus=4, strategy="tensor", one_process=True)
    assert caught.value.hint


def test_parts_of_kernels_add_up_to_the_kernels(graph):
    import numpy as np

    from dippm.decide.parallel.one_process import shard_kernels
    from dippm.estimate.features.kernel_table import QUANTITIES, KernelTable

    found = shards(graph.at_batch(8), 4)
    whole = KernelTable.of(graph, "fp16")
    part = shard_kernels(whole, found, 4)
    split = np.array([found[node].is_split for node in whole.node])
    before, after = whole.quantities(8), part.quantities(8)
    flops, weights = (QUANTITIES.index(name) for name in ("flops", "weight_bytes"))
    products = split & (before[:, weights] > 1e6)
    assert products.sum() == 16
    assert after[products][:, weights].sum() == pytest.approx(
        before[products][:, weights].sum() / 4
    )
    assert after[products][:, flops].sum() == pytest.approx(before[products][:, flops].sum() / 4)
    assert (after[~split] == before[~split]).all()
    assert (after <= before).all()
    reads = QUANTITIES.index("read_bytes")
    sides = {found[node].side for node in whole.node[products]}
    assert sides == {"columns", "rows"}
    columns = products & np.array([found[node].side == "columns" for node in whole.node])
    assert (after[columns][:, reads] == before[columns][:, reads]).all()


def test_parts_take_at_least_their_share(graph):
    """Smaller products are less efficient, and columns still read the whole input."""
    from dippm.api import load
    from dippm.decide.parallel.one_process import shard_times_ms
    from dippm.devices import find
    from dippm.estimate.conditions import Conditions

    conditions = Conditions(device=find("A100"), batch=64, precision="fp16")
    loaded = load()
    whole = loaded.predict_at(graph, conditions)
    times = {cost.node: cost.time_ms for cost in whole.operators}
    found = shards(whole.graph, 4)
    parts = shard_times_ms(loaded.checkpoint.predictor, graph, conditions, found, 4)
    split = [node for node in parts if found[node].is_split]
    assert sum(parts[n] for n in split) > sum(times[n] for n in split) / 4
    assert sum(parts[n] for n in split) < sum(times[n] for n in split)
    nothing = shard_times_ms(loaded.checkpoint.predictor, graph, conditions, shards(graph, 1), 1)
    assert nothing == pytest.approx({node: times[node] for node in nothing}, rel=1e-6)


def test_no_part_of_a_kernel_takes_less_than_the_clock_allows():
    from dippm.devices import find
    from dippm.estimate.features.kernel_features import LAUNCH_CYCLES

    small = dippm.read_graph(transformer(2, 256, 8), input=(64, 256))
    found = at(small, gpus=8, strategy="tensor", batch=1, timer="kernel")
    part = found.prediction
    parted = shards(part.graph, 8)
    split = {node for node, one in enumerate(parted) if one.is_split}
    kernels = sum(cost.kernels for cost in part.operators if cost.node in split)
    whole_ms = sum(cost.time_ms for cost in part.operators if cost.node not in split)
    work = micro_batch_of(part, parted, found.plan)
    parts_ms = sum(work.stage_ms) - sum(work.exchange_ms) - whole_ms
    assert parts_ms >= kernels * LAUNCH_CYCLES / (1e3 * find("A100").boost_clock_mhz) * (1 - 1e-9)


def test_exchanges_of_all_layers_are_counted(graph):
    found = at(graph, gpus=4, strategy="tensor", batch=64)
    one = found.plan.tensor_group.all_reduce_ms(64 * 512 * 1024 * 2)
    assert found.exchange_ms == pytest.approx(8 * one, rel=1e-6)
    assert found.exposed_ms == found.exchange_ms
