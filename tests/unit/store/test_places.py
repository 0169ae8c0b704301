"""The same store elsewhere: in PostgreSQL, with samples on a server of S3's protocol."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dippm.errors import StoreError
from dippm.runs.store.folder import read_folder
from dippm.runs.store.runs import open_store
from tests.run_folders import make_run

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = "\0\x1b[31m'; DROP TABLE runs; -- \udcff"


@pytest.mark.nightly(part="services")
def test_runs_in_postgresql_with_samples_in_s3(postgres_address, s3_bucket, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", f"{s3_bucket}/runs")
    from mlflow.tracking import MlflowClient

    store = open_store(postgres_address)
    odd = {"name": HOSTILE, "params": {HOSTILE: HOSTILE}, "tags": {HOSTILE: HOSTILE}}
    folder = make_run(tmp_path, experiment=HOSTILE, **odd)
    told = read_folder(folder)
    assert store.attach(folder).id == store.attach(folder).id
    (run,) = open_store(postgres_address).runs(where=["tree.rss_mb.max > 100", "loss < 1"])
    assert (run.start, run.end, run.values) == (told.start, told.end, told.values)
    assert run.samples().num_rows == 300
    assert MlflowClient(postgres_address).get_run(run.id).info.artifact_uri.startswith(s3_bucket)
    store.keep(run, "comparison", {"verdict": "equal"})
    assert store.run(run.uuid[:10]).comparison == {"verdict": "equal"}
    assert list(tmp_path.glob("*")) == [folder]  # nothing was written here


OPEN = """
import sys
import mlflow.tracking, sqlalchemy
from dippm.runs.store.runs import open_store
print("ready", flush=True)
sys.stdin.readline()
print(len(open_store(sys.argv[1]).runs()))
"""


@pytest.mark.nightly(part="services")
def test_two_that_open_an_empty_database_together_make_its_tables_once(
    postgres_address, monkeypatch, tmp_path
):
    monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", tmp_path.as_uri())
    words = [sys.executable, "-c", OPEN, postgres_address]
    pipe = subprocess.PIPE
    openers = [
        subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)
        for _ in range(3)
    ]
    for opener in openers:
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        opener.stdin.write("\n")
        opener.stdin.flush()
    said = [opener.communicate() for opener in openers]
    assert [(out, opener.returncode) for (out, _), opener in zip(said, openers, strict=True)] == [
        ("0\n", 0)
    ] * 3, said


def test_samples_in_s3_of_runs_in_a_file(store_file, s3_bucket, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", s3_bucket)
    run = open_store(str(store_file)).attach(make_run(tmp_path))
    assert run.samples().num_rows == 300
    assert len(run.spans) == 4


def test_a_bucket_that_is_gone_leaves_the_run_where_it_was(
    store_file, s3_bucket, monkeypatch, tmp_path
):
    import os

    import boto3

    monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", s3_bucket)
    name = s3_bucket.removeprefix("s3://")
    client = boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"])
    client.delete_bucket(Bucket=name)
    store, folder = open_store(str(store_file)), make_run(tmp_path)
    with pytest.raises(StoreError) as error:
        store.attach(folder)
    assert "dippm runs --attach" in error.value.hint
    assert store.runs() == []
    client.create_bucket(Bucket=name)
    store.attach(folder)
    assert len(store.runs()) == 1
