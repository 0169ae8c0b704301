"""`sweep`: one model over batch sizes, and the largest batch that fits a GPU and its slices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Unpack

from dippm.api import load
from dippm.base.answer import Answer
from dippm.base.progress import tell
from dippm.estimate.comparison import Comparison
from dippm.estimate.conditions import Conditions
from dippm.estimate.derived import DERIVED
from dippm.estimate.largest_batch import largest_batch_at
from dippm.estimate.model_list import batches_of
from dippm.estimate.options import SweepOptions, conditions_in, question, read_model, reading_in
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.graph import ModelGraph
from dippm.model.graph.float_type import in_float32

DEFAULT_BATCHES = "1:1024"
TARGETS = ("latency_ms", "memory_mb", "energy_j", "power_w")
COLUMNS = (
    *("batch", "samples_per_s", "memory_bound_mb", "capacity_mb", "headroom_mb", "fits"),
    *(f"{target}{end}" for target in TARGETS for end in ("", "_low", "_high")),
    "mig",
)
"""Quantities of a batch in the document; files add derived ones (`dippm.estimate.derived`)."""


@dataclass(frozen=True, slots=True)
class BatchCapacity:
    """Memory that holds a model: that of a GPU or of one of its slices.

    Attributes:
        name: name of the GPU or of the slice.
        memory_mb: usable memory in MiB.
        largest_batch: largest batch that fits at 99 % confidence; None if not even batch 1 does,
            or the memory is not predicted.
    """

    name: str
    memory_mb: int
    largest_batch: int | None


@dataclass(frozen=True, slots=True)
class BatchSweep(Answer):
    """A model over batch sizes under otherwise equal conditions.

    Attributes:
        predictions: one prediction per batch, in the order of the batches.
        places: the GPU (or the requested slice), then its slices by increasing memory.
    """

    predictions: tuple[Prediction, ...]
    places: tuple[BatchCapacity, ...]

    @property
    def title(self) -> str:
        """Model and conditions, without the batch."""
        first = self.predictions[0]
        return first.title.replace(f" · batch {first.conditions.batch} · ", " · ", 1)

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per batch: predicted and derived quantities, and if it fits."""
        rows = []
        for p in self.predictions:
            derived = {name: p.estimate(name) for name in DERIVED}
            values = {name: found and found.value for name, found in derived.items()}
            row: dict[str, Any] = {
                "batch": p.conditions.batch,
                "samples_per_s": values["samples_per_s"],
                "memory_bound_mb": p.memory_bound_mb,
                "capacity_mb": p.capacity_mb,
                "headroom_mb": p.headroom_mb,
                "fits": p.fits,
            }
            for target in TARGETS:
                interval = p.intervals.get(target)
                row[target] = getattr(p, target)
                row[f"{target}_low"] = interval and interval.low
                row[f"{target}_high"] = interval and interval.high
            rows.append({**row, "mig": p.mig and p.mig.name} | values)
        return rows

    def comparison(self) -> Comparison:
        """Return the same predictions as a comparison."""
        return Comparison(self.predictions)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        first = self.predictions[0].to_dict()
        conditions = {name: v for name, v in first["conditions"].items() if name != "batch"}
        warnings = dict.fromkeys(w for p in self.predictions for w in p.warnings)
        return {
            "source": first["source"],
            "conditions": conditions,
            "places": [
                {"name": p.name, "memory_mb": p.memory_mb, "largest_batch": p.largest_batch}
                for p in self.places
            ],
            "batches": [{name: row[name] for name in COLUMNS} for row in self.rows()],
            "absent": first["absent"],
            "warnings": list(warnings),
            "provenance": first["provenance"],
            "verify": first["verify"],
        }

    def __str__(self) -> str:
        return f"{self.title}\n{self.comparison()}"


@question(SweepOptions)
def sweep(
    source: Any,
    framework: str | None = None,
    *,
    batch: str | int | Iterable[int] = DEFAULT_BATCHES,
    **options: Unpack[SweepOptions],
) -> BatchSweep:
    """Predict a model over batch sizes, and find the largest that fits.

    Args:
        source: see `predict`.
        framework: see `predict`.
        batch: batch sizes; in text form "1:1024" stands for powers of two, "8:128:8" for steps of
            8, "1,8,32" for a list.
        **options: see `dippm.Options`.

    Raises:
        DippmError: as `predict` does.
    """
    sizes = batches_of(batch) if isinstance(batch, str) else _sizes(batch)
    first = Conditions.of(**conditions_in(options), batch=sizes[0])
    points = [first, *(first.replace(batch=size) for size in sizes[1:])]
    checkpoint = options.get("checkpoint")
    loaded = load(checkpoint, device=first.device, phase=first.phase)
    model = read_model(source, framework, checkpoint=checkpoint, **reading_in(options))
    predictions = tuple(loaded.predict_points(model.graph, points, model.name, model.asked))
    tell("looking for the largest batches that fit")
    return BatchSweep(predictions, tuple(_places(loaded, in_float32(model.graph), first)))


def _places(loaded: LoadedPredictor, graph: ModelGraph, c: Conditions) -> Iterable[BatchCapacity]:
    predictor = loaded.checkpoint_for(c.device, c.phase).predictor
    if c.mig is not None:
        name = f"{c.device.name} {c.mig}"
        yield BatchCapacity(name, c.capacity_mb, largest_batch_at(predictor, graph, c))
        return
    yield BatchCapacity(c.device.name, c.capacity_mb, largest_batch_at(predictor, graph, c))
    for profile in sorted(c.device.mig_profiles, key=lambda p: (p.memory_mb, p.sm_count)):
        on_slice = largest_batch_at(predictor, graph, c.replace(mig=profile))
        yield BatchCapacity(profile.name, profile.memory_mb, on_slice)


def _sizes(batch: int | Iterable[int]) -> tuple[int, ...]:
    return (batch,) if isinstance(batch, int) else tuple(batch)
