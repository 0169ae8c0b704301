from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch

from dippm.devices import find
from dippm.errors import CheckpointError, ConditionsError, UnknownNameError
from dippm.estimate.conditions import Conditions
from dippm.estimate.features import FEATURE_VERSION, collate, encode
from dippm.estimate.models.pmgns import PmgnsPredictor, network_inputs
from dippm.estimate.models.pmgns_network import ENCODERS, Pmgns, PmgnsConfig, find_encoder
from dippm.estimate.models.predictor import PREDICTORS
from dippm.model.graph import ModelGraph, OpNode

MAPS = (2, 8, 16, 16)
RESIDUAL = {"coverage": 0.9, "low": -0.1, "high": 0.2, "upper_99": 0.5}


def node(op: str, *, param_bytes: int = 0, **attributes: Any) -> OpNode:
    return OpNode(
        op=op,
        attributes=attributes,
        in_shapes=(MAPS,),
        out_shapes=(MAPS,),
        dtype="float32",
        macs=1000 if param_bytes else 0,
        flops=0,
        bytes_read=4 * prod(MAPS),
        bytes_written=4 * prod(MAPS),
        param_bytes=param_bytes,
    )


def conv() -> OpNode:
    sizes = {"groups": 1, "in_channels": 8, "out_channels": 8}
    return node("conv2d", param_bytes=4 * 576, kernel=(3, 3), strides=(1, 1), **sizes)


def graph_of(*nodes: OpNode, edges: tuple[tuple[int, int], ...], batch: int = 2) -> ModelGraph:
    return ModelGraph(nodes, edges, (), (), 0, {}, "test", batch)


@pytest.fixture
def graph() -> ModelGraph:
    """conv → relu → conv → add, with a residual branch from the first convolution."""
    edges = ((0, 1), (0, 3), (1, 2), (2, 3))
    return graph_of(conv(), node("relu"), conv(), node("add"), edges=edges)


def config(**changes: Any) -> dict[str, Any]:
    document = {
        "kind": "pmgns",
        "feature_version": FEATURE_VERSION,
        "graph_version": "test",
        "network": PmgnsConfig.variant("paper", hidden=16).to_dict(),
        "conditions": {
            "devices": ["RTX-3090"],
            "precision": ["amp"],
            "mode": ["eager"],
            "timer": ["wall"],
            "channels_last": [False],
        },
        "residuals": {"latency_ms": RESIDUAL},
        "seen": {"operators": ["conv2d", "relu", "add"], "batch": [1, 64], "nodes": [1, 100]},
    }
    return {**document, **changes}


def predictor_of(document: dict[str, Any]) -> PmgnsPredictor:
    torch.manual_seed(0)
    network = Pmgns(PmgnsConfig.from_dict(document["network"]))
    return PmgnsPredictor.from_checkpoint(network.state_dict(), document)


@pytest.fixture
def conditions() -> Conditions:
    return Conditions(device=find("RTX 3090"), batch=2, precision="amp")


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_every_encoder_gives_one_row_per_graph(name: str, graph: ModelGraph) -> None:
    network = Pmgns(PmgnsConfig(gnn=name, hidden=16)).eval()
    alone = network(encode(graph))
    together = network(collate([encode(graph)] * 3))
    assert alone.shape == (1, 3)
    assert torch.allclose(together, alone.expand(3, 3), atol=1e-5)


def test_the_comparators_of_d35_exist() -> None:
    assert {"sage", "gcn", "gat", "gin", "mlp"} <= set(ENCODERS)
    with pytest.raises(UnknownNameError, match="sage"):
        find_encoder("sagee")


def test_the_network_has_the_size_of_the_released_one() -> None:
    parameters = sum(p.numel() for p in Pmgns(PmgnsConfig.variant("code")).parameters())
    assert parameters == pytest.approx(3.45e6, rel=0.1)


def test_graph_networks_see_the_edges_and_the_mlp_does_not(graph: ModelGraph) -> None:
    chain = replace(graph, edges=((0, 1), (1, 2), (2, 3)))
    for name in ENCODERS:
        torch.manual_seed(0)
        network = Pmgns(PmgnsConfig(gnn=name, hidden=16)).eval()
        same = torch.equal(network(encode(graph)), network(encode(chain)))
        assert same == (name == "mlp"), name


