"""`ChoiceQuestion`: turns every GPU and slice of a choice into a contender."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dippm.base.progress import stage
from dippm.decide.choice.contender import By, Contender
from dippm.decide.choice.limits import Limits
from dippm.decide.choice.prices import Prices
from dippm.decide.sharing import predict_among_copies
from dippm.devices import Device, MigProfile
from dippm.errors import ConditionsError, DeviceError, DippmError
from dippm.estimate.carbon import Carbon
from dippm.estimate.comparison import Failure
from dippm.estimate.conditions import Conditions
from dippm.estimate.grid import Grid
from dippm.estimate.largest_batch import largest_batch_at
from dippm.estimate.measure_line import Asked
from dippm.estimate.model_list import Candidate
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.graph import ModelGraph

if TYPE_CHECKING:
    from dippm.estimate.pretrained import Checkpoint

Point = tuple[MigProfile | None, int]
"""A slice of a GPU, None for the whole, and a batch."""


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """The question of a choice, the same for every place.

    Attributes:
        loaded: the predictor.
        graph: the model.
        name: name of the model.
        grid: places, batches and conditions; one precision.
        by: quantity by which the best batch of a place is chosen.
        limits: limits of every place.
        prices: hourly prices; None without any.
        dataset_size: samples of an epoch; None if not given.
        carbon: carbon intensities by region; None without any.
        region: region of places without one of their own; None if not given.
        asked: source that the model was read from.
        processes: processes of the model that share each place under MPS.
    """

    loaded: LoadedPredictor
    graph: ModelGraph
    name: str
    grid: Grid
    by: By
    limits: Limits
    prices: Prices | None
    dataset_size: int | None
    carbon: Carbon | None = None
    region: str | None = None
    asked: Asked | None = None
    processes: int = 1

    def contenders(self) -> Iterator[Contender]:
        """Yield a contender for each place of the grid."""
        done = 0
        for _, places in groupby(self.grid.places, key=lambda place: place.device.name):
            entries: dict[MigProfile | None, list[Prediction | Failure]] = {}
            for place in places:
                done += 1
                device = place.device
                with stage(f"{done} of {len(self.grid.places)}: {place.name}"):
                    grid = replace(self.grid, places=(place,))
                    case = Candidate(self.graph)
                    found = self.loaded.entries(case, grid, name=self.name, asked=self.asked)
                    entries[place.mig] = [self._shared(entry) for entry in found]
            points = {
                (p.conditions.mig, p.conditions.batch): p
                for of_place in entries.values()
                for p in of_place
                if isinstance(p, Prediction)
            }
            for mig, of_place in entries.items():
                error = next((e.error for e in of_place if isinstance(e, Failure)), None)
                yield self._contender(device, mig, points, error)

    def _shared(self, entry: Prediction | Failure) -> Prediction | Failure:
        """Return the prediction beside copies; a failure on a GPU without MPS."""
        if isinstance(entry, Failure):
            return entry
        try:
            return predict_among_copies(self.loaded, self.graph, entry, self.processes)
        except ConditionsError as error:
            return Failure(self.name, error)

    def unknown_slices(self) -> Iterator[Contender]:
        """Yield the slices that exist but whose size is not known."""
        for device in {place.device.name: place.device for place in self.grid.places}.values():
            for name in device.unlisted_mig_profiles:
                error = DeviceError(
                    f"the usable memory and the SMs of {name} on {device.name} are not known",
                    "`nvidia-smi mig -lgip` lists them, and a device file can have them: "
                    'devices="my_gpu.toml".',
                )
                place = f"{device.name} {name}"
                yield Contender(place, device, None, self.grid.batches[0], None, error)

    def _contender(
        self,
        device: Device,
        mig: MigProfile | None,
        points: Mapping[Point, Prediction],
        error: DippmError | None,
    ) -> Contender:
        copies, stranded = _copies(device, mig)
        place = Contender(
            _name(device, mig),
            device,
            mig,
            self.grid.batches[0],
            None,
            copies=copies,
            processes=self.processes,
            stranded_compute_slices=stranded,
            price_per_hour=self.prices.of(device, mig) if self.prices else None,
            dataset_size=self.dataset_size,
            region=self.carbon.of(device, self.region) if self.carbon else None,
        )
        known = [self._at(place, p, points) for (of, _), p in points.items() if of == mig]
        if not known:
            assert error is not None, "an entry is a prediction or a failure"
            return replace(place, error=error)
        best = min(known, key=self._rank)
        assert best.prediction is not None
        config = self._checkpoint(best.prediction.conditions).config
        return replace(
            best, measured=_is_measured(device, config), largest_batch=self._largest(best)
        )

    def _at(self, c: Contender, p: Prediction, points: Mapping[Point, Prediction]) -> Contender:
        vouched = None if self.limits.is_in_time(p) else self._vouching_slice(c, p, points)
        misses = self.limits.misses(p, c.capacity_mb, in_time=vouched is not None)
        return replace(
            c,
            batch=p.conditions.batch,
            prediction=p,
            misses=tuple(misses),
            vouched_by=None if vouched is None else vouched.name,
        )

    def _vouching_slice(
        self, c: Contender, p: Prediction, points: Mapping[Point, Prediction]
    ) -> MigProfile | None:
        """Return the smallest slice within a place that meets the latency limit.

        The place, which has more of everything, then meets it too, although its own interval may
        be wider: it depends more on the host, of which less is known than of kernels.
        """
        in_time = [
            mig
            for (mig, batch), other in points.items()
            if mig is not None
            and batch == p.conditions.batch
            and _holds(c, mig)
            and self.limits.is_in_time(other)
        ]
        return min(in_time, key=lambda mig: (mig.memory_mb, mig.sm_count), default=None)

    def _rank(self, c: Contender) -> tuple[int, float, int]:
        burden = c.burden(self.by)
        return len(c.misses), burden.value if burden else float("inf"), c.batch

    def _largest(self, c: Contender) -> int | None:
        assert c.prediction is not None
        point = c.prediction.conditions
        predictor = self._checkpoint(point).predictor
        room_mb = self.limits.room_mb(c.capacity_mb) / self.processes
        return largest_batch_at(predictor, self.graph, point, room_mb)

    def _checkpoint(self, c: Conditions) -> Checkpoint:
        return self.loaded.checkpoint_for(c.device, c.phase)


def _is_measured(device: Device, config: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint was trained on a device; without a list, only on its own."""
    seen = config.get("seen")
    learned = seen.get("devices", ()) if isinstance(seen, dict) else (device.name,)
    return device.was_measured(learned)


def _holds(c: Contender, mig: MigProfile) -> bool:
    """Return whether a place has at least the resources of a slice of the same GPU."""
    own = c.mig
    if own is None:
        return c.device.sm_count is None or mig.sm_count <= c.device.sm_count
    return mig.sm_count <= own.sm_count and mig.memory_slices <= own.memory_slices


def _copies(device: Device, mig: MigProfile | None) -> tuple[int, int]:
    """Return how many such slices fit on a GPU, and how many compute slices then stay idle."""
    if mig is None:
        return 1, 0
    compute = max(p.compute_slices for p in device.mig_profiles)
    of_memory = device.memory_slices // max(1, mig.memory_slices)
    copies = min(compute // mig.compute_slices, of_memory)
    memory_left = device.memory_slices - copies * mig.memory_slices
    return copies, 0 if memory_left else compute - copies * mig.compute_slices


def _name(device: Device, mig: MigProfile | None) -> str:
    return f"{device.name} {mig}" if mig else device.name
