"""Memory in two parts: what the allocator takes, and the context of the installation."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
import torch

import dippm
from dippm.devices import find
from dippm.errors import CheckpointError, ConditionsError
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.hybrid import Z90, Z99, Hybrid
from dippm.estimate.models.memory import GIVEN_LOG_ERROR, MIB, MemoryGpu, MemoryModel
from dippm.estimate.models.phases import AUTOGRAD_TIME
from dippm.estimate.models.training_memory import AutogradFootprint
from dippm.estimate.place import MAX_CONTEXT_MB, SOFTWARE_CLASSES, context_of
from dippm.estimate.prediction import Prediction, Provenance
from tests.unit.models.test_footprint import recorded
from tests.unit.models.test_hybrid import LOG_SLOWDOWN, conditions, known_law, perceptron, predictor

OLD = {
    "context_mb": 1000.0,
    "context_mb_per_sm": 4.0,
    "convolution_mb": 200.0,
    "log_error": 0.07,
}
NEW: dict[str, Any] = {
    **OLD,
    "log_error": 0.12,
    "software": {"cuda-10": 600.0, "cuda-11": 1000.0, "lazy": 50.0},
    "default": "cuda-11",
    "class_sd_mb": 120.0,
    "unknown_sd_mb": 320.0,
}
CNN, TRANSFORMER = "timm:regnetx_002@224", "transformers:bert@256"


def hybrid(memory: dict[str, Any]) -> Hybrid:
    config = {**predictor().config, "memory": memory}
    return Hybrid.from_checkpoint(known_law(LOG_SLOWDOWN), config)


def answered(model: Hybrid, graph: Any, asked: Conditions) -> Prediction:
    made_by = Provenance("toy", "toy 1", "hybrid", "", graph.version, "0")
    return Prediction.of(model.predict(graph, asked), graph, conditions=asked, provenance=made_by)


def test_a_checkpoint_without_classes_answers_as_before() -> None:
    graph, c = recorded(CNN), conditions(8)
    answer = hybrid(OLD).predict(graph, c)
    memory, parts = answer.values["memory_mb"], answer.memory_parts
    assert parts is not None
    assert parts.context_mb == 1000.0 + 4.0 * 108 + 200.0
    assert memory.interval.high == pytest.approx(memory.value * exp(Z90 * 0.07))
    assert answer.memory_bound_mb == pytest.approx(memory.value * exp(Z99 * 0.07))
    assert (parts.context_software, parts.context_sd_mb) == ("that of the checkpoint", None)
    assert not any("context" in warning for warning in answer.warnings)
    given = hybrid(OLD).predict(graph, conditions(8, context_mb=1500)).memory_parts
    assert given is not None
    assert given.context_mb == 1500.0


def test_the_context_is_that_of_the_software_and_of_no_model() -> None:
    """It hangs on the GPU, on the class of software and on whether anything is convolved."""
    model, found = hybrid(NEW), {}
    for spec in (CNN, TRANSFORMER):
        for batch in (1, 64):
            for asked in (None, *SOFTWARE_CLASSES, 700.0):
                c = conditions(batch, context_mb=asked)
                parts = model.predict(recorded(spec), c).memory_parts
                assert parts is not None
                found.setdefault((spec, asked), set()).add(parts.context_mb)
                named = asked if isinstance(asked, str) else "as given" if asked else "cuda-11"
                assert parts.context_software == named
                assert parts.context_assumed == (asked is None)
                spread = {None: 320.0, 700.0: GIVEN_LOG_ERROR * 700}.get(asked, 120.0)
                assert parts.context_sd_mb == pytest.approx(spread)
    rest = 4.0 * 108
    for asked, base in {None: 1000, "cuda-10": 600, "cuda-11": 1000, "lazy": 50}.items():
        assert found[TRANSFORMER, asked] == {base + rest}
        assert found[CNN, asked] == {base + rest + 200.0}
    assert found[TRANSFORMER, 700.0] == found[CNN, 700.0] == {700.0}


def test_the_reserved_part_is_that_of_the_model_and_of_no_software() -> None:
    model = hybrid(NEW)
    for spec in (CNN, TRANSFORMER):
        parts = [
            model.predict(recorded(spec), conditions(4, device=gpu, context_mb=asked)).memory_parts
            for gpu in ("A100-40GB", "T4")
            for asked in (None, "lazy", 2141)
        ]
        assert len({round(part.reserved_mb, 6) for part in parts if part is not None}) == 1


def test_a_gpu_that_no_older_software_drives_has_the_context_of_the_newest() -> None:
    model, graph = hybrid(NEW), recorded(CNN)
    for gpu in ("RTX-4090", "L4", "H100", "H200", "RTX-5090", "B200"):
        parts = model.predict(graph, conditions(4, device=gpu)).memory_parts
        assert parts is not None
        assert (parts.context_software, parts.context_assumed) == ("lazy", True)
        assert parts.context_sd_mb == pytest.approx(120.0)
        older = model.predict(graph, conditions(4, device=gpu, context_mb="cuda-11")).memory_parts
        assert older is not None
        assert (older.context_software, older.context_assumed) == ("cuda-11", False)
    for gpu in ("A100-40GB", "RTX-3090", "T4", "V100-16GB"):
        parts = model.predict(graph, conditions(4, device=gpu)).memory_parts
        assert parts is not None
        assert parts.context_software == "cuda-11"


def test_products_have_a_larger_workspace_on_hopper_and_blackwell_of_data_centres() -> None:
    model, graph = hybrid(NEW), recorded(CNN)
    reserved = {}
    for gpu in ("A100-40GB", "RTX-4090", "RTX-5090", "H100", "H200", "B200"):
        parts = model.predict(graph, conditions(4, device=gpu)).memory_parts
        assert parts is not None
        reserved[gpu] = parts.reserved_mb
    plain, large = 8_519_680 / MIB, 32.0
    for gpu in ("RTX-4090", "RTX-5090"):
        assert reserved[gpu] == pytest.approx(reserved["A100-40GB"])
    for gpu in ("H100", "H200", "B200"):
        assert reserved[gpu] - reserved["A100-40GB"] == pytest.approx(large - plain)


def test_what_is_not_known_of_the_context_is_in_interval_and_bound() -> None:
    model, graph = hybrid(NEW), recorded(CNN)
    widths, bounds = [], []
    for asked in (None, "cuda-11", 1632.0):  # the same context, known better and better
        answer = model.predict(graph, conditions(8, context_mb=asked))
        memory = answer.values["memory_mb"]
        assert memory.value == pytest.approx(1632.0 + _reserved(answer))
        widths.append(memory.interval.high / memory.interval.low)
        assert answer.memory_bound_mb is not None
        bounds.append(answer.memory_bound_mb)
        alone = model.memory_bound_mb(graph, conditions(8, context_mb=asked))
        assert alone == pytest.approx(answer.memory_bound_mb)
    assert sorted(widths, reverse=True) == widths
    assert sorted(bounds, reverse=True) == bounds
    assert bounds[0] > 1632.0 + Z99 * 320.0


def _reserved(answer: Any) -> float:
    return float(answer.memory_parts.reserved_mb)


def test_the_bound_on_a_slice_is_that_of_the_whole_gpu_unless_the_context_is_given() -> None:
    model, graph = hybrid(NEW), recorded(CNN)
    profile = find("A100-40GB").mig_profiles[0]
    for asked in (None, "lazy", 900.0):
        whole, sliced = (
            model.predict(graph, conditions(8, context_mb=asked, mig=mig))
            for mig in (None, profile)
        )
        assert whole.memory_bound_mb == sliced.memory_bound_mb
        smaller = sliced.values["memory_mb"].value < whole.values["memory_mb"].value
        assert smaller == (asked != 900.0)


def test_an_answer_says_that_a_context_was_assumed() -> None:
    model = hybrid(NEW)
    small = answered(model, recorded(CNN), conditions(1))
    (warning,) = (w for w in small.warnings if "context" in w)
    assert "cuda-11" in warning
    assert "--context-mb" in warning
    assert "(cuda-11, assumed)" in str(small)
    named = answered(model, recorded(CNN), conditions(1, context_mb="cuda-11"))
    assert not any("context" in w for w in named.warnings)
    assert "(cuda-11)" in str(named)
    document = named.to_dict()
    assert document["conditions"]["context_mb"] == "cuda-11"
    assert document["memory_parts"]["context_software"] == "cuda-11"


def test_a_class_that_a_checkpoint_does_not_know_is_an_error_with_the_way_out() -> None:
    with pytest.raises(ConditionsError, match="class lazy") as error:
        predictor().predict(perceptron(), conditions(context_mb="lazy"))
    assert "context_mb=" in error.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        {"software": {"cuda-12": 1.0}},
        {"software": {"cuda-11": float("nan")}},
        {"software": {"cuda-11": -1.0}},
        {"software": {}},
        {"default": "lazy", "software": {"cuda-11": 1.0}},
        {"unknown_sd_mb": -1.0},
        {"class_sd_mb": "many"},
        {"more": 1.0},
    ],
)
def test_a_damaged_memory_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="memory"):
        hybrid({**NEW, **wrong})


CONTEXTS = {
    **{1800: 1800.0, "1800": 1800.0, " 1800 MiB ": 1800.0, "1.8e3mb": 1800.0, 0: 0.0},
    **{"LAZY": "lazy", " cuda-11 ": "cuda-11", MAX_CONTEXT_MB: MAX_CONTEXT_MB},
}
NO_CONTEXTS = [
    *(True, -1, float("nan"), float("inf"), "nan", "inf", "-3", "1_000", "", "cuda-12", "lasy"),
    *("１８００", "x" * 10**6, 10**5000, 1e7, b"1", [1], 1 + 2j, "1800 GB", "\x1b[31m"),
]


def test_contexts_are_numbers_of_mib_or_classes() -> None:
    assert {given: context_of(given) for given in CONTEXTS} == CONTEXTS
    for wrong in NO_CONTEXTS:
        with pytest.raises(ConditionsError, match="context_mb") as error:
            conditions(context_mb=wrong)
        assert "dippm doctor" in error.value.hint
        assert len(error.value.message) < 300
        assert "\x1b" not in error.value.message
    with pytest.raises(ConditionsError) as error:
        conditions(context_mb="lasy")
    assert "Did you mean lazy?" in error.value.hint


@pytest.mark.parametrize("precision", ["fp32", "fp16", "amp"])
def test_autograd_needs_no_less_at_any_batch(precision: Any) -> None:
    for spec in (CNN, TRANSFORMER, "torchvision:vgg13_bn@224"):
        graph = recorded(spec)
        footprint = AutogradFootprint.of(graph, precision)
        before = 0.0
        for batch in (1, 2, 7, 64, 512):
            forward, kept = footprint.inference.usage(batch), footprint.usage(batch)
            assert kept.reserved_bytes >= forward.reserved_bytes
            assert kept.weight_bytes == forward.weight_bytes
            assert kept.reserved_mb >= before
            before = kept.reserved_mb
        assert kept.reserved_bytes > 1.4 * forward.reserved_bytes
        assert kept.kept_bytes == kept.reserved_bytes - forward.reserved_bytes


def test_a_fixed_batch_keeps_what_the_same_batch_of_a_free_one_keeps() -> None:
    free = perceptron()
    fixed = perceptron(symbolic=False, batch=64)
    first, second = (AutogradFootprint.of(graph).usage(64) for graph in (free, fixed))
    assert first.reserved_bytes == second.reserved_bytes
    assert first.alive == second.alive


class Net(torch.nn.Module):
    """Layers that keep their argument, their result, statistics or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32)
        self.second, self.last = torch.nn.Conv2d(32, 32, 3), torch.nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.first(x)))
        y = torch.sigmoid(self.second(y)).mean((2, 3))
        return self.last(y)


