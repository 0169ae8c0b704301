from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dippm.estimate.features import GraphTensors
from dippm.estimate.models.pmgns_network import Pmgns, PmgnsConfig
from training.pmgns.lr_finder import find_learning_rate
from training.pmgns.trainer import STATE, Part, TrainingConfig, find_rate, mape, train

CONFIG = TrainingConfig(epochs=4, batch_size=4, learning_rate=1e-3, bfloat16=False)


@pytest.fixture(scope="module")
def part() -> Part:
    """Chains whose latency is their number of nodes."""
    graphs, targets = [], []
    for nodes in range(4, 20):
        order = torch.arange(nodes)
        edges = torch.stack([order[:-1], order[1:]])
        static = torch.tensor([[1e6 * nodes, 8.0, nodes, 1.0, 0.0]])
        graphs.append(GraphTensors(torch.ones(nodes, 32), edges, static, torch.zeros_like(order)))
        targets.append([float("nan"), float(nodes), float("nan")])
    return graphs, torch.tensor(targets)


def network() -> Pmgns:
    torch.manual_seed(0)
    return Pmgns(PmgnsConfig(hidden=8))


def test_training_learns_and_logs(part: Part, tmp_path: Path) -> None:
    fresh = network()
    fresh.fit_scales(*_collated(part))
    before = mape(fresh, part)
    done = train(network(), part, part, replace(CONFIG, epochs=30), folder=tmp_path)
    assert mape(done.network, part) < before
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 31
    assert done.best_epoch == min(done.log, key=lambda r: r["validation_mape"])["epoch"]


def test_an_interrupted_run_ends_like_one_that_was_not(part: Part, tmp_path: Path) -> None:
    whole = train(network(), part, part, CONFIG, folder=tmp_path / "whole")
    cut = tmp_path / "cut"
    train(network(), part, part, replace(CONFIG, epochs=2), folder=cut)
    last_of_cut = cut / "last.safetensors"
    with safe_open(last_of_cut, "pt") as file:
        state = json.loads(file.metadata()[STATE])
    state["training"]["epochs"] = CONFIG.epochs
    save_file(load_file(last_of_cut), last_of_cut, {STATE: json.dumps(state)})
    torch.manual_seed(7)
    resumed = train(Pmgns(PmgnsConfig(hidden=8)), part, part, CONFIG, folder=cut)
    assert resumed.log == whole.log
    last = [load_file(tmp_path / name / "last.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])


def test_another_configuration_starts_afresh(part: Part, tmp_path: Path) -> None:
    train(network(), part, part, CONFIG, folder=tmp_path)
    done = train(network(), part, part, replace(CONFIG, learning_rate=1e-4), folder=tmp_path)
    assert done.learning_rate == 1e-4
    assert len(done.log) == CONFIG.epochs


def test_other_data_starts_afresh(part: Part, tmp_path: Path) -> None:
    """A run on one split must not go on with another: its test part may have been trained on."""
    train(network(), part, part, CONFIG, folder=tmp_path)
    log = (tmp_path / "log.csv").read_text()
    graphs, targets = part
    train(network(), (graphs[:-2], targets[:-2]), part, CONFIG, folder=tmp_path)
    assert (tmp_path / "log.csv").read_text() != log


def test_it_stops_when_validation_no_longer_improves(part: Part, tmp_path: Path) -> None:
    still = replace(CONFIG, epochs=50, learning_rate=1e-12, patience=3)
    assert len(train(network(), part, part, still, folder=tmp_path).log) < 50


def test_the_range_test_leaves_the_network_alone(part: Part) -> None:
    fresh = network()
    fresh.fit_scales(*_collated(part))
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    found = find_rate(fresh, part, CONFIG)
    assert all(torch.equal(before[n], value) for n, value in fresh.state_dict().items())
    assert list(found.rates) == sorted(found.rates)
    assert 1e-6 < found.suggestion < 0.3


def test_the_range_test_lies_below_the_explosion() -> None:
    """A parabola diverges for any optimiser once its steps exceed its width."""

    class Parabola(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = torch.nn.Parameter(torch.tensor([1.0]))

    found = find_learning_rate(
        Parabola(), iter(range(1000)), lambda net, _: net.x.square().sum() + 1, high=1e4
    )
    assert found.rates[-1] < 1e4
    assert found.suggestion < found.rates[-1] / 10


def _collated(part: Part) -> tuple[GraphTensors, torch.Tensor]:
    from dippm.estimate.features import collate

    return collate(part[0]), part[1]
