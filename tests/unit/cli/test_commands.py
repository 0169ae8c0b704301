import json
import sys

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.estimate.pretrained import store


@pytest.fixture
def run(checkpoint_folder, monkeypatch):
    """Call the command line with the test predictor as the only shipped one."""
    monkeypatch.setattr(store, "roots", lambda: (checkpoint_folder.parents[1],))
    monkeypatch.setattr(store, "DEFAULT", "roofline-test")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_predict_prints_a_table(run, onnx_file):
    answer = run("predict", onnx_file, "--batch", "32", "--device", "A100", "--operators", "2")
    assert answer.exit_code == 0, answer.output
    assert "small.onnx · batch 32 · A100-40GB" in answer.stdout
    assert "MIG slice    1g.5gb" in answer.stdout
    assert "conv2d" in answer.stdout
    assert "\x1b[" not in answer.stdout


def test_predict_json_is_one_document(run, onnx_file):
    answer = run("predict", onnx_file, "--batch", "8", "--precision", "fp16", "--json")
    document = json.loads(answer.stdout)
    assert document["conditions"]["batch"] == 8
    assert document["conditions"]["precision"] == "fp16"
    assert document["latency_ms"] > 0
    assert document["energy_j"] is None
    assert document["absent"]["energy_j"] == "no power was measured"
    assert document["provenance"]["checkpoint"] == "roofline-test 1.0.0"


def test_attention_is_a_condition(run, onnx_file):
    def conditions(*words):
        return json.loads(run(*words, onnx_file, "--json").stdout)["conditions"]["attention"]

    assert conditions("predict") == "fused"
    assert conditions("predict", "--attention", "Unfused") == "unfused"
    assert conditions("sweep", "--batch", "1,2", "--attention", "unfused") == "unfused"
    compared = run("compare", onnx_file, "--attention", "unfused", "--json")
    assert compared.exit_code == 0, compared.output
    for command in ("predict", "compare", "sweep"):
        wrong = run(command, onnx_file, "--attention", "flash")
        assert wrong.exit_code == 1
        assert "unknown attention 'flash'" in wrong.stderr
        assert "fused, unfused" in wrong.stderr


@pytest.mark.usefixtures("run")
def test_every_call_takes_attention(onnx_file):
    loaded = dippm.load()
    answers = [
        dippm.predict(onnx_file, attention="unfused"),
        loaded.predict(onnx_file, attention="unfused"),
        *loaded.predict_grid(onnx_file, batches=(1, 2), attention="unfused"),
        *dippm.compare([onnx_file], attention="unfused"),
        *dippm.sweep(onnx_file, batch=(1, 2), attention="unfused").predictions,
    ]
    assert [answer.conditions.attention for answer in answers] == ["unfused"] * 7
    assert dippm.predict(onnx_file).conditions.attention == "fused"


def test_predict_latency_grows_with_the_batch(run, onnx_file):
    one, many = (
        json.loads(run("predict", onnx_file, "--batch", batch, "--json").stdout)["latency_ms"]
        for batch in (1, 10)
    )
    assert many == pytest.approx(10 * one)


def test_predict_writes_a_page(run, onnx_file, tmp_path):
    page = tmp_path / "out.html"
    assert run("predict", onnx_file, "--html", page).exit_code == 0
    text = page.read_text()
    assert "global_avg_pool" in text
    assert "http" not in text.replace("http-equiv", "")


def test_compare_is_a_grid(run, onnx_file):
    answer = run(
        "compare",
        onnx_file,
        "--batch",
        "1,8",
        "--device",
        "A100,H100",
        "--sort",
        "latency_ms",
        "--json",
    )
    rows = json.loads(answer.stdout)["rows"]
    assert len(rows) == 4
    assert [row["latency_ms"] for row in rows] == sorted(row["latency_ms"] for row in rows)


def test_a_tree_of_modules(run, onnx_file):
    answer = run("predict", onnx_file, "--tree", "--operators", "3")
    header = next(line for line in answer.stdout.splitlines() if "weights MB" in line)
    assert "time ms" in header
    assert "module" in header
    document = json.loads(run("predict", onnx_file, "--tree", "--json").stdout)
    assert document["tree"]["time_ms"] == pytest.approx(document["latency_ms"])
    assert "tree" not in json.loads(run("predict", onnx_file, "--json").stdout)
    assert run("predict", onnx_file, "--tree", "--precision", "all").exit_code == 2


def test_a_tree_without_times(run, onnx_file):
    answer = run("graph", onnx_file, "--tree", "--depth", "0")
    header = next(line for line in answer.stdout.splitlines() if "module" in line)
    assert "time" not in header
    document = json.loads(run("graph", onnx_file, "--tree", "--json").stdout)
    assert document["tree"]["time_ms"] is None
    assert document["tree"]["macs"] == document["macs"]


