from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from dataset.families import costs, registry
from dataset.families.family import Family, Workload
from dataset.plan import calibration
from dippm.errors import UnknownNameError
from dippm.measure.protocol import Regime
from dippm.measure.regimes import prepare_step
from tests.samples import sampled

EVERY = pytest.mark.parametrize("family", registry.FAMILIES.values(), ids=registry.FAMILIES)
BY_TURNS = pytest.mark.parametrize(
    "family",
    sampled(registry.FAMILIES.values(), pytest.mark.nightly(part="answers")),
    ids=registry.FAMILIES,
)


def smallest(family: Family) -> Workload:
    return min(costs.workloads(family), key=lambda w: costs.cost(w).gmacs)


@BY_TURNS
def test_the_smallest_member_runs_and_trains(family: Family):
    workload = smallest(family)
    module = registry.build(workload, "cpu")
    assert not module.training
    inputs = registry.make_inputs(workload, 2, "cpu")
    with torch.inference_mode():
        outputs = module(*inputs)
    assert outputs.isfinite().all()
    assert outputs.std() > 1e-4
    assert outputs.shape[0] == 2
    loss = module.train()(*inputs).square().mean()
    loss.backward()
    unused = [n for n, p in module.named_parameters() if p.grad is None]
    assert not unused


@BY_TURNS
def test_the_smallest_member_runs_under_other_regimes(family: Family):
    """Constants that a network makes on the way must follow the precision of its weights."""
    workload, device = smallest(family), torch.device("cpu")
    for precision, phase in (("bf16", "inference"), ("amp-bf16", "train")):
        regime = Regime(precision=precision, phase=phase, channels_last=family.images)
        module = registry.build(workload, device)
        inputs = registry.make_inputs(workload, 2, device)
        with prepare_step(module, inputs, regime, device=device) as step:
            step()
        assert all(p.isfinite().all() for p in module.parameters())


@EVERY
def test_members_are_distinct_and_names_are_read_back(family: Family):
    members = family.grid()
    assert len({Workload(family.name, p, ()).architecture for p in members}) == len(members)
    assert len({frozenset(p) for p in members}) <= 3
    for workload in costs.workloads(family):
        assert Workload.parse(workload.model) == workload
        assert len(workload.model) < 200
    for parameters in members:
        sizes = list(family.sizes(parameters))
        assert sizes
        assert len(set(sizes)) == len(sizes)


def test_a_model_of_a_zoo_goes_by_the_name_that_it_has_there():
    workload = Workload("timm", {"name": "vit_base_patch16_224"}, (224,))
    assert workload.model == "timm:vit_base_patch16_224@224"
    assert Workload.parse(workload.model) == workload
    assert workload.architecture == "timm:vit_base_patch16_224"
    with pytest.raises(ValueError, match="is not 'own:family"):
        Workload.parse("zoo:resnet50@224")


@pytest.mark.skipif(find_spec("timm") is None, reason="needs the timm extra")
def test_a_model_of_a_zoo_runs_at_its_size():
    workload = Workload("timm", {"name": "mnasnet_100"}, (224,))
    module = registry.build(workload, "cpu")
    with torch.inference_mode():
        assert module(*registry.make_inputs(workload, 1, "cpu")).shape == (1, 1000)


def test_the_table_of_costs_is_complete_and_true():
    families = {**registry.FAMILIES, **registry.OPERATORS, **registry.ZOO}
    listed = {w.model for family in families.values() for w in costs.workloads(family)}
    assert listed == costs.table().keys()
    for family in list(registry.FAMILIES.values())[::5]:
        workload = smallest(family)
        assert costs.count(workload) == costs.cost(workload)


def test_attention_and_recurrence_are_counted_as_a_gpu_runs_them():
    attention = {"heads": 2, "size": 512, "causal": False}
    cost = costs.count(Workload("attention", attention, (1024, 1024)))
    assert cost.operators == 1
    assert cost.written_mb == 2 * 1024 * 512 * 4 / costs.MIB  # no matrix of scores
    assert cost.gmacs == pytest.approx(2 * 2 * 1024 * 1024 * 512 / 1e9, abs=1e-6)
    layers = {"cell": "lstm", "width": 16, "depth": 2, "bidirectional": True}
    cost = costs.count(Workload("recurrent", layers, (10, 16)))
    assert 2 * 4 * 10 <= cost.operators <= 2 * 4 * 10 + 3


@pytest.mark.parametrize("name", registry.OPERATORS)
def test_the_smallest_operator_runs(name: str):
    jobs = [j for j in calibration.operator_pack() if j.workload.family == name]

    def elements(job) -> int:
        inputs = registry.make_inputs(job.workload, job.points[0].batch, "meta")
        return sum(x.numel() for x in inputs)

    job = min(jobs, key=elements)
    inputs = registry.make_inputs(job.workload, job.points[0].batch, "cpu")
    with torch.inference_mode():
        assert registry.build(job.workload, "cpu")(*inputs).isfinite().all()


def test_every_operator_accepts_its_inputs():
    for workload in {
        job.workload.model: job.workload for job in calibration.operator_pack()
    }.values():
        if workload.family != "recurrent":  # on the meta device its steps are taken one by one
            inputs = registry.make_inputs(workload, 1, "meta")
            assert registry.build(workload, "meta")(*inputs).shape


@pytest.mark.parametrize("name", registry.OPERATORS)
def test_an_operator_has_a_gradient_in_training(name: str):
    steps = [j for j in calibration.operator_pack() if j.points[0].phase == "train"]
    job = min(
        (j for j in steps if j.workload.family == name),
        key=lambda j: j.points[0].batch * costs.cost(j.workload).written_mb,
    )
    module = registry.build(job.workload, "cpu").train()
    inputs = registry.make_inputs(job.workload, job.points[0].batch, "cpu")
    floats = [x.requires_grad_() for x in inputs if x.is_floating_point()]  # as the collector does
    module(*inputs).square().mean().backward()
    learned = [*module.parameters(), *floats]
    assert learned
    assert all(tensor.grad is not None for tensor in learned)


BARE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import torch
from dataset.plan import queue
from dataset.families import registry
job = next(j for j in queue.plan() if j.workload.family == "swin")
module = registry.build(job.workload, "cpu")
with torch.inference_mode():
    print(tuple(module(*registry.make_inputs(job.workload, 1, "cpu")).shape))
"""


def test_a_bare_machine_can_build():
    absent = "tvm pandas pyarrow rich typer pydantic psutil onnx networkx torchvision timm".split()
    done = subprocess.run(
        [sys.executable, "-c", BARE.format(absent=absent)], capture_output=True, text=True
    )
    assert done.stdout.strip() == "(1, 1000)", done.stderr


def test_weights_are_spread_and_norms_neutral():
    module = registry.build(smallest(registry.FAMILIES["resnet"]), "cpu")
    for name, tensor in module.state_dict().items():
        assert tensor.isfinite().all()
        if name.endswith("running_var"):
            assert (tensor == 1).all()
        if tensor.ndim > 1:
            assert tensor.std() > 0


def test_an_unknown_family_is_an_error_with_a_hint():
    with pytest.raises(UnknownNameError, match="resnet"):
        registry.family("resnett")
