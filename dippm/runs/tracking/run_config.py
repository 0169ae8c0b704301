"""The configuration of a command's run."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from dippm.runs.store.record import NOTHING, Moment, Start, as_json

LONGEST_NAME = 80
EXPERIMENT = "default"
MOST_HZ = 1000
FIRST_PROFILED = 20


class RunConfig(NamedTuple):
    """A command and what is recorded of it.

    Attributes:
        command: program and arguments.
        name: name of the run; by default the start of the command.
        experiment: name of the experiment that groups runs.
        store: URI of the store; "" for the default one.
        metrics: sources to sample, each with "@HZ" if it is to be read less often, "nvml:1" for one
            GPU of several; or radT's names of listeners, see `dippm.runs.tracking.listeners`.
        hz: samples per second.
        device: index or UUID for sources of a GPU.
        description: one sentence.
        params: settings of the workload.
        tags: free text by name.
        timeout_s: time limit of the command; 0 for none.
        json: whether one line of JSON about the run is printed on stdout at the end.
        prediction: prediction of the same work, as `Prediction.to_dict` returns it.
        profile: name in `dippm.runs.tracking.profilers`, "" for none; a profiled run has no valid
            times.
        profile_at: iteration to profile, counted from 0.
        group: name shared by runs that belong together; "" for that of the job, if there is one.
    """

    command: tuple[str, ...]
    name: str = ""
    experiment: str = ""
    store: str = ""
    metrics: tuple[str, ...] = ("tree",)
    hz: float = 10.0
    device: str = "0"
    description: str = ""
    params: Mapping[str, str] = NOTHING
    tags: Mapping[str, str] = NOTHING
    timeout_s: float = 0.0
    json: bool = False
    prediction: Mapping[str, Any] | None = None
    profile: str = ""
    profile_at: int = FIRST_PROFILED
    group: str = ""

    def start(self) -> Start:
        """Return the record of a run that starts now."""
        return new_start(
            name=self.name or shlex.join(self.command)[:LONGEST_NAME],
            experiment=self.experiment,
            store=self.store,
            description=self.description,
            command=self.command,
            params=self.params,
            tags={**self.tags, "profiled": self.profile} if self.profile else self.tags,
            prediction=self.prediction,
            group=self.group,
        )


RunOrder = RunConfig
"""Former name."""


def new_start(*, experiment: str, tags: Mapping[str, str], group: str = "", **given: Any) -> Start:
    """Return the start of a run by this process; a rank of a job joins the group of its job."""
    rank = rank_of(os.environ)
    ranks = {} if rank is None else {"rank": str(rank.rank), "ranks": str(rank.ranks or "unknown")}
    return Start(
        uuid=os.urandom(16).hex(),
        experiment=experiment or os.environ.get("DIPPM_EXPERIMENT") or EXPERIMENT,
        at=Moment.now(),
        folder=_cwd(),
        pid=os.getpid(),
        host=os.uname().nodename,
        group=group or os.environ.get("DIPPM_GROUP") or (rank.group if rank else ""),
        tags={**tags, **ranks},
        **given,
    )


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return ""


def write_to_memory(config: RunConfig) -> int:
    """Write a run configuration to an anonymous memory file, for a process that inherits it.

    Unlike an argument, it is unlimited in size and invisible to other users.

    Returns:
        The descriptor of the file.
    """
    held = os.memfd_create("config", 0)
    with open(os.dup(held), "w", encoding="utf-8") as file:
        json.dump(as_json(config), file)
    os.lseek(held, 0, os.SEEK_SET)
    return held


def read_from_memory(descriptor: int) -> RunConfig:
    """Read a run configuration from a memory file, and close it."""
    with open(descriptor, encoding="utf-8") as file:
        held = json.load(file)
    lists = {name: tuple(held[name]) for name in ("command", "metrics")}
    return RunConfig(**{**held, **lists})


def checked(config: RunConfig) -> RunConfig:
    """Return the run configuration after checks, with listeners replaced by their sources.

    Raises:
        RunError: if a rate is invalid.
        UnknownNameError: if a source does not exist.
        ListenerError: if a listener of radT's cannot work here.
        ProfilerError: if the profiler cannot work here.
    """
    from dippm.base.written import decimal_number
    from dippm.errors import RunError
    from dippm.measure.sources.registry import BUILT_IN

    if not 0 < config.hz <= MOST_HZ:
        hint = f"Give hz above 0 and at most {MOST_HZ}; 10 costs next to nothing."
        raise RunError(f"{config.hz:g} samples per second cannot be taken", hint)
    if any(word.partition("@")[0].partition(":")[0] not in BUILT_IN for word in config.metrics):
        from dippm.runs.tracking.listeners import sources_of

        config = config._replace(metrics=sources_of(config.metrics, devices=(config.device,)))
    for word in config.metrics:
        _, at, own_hz = word.partition("@")
        try:
            if at and not 0 < decimal_number(own_hz) <= MOST_HZ:
                raise ValueError
        except ValueError:
            hint = "Say how often as nvml@5, five times a second."
            raise RunError(f"{word!r} says no rate", hint) from None
    if config.profile:
        from dippm.runs.tracking.profilers import check_profiler

        check_profiler(config.profile, config.profile_at, config.command, config.metrics)
    return config


# Rank and job of a process, as the launchers of MPI and SLURM state them.


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
        group: name that all ranks of a job, and no other job, share.
        rank: number from 0.
        ranks: number of ranks; 0 if unknown.
    """

    group: str
    rank: int
    ranks: int


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    """Return the rank that the environment states, None outside of a job."""
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
            continue  # a batch script is a task of SLURM, but not a rank
        return Rank(group, int(environment[rank]), number)
    return None


def _launcher() -> str:
    """Return a name for the process that started us: host, pid and start time."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat", encoding="utf-8", errors="replace") as file:
            started = file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = "0"
    return f"{os.uname().nodename}-{parent}-{started}"