def test_autograd_keeps_what_torch_keeps() -> None:
    net, batch = Net().eval(), 16
    own = {p.untyped_storage().data_ptr() for p in (*net.parameters(), *net.buffers())}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = net(torch.zeros(batch, 3, 64, 64))
    assert result.requires_grad
    torch_bytes = sum(storage.nbytes() for storage in saved.values())
    kept = AutogradFootprint.of(dippm.read_graph(net, input=(3, 64, 64)))
    assert kept.sizes(batch).sum() == pytest.approx(torch_bytes, rel=0.001)


def test_autograd_is_predicted_with_what_it_does_not_say() -> None:
    model, graph = hybrid(NEW), recorded(CNN)
    without, under = (answered(model, graph, conditions(64, autograd=a)) for a in (False, True))
    assert under.memory_mb > without.memory_mb  # type: ignore[operator]
    assert under.memory_bound_mb > without.memory_bound_mb  # type: ignore[operator]
    assert under.latency_ms == without.latency_ms
    assert AUTOGRAD_TIME in under.warnings
    assert AUTOGRAD_TIME not in without.warnings
    assert under.title.endswith(" · autograd")
    assert "saved activations" in str(under)
    assert "peak at the end of the forward pass" in str(under)
    assert under.to_dict()["conditions"]["autograd"] is True
    (point,) = model.predict_many(graph, [conditions(64, autograd=True)])
    assert point.values["memory_mb"].value == under.memory_mb


