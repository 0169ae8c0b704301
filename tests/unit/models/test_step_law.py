"""Training steps with a law of known answer: each kernel takes e^0.6 × roofline × its part's."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dataset.measured.nodes import GraphBuilder
from dippm.devices import find
from dippm.errors import CheckpointError, ConditionsError
from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel import PARTS
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import DeviceView, roofline_ms, serial_ms
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.footprint import MemoryFootprint
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.intervals import FEATURES as INTERVAL_FEATURES
from dippm.estimate.models.intervals import SEEN, UNSEEN
from dippm.estimate.models.monotonic_bounds import HALF, WIDE
from dippm.estimate.models.novelty import TENSOR
from dippm.estimate.models.step_law import N_STEP_FEATURES
from dippm.estimate.models.training_memory import (
    AutogradFootprint,
    TrainingFootprint,
    TrainingMemory,
)
from dippm.model.graph import build
from dippm.model.graph.model_graph import ModelGraph
from dippm.model.relax.raw_graph import RawGraph
from tests.unit.features.test_training_step import few_channels
from tests.unit.graph.sketch import BATCH, Sketch

LOG_SLOWDOWN, STEP = 0.5, 0.1
MULTIPLIERS = {"forward": 0.0, "backward_input": 0.2, "backward_weight": 0.3, "optimizer": -0.1}
RECORDINGS = Path(__file__).parents[2] / "recordings" / "live_memory"


@pytest.fixture(scope="module")
def vit() -> ModelGraph:
    file = RECORDINGS / "timm.flexivit_base@240.json.gz"
    return build(RawGraph.from_json(gzip.decompress(file.read_bytes())))


def known_law() -> dict[str, torch.Tensor]:
    tensors = {TENSOR: torch.eye(len(KERNEL_CLASSES), dtype=torch.float16)}
    for prefix, classes, value in (("trees", LOG_SLOWDOWN, 0.0), ("steps", 0.0, STEP)):
        leaf = {"roots": 0, "feature": -1, "threshold": 0.0, "left": 0, "value": value}
        tensors |= {f"{prefix}.{name}": torch.tensor([v]) for name, v in leaf.items()}
        tensors[f"{prefix}.classes"] = torch.full((len(KERNEL_CLASSES),), classes)
    return tensors


def predictor(
    launch_ms: float = 0.0, *, forward_as_inference: bool = False, **changed: Any
) -> Hybrid:
    config = {
        "conditions": {"phase": ["train"]},
        "law": {
            "tree_depth": 1,
            "tree_reach": 1.5,
            "step_depth": 1,
            "step_reach": 1.0,
            "multipliers": {
                part: dict.fromkeys(KERNEL_CLASSES, value) for part, value in MULTIPLIERS.items()
            },
            "range": {name: [-1.5, 5.0] for name in KERNEL_CLASSES},
            "tables": [],
            "usual": {},
            "forward_as_inference": forward_as_inference,
        },
        "step": {"launches": {"forward": 2.0, "later": 0.5, "layer": 3.0}},
        "host": {"launch_ms": launch_ms, "copy_bytes_per_ms": 1e7},
        "memory": {
            "context_mb": 500.0,
            "context_mb_per_sm": 5.0,
            "convolution_mb": 200.0,
            "spread": 1.1,
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
            "devices": {"A100-40GB": ["amp"]},
            "often": {WIDE: ["A100-40GB"], HALF: ["A100-40GB"]},
            "batch_range": [1, 256],
            "kernel_classes": list(KERNEL_CLASSES),
        },
        **changed,
    }
    return Hybrid.from_checkpoint(known_law(), config)


def step(batch: int = 16, device: str = "A100-40GB", **given: Any) -> Conditions:
    return Conditions(
        device=find(device),
        batch=batch,
        precision=given.pop("precision", "amp"),
        phase="train",
        **given,
    )


def test_a_model_whose_results_have_no_gradient_is_not_trained() -> None:
    b = GraphBuilder(batch=840)
    attributes = {"in_features": 16, "out_features": 8}
    x = b.add("dense", [b.input((840, 16))], (840, 8), attributes=attributes, weights=128)
    b.add("argmax", [x], (840,), dtype="int64")
    with pytest.raises(ConditionsError, match=r"is argmax.*nothing to train"):
        predictor().predict(b.graph(batch_is_symbolic=True), step())


def test_a_step_is_the_sum_of_rooflines_slowed_by_part(vit: ModelGraph) -> None:
    table = KernelTable.of_training(vit, "amp", "adamw")
    slow = np.array([MULTIPLIERS.get(name, 0.0) for name in PARTS])[table.part]
    times = roofline_ms(table, 16, DeviceView.of(find("A100-40GB")))
    times = times * np.exp(slow + LOG_SLOWDOWN + STEP)
    answer = predictor().predict(vit, step(optimizer="adamw"))
    assert answer.values["latency_ms"].value == pytest.approx(times.sum(), rel=1e-5)
    by_part = {
        name: sum(row.time_ms for row in answer.operators if row.part == name)
        for name in ("forward", "backward", "optimizer")
    }
    assert sum(by_part.values()) == pytest.approx(times.sum(), rel=1e-6)
    update = times[table.part == PARTS.index("optimizer")].sum()
    assert by_part["optimizer"] == pytest.approx(update, rel=1e-6)
    (row,) = [row for row in answer.operators if row.part == "optimizer"]
    assert (row.node, row.op, row.macs) == (None, "optimizer", 0)
    assert by_part["backward"] > by_part["forward"] > by_part["optimizer"]


@pytest.mark.parametrize(
    ("part", "weights"),
    [
        ({"launches": {"forward": 2.0, "later": 0.5, "layer": 3.0}}, (2.0, 0.5, 3.0)),
        ({"launch_share": 0.7}, (1.0, 0.7, 0.0)),
    ],
)
def test_the_host_takes_time_for_launches_and_for_layers_with_weights(
    vit: ModelGraph, part: dict[str, Any], weights: tuple[float, float, float]
) -> None:
    table = KernelTable.of_training(vit, "amp", "sgd")
    forward = table.part == PARTS.index("forward")
    launches = table.settings[:, 5]
    layers = set(table.node[table.part == PARTS.index("backward_weight")].tolist())
    assert 50 < len(layers) < launches[forward].sum()
    expected = np.dot(weights, [launches[forward].sum(), launches[~forward].sum(), len(layers)])
    answer = predictor(launch_ms=1.0, step=part).predict(vit, step(1))
    assert answer.values["latency_ms"].value == pytest.approx(expected, rel=1e-3)
    assert answer.operators[-1].op == "host"


def test_batch_norms_that_walk_channels_make_a_faster_format_slower() -> None:
    graph = few_channels()
    walk_ms = float(serial_ms(KernelTable.of_training(graph, "bf16"), 128).sum())
    answers = {
        (precision, last): predictor().predict(
            graph, step(128, precision=precision, channels_last=last)
        )
        for precision in ("bf16", "tf32")
        for last in (False, True)
    }
    times = {asked: answer.values["latency_ms"].value for asked, answer in answers.items()}
    assert walk_ms > 3.0 > times["tf32", False]
    assert walk_ms < times["bf16", False] <= times["tf32", False] + walk_ms
    assert times["bf16", True] <= times["tf32", True]
    told = f"batch norms wait {walk_ms:.3g} ms for single loads"
    advised = {k for k, a in answers.items() if any(w.startswith(told) for w in a.warnings)}
    assert advised == {("bf16", False)}


def test_what_is_run_again_is_launched_as_an_inference(vit: ModelGraph) -> None:
    plain, again = (
        predictor(launch_ms=1.0).predict(vit, step(1, checkpointing=c)).values["latency_ms"].value
        for c in (False, True)
    )
    table = KernelTable.of_training(vit, "amp", "sgd", checkpointing=True)
    recomputed = table.settings[table.part == PARTS.index("recompute"), 5].sum()
    assert again - plain == pytest.approx(recomputed, rel=1e-3)


def test_what_is_run_again_runs_as_it_did_forward(vit: ModelGraph) -> None:
    plain, again = (
        predictor().predict(vit, step(checkpointing=c, optimizer="adamw")) for c in (False, True)
    )
    forward = sum(row.time_ms for row in plain.operators if row.part == "forward")
    recomputed = sum(row.time_ms for row in again.operators if row.part == "recompute")
    assert 0.8 * forward < recomputed < forward
    longer = again.values["latency_ms"].value - plain.values["latency_ms"].value
    assert longer == pytest.approx(recomputed, rel=1e-6)
    assert again.values["memory_mb"].value < plain.values["memory_mb"].value


def test_memory_is_the_sum_of_its_parts(vit: ModelGraph) -> None:
    answer = predictor().predict(vit, step(optimizer="adamw"))
    parts = answer.memory_parts
    assert parts is not None
    assert parts.optimizer_mb == 2 * parts.gradients_mb == 2 * parts.weights_mb
    assert parts.weights_mb == pytest.approx(4 * 86.6e6 / 2**20, rel=0.01)
    assert parts.context_mb == 500 + 5 * 108 + 200
    total = parts.context_mb + parts.reserved_mb
    assert answer.values["memory_mb"].value == pytest.approx(total, rel=1e-9)
    expected = TrainingMemory.of(vit, 16, "amp", "adamw")
    saved = expected.saved_bytes / 2**20
    held = (expected.saved_bytes + expected.loss_bytes) / 2**20
    assert parts.activations_mb == pytest.approx(held, rel=1e-9)
    assert parts.workspace_mb == pytest.approx(0.1 * saved, rel=0.1)


def test_what_an_update_makes_counts_where_nothing_is_saved() -> None:
    file = RECORDINGS / "torchvision.vgg13_bn@224.json.gz"
    vgg = build(RawGraph.from_json(gzip.decompress(file.read_bytes())))
    weights = 4 * 133e6 / 2**20
    sgd, adam = (
        predictor().predict(vgg, step(1, optimizer=o)).memory_parts for o in ("sgd", "adam")
    )
    assert sgd is not None
    assert adam is not None
    assert adam.reserved_mb == pytest.approx(5 * weights, rel=0.05)
    assert sgd.reserved_mb < 4 * weights


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_footprint_at_any_batch_is_that_of_a_step_at_that_batch(
    vit: ModelGraph, checkpointing: bool
) -> None:
    footprint = TrainingFootprint.of(vit, "amp", checkpointing=checkpointing)
    for batch in (1, 3, 64, 4096):
        expected = TrainingMemory.of(vit, batch, "amp", checkpointing=checkpointing)
        found = footprint.usage(batch).memory
        assert found.saved_bytes == pytest.approx(expected.saved_bytes, rel=1e-6)
        assert found.loss_bytes == pytest.approx(expected.loss_bytes, rel=1e-6)


@pytest.fixture(scope="module")
def contrastive() -> ModelGraph:
    """Similarities of all pairs of a batch, whose number is its square."""
    s = Sketch()
    y = s.call("matmul", [s.input(BATCH, 32), s.weight(32, 16)], BATCH, 16)
    turned = s.call("permute_dims", [y], 16, BATCH, axes=(1, 0))
    y = s.call("matmul", [y, turned], BATCH, BATCH)
    return build(s.raw(s.call("tanh", [y], BATCH, BATCH)))


def test_a_footprint_grows_with_the_square_of_the_batch_where_tensors_do(
    contrastive: ModelGraph,
) -> None:
    footprint = TrainingFootprint.of(contrastive, "fp32")
    autograd = AutogradFootprint.of(contrastive, "fp32")
    for batch in (1, 64, 8192):
        expected = TrainingMemory.of(contrastive, batch, "fp32")
        found = footprint.usage(batch).memory
        assert found.saved_bytes == pytest.approx(expected.saved_bytes, rel=1e-6)
        assert found.loss_bytes == pytest.approx(expected.loss_bytes, rel=1e-6)
        assert autograd.sizes(batch).sum() == 4 * ((32 + 16) * batch + batch**2)


def test_a_step_takes_at_least_what_its_forward_pass_takes() -> None:
    """A convolution's copies of its images, in the order of tensor cores, weigh more than they."""
    s = Sketch()
    y = s.conv(s.input(BATCH, 64, 56, 56), s.weight(8, 64, 3, 3), BATCH, 8, 56, 56)
    graph = build(s.raw(y))
    forward = MemoryFootprint.of(graph, "fp32").usage(64).reserved_mb
    usage = TrainingFootprint.of(graph, "fp32", "adamw").usage(64)
    saved_mb = usage.memory.total_bytes / 2**20
    assert 1.1 * saved_mb < forward
    answer = predictor().predict(graph, step(64, precision="fp32", optimizer="adamw"))
    assert answer.memory_parts is not None
    states_mb = usage.memory.optimizer_bytes / 2**20
    assert answer.memory_parts.reserved_mb == pytest.approx(forward + states_mb, rel=1e-6)


