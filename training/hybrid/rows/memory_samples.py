"""Measured device memories: the teachers of the memory model.

    migperf            A100-80GB, resnet50, ViT-B/16 and BERT-base at inference, four slices
    optimum-benchmark  A100-80GB, BERT-base by PyTorch, 1 to 2,048 samples
    D3.5, table 4      A100-40GB, DenseNet, Swin and ConvNeXt without `torch.no_grad`

They ran software of 2022 and 2023, whose attention was not fused. Sets of our own come beside them,
see `collected_memory`, and what teaches the context alone, see `context_samples`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dataset.join.graph_store import GraphStore
from dataset.measured.location import DataNotFoundError, table_path
from dippm.devices import find
from dippm.estimate.conditions import SoftwareClass
from dippm.estimate.models.memory import MIB, MemoryFootprint, MemoryGpu, Usage
from dippm.estimate.models.training_memory import AutogradFootprint

DEVICE = "A100-80GB"
GRAPHS = {"resnet50": "torchvision:resnet50@224", "vision_transformer": "torchvision:vit_b_16@224"}
OPTIMUM_TABLE = ("optimum_benchmark", "a100_80gb_inference.csv")
PYTORCH_BGE = "2.0.1"
OPTIMUM_MB = 1e6 / MIB
"""MiB in a megabyte of optimum-benchmark, which counts millions of bytes."""
SEED_TABLE = Path(__file__).with_name("seed_memory.csv")
"""D3.5's table 4: predicted and measured memory of a model at a batch, in MB."""
SEED_DEVICE = "A100-40GB"
SEED_GRAPHS = {
    "densenet121": "timm:densenet121@224",
    "swin_base_patch4": "timm:swin_base_patch4_window7_224@224",
    "convnext_base": "timm:convnext_base@224",
}
INCONSISTENT_SEED = ("convnext_base", 4)
"""Row of D3.5's table 4 whose memory contradicts the shares of slices beside it."""
UNUSED = {
    "migperf, training": "the memory of training steps, which `training.steps.memory` fits",
    "optimum_benchmark, ort-gpu": "another framework, with an allocator of its own",
    "optimum_benchmark, LLaMA, Mistral, Vicuna": "passes that fill a cache of keys and values, of "
    "which there is no graph; what the driver shows beyond the allocator teaches the context, see "
    "`context_samples`",
    "hf_training_steps": "peaks of the allocator in training steps, of models without a graph here",
    "raphischer": "the most that a sensor saw in a run: ResNet-50 at batch 32 stands at 4.2 GB, "
    "in migperf at 2.3; what else was in memory is not recorded",
    "flagperf": "single operators, in per cent of the board",
    "seeds_reported, ConvNeXt at batch 4": "1,652 MB contradict the shares of its slices, which "
    "mean 3.1 to 3.2 GB",
}
"""Tables that hold memory and do not teach, with the reason."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """One measured device memory.

    Attributes:
        model: architecture; what shares it is left out together.
        source: table.
        place: slice, or "whole" for the GPU.
        sm_count: multiprocessors of the slice or GPU.
        batch: samples per pass.
        usage: memory of the model at the batch.
        memory_mb: label.
        device: catalogue name.
        precision: number format, as in `Conditions`.
        part: group that is left out together where that is more than the model.
        software: class of software of the installation; None if not recorded.
    """

    model: str
    source: str
    place: str
    sm_count: int
    batch: int
    usage: Usage
    memory_mb: float
    device: str = DEVICE
    precision: str = "fp32"
    part: str = ""
    software: SoftwareClass | None = None

    @property
    def held_out(self) -> str:
        """What is left out together."""
        return self.part or self.model

    @property
    def gpu(self) -> MemoryGpu:
        """The slice or GPU as the memory sees it."""
        return MemoryGpu(self.sm_count, find(self.device).compute_capability)


class _Usages:
    """What a model needs at a batch, worked out once."""

    def __init__(self, graphs: GraphStore) -> None:
        self.graphs = graphs
        self._footprints: dict[str, MemoryFootprint] = {}
        self._usages: dict[tuple[str, int], Usage] = {}

    def at(self, key: str, batch: int) -> Usage | None:
        if key not in self.graphs:
            return None
        if key not in self._footprints:
            self._footprints[key] = MemoryFootprint.of(self.graphs[key], attention="unfused")
        if (key, batch) not in self._usages:
            self._usages[key, batch] = self._footprints[key].usage(batch)
        return self._usages[key, batch]


def memory_samples(data: Path, graphs: GraphStore) -> list[MemorySample]:
    """Return the measured rows whose graph is at hand.

    Tables that are not on this machine have none, see `absent_sources`.
    """
    usages = _Usages(graphs)
    return [*_migperf(data, usages), *_optimum(data, usages), *seed_samples(graphs)]


def seed_samples(graphs: GraphStore) -> list[MemorySample]:
    """Return the consistent rows of D3.5's table 4: forward passes without `torch.no_grad`."""
    table = pd.read_csv(SEED_TABLE)
    whole = find(SEED_DEVICE).sm_count
    assert whole is not None
    found = []
    for row in table.itertuples():
        key, batch = SEED_GRAPHS[row.model], int(row.batch)
        if key in graphs and (row.model, batch) != INCONSISTENT_SEED:
            usage = AutogradFootprint.of(graphs[key], attention="unfused").usage(batch)
            found.append(
                MemorySample(
                    row.model,
                    "seeds_reported",
                    "whole",
                    whole,
                    batch,
                    usage,
                    float(row.actual),
                    device=SEED_DEVICE,
                )
            )
    return found


def _migperf(data: Path, usages: _Usages) -> list[MemorySample]:
    try:
        table = pd.read_csv(table_path(data, "migperf", "a100_80gb_mig.csv"))
    except DataNotFoundError:
        return []
    table = table[(table["mode"] == "inference") & table["fb_used_mib"].notna()]
    slices = {profile.name: profile.sm_count for profile in find(DEVICE).mig_profiles}
    found = []
    for row in table.itertuples():
        key = GRAPHS.get(row.model) or f"hf:{row.model}@{int(row.seq_len)}"
        usage = usages.at(key, int(row.batch))
        if usage is not None:
            place = row.mig_profile
            found.append(
                MemorySample(
                    row.model, "migperf", place, slices[place], row.batch, usage, row.fb_used_mib
                )
            )
    return found


def _optimum(data: Path, usages: _Usages) -> list[MemorySample]:
    """Rows of bge-base, which is BERT-base."""
    try:
        table = pd.read_csv(table_path(data, *OPTIMUM_TABLE))
    except DataNotFoundError:
        return []
    mine = table["model"].str.contains("bge-base") & (table["torch"] == PYTORCH_BGE)
    whole = find(DEVICE).sm_count
    assert whole is not None
    found = []
    for row in table[mine & table["forward_peak_memory_mb"].notna()].itertuples():
        usage = usages.at(f"hf:bert-base@{int(row.seq_len)}", int(row.batch))
        if usage is not None:
            found.append(
                MemorySample(
                    "bert-base",
                    "optimum_benchmark",
                    "whole",
                    whole,
                    int(row.batch),
                    usage,
                    row.forward_peak_memory_mb * OPTIMUM_MB,
                    software="lazy",
                )
            )
    return found
