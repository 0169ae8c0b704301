"""Stores for tests: a SQLite file whose tables are there, and a server of S3's protocol."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def _tables(tmp_path_factory) -> Path:
    """A store without runs; to make its tables takes seconds, so it is made once and copied."""
    pytest.importorskip("mlflow", reason="the store of runs needs the extra track")
    from dippm.runs.store.client import connect
    from dippm.runs.store.location import locate_store

    path = tmp_path_factory.mktemp("store") / "runs.db"
    connect(locate_store(str(path)))
    return path


@pytest.fixture
def store_file(_tables, tmp_path) -> Path:
    """A SQLite file that is a store without runs."""
    return Path(shutil.copy(_tables, tmp_path / "runs.db"))


@pytest.fixture(scope="session")
def s3_server():
    """Address of a server that speaks S3's protocol, by HTTP on this machine."""
    pytest.importorskip("boto3", reason="the client of S3 is not installed: boto3")
    moto = pytest.importorskip("moto.server", reason="no server of S3: moto[server]")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_bucket(s3_server, monkeypatch):
    """Address of a new bucket, with the variables that clients of it read."""
    import uuid

    import boto3

    given = {
        "MLFLOW_S3_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    name = f"runs-{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=s3_server).create_bucket(Bucket=name)
    return f"s3://{name}"
