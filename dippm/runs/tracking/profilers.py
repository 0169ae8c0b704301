"""Profilers on request: for one iteration, in a run of its own without valid times.

    torch     torch.profiler inside of the program: a trace for Perfetto
    nsys      Nsight Systems around the command, limited to the NVTX range "profile"
    ncu       Nsight Compute around the command, limited to the same range
    nsysraw, ncuraw   the same over the whole run

The program marks its iterations with `dippm.runs.tracking.iterations`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dippm.errors import ProfilerError, UnknownNameError
from dippm.runs.store.folder import ARTIFACTS
from dippm.runs.tracking.loop import PROFILE_VARIABLE, RANGE

FOLDER = "profile"
"""Folder within the run's artifacts."""
TAG = "profiled"
READERS = {"gpm", "dcgm"}
"""Sources that read the counters which Nsight needs exclusively."""
ANSWER_S = 60.0


class Profiler(NamedTuple):
    """One profiler.

    Attributes:
        program: profiler that wraps the command; "" for one inside the program.
        words: its arguments, before the name of its output.
        needs_range: whether it waits for an iteration that the program marks.
        install: what to do if it is missing.
    """

    program: str
    words: tuple[str, ...] = ()
    needs_range: bool = True
    install: str = ""


NSYS = ("profile", "--trace=cuda,nvtx,osrt", "--force-overwrite=true")
OF_RANGE = ("--capture-range=nvtx", f"--nvtx-capture={RANGE}", "--capture-range-end=stop")
NCU = ("--target-processes", "all", "--force-overwrite")
FROM = "Install it from NVIDIA ({}), or put its folder on PATH."
PROFILERS = {
    "torch": Profiler("", install="Install it for the command's Python: pip install torch."),
    "nsys": Profiler("nsys", (*NSYS, *OF_RANGE), install=FROM.format("nsight-systems")),
    "nsysraw": Profiler("nsys", NSYS, False, FROM.format("nsight-systems")),
    "ncu": Profiler(
        "ncu",
        (*NCU, "--nvtx", "--nvtx-include", f"{RANGE}/"),
        install=FROM.format("nsight-compute"),
    ),
    "ncuraw": Profiler("ncu", NCU, False, FROM.format("nsight-compute")),
}


def check_profiler(
    name: str, iteration: int, command: Sequence[str], metrics: Sequence[str]
) -> None:
    """Refuse a profiler that cannot work, before anything is started.

    Raises:
        UnknownNameError: if the profiler does not exist.
        ProfilerError: if it is not installed, or needs counters that a sampled source reads.
    """
    if name not in PROFILERS:
        raise UnknownNameError.of("profiler", name, PROFILERS)
    profiler = PROFILERS[name]
    if iteration < 0:
        raise ProfilerError(f"there is no iteration {iteration}", "They are counted from 0.")
    if profiler.program and shutil.which(profiler.program) is None:
        raise ProfilerError(f"{profiler.program} is not installed", profiler.install)
    if not profiler.program and command and not _has_torch(command[0]):
        raise ProfilerError(f"{command[0]} has no torch", profiler.install)
    taken = READERS.intersection(word.partition("@")[0].partition(":")[0] for word in metrics)
    if profiler.program and taken:
        raise ProfilerError(
            f"{profiler.program} and the source {min(taken)} read the same counters of the GPU",
            'Sample other sources in this run: metrics=("tree", "nvml").',
        )


def _has_torch(program: str) -> bool:
    """Return whether a Python has torch; True for other programs, which may start one that does."""
    if not os.path.basename(program).startswith("python"):
        return True
    look = "import sys; from importlib.util import find_spec; sys.exit(find_spec('torch') is None)"
    try:
        answer = subprocess.run([program, "-c", look], capture_output=True, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return True  # starting the command gives the better error
    return answer.returncode == 0


def profiled_command(name: str, command: Sequence[str], run: Path) -> tuple[str, ...]:
    """Return the command within the profiler, whose output becomes the run's artifact.

    Raises:
        OSError: if the folder for it cannot be created.
    """
    profiler = PROFILERS[name]
    if not profiler.program:
        return tuple(command)
    folder = run / ARTIFACTS / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    out = ("--output", str(folder / name)) if profiler.program == "nsys" else (
        "--export", str(folder / name)
    )  # fmt: skip
    return (profiler.program, *profiler.words, *out, *command)


def profiler_environment(name: str, iteration: int) -> dict[str, str]:
    """Return the environment variables of the profiled command."""
    # Plain NVTX range names are unregistered strings, which Nsight Systems ignores by default.
    return {PROFILE_VARIABLE: f"{name}:{iteration}", "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


def why_no_profile(name: str, iteration: int, run: Path) -> str:
    """Return why an ended run has no profile, "" if it has one."""
    folder = run / ARTIFACTS / FOLDER
    if folder.is_dir() and any(folder.iterdir()):
        return ""
    if not PROFILERS[name].needs_range:
        return f"{name} wrote no profile"
    return (
        f"{name} saw no iteration {iteration}: the program goes over "
        f"dippm.runs.tracking.iterations(...), and that far"
    )


def refuse_profiled(tags: Mapping[str, str], what: str) -> None:
    """Refuse a run whose times a profiler has lengthened.

    Args:
        tags: tags of the run.
        what: description of the run for the message.

    Raises:
        ProfilerError: if the run was profiled.
    """
    if tags.get(TAG):
        raise ProfilerError(
            f"{what} was profiled by {tags[TAG]}: its times, memory and energy do not count",
            "Take a run of the same work without a profiler.",
        )
