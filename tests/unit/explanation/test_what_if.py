"""What one change at a time would make of a prediction."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def attention():
    """Attention heavy enough for its kernel to decide."""
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(512, 1536)
            self.out = nn.Linear(512, 512)

        def forward(self, x):
            b, s, _ = x.shape
            q, k, v = self.qkv(x).view(b, s, 3, 8, 64).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.out(y.transpose(1, 2).reshape(b, s, 512))

    return Net()


def by_name(found):
    return {row["change"]: row for row in found.rows()}


def test_each_change_is_a_prediction_of_its_own(attention):
    found = dippm.what_if(attention, input=(1024, 512), batch=8, precision="fp16")
    rows = by_name(found)
    same = {"input": (1024, 512), "batch": 8, "precision": "fp16"}
    for name, asked in {
        "unfused attention": {"attention": "unfused"},
        "compiled": {"mode": "compiled"},
        "fp32": {"precision": "fp32"},
        "batch 16": {"batch": 16},
        "launches free": {"timer": "kernel"},
    }.items():
        expected = dippm.predict(attention, **{**same, **asked})
        assert rows[name]["latency_ms"] == pytest.approx(expected.latency_ms, rel=1e-9)
        assert rows[name]["memory_mb"] == pytest.approx(expected.memory_mb, rel=1e-9)
    assert rows["unfused attention"]["time_ratio"] > 1.3
    ratio = rows["batch 16"]["latency_ms"] / found.baseline.latency_ms
    assert rows["batch 16"]["time_ratio"] == pytest.approx(ratio / 2)


def test_a_device_that_does_not_exist_is_extrapolated(attention):
    rows = by_name(dippm.what_if(attention, input=(1024, 512), batch=8))
    faster = [rows["bandwidth x2"], rows["compute x2"]]
    assert [row["label"] for row in faster] == ["extrapolated"] * 2
    assert all(0.4 < row["time_ratio"] <= 1.001 for row in faster)
    assert faster[1]["time_ratio"] < 0.95, "products decide this model"
    assert all(r["label"] != "extrapolated" for n, r in rows.items() if not n.endswith("x2"))


def test_a_host_that_decides_is_worth_half(onnx_file):
    rows = by_name(dippm.what_if(onnx_file, host=200.0))
    assert rows["launches x0.5"]["time_ratio"] == pytest.approx(0.5, abs=0.02)
    assert rows["launches free"]["time_ratio"] < 0.2
    assert rows["launches free"]["label"] == "estimated"
    assert rows["compute x2"]["time_ratio"] == pytest.approx(1, abs=0.01)


def test_what_is_the_other_way_round_is_changed_back(onnx_file):
    asked = {"attention": "unfused", "mode": "compiled", "channels_last": True, "timer": "kernel"}
    names = set(by_name(dippm.what_if(onnx_file, **asked)))
    assert names >= {"fused attention", "eager", "channels first"}
    assert not names & {"launches x0.5", "launches free", "compiled"}


def test_what_cannot_be_predicted_is_a_row_with_its_reason(onnx_file):
    fixed = replace(dippm.read_graph(onnx_file).at_batch(4), batch_is_symbolic=False)
    rows = by_name(dippm.what_if(fixed, batch=4))
    assert rows["batch 8"]["latency_ms"] is None
    assert "fixes the batch" in rows["batch 8"]["reason"]
    assert rows["compiled"]["reason"] is None
    cpu = by_name(dippm.what_if(onnx_file, device="cpu"))
    assert "not known" in cpu["bandwidth x2"]["reason"]
    assert "one host" in cpu["launches x0.5"]["reason"]
    assert cpu["batch 2"]["latency_ms"] > 0


def test_the_command_in_every_form(onnx_file):
    answer = run("what-if", onnx_file, "--batch", "64")
    assert answer.exit_code == 0, answer.output
    for text in ("bandwidth x2", "extrapolated: no such device", "batch 128", "as asked"):
        assert text in answer.stdout
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "60")
        narrow = run("what-if", onnx_file, "--batch", "64").stdout
    assert narrow.count("extrapolated") == 3, "two rows and what it means, however narrow"
    document = json.loads(run("what-if", onnx_file, "--batch", "64", "--json").stdout)
    assert document["baseline"]["latency_ms"] > 0
    assert {row["change"] for row in document["changes"]} >= {"fp16", "channels last"}
    wrong = run("what-if", onnx_file, "--precision", "fp17")
    assert wrong.exit_code == 1
    assert "fp17" in wrong.stderr