def test_forgetting_no_grad_is_told_where_it_changes_the_slice() -> None:
    model, graph = hybrid(NEW), recorded(CNN)
    told = {}
    for batch in (1, 16, 64, 256, 1024):
        without, under = (
            answered(model, graph, conditions(batch, autograd=a, context_mb="lazy"))
            for a in (False, True)
        )
        notes = [w for w in without.warnings if "no_grad" in w]
        differs = (without.mig, without.fits) != (under.mig, under.fits)
        assert bool(notes) == (differs and bool(without.fits))
        told[batch] = notes[0] if notes else ""
    assert not told[1]
    assert any("1g.10gb" in note or "2g.10gb" in note for note in told.values())
    on_slice = conditions(256, context_mb="lazy", mig=find("A100-40GB").mig_profiles[0])
    (note,) = (w for w in model.predict(graph, on_slice).warnings if "no_grad" in w)
    assert "more than 1g.5gb has" in note
    compiled = conditions(256, context_mb="lazy", mode="compiled")
    assert not any("no_grad" in w for w in model.predict(graph, compiled).warnings)


@pytest.mark.parametrize("asked", [{"mode": "compiled"}, {"phase": "train"}])
def test_autograd_of_anything_but_an_eager_forward_pass_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ConditionsError, match="eager forward pass"):
        conditions(autograd=True, **asked)


def test_memory_of_weights_alone_has_no_negative_part() -> None:
    usage = AutogradFootprint.of(perceptron()).usage(1)
    model = MemoryModel.from_config(NEW)
    parts = model.parts(usage, perceptron(), MemoryGpu(), 0)
    assert parts.context_mb == 0.0
    assert parts.workspace_mb >= 0.0
    assert model.log_sd(usage, MemoryGpu(), 0) > 0.0
    assert parts.reserved_mb == pytest.approx(usage.reserved_mb)
    assert parts.weights_mb == pytest.approx(3 * 4096 * 4096 * 4 / MIB)