def test_graph_lists_operators(run, onnx_file):
    assert "conv2d" in run("graph", onnx_file).stdout
    document = json.loads(run("graph", onnx_file, "--batch", "2", "--json").stdout)
    assert document["macs"] == 2 * (8 * 27 * 32 * 32 + 80)
    assert document["inputs"]["x"] == [[2, 3, 32, 32], "float32"]
    assert document["unknown"] == {}


def test_devices(run):
    assert "A100-40GB" in run("devices").stdout
    a100 = next(
        d
        for d in json.loads(run("devices", "--json").stdout)["devices"]
        if d["name"] == "A100-40GB"
    )
    assert a100["mig_profiles"][0]["name"] == "1g.5gb"


def test_models(run):
    assert "roofline-test (default)" in run("models").stdout
    (row,) = json.loads(run("models", "--json").stdout)["models"]
    assert row["version"] == "1.0.0"


def test_a_stated_context_and_autograd_reach_every_command(onnx_file):
    """The memory of a command is that of `predict`, asked the same."""

    def run(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    asked = [
        "--device",
        "A100-40GB",
        "--batch",
        "4",
        "--context-mb",
        "1900",
        "--autograd",
        "--json",
    ]

    def told(*words):
        answer = run(*words, str(onnx_file), *asked)
        assert answer.exit_code == 0, answer.output
        return json.loads(answer.stdout)

    one = told("predict")
    assert one["memory_parts"]["context_mb"] == 1900
    assert one["conditions"]["autograd"] is True
    bound_mb = one["memory_bound_mb"]
    assert told("compare")["rows"][0]["memory_bound_mb"] == bound_mb
    assert told("sweep")["batches"][0]["memory_bound_mb"] == bound_mb
    assert {row["memory_bound_mb"] for row in told("mig")["rows"]} == {bound_mb}
    assert told("mig", "plan")["models"][0]["memory_bound_mb"] == bound_mb
    assert told("explain")["memory"]["context"] == 1900
    assert told("what-if")["baseline"]["memory_mb"] == one["memory_mb"]
    plain = json.loads(run("predict", str(onnx_file), "-b", "4", "--json").stdout)
    assert plain["memory_parts"]["context_mb"] != 1900
    refused = run("predict", str(onnx_file), "--autograd", "--mode", "compiled")
    assert refused.exit_code == 1
    assert "eager forward pass" in refused.output


def test_doctor_says_why_no_context_is_measured(run, tmp_path, monkeypatch):
    """What answers to `nvidia-smi` is there, and the process that would measure sees no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def context():
        findings = json.loads(run("doctor", "--json").stdout)["findings"]
        (found,) = (finding for finding in findings if finding["what"] == "context")
        return found

    monkeypatch.setenv("PATH", "")
    assert "no GPU to measure it on" in context()["detail"]
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA T4, 550.54'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = context()
    assert found["state"] == "absent"
    assert "torch sees no GPU" in found["detail"]
    assert "--context-mb" in found["detail"]
    monkeypatch.setattr(
        "dippm.measure.context.PROBE",
        (
            sys.executable,
            "-c",
            """print('noise\\n{"context_mb": 1802.4, "device": "T4", '
                                 '"torch": "2.9", "cuda": "12.8"}')""",
        ),
    )
    found = context()
    assert found["state"] == "ok"
    assert "1,802 MB on T4, torch 2.9, CUDA 12.8" in found["detail"]
    assert found["detail"].endswith("--context-mb 1802")
    monkeypatch.setattr("dippm.measure.context.PROBE", (sys.executable, "-c", "print('{')"))
    assert "failed" in context()["detail"]


def test_doctor_sees_a_damaged_checkpoint(run, checkpoint_folder, tmp_path, monkeypatch):
    import shutil

    healthy = run("doctor", "--json")
    assert healthy.exit_code == 0, healthy.output
    copy = shutil.copytree(checkpoint_folder, tmp_path / "roofline-test" / "1.0.0")
    (copy / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(store, "roots", lambda: (tmp_path,))
    ill = run("doctor", "--json")
    assert ill.exit_code == 1
    broken = [
        finding for finding in json.loads(ill.stdout)["findings"] if finding["state"] == "broken"
    ]
    assert [finding["what"] for finding in broken] == ["checkpoint roofline-test 1.0.0"]


@pytest.mark.parametrize(
    "words",
    [["predict"], ["predict", "x.onnx", "--batch", "many"], ["conquer"], ["devices", "--fast"]],
)
def test_usage_errors_exit_with_2(run, words):
    answer = run(*words)
    assert answer.exit_code == 2
    assert answer.stdout == ""


@pytest.mark.parametrize(
    ("theirs", "ours"), [("--gpu", "--device"), ("--dtype", "--precision"), ("--mod", "--mode")]
)
def test_an_option_of_another_tool_is_told_ours(run, theirs, ours):
    answer = run("predict", "small.onnx", theirs, "x")
    assert answer.exit_code == 2
    assert ours in answer.output
    assert ours in json.loads(run("predict", "x", theirs, "x", "--json").stdout)["error"]["message"]
