"""MLflow's tables without MLflow: what is written is what MLflow would have written."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys

import pytest

from dippm.errors import StoreError
from dippm.runs.store import client, tables
from dippm.runs.store.location import locate_store
from dippm.runs.store.run_contents import LoggedMetric
from dippm.runs.store.runs import open_store
from dippm.runs.store.tables import Tables
from dippm.runs.store.through_mlflow import ThroughMlflow
from tests.run_folders import make_run

ODD = {"a" * 400: "b" * 9000, "x/../y": "1", "é'\"`": "\x1b[31m'; DROP TABLE runs; --"}


def held(address, uuid):
    """All that MLflow's own client says of a run."""
    from mlflow.tracking import MlflowClient

    theirs = MlflowClient(address)
    ids = [experiment.experiment_id for experiment in theirs.search_experiments()]
    (run,) = theirs.search_runs(ids, f"tags.`dippm.uuid` = '{uuid}'")
    info = dict(run.info)
    for name in ("run_id", "run_uuid", "artifact_uri", "experiment_id"):
        info.pop(name, None)
    series = {
        key: sorted((m.value, m.timestamp, m.step) for m in history)
        for key in run.data.metrics
        for history in [theirs.get_metric_history(run.info.run_id, key)]
    }
    artifacts = sorted(item.path for item in theirs.list_artifacts(run.info.run_id))
    experiment = theirs.get_experiment(run.info.experiment_id)
    told = (run.data.params, run.data.tags, run.data.metrics)
    return info, told, series, artifacts, experiment.name, experiment.lifecycle_stage