def test_scales_travel_with_the_weights(graph: ModelGraph) -> None:
    tensors, targets = collate([encode(graph)] * 2), torch.tensor([[float("nan"), 5.0, 1.0]] * 2)
    network = Pmgns(PmgnsConfig(hidden=16)).eval()
    network.fit_scales(tensors, targets)
    other = Pmgns(PmgnsConfig(hidden=16)).eval()
    other.load_state_dict(network.state_dict())
    assert other.target_mean[1] == pytest.approx(torch.tensor(5.0).log())
    assert torch.equal(network.decode(network(tensors)), other.decode(other(tensors)))


def test_a_missing_label_has_no_part_in_the_loss() -> None:
    network = Pmgns(PmgnsConfig(hidden=16))
    out = torch.zeros(2, 3, requires_grad=True)
    network.loss(out, torch.tensor([[float("nan"), 3.0, float("nan")]] * 2)).backward()
    assert out.grad is not None
    assert out.grad[:, [0, 2]].eq(0).all()
    assert out.grad[:, 1].ne(0).all()


@pytest.mark.parametrize("variant", ["paper", "code"])
@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_each_variant_learns_a_label(variant: Any, loss: str, graph: ModelGraph) -> None:
    torch.manual_seed(0)
    settings = PmgnsConfig.variant(variant, hidden=32, loss=loss)
    network = Pmgns(settings)
    tensors, targets = network_inputs(graph, settings), torch.tensor([[800.0, 0.5, 1.0]])
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    first = network.loss(network(tensors), targets)
    for _ in range(60):
        optimizer.zero_grad()
        network.loss(network(tensors), targets).backward()
        optimizer.step()
    assert network.loss(network(tensors), targets) < first / 2


def test_the_code_variant_is_what_the_released_code_sees(graph: ModelGraph) -> None:
    tensors = network_inputs(graph, PmgnsConfig.variant("code"))
    assert tensors.x.shape[0] == 2, "relu and add read no weight"
    assert tensors.edge_index.tolist() == [[0], [1]]
    assert tensors.x[1, 26:].expm1().tolist() == pytest.approx([8, 8, 3, 3, 0, 0], rel=1e-4)


def test_data_flow_goes_through_dropped_operators(graph: ModelGraph) -> None:
    tail = replace(graph, nodes=(*graph.nodes, conv()), edges=(*graph.edges, (3, 4)))
    tensors = network_inputs(tail, PmgnsConfig(nodes="var_only"))
    assert tensors.edge_index.T.tolist() == [[0, 1], [0, 2], [1, 2]]


def test_the_paper_variant_changes_nothing(graph: ModelGraph) -> None:
    tensors = network_inputs(graph, PmgnsConfig.variant("paper"))
    assert torch.equal(tensors.x, encode(graph).x)
    assert torch.equal(tensors.edge_index, encode(graph).edge_index)


def test_a_configuration_survives_json(graph: ModelGraph) -> None:
    settings = PmgnsConfig.variant("code", gnn="gat")
    assert PmgnsConfig.from_dict(settings.to_dict()) == settings
    with pytest.raises(CheckpointError, match="nonsense"):
        PmgnsConfig.from_dict({**settings.to_dict(), "nonsense": 1})


def test_it_is_registered() -> None:
    assert PREDICTORS["pmgns"] is PmgnsPredictor


def test_an_answer_has_an_interval_and_says_what_is_missing(
    graph: ModelGraph, conditions: Conditions
) -> None:
    estimates = predictor_of(config()).predict(graph, conditions)
    assert set(estimates.values) == {"latency_ms"}
    assert set(estimates.absent) == {"memory_mb", "power_w", "energy_j"}
    assert all(estimates.absent.values())
    latency = estimates.values["latency_ms"]
    assert 0 < latency.interval.low < latency.value < latency.interval.high
    assert latency.interval.coverage == 0.9
    assert estimates.memory_bound_mb is None
    assert estimates.warnings == ()


def test_memory_comes_with_its_upper_bound(graph: ModelGraph, conditions: Conditions) -> None:
    document = config(residuals={"latency_ms": RESIDUAL, "memory_mb": RESIDUAL})
    estimates = predictor_of(document).predict(graph, conditions)
    bound, memory = estimates.memory_bound_mb, estimates.values["memory_mb"]
    assert bound is not None
    assert bound > memory.interval.high


