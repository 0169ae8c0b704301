"""Measured contexts: memory of a process besides its allocator, by installation.

    optimum-benchmark  A100-80GB, language models by torch 2.1: what NVML says is used, less what
                       the allocator reserves
    published          bare contexts that issues of PyTorch report, before any library is loaded

What NVML counts as used has been more than what processes use since driver 510: its first version
(`nvmlDeviceGetMemoryInfo`, which py3nvml calls) adds what the driver keeps for itself. On an idle
A100 that is 912 MB, where the second version says 8 MB (rust-nvml/nvml-wrapper#57);
optimum-benchmark read the first (huggingface/optimum-benchmark#31). Part of its rows stand 912 MB
above others of the same machine and software: they count an idle GPU besides, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dataset.measured.location import DataNotFoundError, table_path
from dippm.devices import find
from dippm.estimate.conditions import SoftwareClass
from training.hybrid.rows.memory_samples import DEVICE, OPTIMUM_MB, OPTIMUM_TABLE

DRIVER_RESERVES_MB = 912 * OPTIMUM_MB
"""What the driver keeps of an A100-80GB, in MiB."""
COUNTED_TWICE_MB = 2 * DRIVER_RESERVES_MB
"""From here on a context of that table counts an idle GPU besides."""


@dataclass(frozen=True, slots=True)
class ContextSample:
    """The context of one installation: a machine with its driver and libraries.

    Attributes:
        source: table, or "published".
        installation: machine and software.
        software: class of it.
        sm_count: multiprocessors of the GPU.
        counted_mb: context as it was counted, in MiB.
        reserved_by_driver_mb: part of it that is the driver's own.
        whole_model: whether libraries and kernels of a model were loaded.
    """

    source: str
    installation: str
    software: SoftwareClass
    sm_count: int
    counted_mb: float
    reserved_by_driver_mb: float = 0.0
    whole_model: bool = False


PUBLISHED = (
    ContextSample("published", "TITAN V, torch 1.3, pytorch#28394", "cuda-10", 80, 1008 - 3),
    ContextSample("published", "GTX 1080, torch 1.8.2+cu101, pytorch#55277", "cuda-10", 20, 721),
    ContextSample(
        "published", "2080 Ti, torch 1.6+cu101, pytorch#49877", "cuda-10", 68, 1035 - 158
    ),
    ContextSample("published", "3090, torch 1.8.2+cu111, pytorch#55277", "cuda-11", 82, 1687),
    ContextSample("published", "3090, torch 1.7.1+cu110, pytorch#49877", "cuda-11", 82, 1644 - 158),
)
"""What `nvidia-smi` showed, less the tensors that the report names."""


def context_samples(data: Path) -> list[ContextSample]:
    """Return what teaches the context alone."""
    return [*_optimum(data), *PUBLISHED]


def _optimum(data: Path) -> Iterator[ContextSample]:
    try:
        table = pd.read_csv(table_path(data, *OPTIMUM_TABLE))
    except DataNotFoundError:
        return
    table = table.assign(
        context_mb=(table["forward_mem_used_mb"] - table["forward_mem_reserved_mb"]) * OPTIMUM_MB
    )
    table = table[table["context_mb"].between(0.0, COUNTED_TWICE_MB)]
    whole = find(DEVICE).sm_count
    assert whole is not None
    for torch, rows in table.groupby("torch"):
        yield ContextSample(
            "optimum_benchmark",
            f"optimum_benchmark, torch {torch}",
            "lazy",
            whole,
            float(rows["context_mb"].median()),
            DRIVER_RESERVES_MB,
            whole_model=True,
        )
