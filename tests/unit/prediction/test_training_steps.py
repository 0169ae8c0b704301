"""Training steps by the shipped checkpoint: API, command line, epochs, laws that anyone knows."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.devices import all_devices, find
from dippm.errors import ConditionsError
from dippm.estimate.pretrained import for_device
from tests.samples import sampled
from tests.unit.prediction.test_physics import convolutional, dense

NAME = "hybrid-gpu-train"
GPUS = ("RTX-3090", "A100-80GB", "H100", "L4")
MODELS = {"convolutional": convolutional, "dense": dense}


@pytest.fixture(scope="module")
def steps() -> dippm.LoadedPredictor:
    return dippm.load(phase="train")


@pytest.fixture(params=MODELS)
def graph(request: pytest.FixtureRequest) -> dippm.ModelGraph:
    return MODELS[request.param]()


def test_phase_and_device_choose_the_checkpoint(steps: dippm.LoadedPredictor) -> None:
    assert steps.checkpoint.name == NAME
    assert {for_device(gpu, "train").name for gpu in all_devices()} == {NAME}
    assert dippm.load(NAME).phase == "train"
    with pytest.raises(ConditionsError, match="no shipped checkpoint predicts training steps"):
        for_device(find("CPU-AMD-EPYC-2c"), "train")


def test_one_file_three_ways(onnx_file: Path, steps: dippm.LoadedPredictor) -> None:
    asked: dict[str, Any] = {"optimizer": "adamw", "checkpointing": False}
    one = dippm.predict(onnx_file, batch=32, phase="train", **asked)
    loaded = steps.predict(onnx_file, batch=32, **asked)
    (grid,) = steps.predict_grid(onnx_file, batches=[32], **asked)
    (row,) = dippm.compare([onnx_file], batch=32, phase="training", **asked)
    swept = dippm.sweep(onnx_file, batch=[32], phase="train", **asked).predictions[0]
    assert {p.latency_ms for p in (one, loaded, grid, row, swept)} == {one.latency_ms}
    assert one.provenance.checkpoint.startswith(NAME)
    assert "training step · adamw" in one.title
    assert one.to_dict()["conditions"]["optimizer"] == "adamw"
    total = sum(cost.time_ms for cost in one.operators)
    assert total == pytest.approx(one.latency_ms, rel=1e-6)
    assert {"forward", "backward", "optimizer"} <= {cost.part for cost in one.operators}
    assert one.tree.time_ms == pytest.approx(one.latency_ms, rel=1e-6)


@pytest.mark.parametrize("gpu", sampled(GPUS, pytest.mark.nightly(part="answers")))
def test_gradients_take_longer_than_the_forward_pass_which_takes_as_long_as_inference(
    graph: dippm.ModelGraph, gpu: str, steps: dippm.LoadedPredictor
) -> None:
    step = steps.predict(graph, batch=1024, device=gpu)
    forward, backward = (
        sum(cost.time_ms for cost in step.operators if cost.part == part)
        for part in ("forward", "backward")
    )
    inference = dippm.load().predict(graph, batch=1024, device=gpu)
    assert 0.6 < forward / inference.latency_ms < 1.7
    assert 1.2 < backward / forward < 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"checkpoint": "hybrid-gpu", "phase": "train"}, "predicts inference, not training steps"),
        ({"checkpoint": NAME}, "predicts training steps, not inference"),
        ({"phase": "train", "mode": "compiled"}, "compiled training steps are not predicted"),
        ({"optimizer": "adamw"}, "applies to training steps"),
        ({"phase": "trian"}, "unknown phase"),
        ({"phase": "train", "optimizer": "lion"}, "unknown optimizer"),
    ],
)
def test_what_cannot_be_answered_says_so(
    onnx_file: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConditionsError, match=message) as caught:
        dippm.predict(onnx_file, **given)
    assert caught.value.hint


@pytest.mark.parametrize("gpu", sampled(GPUS, pytest.mark.nightly(part="answers")))
def test_physics(graph: dippm.ModelGraph, gpu: str, steps: dippm.LoadedPredictor) -> None:
    for precision in ("fp32", "fp16"):
        asked: dict[str, Any] = {"device": gpu, "precision": precision}
        by_batch = [steps.predict(graph, batch=b, **asked) for b in (1, 16, 256, 1024)]
        for small, large in pairwise(by_batch):
            assert small.latency_ms <= 1.04 * large.latency_ms  # what trees leave of the order
            assert small.memory_mb <= large.memory_mb
        inference = dippm.load().predict(graph, batch=256, **asked)
        assert inference.latency_ms < by_batch[2].latency_ms
        adam = steps.predict(graph, batch=256, optimizer="adamw", **asked)
        assert adam.latency_ms >= by_batch[2].latency_ms
        assert adam.memory_mb >= by_batch[2].memory_mb
    half, full = (
        steps.predict(graph, batch=256, device=gpu, precision=p).latency_ms
        for p in ("fp16", "fp32")
    )
    assert half <= 1.001 * full


def test_checkpointing_takes_time_and_gives_memory(steps: dippm.LoadedPredictor) -> None:
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(torch.nn.functional.gelu(self.up(x)))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(6))
            self.head = torch.nn.Linear(512, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    graph = dippm.read_graph(Net(), input=(512,))
    plain, again = (steps.predict(graph, batch=65_536, checkpointing=c) for c in (False, True))
    assert again.latency_ms > 1.1 * plain.latency_ms
    assert again.memory_mb < plain.memory_mb
    assert again.memory_parts.activations_mb < 0.6 * plain.memory_parts.activations_mb
    assert not any("checkpointing changes nothing" in warning for warning in again.warnings)
    assert "checkpointing" in again.title


def test_a_slice_takes_longer_and_its_power_is_absent(steps: dippm.LoadedPredictor) -> None:
    whole, sliced = (
        steps.predict(dense(), batch=256, device="A100", mig=mig) for mig in (None, "2g.10gb")
    )
    assert sliced.latency_ms > whole.latency_ms
    assert "MIG slice" in sliced.absent["energy_j"]


def test_an_epoch_is_so_many_steps(steps: dippm.LoadedPredictor) -> None:
    step = steps.predict(dense(), batch=256, device="A100")
    epoch = step.epoch(1_281_167, epochs=2, price_per_hour=2.5)
    assert epoch.steps == 2 * 5005
    assert epoch.time_s == pytest.approx(epoch.steps * step.latency_ms / 1e3)
    assert epoch.price == pytest.approx(epoch.time_s / 3600 * 2.5)
    assert epoch.energy_kwh == pytest.approx(epoch.steps * step.energy_j / 3.6e6)
    interval = step.intervals["latency_ms"]
    assert epoch.time_interval_s.low == pytest.approx(epoch.steps * interval.low / 1e3)
    assert step.epoch(1).price is None
    sliced = steps.predict(dense(), batch=256, device="A100", mig="2g.10gb").epoch(1000)
    assert sliced.energy_kwh is None
    assert "MIG slice" in sliced.absent["energy_kwh"]


@pytest.mark.parametrize(
    "given", [{"samples": 0}, {"samples": 10, "epochs": 0}, {"samples": 1, "price_per_hour": -1.0}]
)
def test_an_epoch_of_nothing_is_refused(
    steps: dippm.LoadedPredictor, given: dict[str, Any]
) -> None:
    with pytest.raises(ConditionsError):
        steps.predict(dense()).epoch(**given)


def test_inference_has_no_epochs() -> None:
    with pytest.raises(ConditionsError, match="consists of training steps") as caught:
        dippm.load().predict(dense()).epoch(1000)
    assert "phase=train" in caught.value.hint


def test_the_command_line(onnx_file: Path) -> None:
    words = ["predict", str(onnx_file), "--phase", "train", "--optimizer", "adamw", "--batch", "8"]
    shown = CliRunner().invoke(app, [*words, "--operators", "3", "--dataset-size", "1000"])
    assert shown.exit_code == 0, shown.output
    assert "training step · adamw" in shown.stdout
    assert "gradients" in shown.stdout
    assert "epoch of 1,000 samples, 125 steps" in shown.stdout
    priced = [*words, "--dataset-size", "1000", "--epochs", "3", "--price-per-hour", "2", "--json"]
    document = json.loads(CliRunner().invoke(app, priced).stdout)
    assert document["epoch"]["steps"] == 375
    assert document["epoch"]["price"] == pytest.approx(document["epoch"]["time_s"] / 1800)
    assert document["conditions"]["phase"] == "train"
    for command in (["compare"], ["sweep", "--optimizer", "sgd"]):
        answer = CliRunner().invoke(
            app, [command[0], str(onnx_file), *command[1:], "--phase", "train", "--json"]
        )
        assert answer.exit_code == 0, answer.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "3"], "require --dataset-size"),
        (["--dataset-size", "10"], "consists of training steps"),
        (["--phase", "train", "--checkpoint", "hybrid-gpu"], "--phase inference"),
    ],
)
def test_the_command_line_says_what_to_do(onnx_file: Path, words: list[str], message: str) -> None:
    answer = CliRunner().invoke(app, ["predict", str(onnx_file), *words])
    assert answer.exit_code != 0
    assert message in answer.output


def test_a_file_without_its_norms_says_so(steps: dippm.LoadedPredictor, tmp_path: Path) -> None:
    """Exporters fold batch norms into convolutions for inference; a step keeps their results."""
    import torch

    blocks = [
        torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8))
        for _ in range(8)
    ]
    module = torch.nn.Sequential(*blocks).eval()
    answers = [steps.predict(module, input=(8, 32, 32), batch=64)]
    for training in (torch.onnx.TrainingMode.EVAL, torch.onnx.TrainingMode.TRAINING):
        file, axes = tmp_path / f"{training.name}.onnx", {"x": {0: "batch"}}
        torch.onnx.export(
            module, (torch.zeros(2, 8, 32, 32),), file, dynamo=False, input_names=["x"],
            dynamic_axes=axes, training=training,
        )  # fmt: skip
        answers.append(steps.predict(file, batch=64))
    told = [any("norms: if its exporter folded" in w for w in a.warnings) for a in answers]
    assert told == [False, True, False]
    whole, folded, kept = (a.latency_ms for a in answers)
    assert folded < 0.8 * whole
    assert kept == pytest.approx(whole, rel=0.02)
