"""The same store elsewhere: in PostgreSQL, with samples on a server of S3's protocol."""

from __future__ import annotations

import pytest

from dippm.errors import StoreError
from dippm.store.folder import read_folder
from dippm.store.runs import open_store
from tests.run_folders import make_run

HOSTILE = "\0\x1b[31m'; DROP TABLE runs; -- \udcff"


@pytest.mark.slow
def test_runs_in_postgresql_with_samples_in_s3(postgres_address, s3_bucket, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", f"{s3_bucket}/runs")
    store = open_store(postgres_address)
    odd = {"name": HOSTILE, "params": {HOSTILE: HOSTILE}, "tags": {HOSTILE: HOSTILE}}
    folder = make_run(tmp_path, experiment=HOSTILE, **odd)
    told = read_folder(folder)
    assert store.attach(folder).id == store.attach(folder).id
    (run,) = open_store(postgres_address).runs(where=["tree.rss_mb.max > 100", "loss < 1"])
    assert (run.start, run.end, run.values) == (told.start, told.end, told.values)
    assert run.samples().num_rows == 300
    assert store._client.get_run(run.id).info.artifact_uri.startswith(s3_bucket)
    store.keep(run, "comparison", {"verdict": "equal"})
    assert store.run(run.uuid[:10]).comparison == {"verdict": "equal"}
    assert list(tmp_path.glob("*")) == [folder]  # nothing was written here


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
