"""A fake `libnvidia-ml.so.1` for machines without a GPU; no figure of it was ever measured.

`build(folder)` compiles it; run a subprocess with `environment(library, answers)` so that the real
`pynvml` loads it. `answers` may be written anew while the subprocess runs: a GPU is lost that way.
With "mig_mode 1" among the answers, MIG instances live in the file that `instances` returns.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
GPU_UUID = "GPU-00000100-0000-0000-0000-00000000fa4e"
SECOND_GPU_UUID = "GPU-00000101-0000-0000-0000-00000000fa4e"
SLICE_UUID = "MIG-00010002-0000-0000-0000-00000000fa4e"
"""Of the second slice, whose GPU instance is number 2."""


def compiler() -> str | None:
    """Return a C compiler, None if there is none."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def build(folder: Path) -> Path:
    """Compile the library into `folder`, and return it."""
    found = compiler()
    assert found is not None, "needs a C compiler"
    library = folder / "libnvidia-ml.so.1"
    command = [found, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, SOURCE]
    subprocess.run(command, check=True, timeout=60)
    return library


def environment(library: Path, answers: Path) -> dict[str, str]:
    """Return the environment of a process that meets the fake GPU."""
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**kept, "LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML": str(answers)}


def instances(answers: Path) -> Path:
    """Return the file of the MIG instances, which tests may change as another user would."""
    return answers.with_name(f"{answers.name}.mig")
