"""Which rank of which job a process is, as the launchers of MPI and SLURM tell it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")),
    ("PMI_RANK", "PMI_SIZE", ("PMI_JOBID", "SLURM_JOB_ID")),
    ("PMIX_RANK", "", ("PMIX_NAMESPACE",)),
    ("SLURM_PROCID", "SLURM_NTASKS", ()),
)
"""Variables of rank, number of ranks and job, of Open MPI, MPICH, PMIx and SLURM."""


class Rank(NamedTuple):
    """One of the processes of a job.

    Attributes:
        group: the same for every rank of a job and for no other job.
        rank: from 0.
        ranks: how many there are; 0 if that is not known.
    """

    group: str
    rank: int
    ranks: int


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    """Return the rank that an environment tells, None outside of a job."""
    slurm = environment.get("SLURM_JOB_ID")
    for rank, ranks, jobs in LAUNCHERS:
        if not environment.get(rank, "").isdecimal():
            continue
        size = environment.get(ranks, "")
        if slurm:
            group = f"slurm-{slurm}.{environment.get('SLURM_STEP_ID', '0')}"
            size = size or environment.get("SLURM_STEP_NUM_TASKS", "")
        else:
            named = next((environment[job] for job in jobs if environment.get(job)), "")
            group = f"mpi-{named or _launcher()}"
        number = int(size) if size.isdecimal() else 0
        if rank == "SLURM_PROCID" and number <= 1:
            continue  # a batch script is a process of SLURM too, but no rank
        return Rank(group, int(environment[rank]), number)
    return None


def _launcher() -> str:
    """Return a name of the process that started us: pid, and when it was started itself."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat", encoding="utf-8", errors="replace") as file:
            started = file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = "0"
    return f"{os.uname().nodename}-{parent}-{started}"
