"""Predict, run, compare, accept: the whole loop on this machine, with the CPU's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dippm.measure.collected.rows import collected
from dippm.measure.provenance import cpu_device
from dippm.runs.store.attach import attach
from dippm.runs.store.folder import spool
from dippm.runs.tracking.expectation import expectation_beside

from .small_net import network, tracked

pytest.importorskip("mlflow")
pytestmark = pytest.mark.nightly(part="processes")
CPU = "CPU-AMD-EPYC-2c"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A file of the small network."""
    return exported(tmp_path / "net.onnx")


def exported(file: Path, width: int = 16) -> Path:
    """Write the small network of a width to a file."""
    import torch

    torch.onnx.export(network(width), (torch.zeros(1, 3, 32, 32),), file, dynamo=False)
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
    from dippm.runs.tracking.accepted_runs import accept
    from dippm.runs.tracking.expectation import _file_name
    from dippm.runs.tracking.run_comparison import compare_run

    from .test_run_comparison import PREDICTION, run

    foretold = {**PREDICTION, "model": _file_name(net, "3,32,32")}
    made = run()
    accept(tmp_path / "team", made, compare_run(made), foretold)
    manifest = build(tmp_path / "team", tmp_path / "graphs", tmp_path / "table", 1)
    assert (manifest["rows_joined"], manifest["models_with_graph"]) == (1, 1)


def test_a_history_of_accepted_runs_trains_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight networks, each at two batches, whose steps take time by their width."""
    pytest.importorskip("torch_geometric")
    import dippm
    from dataset.collected.join import build
    from dippm.estimate.models.pmgns_network import PmgnsConfig
    from dippm.runs.tracking.accepted_runs import accept
    from dippm.runs.tracking.expectation import _file_name
    from dippm.runs.tracking.run_comparison import compare_run
    from training.pmgns.selection import load_selection
    from training.pmgns.train_own import train_own
    from training.pmgns.trainer import TrainingConfig

    from .test_run_comparison import PREDICTION, run, steps

    files = [exported(tmp_path / f"net{width}.onnx", width) for width in range(8, 40, 4)]
    for place, file in enumerate(files):
        for batch in (4, 8):
            uuid = f"{place:031x}{batch:x}"
            made = run(steps(ms=(2 + place) * batch / 4), uuid, batch=str(batch))
            conditions = {**PREDICTION["conditions"], "batch": batch}
            name = _file_name(file, "3,32,32")
            made.prediction = {**PREDICTION, "model": name, "conditions": conditions}
            assert accept(tmp_path / "team", made, compare_run(made), made.prediction)
    joined = tmp_path / "joined"
    manifest = build(tmp_path / "team", tmp_path / "graphs", joined, 1)
    assert (manifest["rows_joined"], manifest["models_with_graph"]) == (16, 8)
    selection = load_selection(joined)
    assert selection.targets == ("memory_mb", "latency_ms")
    checkpoint = train_own(
        joined, tmp_path / "checkpoints" / "pmgns-team" / "0.1.0", selection=selection,
        network=PmgnsConfig.variant("paper", hidden=16, targets=selection.targets),
        training=TrainingConfig(epochs=2, batch_size=16, learning_rate=5e-3, bfloat16=False),
        splits=["S0"], others=[], runs=tmp_path / "runs",
    )  # fmt: skip
    answer = dippm.load(checkpoint.path).predict(
        dippm.read_graph(files[0], input="3,32,32"), batch=4, device=CPU
    )
    assert answer.latency_ms > 0
    assert answer.memory_mb > 0
    assert answer.absent["energy_j"]
