"""Workloads of the families as graphs: they convert, and their totals are torch's own."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dataset.families import costs, registry
from dataset.families.family import Family, Workload
from dataset.join import raw_graphs
from dataset.join.grouping import architecture_id, family_of
from dippm.model.graph import ModelGraph, build

QUICK = ("resnet", "swin", "text_decoder", "physics_rnn", "weather_unet", "diffusion_unet")


def graph_of(workload: Workload) -> ModelGraph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build(raw_graphs.convert(workload.model)).at_batch(1)


def counted_macs(workload: Workload, module: torch.nn.Module) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*registry.make_inputs(workload, 1, "meta"))
    return counter.get_total_flops() // 2


def weight_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of weights, statistics of batch norms and masks: all that is read."""
    tensors = [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]
    return sum(tensor.nbytes for tensor in tensors)


def members(family: Family) -> tuple[Workload, Workload]:
    """Return two workloads far apart, the second not at its usual size; none is deep."""
    every = list(costs.workloads(family))
    most = max(150, 1.5 * min(costs.cost(w).operators for w in every))
    shallow = [w for w in every if costs.cost(w).operators <= most]
    return shallow[0], shallow[-1]


def check(family: Family) -> None:
    for workload in members(family):
        graph, module = graph_of(workload), registry.build(workload, "meta")
        assert not graph.unknown_ops
        assert graph.macs == counted_macs(workload, module)
        assert graph.param_bytes == weight_bytes(module)
        assert family_of(workload.model) == family.name


@pytest.mark.parametrize("name", QUICK)
def test_a_family_converts(name: str):
    check(registry.FAMILIES[name])


@pytest.mark.nightly(part="zoo")
@pytest.mark.parametrize("name", [n for n in registry.FAMILIES if n not in QUICK])
def test_every_other_family_converts(name: str):
    check(registry.FAMILIES[name])


@pytest.mark.nightly(part="zoo")
@pytest.mark.parametrize("name", registry.OPERATORS)
def test_every_kind_of_operator_converts(name: str):
    every = list(costs.workloads(registry.OPERATORS[name]))
    for workload in (every[0], every[-1]):
        graph = graph_of(workload)
        assert not graph.unknown_ops
        assert graph.macs == counted_macs(workload, registry.build(workload, "meta"))


def test_sizes_do_not_change_the_architecture_but_parameters_do():
    family = registry.FAMILIES["poolformer"]
    first, second = family.grid()[4:6]
    sizes = family.sizes(first)
    ids = [
        architecture_id(graph_of(Workload(family.name, parameters, size)))
        for parameters, size in ((first, sizes[0]), (first, sizes[1]), (second, sizes[0]))
    ]
    assert ids[0] == ids[1]
    assert ids[0] != ids[2]


def test_long_names_have_short_files(tmp_path: Path):
    spec = "own:resnet(" + ",".join(f"option{i}=value" for i in range(30)) + ")@224x224"
    path, other = raw_graphs.path_of(spec, tmp_path), raw_graphs.path_of(spec + "1", tmp_path)
    assert path != other
    assert len(path.name.encode()) < 255
    assert raw_graphs.path_of("own:vit(depth=2)@64x64", tmp_path).name.startswith("own.vit(")


@pytest.mark.nightly(part="zoo")
def test_a_workload_goes_through_its_file(tmp_path: Path):
    workload = members(registry.FAMILIES["tabular_mlp"])[0]
    done = list(raw_graphs.build([workload.model], tmp_path, workers=1))
    assert not done[0].error
    assert build(raw_graphs.read(workload.model, tmp_path)).nodes