def test_trees_of_steps_may_leave_the_forward_pass_to_inference(vit: ModelGraph) -> None:
    """Every kernel takes e^(0.5 + part), and what the trees speak of e^0.1 times that."""

    def times(*, forward_as_inference: bool) -> dict[str, float]:
        asked = predictor(forward_as_inference=forward_as_inference).predict(
            vit, step(checkpointing=True)
        )
        found: dict[str, float] = {}
        for row in asked.operators:
            found[row.part] = found.get(row.part, 0.0) + row.time_ms
        return found

    all_parts, gradients = (times(forward_as_inference=only) for only in (False, True))
    ratio = {part: all_parts[part] / gradients[part] for part in all_parts if part != "host"}
    assert ratio["forward"] == pytest.approx(math.exp(STEP), rel=1e-3)
    assert ratio["recompute"] == pytest.approx(math.exp(STEP), rel=1e-3)
    assert ratio["backward"] == pytest.approx(1.0, rel=1e-3)
    assert ratio["optimizer"] == pytest.approx(1.0, rel=1e-3)


def test_a_checkpoint_refuses_the_other_phase(vit: ModelGraph) -> None:
    with pytest.raises(ConditionsError, match="predicts training steps, not inference") as caught:
        predictor().predict(vit, Conditions(device=find("A100-40GB"), batch=16, precision="amp"))
    assert "phase=train" in caught.value.hint


