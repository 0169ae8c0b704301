"""Stores that fail: unreachable, a full disk, a folder that cannot be written, no store."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys

import pytest

from dippm.errors import StoreError
from dippm.runs.store.attach import attach_all
from dippm.runs.store.runs import open_store
from tests.run_folders import make_run

ATTACH = [sys.executable, "-m", "dippm.runs.store.attach"]


def test_an_unreachable_database_that_comes_back(store_file, tmp_path):
    pytest.importorskip("psycopg", reason="the driver is not installed: psycopg[binary]")
    with socket.socket() as taken:  # a port where nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        address = f"postgresql+psycopg://u:secret@127.0.0.1:{port}/runs"
        environment = {**os.environ, "MLFLOW_DEFAULT_ARTIFACT_ROOT": str(tmp_path / "artifacts")}
        folder = make_run(tmp_path / "spool")
        words = [*ATTACH, folder, "--store", address]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "cannot open" in done.stderr
    assert "secret" not in done.stderr
    for _ in range(2):
        replayed = attach_all(tmp_path / "spool", str(store_file))
        assert replayed.waiting == {}
    assert len(open_store(str(store_file)).runs()) == 1


def test_a_server_that_is_not_there_keeps_nobody_waiting(monkeypatch, tmp_path):
    pytest.importorskip("mlflow", reason="the store of runs needs the extra track")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    folder = make_run(tmp_path / "spool")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        replayed = attach_all(tmp_path / "spool", address)
    assert list(replayed.waiting) == [folder]
    assert (folder / "samples-1.dippm").exists()


def test_a_full_disk_leaves_the_run_in_the_spool(store_file, tmp_path):
    folder = make_run(tmp_path / "spool", ticks=2000)
    limit = store_file.stat().st_size + 4096

    def few():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    words = [*ATTACH, folder, "--store", store_file]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=few)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    store = open_store(str(store_file))
    assert store.runs() == []
    (run,) = attach_all(tmp_path / "spool", str(store_file)).attached
    assert run.samples().num_rows == 6000
    assert len(store.runs()) == 1


def test_a_folder_that_cannot_be_written(store_file, as_nobody):
    folder, become_nobody = as_nobody
    closed = folder / "closed"
    closed.mkdir()
    run = make_run(folder / "spool", ticks=0)
    closed.chmod(0o555)
    become_nobody()
    with pytest.raises(StoreError, match="cannot open"):
        open_store(str(closed / "runs.db")).attach(run)


def test_what_is_no_store_is_left_as_it_is(tmp_path):
    pytest.importorskip("mlflow", reason="the store of runs needs the extra track")
    other = tmp_path / "notes.txt"
    other.write_text("mine, and no database")
    with pytest.raises(StoreError, match="no SQLite file"):
        open_store(str(other))
    assert other.read_text() == "mine, and no database"


def test_a_store_that_was_cut_short_is_said(store_file):
    store_file.write_bytes(store_file.read_bytes()[:20_000])
    with pytest.raises(StoreError):
        open_store(str(store_file)).runs()


def test_without_mlflow_the_run_waits(tmp_path):
    folder = make_run(tmp_path / "spool", ticks=0)
    program = (
        "import sys; sys.modules['mlflow'] = None\n"
        "from dippm.runs.store.attach import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", program, folder, "--store", tmp_path / "runs.db"]
    held = {**os.environ, "DIPPM_CACHE_DIR": str(tmp_path / "cache")}  # no tables of before
    done = subprocess.run(words, capture_output=True, text=True, env=held)
    assert done.returncode == 1
    assert "needs mlflow" in done.stderr
    assert not (tmp_path / "runs.db").exists()
