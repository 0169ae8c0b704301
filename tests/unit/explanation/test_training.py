"""Training steps: every pass and the update are told apart, and all still sums to the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dippm
from dippm.decide.explanation import Difference, Explanation
from dippm.decide.parallel.estimate import estimate
from dippm.decide.parallel.plan import plan_of
from dippm.devices import find
from dippm.estimate.conditions import Conditions
from dippm.estimate.prediction import Prediction, Provenance
from dippm.show.report.explanation import difference_table, explained_table, module_table
from tests.unit.models.test_step_law import predictor
from tests.unit.parallel.test_estimate import transformer
from tests.unit.prediction.test_physics import convolutional

PROVENANCE = Provenance("net.pt", "steps 1.0.0", "hybrid", "ab" * 32, "2", "0.1.0")


@pytest.fixture(scope="module")
def steps():
    """A training step of a convolutional model, by a law of known answer."""
    graph, law = convolutional(), predictor(0.01)

    def answer(**changed):
        asked = Conditions(device=find("A100"), batch=64, phase="train", **changed)
        found = law.predict(graph, asked)
        return Prediction.of(found, graph, conditions=asked, provenance=PROVENANCE)

    return answer


def test_passes_update_and_parts_sum_to_the_whole(steps):
    found = Explanation.of(steps(optimizer="adamw"))
    rows = [row.cost for row in found.operators]
    times = [cost.time_ms for cost in rows] + [part.time_ms for part in found.parts]
    assert sum(times) == pytest.approx(found.latency_ms, rel=1e-12)
    energies = [cost.energy_j for cost in rows] + [part.energy_j for part in found.parts]
    assert sum(energies) == pytest.approx(found.prediction.energy_j, rel=1e-12)
    assert {cost.part for cost in rows} == {"forward", "backward"}
    parts = {part.name: part.time_ms for part in found.parts}
    assert parts["optimizer"] > 0
    assert sum(found.memory().values()) == pytest.approx(found.prediction.memory_mb, rel=1e-9)
    assert "training step" in found.absent["alive_mb"]
    assert found.tree.energy_j == pytest.approx(found.prediction.energy_j)


def test_weights_are_counted_once(steps):
    found = Explanation.of(steps())
    graph = found.prediction.graph
    read = sum(row.weights_mb for row in found.operators)
    assert read == pytest.approx(sum(node.param_bytes for node in graph.nodes) / 2**20)


def test_tables_and_differences_of_steps(steps):
    one, two = Explanation.of(steps()), Explanation.of(steps(optimizer="adamw"))
    found = Difference(one, two)
    rows = found.changes(most=3)
    assert sum(row.change_ms for row in rows) == pytest.approx(found.change_ms, abs=1e-9)
    assert rows[0].what == "optimizer"
    assert any("(optimizer)" in str(row[0]) for row in module_table(two, 2).rows)
    assert any("backward" in str(row[0]) for row in explained_table(two, 20).rows)
    assert difference_table(found, 1).rows


def test_gradients_are_summed_beside_the_backward_pass():
    graph = dippm.read_graph(transformer(), input=(512, 1024))
    asked = Conditions(device=find("A100"), batch=8, precision="fp16", phase="train")
    made = predictor(0.01).predict(graph, asked)
    one = Prediction.of(made, graph, conditions=asked, provenance=PROVENANCE)
    plans = {n: plan_of(find("A100"), gpus=n, strategy="data", batch=8) for n in (1, 2, 8)}
    found = {n: estimate(one, one, plan) for n, plan in plans.items()}
    assert found[1].step_ms == pytest.approx(one.latency_ms, rel=1e-6)
    assert one.latency_ms < found[2].step_ms < found[8].step_ms
    for n in (2, 8):
        assert 0 < found[n].exposed_ms < 0.7 * found[n].exchange_ms, "most of it is hidden"
        assert 1 < found[n].speedup < n
    slow = plan_of(find("A100"), gpus=8, strategy="data", nodes=8, network="ethernet-10", batch=8)
    late = estimate(one, one, slow)
    assert late.exchange_ms > 2 * 7 / 8 * one.graph.param_bytes / 2 / 1.2e6
    assert late.exposed_ms > 0.8 * late.exchange_ms, "a slow network is waited for"
    together = estimate(one, one, replace(plans[8], one_process=True))
    assert together.step_ms > found[8].step_ms
