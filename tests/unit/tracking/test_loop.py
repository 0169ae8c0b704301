"""Predict, run, compare, accept: the whole loop on this machine, with the CPU's checkpoint."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dippm.measure.collected.rows import collected
from dippm.measure.provenance import cpu_device
from dippm.store.attach import attach
from dippm.store.folder import spool
from dippm.tracking.block import track
from dippm.tracking.expectation import expectation_beside

pytest.importorskip("mlflow")
pytestmark = pytest.mark.slow
CPU = "CPU-AMD-EPYC-2c"


@pytest.fixture
def net(tmp_path: Path) -> Any:
    """A small network as a file, and as a module."""
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 10),
    ).eval()
    file = tmp_path / "net.onnx"
    torch.onnx.export(module, (torch.zeros(1, 3, 32, 32),), file, dynamo=False)
    return file, module


def test_the_loop_closes(net: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from dippm.cli.app import app

    file, module = net
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    monkeypatch.setenv("DIPPM_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("DIPPM_ATTACH", "no")
    # In a process of its own: the workers of a conversion would be processes of the run.
    foretold = expectation_beside(str(file), input="3,32,32", batch=4, device=CPU)
    told = {"batch": 4, "precision": "fp32", "mode": "eager"}
    if cpu_device() != CPU:
        told["device"] = CPU  # whatever it is: here the way is tested, not the figures
    images = torch.zeros(4, 3, 32, 32)
    with track("net", store=store, params=told, prediction=foretold) as run, torch.no_grad():
        for _ in range(40):
            with run.span("forward"):
                module(images)
        while not any(file.stat().st_size for file in (spool() / run.uuid).glob("samples-*")):
            time.sleep(0.02)  # steps are so short that the first reading may come after them
    attach(spool() / run.uuid)

    words = ["compare-run", run.uuid[:8], "--store", store, "--json"]
    words += ["--accept", str(tmp_path / "team")]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    latency = document["compared"]["latency_ms"]
    assert latency["predicted"] == pytest.approx(foretold["latency_ms"])
    assert latency["measured"] > 0
    assert latency["verdict"] in ("inside", "within noise", "above", "below")
    assert document["steps"] == {**document["steps"], "timed": 35, "warm_up": 5}
    assert document["compared"]["memory_mb"]["measured"] > 100
    assert document["compared"]["energy_j"]["reason"]
    assert document["accepted"] is True
    (row,) = collected(tmp_path / "team").rows.to_dict("records")
    assert row["model"].startswith(f"file:{file}@3,32,32#")
    assert (row["device"], row["batch"]) == (CPU, 4)
    assert row["latency_ms"] == pytest.approx(latency["measured"])

    again = CliRunner().invoke(app, words)
    assert json.loads(again.stdout)["accepted"] is False
    refused = CliRunner().invoke(app, ["compare-run", "0" * 8, "--store", store])
    assert refused.exit_code == 1


def test_a_model_file_of_an_accepted_run_joins_its_graph(net: Any, tmp_path: Path) -> None:
    """Steps that are steady: those of a busy machine are rows, and no labels."""
    from dataset.collected.join import build
    from dippm.tracking.accepted import accept
    from dippm.tracking.expectation import _file_name
    from dippm.tracking.run_comparison import compare_run

    from .test_run_comparison import PREDICTION, run

    file, _ = net
    foretold = {**PREDICTION, "model": _file_name(file, "3,32,32")}
    made = run()
    accept(tmp_path / "team", made, compare_run(made), foretold)
    manifest = build(tmp_path / "team", tmp_path / "graphs", tmp_path / "table", 1)
    assert (manifest["rows_joined"], manifest["models_with_graph"]) == (1, 1)
