"""Rows for a calibration: measured on the CPU, and on a stand-in for a GPU to a device file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.devices import find, read_device
from dippm.errors import ConditionsError, DeviceError, MeasurementError
from dippm.measure import calibration_rows, subject
from dippm.measure.calibration import calibrate_here
from dippm.measure.calibration_rows import CalibrationPoint, measure_rows, points_for
from dippm.measure.protocol import Settings
from dippm.measure.run import Bench
from tests import cuda_stand_in

pytest.importorskip("timm")

QUICK = Settings(warm_up_steps=1, timed_steps=3, settle_s=0.0, energy_window_s=0.0)
SMALL = ("timm:test_resnet", "timm:test_vit", "timm:test_efficientnet")
CARD = """
name = "My card"
memory_mb = 81920
sm_count = 132
bandwidth_gb_s = 3350
l2_mb = 50
power_limit_w = 700
memory_type = "HBM3"
peak_tflops = {fp32 = 66.9}
"""


def test_every_prefix_is_useful_and_formats_are_those_of_the_gpu() -> None:
    points = points_for(find("A100"))
    count = len(calibration_rows.MODELS)
    assert {p.model for p in points[:count]} == set(calibration_rows.MODELS)
    assert {(p.batch, p.precision) for p in points[:count]} == {(32, "fp16")}
    assert {p.batch for p in points[count : 2 * count]} == {1}
    assert {p.precision for p in points[2 * count :]} == {"fp32"}
    assert len(set(points)) == len(points) == 3 * count
    assert {p.precision for p in points_for(find("GTX 1080 Ti"))} >= {"fp32"}


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(calibration_rows, "IDLE_S", 0.01)
    made = Bench(torch.device("cpu"), QUICK)
    yield made
    made.close()


def test_what_was_measured_is_kept_and_not_measured_again(bench, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    points = [CalibrationPoint(SMALL[0], batch, "fp32") for batch in (1, 2)]
    first = measure_rows(bench, points[:1], path)
    assert (first.measured, first.kept, first.left) == (1, 0, 0)
    assert first.software.startswith("torch ")
    before = path.read_text()
    second = measure_rows(bench, points, path)
    assert (second.measured, second.kept, second.left) == (1, 1, 0)
    assert path.read_text().startswith(before)
    assert len(path.read_text().splitlines()) == 3
    assert second.context_mb is None
    assert "context_mb" in second.absent


def test_no_point_is_begun_after_the_time_is_over(bench, tmp_path: Path) -> None:
    seconds = iter([0.0, 1.0, 99.0])
    points = [CalibrationPoint(SMALL[0], batch, "fp32") for batch in (1, 2, 3)]
    found = measure_rows(
        bench, points, tmp_path / "rows.csv", budget_s=10, clock=lambda: next(seconds)
    )
    assert (found.measured, found.left) == (1, 2)


def test_a_model_that_fails_is_named_and_the_others_are_measured(bench, tmp_path: Path) -> None:
    points = [
        CalibrationPoint("timm:no_such_model", 1, "fp32"),
        CalibrationPoint(SMALL[0], 1, "fp32"),
    ]
    found = measure_rows(bench, points, tmp_path / "rows.csv")
    assert found.measured == 1
    assert list(found.failed) == ["timm:no_such_model 1 fp32"]


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "\xff\xfe"])
def test_a_file_of_something_else_is_left_alone(bench, tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(MeasurementError) as error:
        measure_rows(bench, [CalibrationPoint(SMALL[0], 1, "fp32")], path)
    assert error.value.hint
    assert path.read_bytes() == text.encode("latin-1")


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that is none: modules stay on the CPU."""
    load = subject.load_subject

    def on_the_cpu(*source, device, **given):
        return load(*source, device=torch.device("cpu"), **given)

    monkeypatch.setattr(subject, "load_subject", on_the_cpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(calibration_rows, "MODELS", SMALL)
    monkeypatch.setattr(calibration_rows, "BATCHES", (2, 1))
    monkeypatch.setattr(calibration_rows, "IDLE_S", 0.05)
    monkeypatch.setattr("dippm.measure.calibration.QUICK", QUICK)
    with cuda_stand_in.gpu() as made:
        yield made


def test_the_command_measures_and_writes_a_device_that_predict_takes(gpu, tmp_path: Path) -> None:
    card, save = tmp_path / "card.toml", tmp_path / "mine.toml"
    card.write_text(CARD)
    line = ["calibrate", "--measure", "--device", str(card), "--save", str(save)]
    made = CliRunner().invoke(app, [*line, "--budget-s", "500", "--json"])
    assert made.exit_code == 0, made.output
    document = json.loads(made.stdout)
    assert document["measured"]["measured"] == document["rows"] == 6
    assert document["measured"]["idle_power_w"] == pytest.approx(250, rel=0.3)
    assert document["measured"]["context_mb"] == 700 - 20
    assert set(document["models_left_out"]) == set(SMALL)
    assert document["error_before_percent"] > 0.0
    assert document["error_of_models_left_out_percent"] > 0.0
    device = read_device(save)
    assert device.calibration.software.startswith("torch ")
    assert device.calibration.made_on
    assert device.idle_power_w == pytest.approx(document["measured"]["idle_power_w"], abs=0.1)
    again = CliRunner().invoke(app, line)
    assert again.exit_code == 0, again.output
    assert "Measured 0 points, 6 were in" in again.stdout
    assert "% before, ±" in again.stdout
    answer = dippm.predict(SMALL[0], batch=2, device=str(save))
    assert answer.latency_ms > 0


def test_a_gpu_that_is_not_known_needs_a_device_file(gpu, tmp_path: Path) -> None:
    predictor = dippm.load("hybrid-gpu")
    with pytest.raises(DeviceError, match="Stand-in is not in the catalogue"):
        calibrate_here(tmp_path / "rows.csv", predictor=predictor)
    with pytest.raises(ConditionsError, match="A100-40GB was asked for, and the GPU"):
        calibrate_here(tmp_path / "rows.csv", "A100", predictor=predictor)
    with pytest.raises(ConditionsError, match="a CPU cannot be calibrated"):
        calibrate_here(tmp_path / "rows.csv", predictor=predictor, on="cpu")
