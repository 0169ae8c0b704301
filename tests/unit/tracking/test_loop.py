"""Predict, run, compare, accept: the whole loop on this machine, with the CPU's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dippm.measure.collected.rows import collected
from dippm.measure.provenance import cpu_device
from dippm.store.attach import attach
from dippm.store.folder import spool
from dippm.tracking.expectation import expectation_beside

from .small_net import network, tracked

pytest.importorskip("mlflow")
pytestmark = pytest.mark.slow
CPU = "CPU-AMD-EPYC-2c"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A file of the small network."""
    import torch

    module = network()
    file = tmp_path / "net.onnx"
    torch.onnx.export(module, (torch.zeros(1, 3, 32, 32),), file, dynamo=False)
    return file


def test_the_loop_closes(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dippm.cli.app import app

    store = f"sqlite:///{tmp_path / 'runs.db'}"
    monkeypatch.setenv("DIPPM_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("DIPPM_ATTACH", "no")
    foretold = expectation_beside(str(net), input="3,32,32", batch=4, device=CPU)
    told = {"batch": 4, "precision": "fp32", "mode": "eager"}
    if cpu_device() != CPU:
        told["device"] = CPU  # whatever it is: here the way is tested, not the figures
    uuid = tracked({"store": store, "params": told, "prediction": foretold})
    attach(spool() / uuid)

    words = ["compare-run", uuid[:8], "--store", store, "--json"]
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
    assert row["model"].startswith(f"file:{net}@3,32,32#")
    assert (row["device"], row["batch"]) == (CPU, 4)
    assert row["latency_ms"] == pytest.approx(latency["measured"])

    again = CliRunner().invoke(app, words)
    assert json.loads(again.stdout)["accepted"] is False
    refused = CliRunner().invoke(app, ["compare-run", "0" * 8, "--store", store])
    assert refused.exit_code == 1


def test_a_model_file_of_an_accepted_run_joins_its_graph(net: Path, tmp_path: Path) -> None:
    """Steps that are steady: those of a busy machine are rows, and no labels."""
    from dataset.collected.join import build
    from dippm.tracking.accepted import accept
    from dippm.tracking.expectation import _file_name
    from dippm.tracking.run_comparison import compare_run

    from .test_run_comparison import PREDICTION, run

    foretold = {**PREDICTION, "model": _file_name(net, "3,32,32")}
    made = run()
    accept(tmp_path / "team", made, compare_run(made), foretold)
    manifest = build(tmp_path / "team", tmp_path / "graphs", tmp_path / "table", 1)
    assert (manifest["rows_joined"], manifest["models_with_graph"]) == (1, 1)
