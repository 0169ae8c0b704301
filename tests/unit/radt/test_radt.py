"""radT's names in a script: its numbers and files are the run's, and MLflow's own stand beside."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from dippm.runs.store.runs import open_store
from tests.unit.tracking import commands
from tests.unit.tracking.commands import ROOT

SCRIPT = """
from dippm.radt import run

with run.RADTBenchmark() as run:
    # training loop
    for epoch in range(3):
        run.log_metric("Metric A", 1 / (1 + epoch), epoch)
    run.log_metrics({"Metric B": 2.5, "Metric C": 3}, epoch=7)
    run.log_param("lr", 0.1)
    run.set_tag("team", "a")
    with open("artifact.file", "w") as file:
        file.write("kept")
    run.log_artifact("artifact.file")
    run.log_artifact("artifact.file", "models/first")
"""
WHOLE = SCRIPT.replace("from dippm.radt import run", "import dippm.radt as radt").replace(
    "with run.", "with radt.run."
)
OLD = """
from dippm.radt import radT, trace

with radT() as run, trace.span("forward"):
    run.log_metric("loss", 0.5)
"""
AUTOLOG = """
import mlflow
import numpy
import xgboost

mlflow.autolog(log_models=False, silent=True)
x = numpy.random.default_rng(0).random((50, 3))
data = xgboost.DMatrix(x, x.sum(1))
xgboost.train({"max_depth": 2}, data, num_boost_round=3, evals=[(data, "train")])
print(mlflow.last_active_run().info.run_id)
"""


def python(tmp_path, text, **environment):
    """Run a script outside of any tracked run."""
    (tmp_path / "script.py").write_text(text)
    held = {**commands.environment(tmp_path / "spool"), **environment}
    return subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=held,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("text", [SCRIPT, WHOLE], ids=["from", "import"])
def test_a_script_of_the_documents_tells_the_run(tmp_path, text):
    (tmp_path / "script.py").write_text(text)
    made = commands.run(tmp_path / "spool", sys.executable, "script.py", cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, b"")
    told = commands.ended(tmp_path / "spool")
    numbers = [(v.name, v.data, v.step) for v in told.values if v.name.startswith("Metric")]
    assert numbers[:3] == [("Metric A", 1.0, 0), ("Metric A", 0.5, 1), ("Metric A", 1 / 3, 2)]
    assert numbers[3:] == [("Metric B", 2.5, 7), ("Metric C", 3.0, 7)]
    assert (told.start.params["lr"], told.start.tags["team"]) == ("0.1", "a")
    artifacts = told.path / "artifacts"
    assert (artifacts / "artifact.file").read_text() == "kept"
    assert (artifacts / "models" / "first" / "artifact.file").read_text() == "kept"


def test_an_older_script_too(tmp_path):
    (tmp_path / "script.py").write_text(OLD)
    commands.run(tmp_path / "spool", sys.executable, "script.py", cwd=tmp_path)
    told = commands.ended(tmp_path / "spool")
    assert [span.name for span in told.spans] == ["forward"]
    assert next((v.name, v.span) for v in told.values if v.kind == "metric") == (
        "loss",
        told.spans[0].id,
    )


def test_nothing_happens_outside_of_a_run(tmp_path):
    more = (
        "import sys\nrun.log_figure(1, 2)\nrun.log_artifact('missing')\n"
        "print([name for name in ('mlflow', 'numpy') if name in sys.modules])\n"
    )
    made = python(tmp_path, SCRIPT + more)
    assert (made.returncode, made.stdout, made.stderr) == (0, "[]\n", "")
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("run.log_artifact('missing')", "there is no file missing"),
        ("run.log_artifact(__file__, '../..')", "leads out of the run"),
        ("run.log_metric('loss', 'high')", "no number"),
    ],
)
def test_what_makes_no_sense_is_an_error_in_a_run(tmp_path, call, words):
    text = f"from dippm.radt import radT\nwith radT() as run:\n    {call}\n"
    (tmp_path / "script.py").write_text(text)
    made = commands.run(tmp_path / "spool", sys.executable, "script.py", cwd=tmp_path)
    assert made.returncode == 1
    assert words in made.stderr.decode()


def test_artifacts_come_back_from_the_store(tmp_path, store_file):
    (tmp_path / "script.py").write_text(SCRIPT)
    commands.run(tmp_path / "spool", sys.executable, "script.py", cwd=tmp_path)
    store = open_store(str(store_file))
    run = store.attach(commands.ended(tmp_path / "spool").path)
    assert run.artifacts == ("artifact.file", "models/first/artifact.file")
    assert run.artifact("models/first/artifact.file").read_text() == "kept"
    assert run.metrics["Metric A"] == 1 / 3


@pytest.fixture
def installed(tmp_path):
    """A folder that tells MLflow of our entry point, as an installed DIPPM of this tree does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    group = "mlflow.run_context_provider"
    lines = [f"{name} = {target}" for name, target in project["entry-points"][group].items()]
    folder = tmp_path / "site" / "dippm_of_a_test-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: dippm-of-a-test\nVersion: 0\n")
    (folder / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    return folder.parent


@pytest.mark.parametrize("way", ["command", "block"])
def test_autologging_stands_beside_the_run(tmp_path, store_file, installed, way):
    pytest.importorskip("xgboost", reason="what is logged here is xgboost's training")
    text = AUTOLOG
    if way == "block":
        body = "".join(f"    {line}\n" for line in AUTOLOG.splitlines())
        text = f"import dippm\nwith dippm.track('training', metrics=()):\n{body}"
    (tmp_path / "script.py").write_text(text)
    held = {
        **commands.environment(tmp_path / "spool"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{installed}",
        "MLFLOW_TRACKING_URI": f"sqlite:///{store_file}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    spool = tmp_path / "spool"
    if way == "command":
        made = commands.run(spool, sys.executable, "script.py", cwd=tmp_path, env=held)
    else:
        made = subprocess.run(
            [sys.executable, "script.py"], cwd=tmp_path, env=held, capture_output=True, timeout=120
        )
    assert made.returncode == 0, made.stderr.decode()
    theirs = made.stdout.decode().split()[-1]
    store = open_store(str(store_file))
    run = store.attach(commands.ended(spool).path)
    assert store.beside(run) == (theirs,)
    (logged,) = (found for found in store._runs.find([]) if found.id == theirs)
    assert logged.metrics["train-rmse"] > 0
    assert logged.tags["mlflow.parentRunId"] == run.id
    assert [one.uuid for one in store.runs()] == [run.uuid]  # theirs is no run of ours
