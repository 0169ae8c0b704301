"""`Contender`: a GPU or a slice that could run a model, with the predicted cost of doing so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dippm.base.answer import Answer
from dippm.devices import Device, MigProfile, taken_fraction
from dippm.errors import DippmError
from dippm.estimate.carbon import Region
from dippm.estimate.epoch import JOULES_PER_KWH
from dippm.estimate.models.targets import Estimate
from dippm.estimate.prediction import Prediction

By = Literal["latency", "throughput", "energy", "cost", "carbon", "size"]
BY: tuple[By, ...] = get_args(By)
COLUMN_OF: Mapping[By, str] = {
    "latency": "latency_ms",
    "throughput": "samples_per_s",
    "energy": "energy_per_sample_j",
    "cost": "cost_per_million",
    "carbon": "carbon_per_million_g",
}
"""Column that each ranking compares; only the throughput is to be large."""
MS_PER_HOUR = 3.6e6
MILLION = 1e6
ESTIMATES = (
    "latency_ms",
    "samples_per_s",
    "energy_j",
    "energy_per_sample_j",
    "power_w",
    "memory_mb",
    "cost_per_step",
    "cost_per_million",
    "cost_per_epoch",
    "carbon_per_million_g",
)
NO_PRICE = "no price"
NO_REGION = "no region"


@dataclass(frozen=True, slots=True)
class Contender(Answer):
    """A whole GPU or one slice of it, at one batch.

    Attributes:
        name: name of the GPU, followed by that of the slice.
        device: the GPU.
        mig: the slice; None for the whole GPU, and for a slice of unknown size.
        batch: samples per step; the best one if several were requested.
        prediction: prediction without operator tables; None if it failed.
        error: why it failed; None otherwise.
        misses: the limits that the contender misses, in words.
        vouched_by: a smaller slice that meets the latency limit although the wider interval of this
            contender does not; None if not needed or not found.
        measured: whether the predictor was trained on this GPU, or its owner calibrated it.
        largest_batch: largest batch that fits the memory and its limit at 99 % confidence; None if
            not even batch 1 does, or the memory is not predicted.
        copies: number of such slices that fit on one GPU; 1 for the whole GPU.
        processes: processes of the model that share the place; latency and energy are per process,
            the throughput is the total, and each pays its part of the hour.
        stranded_compute_slices: compute slices left idle by so many copies, for lack of memory.
        price_per_hour: price in the currency of the prices; None without one.
        dataset_size: samples of an epoch, for its cost; None if not given.
        region: region of the electricity; None if not given.
        probability_first: probability that its hardware is truly the first of the ranking; None if
            it is not ranked, or the ranking is not by a prediction.
    """

    name: str
    device: Device
    mig: MigProfile | None
    batch: int
    prediction: Prediction | None = field(repr=False)
    error: DippmError | None = None
    misses: tuple[str, ...] = ()
    vouched_by: str | None = None
    measured: bool = True
    largest_batch: int | None = None
    copies: int = 1
    processes: int = 1
    stranded_compute_slices: int = 0
    price_per_hour: float | None = None
    dataset_size: int | None = None
    region: Region | None = None
    probability_first: float | None = None

    @property
    def feasible(self) -> bool:
        """Whether the contender is predicted and meets every limit."""
        return self.prediction is not None and not self.misses

    @property
    def memory_bound_mb(self) -> float | None:
        """Upper 99 % bound of the memory in MiB; None if it is not predicted."""
        return None if self.prediction is None else self.prediction.memory_bound_mb

    @property
    def holds_model(self) -> bool:
        """Whether the usable memory holds the model, limits aside."""
        return bool(self.prediction and self.prediction.fits)

    @property
    def capacity_mb(self) -> int:
        """Usable memory in MiB."""
        return self.mig.memory_mb if self.mig else self.device.memory_mb

    @property
    def size(self) -> tuple[int, int]:
        """Usable memory and multiprocessors, by which places are ordered by size."""
        return self.capacity_mb, (self.mig.sm_count if self.mig else self.device.sm_count) or 0

    @property
    def share(self) -> float:
        """Fraction of the GPU that is used, 0 to 1."""
        return 1.0 if self.mig is None else taken_fraction(self.mig, self.device)

    @property
    def hardware(self) -> str:
        """Name of the hardware: a slice of all multiprocessors and memory is the whole GPU."""
        mig, device = self.mig, self.device
        whole = (device.sm_count, device.memory_slices)
        is_whole = mig is None or (mig.sm_count, mig.memory_slices) == whole
        return device.name if is_whole else self.name

    def estimate(self, name: str) -> Estimate | None:
        """Return one of ESTIMATES with its interval; None if it is absent.

        latency_ms, energy_j, power_w, memory_mb   of a batch, as predicted
        samples_per_s, energy_per_sample_j   see `dippm.estimate.derived`; of all processes
        cost_per_step         price_per_hour · latency_ms / 3.6e6 / processes
        cost_per_million      cost_per_step · 1e6 / batch, of a million samples
        carbon_per_million_g  energy_per_sample_j · 1e6 / 3.6e6 · pue · g_per_kwh of the region
        cost_per_epoch        cost_per_step · dataset_size / batch, the last step a whole one
        """
        latency, energy = self._predicted("latency_ms"), self._predicted("energy_j")
        match name:
            case "samples_per_s":
                rate = self._predicted(name)
                return rate and rate.scaled(self.processes)
            case "carbon_per_million_g":
                if self.region is None or energy is None:
                    return None
                return energy.scaled(self.region.grams(MILLION / JOULES_PER_KWH) / self.batch)
            case "cost_per_step" | "cost_per_million" | "cost_per_epoch":
                steps = self._steps(name)
                if self.price_per_hour is None or steps is None or latency is None:
                    return None
                return latency.scaled(self.price_per_hour / MS_PER_HOUR * steps / self.processes)
            case _:
                return self._predicted(name)

    def burden(self, by: By) -> Estimate | None:
        """Return the quantity to minimise: ms, ms or J per sample, cost or grams per million."""
        if by == "throughput":
            latency = self._predicted("latency_ms")
            return latency and latency.scaled(1 / self.batch)
        return self.estimate(COLUMN_OF[by]) if by in COLUMN_OF else None

    def why_absent(self, name: str) -> str:
        """Return why one of ESTIMATES is absent."""
        if self.prediction is None:
            return self.error.message if self.error else "not predicted"
        if name.startswith("cost") and self.price_per_hour is None:
            return NO_PRICE
        if name.startswith("carbon") and self.region is None:
            return NO_REGION
        if name == "cost_per_epoch" and self.dataset_size is None:
            return "the samples of an epoch (dataset_size) were not given"
        target = "energy_j" if name.startswith(("energy", "carbon")) else name
        target = target if target in self.prediction.absent else "latency_ms"
        return self.prediction.absent.get(target, "not predicted")

    def _steps(self, name: str) -> float | None:
        """Return the number of steps that a cost covers."""
        if name == "cost_per_step":
            return 1.0
        if name == "cost_per_million":
            return MILLION / self.batch
        return None if self.dataset_size is None else float(-(-self.dataset_size // self.batch))

    def _predicted(self, name: str) -> Estimate | None:
        return self.prediction.estimate(name) if self.prediction else None

    def rows(self) -> list[dict[str, Any]]:
        """Return the contender as a single row."""
        return [self.row()]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return self.row()

    def row(self) -> dict[str, Any]:
        """Return everything as one flat mapping; intervals as "_low" and "_high"."""
        row: dict[str, Any] = {
            "name": self.name,
            "device": self.device.name,
            "slice": self.mig and self.mig.name,
            "batch": self.batch,
            "feasible": self.feasible,
            "probability_first": self.probability_first,
        }
        for name in ESTIMATES:
            found = self.estimate(name)
            row[name] = found and found.value
            row[f"{name}_low"] = found and found.interval.low
            row[f"{name}_high"] = found and found.interval.high
        return {
            **row,
            "memory_bound_mb": self.memory_bound_mb,
            "capacity_mb": self.capacity_mb,
            "headroom_mb": self.prediction and self.prediction.headroom_mb,
            "fits": self.prediction and self.prediction.fits,
            "largest_batch": self.largest_batch,
            "copies": self.copies,
            "processes": self.processes,
            "stranded_compute_slices": self.stranded_compute_slices,
            "price_per_hour": self.price_per_hour,
            "region": self.region and self.region.name,
            "measured": self.measured,
            "vouched_by": self.vouched_by,
        }
