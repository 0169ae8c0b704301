"""Checkpoints are chosen by device: by predict, load, compare and measure alike."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.devices import Device, all_cpus, all_devices, find
from dippm.errors import ConditionsError, UnknownNameError
from dippm.estimate.pretrained import DEFAULT, available, for_device
from dippm.estimate.pretrained.store import knows

CPU = "CPU-AMD-EPYC-2c"


def test_every_gpu_gets_the_default_and_the_cpu_its_own():
    assert {for_device(gpu).name for gpu in all_devices()} == {DEFAULT}
    assert [for_device(cpu).name for cpu in all_cpus()] == ["pmgns-cpu-epyc"]


def test_a_checkpoint_of_one_gpu_does_not_take_the_default_s_place():
    gpu = find("RTX-3090")
    assert [info.name for info in available() if knows(info.config, gpu)] == [
        DEFAULT,
        "pmgns-timm-rtx3090",
    ]
    assert for_device(gpu).name == DEFAULT


def test_an_unknown_device_still_says_so():
    strange = Device(name="CPU-Strange-7c", memory_mb=1024, kind="cpu")
    with pytest.raises(UnknownNameError, match="CPU-Strange-7c") as caught:
        for_device(strange)
    assert CPU in caught.value.hint


def test_predict_compare_and_load_on_the_cpu(onnx_file):
    one = dippm.predict(onnx_file, device="cpu")
    assert one.footer.startswith("pmgns-cpu-epyc ")
    both = dippm.compare([onnx_file], device=["A100", "cpu"])
    assert [p.provenance.kind for p in both] == ["hybrid", "pmgns"]
    loaded = dippm.load()
    assert loaded.checkpoint.name == DEFAULT
    assert loaded.predict(onnx_file, device="cpu").latency_ms == one.latency_ms
    on_cpu = dippm.load(device="cpu")
    assert on_cpu.checkpoint.name == "pmgns-cpu-epyc"
    assert on_cpu.predict(onnx_file).latency_ms == one.latency_ms
    assert [p.conditions.device.name for p in on_cpu.predict_grid(onnx_file)] == [CPU]


def test_a_named_checkpoint_is_not_replaced(onnx_file):
    with pytest.raises(ConditionsError, match="is a CPU"):
        dippm.load(DEFAULT).predict(onnx_file, device="cpu")


def test_measure_compare_on_the_cpu_that_was_measured(tmp_path, monkeypatch):
    import torch

    from dippm.measure import provenance

    provenance.machine.cache_clear()
    monkeypatch.setattr(provenance, "cpu_device", lambda: CPU)
    torch.save(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()), tmp_path / "net.pt")
    words = ["measure", str(tmp_path / "net.pt"), "--input", "3,8,8", "--device", "CPU"]
    words += ["--compare", "--repeat", "3", "--warm-up", "1", "--energy-window-s", "0", "--json"]
    answer = CliRunner().invoke(app, words)
    provenance.machine.cache_clear()
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    assert document["prediction"]["provenance"]["checkpoint"].startswith("pmgns-cpu-epyc ")
    errors = {check["target"]: check["error"] for check in document["checks"]}
    assert errors["latency_ms"] is not None
    assert errors["memory_mb"] is not None