@pytest.mark.parametrize(
    "change",
    [
        {"device": find("H100")},
        {"precision": "fp32"},
        {"mode": "compiled"},
        {"timer": "kernel"},
        {"channels_last": True},
        {"attention": "unfused"},
    ],
)
def test_it_refuses_what_it_was_not_trained_for(
    graph: ModelGraph, conditions: Conditions, change: dict[str, Any]
) -> None:
    with pytest.raises(ConditionsError) as caught:
        predictor_of(config()).predict(graph, replace(conditions, **change))
    assert "hybrid" in caught.value.hint


def test_it_refuses_a_slice(graph: ModelGraph) -> None:
    a100 = find("A100")
    document = config()
    document["conditions"]["devices"] = [a100.name]
    sliced = Conditions(device=a100, batch=2, precision="amp", mig=a100.mig_profiles[0])
    with pytest.raises(ConditionsError, match="slice"):
        predictor_of(document).predict(graph, sliced)


def test_it_warns_of_the_unfamiliar(graph: ModelGraph, conditions: Conditions) -> None:
    seen = {"operators": ["conv2d", "relu"], "batch": [8, 64], "nodes": [1, 100]}
    operators, batch = predictor_of(config(seen=seen)).predict(graph, conditions).warnings
    assert "add" in operators
    assert "batch is 2" in batch


@pytest.mark.parametrize("version", [{"feature_version": "0"}, {"graph_version": "0"}])
def test_other_versions_are_refused(
    graph: ModelGraph, conditions: Conditions, version: dict[str, str]
) -> None:
    with pytest.raises(CheckpointError, match="version"):
        predictor_of(config(**version)).predict(graph, conditions)


def test_tensors_that_do_not_fit_are_refused() -> None:
    document = config()
    other = Pmgns(PmgnsConfig(hidden=8)).state_dict()
    with pytest.raises(CheckpointError, match="do not fit"):
        PmgnsPredictor.from_checkpoint(other, document)


def test_many_points_equal_single_points(graph: ModelGraph, conditions: Conditions) -> None:
    predictor = predictor_of(config())
    points = [replace(conditions, batch=batch) for batch in (2, 16, 2)]
    many = predictor.predict_many(graph, points)
    assert many[0].values == many[2].values
    single = predictor.predict(graph, points[1]).values["latency_ms"].value
    assert many[1].values["latency_ms"].value == pytest.approx(single, rel=1e-5)
    assert single != many[0].values["latency_ms"].value
    assert predictor.predict_many(graph, []) == []


def test_many_graphs_in_pieces_are_the_graphs_one_by_one(graph: ModelGraph) -> None:
    predictor = predictor_of(config())
    tensors = [encode(graph.at_batch(batch)) for batch in (1, 2, 4, 8, 16)]
    alone = torch.cat([predictor.estimate(one) for one in tensors])
    for nodes_at_once in (1, 9, 1000):
        many = predictor.estimate_many(tensors, nodes_at_once=nodes_at_once)
        assert torch.allclose(many, alone, rtol=1e-4)
    assert predictor.estimate_many([]).shape == (0, 3)


def test_estimates_can_be_differentiated_in_their_inputs(graph: ModelGraph) -> None:
    tensors = encode(graph)
    tensors.x.requires_grad_()
    tensors.static.requires_grad_()
    predictor_of(config()).estimate(tensors)[:, 1].log().sum().backward()
    assert tensors.x.grad is not None
    assert tensors.static.grad is not None
    assert tensors.x.grad.abs().sum() > 0
    assert tensors.static.grad.abs().sum() > 0


def test_a_network_of_passes_with_autograd_answers_for_those_alone(graph: ModelGraph) -> None:
    trained = {**config()["conditions"], "devices": ["A100-40GB"], "precision": ["fp32"]}
    predictor = predictor_of(config(conditions={**trained, "autograd": [True]}))
    asked = Conditions(device=find("A100-40GB"), batch=2, autograd=True)
    assert "latency_ms" in predictor.predict(graph, asked).values
    with pytest.raises(ConditionsError, match="with autograd") as caught:
        predictor.predict(graph, replace(asked, autograd=False))
    assert "autograd=True" in caught.value.hint
    with pytest.raises(ConditionsError, match="without autograd"):
        predictor_of(config(conditions=trained)).predict(graph, asked)
