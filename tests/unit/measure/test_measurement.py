"""A model file from command to row, on the CPU, with everything real."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.errors import ConditionsError, InputShapeError, UnsafeModelError
from dippm.estimate import pretrained
from dippm.measure.columns import CONFIGURATION, IDENTITY, MEASURED, OUTCOME, PROVENANCE
from dippm.measure.measurement import measure_model
from dippm.measure.protocol import Regime, Settings

QUICK = Settings(warm_up_steps=1, timed_steps=4, settle_s=0.0)


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4)
    ).eval()


@pytest.fixture(scope="module")
def measured():
    return measure_model(network(), input=(3, 8, 8), batch=4, device="cpu", settings=QUICK)


def test_every_column_has_a_value_or_a_reason(measured):
    for name in MEASURED:
        assert name in measured.columns, name
        assert (measured.columns[name] is None) == (name in measured.absent), name
    for column in PROVENANCE:
        assert column.name in measured.columns, column.name
    known = {c.name for c in (*IDENTITY, *CONFIGURATION, *OUTCOME, *PROVENANCE)} | set(MEASURED)
    assert set(measured.columns) <= known


def test_mean_and_percentiles_are_those_of_the_raw_times(measured):
    times = measured.columns["latencies_ms"]
    assert len(times) == 4
    assert measured.latency_ms == pytest.approx(sum(times) / 4)
    assert measured.columns["latency_min_ms"] == min(times)
    assert min(times) <= measured.columns["latency_median_ms"] <= max(times)
    assert measured.columns["latency_p95_ms"] <= max(times)


def test_a_cpu_has_no_gpu_quantities_and_says_why(measured):
    for column in ("event_ms", "sm_clock_mhz", "memory_nvml_mb", "tensor_active_percent"):
        assert measured.columns[column] is None
        assert measured.absent[column]


def test_memory_on_a_cpu_is_the_resident_peak_of_the_run():
    class Wasteful(torch.nn.Module):
        def forward(self, x):
            return x + torch.ones(64 * 2**20 // 4 * 4).sum()  # 256 MiB for a moment

    lean = measure_model(torch.nn.Identity(), input=(4,), device="cpu", settings=QUICK)
    big = measure_model(Wasteful(), input=(4,), device="cpu", settings=QUICK)
    after = measure_model(torch.nn.Identity(), input=(4,), device="cpu", settings=QUICK)
    assert big.memory_mb - lean.memory_mb > 200
    assert big.memory_mb - after.memory_mb > 200


def test_the_table_names_latency_memory_and_why_there_is_no_energy(measured):
    text = str(measured)
    assert "measured" in text
    assert "latency" in text
    assert measured.energy_j is not None or "absent: " in text


def test_files_of_pytorch_and_onnx_are_measured(tmp_path):
    torch.save(network(), tmp_path / "net.pt")
    torch.onnx.export(network(), (torch.randn(2, 3, 8, 8),), tmp_path / "net.onnx", dynamo=False)
    whole = measure_model(tmp_path / "net.pt", input="3,8,8", device="cpu", settings=QUICK)
    assert whole.source == "net.pt"
    assert whole.columns["framework"].startswith("torch")
    runtime = measure_model(tmp_path / "net.onnx", batch=2, device="cpu", settings=QUICK)
    assert runtime.columns["framework"].startswith("onnxruntime")
    with pytest.raises(InputShapeError, match="fixes the batch"):
        measure_model(tmp_path / "net.onnx", batch=3, device="cpu", settings=QUICK)
    with pytest.raises(ConditionsError, match="as it is"):
        measure_model(tmp_path / "net.onnx", batch=2, device="cpu", regime=Regime("bf16"))


def test_token_ids_are_recognised():
    module = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 2))
    result = measure_model(module, input=(7,), batch=2, device="cpu", settings=QUICK)
    assert result.latency_ms > 0


def test_an_archive_with_code_needs_trust(tmp_path):
    path = tmp_path / "net.ts"
    torch.jit.trace(network(), torch.randn(1, 3, 8, 8)).save(str(path))
    with pytest.raises(UnsafeModelError):
        measure_model(path, input="3,8,8", device="cpu", settings=QUICK)
    trusted = measure_model(path, input="3,8,8", device="cpu", settings=QUICK, trust=True)
    assert trusted.latency_ms > 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"batch": 0}, ConditionsError, "batch is 0"),
        ({"device": "cuda:99"}, ConditionsError, "dippm doctor"),
        ({"device": "tpu"}, ConditionsError, "not a device"),
        ({"input": (3, 8, 9)}, InputShapeError, "does not accept"),
        ({"regime": Regime("fp64")}, ConditionsError, "unknown precision"),  # type: ignore
    ],
)
def test_bad_requests_are_refused_with_the_next_step(arguments, error, words):
    given = {"input": (3, 8, 8), "device": "cpu", "settings": QUICK, **arguments}
    with pytest.raises(error, match=words) as caught:
        measure_model(network(), **given)
    assert caught.value.hint


def test_the_command_prints_a_table_or_one_document(tmp_path):
    path = tmp_path / "net.pt"
    torch.save(network(), path)
    table = command(path, "--input", "3,8,8")
    assert table.exit_code == 0
    assert "net.pt · batch 1" in table.stdout
    document = json.loads(command(path, "--input", "3,8,8", "--json").stdout)
    assert document["measured"]["timed_steps"] == 3
    lost = command(tmp_path / "none.pt", "--json")
    assert lost.exit_code == 1
    assert json.loads(lost.stdout)["error"]["type"] == "ModelNotFoundError"


@pytest.mark.nightly(part="processes")
def test_the_command_lists_operators_with_their_measured_times(tmp_path):
    path = tmp_path / "net.pt"
    torch.save(network(), path)
    command = [sys.executable, "-m", "dippm", "measure", str(path), "--input", "3,8,8"]
    command += ["--device", "cpu", "--repeat", "3", "--warm-up", "1", "--operators", "5"]
    table = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "measured ms" in table.stdout
    assert "conv2d" in table.stdout
    assert "joined with an operator" in table.stdout
    answer = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    document = json.loads(answer.stdout)
    assert document["measured"]["timed_steps"] == 3
    operators = document["operators"]
    assert {"conv2d", "relu", "dense"} <= {check["op"] for check in operators["checks"]}
    assert operators["joined"] > 0.9
    assert operators["reason"], "no shipped checkpoint predicts the operators of a CPU"


@pytest.mark.nightly(part="processes")
def test_compare_says_before_measuring_what_cannot_be_predicted(tmp_path):
    path = tmp_path / "net.pt"
    torch.save(network(), path)
    command = [sys.executable, "-m", "dippm", "measure", str(path), "--input", "3,8,8"]
    command += ["--device", "cpu", "--compare", "--repeat", "3", "--warm-up", "1", "--json"]
    command += ["--checkpoint", "hybrid-gpu"]  # whatever CPU this is, that one knows none
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 1
    error = json.loads(refused.stdout)["error"]
    assert error["type"] in ("ConditionsError", "UnknownNameError")
    assert error["hint"]


@pytest.fixture
def onnx_net(tmp_path):
    path = tmp_path / "net.onnx"
    axes = {"x": {0: "batch"}}
    names = {"input_names": ["x"], "dynamic_axes": axes}
    torch.onnx.export(network(), (torch.randn(1, 3, 8, 8),), path, dynamo=False, **names)
    return path


@pytest.fixture
def known_cpu(monkeypatch):
    """This machine, taken for the one whose CPU a shipped checkpoint knows."""
    from dippm.measure import provenance

    provenance.machine.cache_clear()
    monkeypatch.setattr(provenance, "cpu_device", lambda: "CPU-AMD-EPYC-2c")
    yield
    provenance.machine.cache_clear()


def command(*words):
    quick = ("--device", "cpu", "--repeat", "3", "--warm-up", "1", "--energy-window-s", "0")
    return CliRunner().invoke(app, ["measure", *map(str, words), *quick])


def test_a_measurement_is_kept_where_no_prediction_can_be_held_against_it(onnx_net):
    answer = command(onnx_net, "--compare", "--operators", 3, "--json")
    assert answer.exit_code == 1
    document = json.loads(answer.stdout)
    assert document["measurement"]["measured"]["latency_ms"] > 0
    assert document["checks"] == []
    assert document["absent"]["comparison"]
    assert document["operators"] is None or document["operators"]["reason"]
    assert "no comparison:" in " ".join(answer.stderr.split()), "said before the measurement"
    text = command(onnx_net, "--compare")
    assert text.exit_code == 1
    assert " latency " in text.stdout
    assert "comparison absent: " in text.stdout


def test_a_file_of_another_framework_is_compared_if_a_checkpoint_learned_from_that(
    onnx_net, known_cpu, tmp_path
):
    other = json.loads(command(onnx_net, "--compare", "--json").stdout)
    assert "framework torch, the measurement for onnxruntime" in other["absent"]["comparison"]
    assert other["prediction"]["provenance"]["frameworks"] == ["torch"]
    folder = tmp_path / "mine" / "0.2.0"
    shutil.copytree(pretrained.find("pmgns-cpu-epyc").path, folder)
    config = json.loads((folder / "config.json").read_text())
    config["conditions"]["framework"] = ["onnxruntime"]
    (folder / "config.json").write_text(json.dumps(config))
    answer = command(onnx_net, "--compare", "--checkpoint", folder, "--json")
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    latency = next(c for c in document["checks"] if c["target"] == "latency_ms")
    assert latency["predicted"] > 0
    assert latency["measured"] == document["measurement"]["measured"]["latency_ms"]
    assert document["absent"] == {}