@pytest.mark.parametrize("place", ["file", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_mlflow_finds_what_its_own_client_would_have_written(
    place, request, store_file, monkeypatch, tmp_path
):
    mine = f"sqlite:///{store_file}"
    if place == "postgresql":
        mine = request.getfixturevalue("postgres_address")
        monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", (tmp_path / "artifacts").as_uri())
    theirs = f"sqlite:///{shutil.copy(store_file, tmp_path / 'theirs.db')}"
    folder = make_run(tmp_path / "spool", ticks=40, params=ODD, tags=ODD, group="of one")
    store = open_store(mine)
    assert isinstance(store._runs, Tables)
    run = store.attach(folder)
    assert run.samples().num_rows == 120
    monkeypatch.setattr(tables, "KNOWN", frozenset())
    other = open_store(theirs)
    assert isinstance(other._runs, ThroughMlflow)
    other.attach(folder)
    assert held(mine, run.uuid) == held(theirs, run.uuid)
    # What either wrote, the other reads, and finds complete.
    assert open_store(mine).run(run.uuid).start == run.start
    assert open_store(mine).attach(folder).id == run.id
    again = other.run(run.uuid)
    assert (again.metrics, again.words) == (run.metrics, run.words)


def test_a_schema_that_is_not_known_is_left_to_mlflow(store_file, monkeypatch):
    monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
    assert tables.tables_of(locate_store(str(store_file))) is None
    monkeypatch.delenv("MLFLOW_ENABLE_WORKSPACES")
    assert tables.tables_of(locate_store(str(store_file))) is not None
    with sqlite3.connect(store_file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'of_later'")
    connection.close()
    assert tables.tables_of(locate_store(str(store_file))) is None


def test_the_schema_that_is_known_is_that_of_the_mlflow_that_is_installed(store_file):
    assert Tables(locate_store(str(store_file))).version() in tables.KNOWN


def test_the_tables_of_a_new_store_are_made_by_mlflow_once(monkeypatch, tmp_path):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("DIPPM_CACHE_DIR", str(tmp_path / "cache"))
    made = []
    make = client._make_tables
    monkeypatch.setattr(client, "_make_tables", lambda *given: (made.append(1), make(*given)))
    locations = []
    for name in ("one", "two", "three"):
        if name == "three":  # a damaged copy is made anew
            (kept,) = (tmp_path / "cache" / "tables").iterdir()
            kept.write_bytes(kept.read_bytes()[:5000])
        store = open_store(str(tmp_path / name / "runs.db"))
        store.attach(make_run(tmp_path / name, ticks=0))
        assert len(store.runs()) == 1
        theirs = MlflowClient(store.location.uri)
        assert len(theirs.search_runs([theirs.get_experiment_by_name("vision").experiment_id])) == 1
        locations.append(theirs.get_experiment("0").artifact_location)
    folders = [tmp_path / name for name in ("one", "two", "three")]
    assert locations == [f"{folder.as_uri()}/runs-artifacts/0" for folder in folders]
    assert len(made) == 2


def test_runs_are_attached_and_listed_without_mlflow(store_file, tmp_path):
    folder = make_run(tmp_path / "spool", ticks=10)
    program = (
        "import sys; from pathlib import Path; from dippm.runs.store.runs import open_store\n"
        "store = open_store(sys.argv[1]); run = store.attach(Path(sys.argv[2]))\n"
        "store.keep(run, 'comparison', {}, {'error': 0.5})\n"
        "print(store.runs()[0].name, len(run.spans))\n"
        "heavy = ('mlflow', 'sqlalchemy', 'pandas', 'torch')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    words = [sys.executable, "-c", program, store_file, folder]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == "training 4\n[]\n", done.stderr


def test_the_last_of_a_metric_is_the_one_that_mlflow_takes(store_file):
    from mlflow.entities import Metric as Theirs
    from mlflow.tracking import MlflowClient

    runs, client = Tables(locate_store(str(store_file))), MlflowClient(f"sqlite:///{store_file}")
    inf, nan = float("inf"), float("nan")
    points = [(1.0, 5, 1), (9.0, 4, 1), (2.0, 5, 1), (2.0, 5, 1), (-inf, 9, 0)]
    batches = [points, [(3.0, 9, 0), (7.0, 1, 2)], [(nan, 1, 2)], [(nan, 1, 3)]]
    mine = runs.create("default", 1, {}, "mine")
    theirs = client.create_run(client.get_experiment_by_name("default").experiment_id).info.run_id
    for batch in batches:
        runs.log(mine, [LoggedMetric("m", *point) for point in batch], {}, {})
        client.log_batch(theirs, metrics=[Theirs("m", *point) for point in batch])
        ours, other = (client.get_run(id_).data.metrics["m"] for id_ in (mine, theirs))
        assert repr(ours) == repr(other)
    histories = [client.get_metric_history(id_, "m") for id_ in (mine, theirs)]
    told = [sorted((repr(m.value), m.timestamp, m.step) for m in history) for history in histories]
    assert told[0] == told[1]


def test_an_experiment_that_was_deleted_comes_back(store_file, tmp_path):
    from mlflow.tracking import MlflowClient

    store = open_store(str(store_file))
    store.attach(make_run(tmp_path, ticks=0))
    client = MlflowClient(f"sqlite:///{store_file}")
    client.delete_experiment(client.get_experiment_by_name("vision").experiment_id)
    assert store.runs() == []
    store.attach(make_run(tmp_path, number=1, ticks=0))
    assert client.get_experiment_by_name("vision").lifecycle_stage == "active"
    assert store.runs()


def test_no_artifact_leads_out_of_a_run(store_file, tmp_path):
    store = open_store(str(store_file))
    run = store.attach(make_run(tmp_path / "spool", ticks=0))
    (tmp_path / "secret").write_text("?")
    record = json.loads(run.fetch("run.json").read_bytes())
    name = "../../../../../secret"
    run.__dict__["_record"] = {**record, "artifacts": [name]}
    with pytest.raises(StoreError, match="leads out of the run"):
        run.artifact(name)


def test_what_fails_inside_of_a_transaction_was_never_written(store_file):
    runs = Tables(locate_store(str(store_file)))

    def fail():
        with runs.transaction():
            runs.create("default", 1, {"a": "b"}, "never")
            assert len(list(runs.find([]))) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(runs.find([])) == []