def test_compiled_steps_are_refused(vit: ModelGraph) -> None:
    with pytest.raises(ConditionsError, match="compiled training steps") as caught:
        predictor().predict(vit, step(mode="compiled"))
    assert "mode=eager" in caught.value.hint


@pytest.mark.parametrize("given", [{"checkpointing": True}, {"optimizer": "adamw"}])
def test_what_belongs_to_a_step_is_refused_of_inference(given: dict[str, Any]) -> None:
    with pytest.raises(ConditionsError, match="applies to training steps") as caught:
        Conditions(device=find("A100-40GB"), batch=1, **given)
    assert "phase=train" in caught.value.hint


def test_it_says_what_nobody_measured(vit: ModelGraph) -> None:
    known = predictor().predict(vit, step())
    other = predictor().predict(vit, step(device="H100"))
    assert not any("no training step" in warning for warning in known.warnings)
    assert any("no training step was measured on H100" in warning for warning in other.warnings)
    assert all(any("power" in w for w in answer.warnings) for answer in (known, other))

    def width(answer: Any) -> float:
        interval = answer.values["latency_ms"].interval
        return math.log(interval.high / interval.low)

    assert width(other) > 1.5 * width(known)


def test_a_model_without_blocks_has_nothing_to_run_again(vit: ModelGraph) -> None:
    b = GraphBuilder(batch=840)
    shape, attributes = (840, 64), {"in_features": 64, "out_features": 64}
    first = b.add("dense", [b.input(shape)], shape, attributes=attributes, weights=64 * 64)
    b.add("relu", [first], shape)
    flat = b.graph(batch_is_symbolic=True)
    told = [
        any("checkpointing changes nothing" in warning for warning in found.warnings)
        for found in (predictor().predict(graph, step(checkpointing=True)) for graph in (flat, vit))
    ]
    assert told == [True, False]


@pytest.mark.parametrize(
    "changed",
    [
        {"step": {}},
        {"step": {"launch_share": 0.0}},
        {"step": {"launches": {"forward": 1.0, "later": 1.0}}},
        {"step": {"launches": {"forward": 1.0, "later": 1.0, "layer": -1.0}}},
        {"memory": {"context_mb": 1.0}},
        {"law": {}},
    ],
)
def test_a_damaged_configuration_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="is damaged"):
        predictor(**changed)


def test_trees_that_ask_about_columns_beyond_those_of_a_step_are_refused() -> None:
    tensors = known_law()
    tensors["steps.feature"] = torch.tensor([N_STEP_FEATURES])
    with pytest.raises(CheckpointError, match="do not fit together"):
        Hybrid.from_checkpoint(tensors, predictor().config)
