from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dippm
from dippm.calibration import MeasuredRowsError, calibrate
from dippm.cli.app import app
from tests.unit.models.test_hybrid import perceptron

POINTS = [(64, "fp16"), (256, "fp16"), (1024, "fp16"), (256, "fp32")]


@pytest.fixture(scope="module")
def predictor() -> dippm.LoadedPredictor:
    return dippm.load("hybrid-gpu", device="A100")


@pytest.fixture(scope="module")
def rows(predictor) -> list[dict[str, object]]:
    """Made-up measurements: a GPU that takes 1.3 times as long as predicted."""
    graph = perceptron()
    return [
        {
            "model": graph,
            "batch": batch,
            "precision": precision,
            "latency_ms": 1.3
            * predictor.predict(graph, batch=batch, precision=precision).latency_ms,
        }
        for batch, precision in POINTS
    ]


def test_predictions_for_the_calibrated_device_are_what_was_measured(predictor, rows):
    device = calibrate(rows, "A100", predictor=predictor, name="mine")
    for row in rows:
        found = predictor.predict(
            row["model"], device=device, batch=row["batch"], precision=row["precision"]
        )
        assert found.latency_ms == pytest.approx(row["latency_ms"], rel=0.03)
    assert device.calibration.base == "A100-40GB"


def test_calibrating_again_starts_from_the_catalogue(predictor, rows):
    once = calibrate(rows, "A100", predictor=predictor)
    twice = calibrate(rows, once, predictor=predictor)
    assert twice.calibration == once.calibration


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no measurement"),
        ("model,latency_ms\n", "no measurement"),
        ("model,batch\nx.onnx,1\n", "no latency_ms"),
        ("latency_ms\n3\n", "no model"),
        ("model,latency_ms,odd\nx.onnx,3,1\n", "'odd'"),
        ("model,latency_ms\nx.onnx\n", "1 values for 2 columns"),
        ("model,latency_ms\nnowhere.onnx,3\n", "row 1"),
        ("model,latency_ms\nnowhere.onnx,minus\n", "row 1"),
        ("model,latency_ms\nnowhere.onnx,-3\n", "latency_ms is -3"),
        ("model,latency_ms,batch\nnowhere.onnx,3,many\n", "row 1"),
        ("model,latency_ms,precision\nnowhere.onnx,3,fp3\n", "row 1"),
    ],
)
def test_rows_that_are_wrong_are_named(tmp_path, predictor, text, words):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(MeasuredRowsError) as error:
        calibrate(path, "A100", predictor=predictor)
    assert words in error.value.message
    assert error.value.hint


def test_the_command_writes_a_device_that_predict_takes(tmp_path, onnx_file: Path):
    table = tmp_path / "rows.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("model", "batch", "latency_ms"), (onnx_file, 8, 5.0)])
    out = tmp_path / "mine.toml"
    runner = CliRunner()
    made = runner.invoke(app, ["calibrate", str(table), "--save", str(out), "--json"])
    assert made.exit_code == 0, made.output
    document = json.loads(made.stdout)
    assert document["rows"] == 1
    assert document["error_of_models_left_out_percent"] is None
    line = ["predict", str(onnx_file), "--batch", "8", "--device", str(out), "--json"]
    answer = runner.invoke(app, line)
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["latency_ms"] < 5.5
