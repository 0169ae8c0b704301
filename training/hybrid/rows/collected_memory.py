"""Device memory of our own rows: the allocator's peak and the context of a fresh process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from zlib import crc32

from dataset.join.graph_store import GraphStore
from dippm.devices import find
from dippm.estimate.conditions import Mode, Precision
from dippm.estimate.models.memory import MemoryFootprint, MemoryGpu
from training.hybrid.rows.collected_rows import CollectedSet, slice_of
from training.hybrid.rows.memory_samples import MemorySample

WHOLE = "whole"
PARTS = 5
"""A set's architectures are left out by fifths."""


def collected_memory(found: CollectedSet, graphs: GraphStore) -> Iterator[MemorySample]:
    """Yield a sample for each whole model whose reserved memory and context are both known.

    They ran under `torch.inference_mode`. The context of a collected row was read after the library
    of convolutions was loaded, whatever the model has of them.
    """

    @lru_cache(maxsize=8)
    def footprint(
        model: str, precision: Precision, mode: Mode, channels_last: bool
    ) -> MemoryFootprint:
        return MemoryFootprint.of(
            graphs[model], precision, mode, channels_last=channels_last, inference_mode=True
        )

    for record in sorted(found.records, key=lambda record: record["model"]):
        known = record["memory_reserved_mb"] and record["memory_context_mb"]
        device = find(record["device"])
        mig = slice_of(record, device)
        sm_count = mig.sm_count if mig else device.sm_count
        if record["kind"] != "model" or not known or sm_count is None:
            continue
        regime = record["precision"], record["mode"], bool(record["channels_last"])
        gpu = MemoryGpu(sm_count, device.compute_capability)
        usage = footprint(record["model"], *regime).usage(int(record["batch"]), gpu)
        yield MemorySample(
            model=record["architecture"],
            source=found.source,
            place=mig.name if mig else WHOLE,
            sm_count=sm_count,
            batch=int(record["batch"]),
            usage=replace(usage, convolves=True),
            memory_mb=record["memory_reserved_mb"] + record["memory_context_mb"],
            device=device.name,
            precision=record["precision"],
            software="lazy",
            part=f"{found.source} {crc32(record['architecture'].encode()) % PARTS}",
        )
