from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.devices import find, read_device, write_device
from dippm.errors import DeviceError
from dippm.measure.calibration import MeasuredRowsError, calibrate
from tests.unit.models.test_hybrid import perceptron
from tests.unit.models.test_own_errors import deep_perceptron

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


def test_a_gpu_that_others_hold_between_them_is_predicted_as_it_was_measured(predictor):
    """Offsets were fitted to what neighbours allow and a desktop launches, and put on neither."""
    mine = replace(find("RTX 3090"), name="GeForce RTX of mine", aliases=())
    graph, table = deep_perceptron(), []
    for batch in (1, 64, 1024):
        before = predictor.predict(graph, device=mine, batch=batch, precision="fp16")
        row = {"model": graph, "batch": batch, "precision": "fp16"}
        table.append({**row, "latency_ms": 1.3 * before.latency_ms})
    device = calibrate(table, mine, predictor=predictor)
    for row in table:
        found = predictor.predict(graph, device=device, batch=row["batch"], precision="fp16")
        assert found.latency_ms == pytest.approx(row["latency_ms"], rel=0.06)
    assert device.calibration.log_error_before == pytest.approx(math.log(1.3))
    assert device.calibration.regimes == ("eager fp16",)


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
        ("model,latency_ms,batch\nnowhere.onnx,3,1_0\n", "row 1: batch: '1_0' is not a whole"),
        ("model,latency_ms\nnowhere.onnx,1_0\n", "row 1: latency_ms: '1_0' is not a number"),
        ("model,latency_ms\nnowhere.onnx,٣\n", "row 1: latency_ms: '٣' is not a number"),
        ("model,latency_ms\nnowhere.onnx,inf\n", "row 1: latency_ms is inf"),
        ("model,latency_ms\nnowhere.onnx,1e300\n", "row 1: latency_ms is 1e+300"),
        ("model,latency_ms\nnowhere.onnx,1e-300\n", "row 1: latency_ms is 1e-300"),
        ("model,latency_ms,channels_last\nnowhere.onnx,3,maybe\n", "channels_last is 'maybe'"),
        ("model,latency_ms,batch,Batch\nnowhere.onnx,3,1,2\n", "the column 'batch' twice"),
        ("model," * 200_000 + "batch\n", "the column 'model' twice"),
        ("model,latency_ms\n" + "x" * 200_000 + ",3\n", "line 2: field larger than"),
    ],
)
def test_rows_that_are_wrong_are_named(tmp_path, predictor, text, words):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(MeasuredRowsError) as error:
        calibrate(path, "A100", predictor=predictor)
    assert words in error.value.message
    assert error.value.hint


def test_a_measurement_that_is_none_of_this_model_is_named(tmp_path, predictor, rows):
    """Finite offsets that a device file cannot hold were written, and refused when read."""
    for factor in (1e5, 1e8):
        wrong = [*rows, {**rows[0], "latency_ms": rows[0]["latency_ms"] * factor}]
        with pytest.raises(MeasuredRowsError, match=rf"row {len(wrong)}: latency_ms is .* where"):
            calibrate(wrong, "A100", predictor=predictor)
    far = [{**row, "latency_ms": row["latency_ms"] * 1e4} for row in rows]
    found = calibrate(far, "A100", predictor=predictor)
    write_device(found, tmp_path / "far.toml")
    assert read_device(tmp_path / "far.toml").calibration == found.calibration


def test_what_could_not_be_read_is_not_written(tmp_path, predictor, rows):
    path = tmp_path / "mine.toml"
    write_device(calibrate(rows, "A100", predictor=predictor), path)
    for name in ("A100", "", "x" * 200, "a\nb"):
        device = replace(read_device(path), name=name)
        with pytest.raises(DeviceError, match=r"."):
            write_device(device, tmp_path / "other.toml")
        assert not (tmp_path / "other.toml").exists(), name
    odd = read_device(path)
    with pytest.raises(DeviceError, match="log_launch"):
        write_device(
            replace(odd, calibration=replace(odd.calibration, log_launch=15.0)),
            tmp_path / "other.toml",
        )


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
