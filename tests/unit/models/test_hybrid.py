"""The gray-box predictor with a network of known answer: each kernel takes e^0.5 × roofline."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dataset.measured.nodes import GraphBuilder
from dippm.devices import Calibration, Device, find
from dippm.errors import CheckpointError, ConditionsError
from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import DeviceView, roofline_ms
from dippm.estimate.features.kernel_table import KernelGraph, KernelTable
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.intervals import FEATURES as INTERVAL_FEATURES
from dippm.estimate.models.intervals import LEAST_NOVELTY, SEEN, UNSEEN
from dippm.estimate.models.kernel_law import Place
from dippm.estimate.models.kernel_network import ROUNDS, member_shapes
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.monotonic_bounds import HALF, WIDE
from dippm.estimate.models.novelty import TENSOR, MeasuredModels, shares_of
from dippm.estimate.models.targets import TARGETS
from dippm.estimate.prediction import Prediction, Provenance
from dippm.model.graph.model_graph import ModelGraph
from tests.unit.graph.sketch import Sketch

LOG_SLOWDOWN = 0.5
BATCH = 1009


def perceptron(*, symbolic: bool = True, batch: int = BATCH) -> ModelGraph:
    b = GraphBuilder(batch=batch)
    x: Any = b.input((batch, 4096))
    for _ in range(3):
        attributes = {"in_features": 4096, "out_features": 4096}
        x = b.add("dense", [x], (batch, 4096), attributes=attributes, weights=4096 * 4096)
        x = b.add("relu", [x], (batch, 4096))
    return b.graph(batch_is_symbolic=symbolic)


def gemm() -> ModelGraph:
    b = GraphBuilder(batch=BATCH)
    x: Any = b.input((BATCH, 4096))
    attributes = {"in_features": 4096, "out_features": 4096}
    b.add("dense", [x], (BATCH, 4096), attributes=attributes, weights=4096 * 4096)
    return b.graph(batch_is_symbolic=True)


def known_law(log_slowdown: float, tables: int = 0) -> dict[str, torch.Tensor]:
    """A network and trees that give every kernel the same, whatever the table."""
    shapes = member_shapes(1)
    tensors = {f"0.{name}": torch.zeros(shape) for name, shape in shapes.items()}
    tensors["0.heads"] = torch.zeros(tables, *shapes["enter.bias"])
    tensors["0.scale"] += 1.0
    tensors["0.static_scale"] += 1.0
    tensors["0.last.bias"] += log_slowdown
    leaf = {"roots": 0, "feature": -1, "threshold": 0.0, "left": 0, "value": 0.0}
    trees = {f"trees.{name}": torch.tensor([value]) for name, value in leaf.items()}
    trees["trees.classes"] = torch.full((len(KERNEL_CLASSES),), log_slowdown)
    return tensors | trees | {TENSOR: torch.eye(len(KERNEL_CLASSES), dtype=torch.float16)}


def predictor(launch_ms: float = 0.0, **law: Any) -> Hybrid:
    tensors = known_law(LOG_SLOWDOWN, len(law.get("tables", ())))
    config = {
        "law": {
            "members": 1,
            "network_weight": 0.5,
            "tree_depth": 1,
            "tree_reach": 1.5,
            "range": {name: [-1.5, 5.0] for name in KERNEL_CLASSES},
            "tables": [],
            "usual": {},
            **law,
        },
        "host": {"launch_ms": launch_ms, "copy_bytes_per_ms": 1e7},
        "memory": {
            "context_mb": 500.0,
            "context_mb_per_sm": 5.0,
            "convolution_mb": 200.0,
            "log_error": 0.1,
        },
        "power": {
            "floor": 0.3,
            "coefficients": [1.0, 1.0, 1.0, 0.5],
            "sharpness": 6.0,
            "log_error": 0.1,
        },
        "intervals": {
            "latency_ms": {
                "coefficients": [0.0] * len(INTERVAL_FEATURES),
                "quantile": {SEEN: 0.2, UNSEEN: 0.4},
            }
        },
        "seen": {
            "devices": {"A100-40GB": ["fp16", "fp32"]},
            "often": {WIDE: ["A100-40GB"], HALF: ["A100-40GB"]},
            "batch_range": [1, 256],
            "kernel_classes": list(KERNEL_CLASSES),
        },
    }
    return Hybrid.from_checkpoint(tensors, config)


def width(answer: Any) -> float:
    interval = answer.values["latency_ms"].interval
    return float(np.log(interval.high / interval.low))


def conditions(batch: int = 64, **given: Any) -> Conditions:
    return Conditions(device=find(given.pop("device", "A100-40GB")), batch=batch, **given)


def test_latency_is_the_sum_of_slowed_rooflines() -> None:
    graph = perceptron()
    table = KernelTable.of(graph, "fp16")
    expected = roofline_ms(table, 64, DeviceView.of(find("A100-40GB"))).sum()
    answer = predictor().predict(graph, conditions(precision="fp16"))
    assert answer.values["latency_ms"].value == pytest.approx(expected * math.exp(0.5), rel=1e-5)


USUAL = {
    "stacked": {"eager": {"gemm": 0.3}, "compiled": {"gemm": 0.2}},
    "board": {"eager": {"gemm": -0.4}},
    "any": {"eager": {"gemm": 0.1}},
}


@pytest.mark.parametrize(
    ("device", "mode", "added"),
    [
        (find("A100-40GB"), "eager", 0.7),
        (find("A100-40GB"), "compiled", 0.2),
        (find("H200"), "eager", 0.3),
        (find("L40S"), "eager", -0.4),
        (find("L40S"), "compiled", 0.0),
        (replace(find("L40S"), name="Mine", memory_type=None), "eager", 0.1),
        (replace(find("L40S"), name="Mine", memory_type="LPDDR5X"), "eager", 0.1),
        (replace(find("H200"), calibration=Calibration(base="A100-40GB", log_slowdown=0.1)),
         "eager", 0.8),
        (replace(find("H200"), calibration=Calibration(base="H200", log_slowdown=0.1)),
         "eager", 0.4),
    ],
)  # fmt: skip
def test_a_gpu_without_terms_takes_those_usual_for_its_memory(
    device: Device, mode: Any, added: float
) -> None:
    own = {"device": "A100-40GB", "mode": "eager", "terms": {"gemm": 0.7}}
    model, graph = predictor(tables=[own], usual=USUAL), gemm()
    asked = Conditions(device=device, batch=64, mode=mode, precision="fp16")
    kernels = KernelGraph.of(KernelTable.of(graph, "fp16", mode), ROUNDS)
    view = DeviceView.of(device)
    expected = roofline_ms(kernels.table, 64, view) @ kernels.count * math.exp(LOG_SLOWDOWN + added)
    (found,) = model.law.times(LawKernels.of(kernels), 64, [Place(view, asked)])
    assert found.device_ms == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "usual",
    [None, [], {"soldered": {}}, {"board": {"fast": {}}}, {"board": {"eager": {"gemm": 99.0}}}],
)
def test_damaged_default_offsets_are_refused(usual: Any) -> None:
    with pytest.raises(CheckpointError, match=r"usual|not measured"):
        predictor(usual=usual)


@pytest.mark.parametrize("launch_ms", [0.0, 0.02, 5.0])
def test_operator_times_sum_to_the_latency(launch_ms: float) -> None:
    answer = predictor(launch_ms).predict(perceptron(), conditions())
    total = answer.values["latency_ms"].value
    assert sum(row.time_ms for row in answer.operators) == pytest.approx(total, rel=1e-9)
    assert sum(row.share for row in answer.operators) == pytest.approx(1.0, rel=1e-9)


def test_slow_host_sets_the_floor_and_idles_the_board() -> None:
    fast, slow = (predictor(ms).predict(perceptron(), conditions(batch=1)) for ms in (0.0, 5.0))
    assert slow.values["latency_ms"].value == pytest.approx(6 * 5.0, rel=0.01)
    assert slow.operators[-1].op == "host"
    assert slow.values["power_w"].value < fast.values["power_w"].value


def test_timer_regimes_differ_by_launches_and_copy() -> None:
    kernel, wall, copy = (
        predictor(0.5).predict(perceptron(), conditions(timer=t)).values["latency_ms"].value
        for t in ("kernel", "wall", "wall+copy")
    )
    assert kernel < wall < copy
    assert copy - wall == pytest.approx(64 * 4096 * 4 / 1e7)


def test_energy_is_power_times_time_and_every_target_has_an_interval() -> None:
    answer = predictor().predict(perceptron(), conditions())
    assert set(answer.values) == set(TARGETS)
    energy = answer.values["power_w"].value * answer.values["latency_ms"].value / 1e3
    assert answer.values["energy_j"].value == pytest.approx(energy)
    for estimate in answer.values.values():
        assert estimate.interval.low < estimate.value < estimate.interval.high
    assert answer.memory_bound_mb is not None
    assert answer.memory_bound_mb > answer.values["memory_mb"].value


def test_power_never_exceeds_the_limit_of_the_board() -> None:
    answer = predictor().predict(perceptron(), conditions(batch=4096, precision="fp16"))
    power = answer.values["power_w"]
    assert power.value <= power.interval.high <= find("A100-40GB").power_limit_w


def test_slice_is_slower_and_its_energy_is_absent_with_a_reason() -> None:
    device = find("A100-40GB")
    whole = predictor().predict(perceptron(), conditions())
    part = predictor().predict(perceptron(), conditions(mig=device.mig_profiles[0]))
    assert part.values["latency_ms"].value > whole.values["latency_ms"].value
    assert "energy_j" not in part.values
    assert "slice" in part.absent["energy_j"]


def test_file_with_a_fixed_batch_refuses_another() -> None:
    graph = perceptron(symbolic=False, batch=8)
    assert predictor().predict(graph, conditions(batch=8)).values
    with pytest.raises(ConditionsError, match="fixes the batch to 8"):
        predictor().predict(graph, conditions(batch=4))


def test_what_was_never_measured_is_said_and_widens_the_interval() -> None:
    seen = predictor().predict(perceptron(), conditions(precision="fp16"))
    unseen = predictor().predict(perceptron(), conditions(device="L40S", batch=512))
    assert seen.warnings == ()
    assert any("never measured" in w for w in unseen.warnings)
    assert any("batch 512" in w for w in unseen.warnings)

    assert width(unseen) > width(seen)


def test_the_gpu_of_another_vendor_is_told_to_follow_nvidias_laws() -> None:
    amd = predictor().predict(perceptron(), conditions(device="MI300X", precision="fp16"))
    assert any("MI300X was never measured" in w for w in amd.warnings)
    assert any("MI300X is not an NVIDIA GPU: which kernels" in w for w in amd.warnings)


def test_a_model_unlike_all_that_was_measured_has_a_wider_interval() -> None:
    asked = conditions(precision="fp16")
    kin, far = predictor(), predictor()
    coefficients = tuple(0.3 if name == "log_novelty" else 0.0 for name in INTERVAL_FEATURES)
    for model in (kin, far):
        model.intervals = replace(model.intervals, coefficients=coefficients)
    table, view = KernelTable.of(perceptron(), "fp16"), DeviceView.of(asked.device)
    shares = shares_of(table.kind, roofline_ms(table, asked.batch, view))
    kin.law = replace(kin.law, measured=MeasuredModels(shares[None]))
    ratio = width(far.predict(perceptron(), asked)) / width(kin.predict(perceptron(), asked))
    novelty = far.law.measured.novelty(shares).on_any
    assert ratio == pytest.approx((novelty / LEAST_NOVELTY) ** 0.3, rel=0.02)
    assert ratio > 1.2


def test_unknown_operators_are_named() -> None:
    graph = replace(perceptron(), unknown_ops={"onnx.Strange": 2})
    (warning,) = predictor().predict(graph, conditions()).warnings
    assert "onnx.Strange ×2" in warning


def test_many_points_agree_with_single_ones() -> None:
    model, graph = predictor(0.01), perceptron()
    points = [conditions(batch=b, precision="fp16") for b in (1, 7, 64)]
    many = model.predict_many(graph, points)
    for point, answer in zip(points, many, strict=True):
        assert answer.values == model.predict(graph, point).values


def test_predictors_share_the_kernels_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, asked = perceptron(), Conditions(device=find("A100-40GB"), batch=8)
    first = predictor().predict_many(graph, [asked])
    monkeypatch.setattr(KernelTable, "of", None)
    assert predictor().predict_many(graph, [asked]) == first


def test_a_cpu_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConditionsError, match="is a CPU") as error:
        predictor().predict(perceptron(), Conditions(device=find("cpu"), batch=BATCH))
    assert "dippm models" in error.value.hint


@pytest.mark.parametrize("precision", ["fp32", "fp16", "amp"])
@pytest.mark.parametrize("batch", [1, 64])
def test_memory_parts_sum_to_the_memory(precision: Any, batch: int) -> None:
    answer = predictor().predict(perceptron(), conditions(batch, precision=precision))
    parts = answer.memory_parts
    assert parts is not None
    total = parts.weights_mb + parts.activations_mb + parts.workspace_mb + parts.context_mb
    assert total == pytest.approx(answer.values["memory_mb"].value, rel=1e-12)
    assert parts.context_mb == 500.0 + 108 * 5.0
    assert parts.reserved_mb == pytest.approx(total - parts.context_mb)
    assert parts.workspace_mb > 0
    assert perceptron().nodes[parts.peak_node or 0].op == parts.peak_op


def test_memory_parts_of_weights_alone() -> None:
    parts = predictor().predict(perceptron(), conditions()).memory_parts
    assert parts is not None
    assert parts.weights_mb == pytest.approx(3 * 4096 * 4096 * 4 / 2**20)


def bert(length: int) -> ModelGraph:
    """One layer of attention of BERT-base."""
    s = Sketch()
    hidden, apart = (BATCH, length, 768), (BATCH, length, 12, 64)
    x = s.input(*hidden)
    heads = []
    for _ in "qkv":
        y = s.call("matmul", [x, s.weight(768, 768)], *hidden)
        y = s.call("reshape", [y], *apart, arg1=apart)
        heads.append(s.call("permute_dims", [y], BATCH, 12, length, 64, axes=(0, 2, 1, 3)))
    y = s.call("aten.scaled_dot_product_attention", heads, BATCH, 12, length, 64)
    y = s.call("permute_dims", [y], *apart, axes=(0, 2, 1, 3))
    y = s.call("reshape", [y], *hidden, arg1=hidden)
    return s.graph(s.call("matmul", [y, s.weight(768, 768)], *hidden))


def test_unfused_attention_over_long_sequences_does_not_fit() -> None:
    model, graph = predictor(), bert(4096)
    asked = conditions(64, precision="fp16")
    provenance = Provenance("bert", "toy 1", "hybrid", "", graph.version, "0")
    answers = {
        c.attention: Prediction.of(
            model.predict(graph, c), graph, conditions=c, provenance=provenance
        )
        for c in (asked, replace(asked, attention="unfused"), asked)
    }
    fused, unfused = answers["fused"], answers["unfused"]
    assert fused.memory_mb is not None
    assert unfused.memory_mb is not None
    assert fused.memory_mb < 10_000
    assert not any("out of memory" in w for w in fused.warnings)
    scores_mb = 64 * 12 * 4096 * 4096 * 2 / 2**20
    assert unfused.memory_mb > 2 * scores_mb
    assert any("will run out of memory" in w for w in unfused.warnings)
    assert unfused.mig is None
    assert unfused.memory_parts is not None
    assert unfused.memory_parts.peak_op == "attention"
    assert unfused.latency_ms > fused.latency_ms  # type: ignore[operator]
    assert unfused.title.endswith("eager · unfused attention")
    assert unfused.to_dict()["conditions"]["attention"] == "unfused"


def test_a_wrong_kind_of_attention_names_both() -> None:
    with pytest.raises(ConditionsError, match="unknown attention 'flash'") as error:
        conditions(attention="flash")
    assert "fused, unfused" in error.value.hint


def test_grids_have_no_memory_parts() -> None:
    (answer,) = predictor().predict_many(perceptron(), [conditions()])
    assert answer.memory_parts is None
    assert "one point" in answer.absent["memory_parts"]
