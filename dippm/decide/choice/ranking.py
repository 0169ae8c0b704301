"""`choose` ranks every GPU and MIG slice for a model under limits.

It checks the arguments, asks `_ChoiceQuestion` for a contender per place, and raises if no place is
feasible. The answer, a `Choice`, orders the contenders.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Unpack, cast

from dippm.api import load
from dippm.base.progress import stage
from dippm.decide.choice.choice import Choice, nothing_feasible
from dippm.decide.choice.contender import BY, By, Contender
from dippm.decide.choice.limits import Limits, SloAt
from dippm.decide.choice.prices import Prices, PricesLike, prices_of
from dippm.decide.sharing import predict_among_copies
from dippm.decide.sharing.ways import check_count
from dippm.devices import Device, MigProfile, all_devices
from dippm.errors import ConditionsError, ConstraintError, DeviceError, DippmError
from dippm.estimate.carbon import Carbon, CarbonLike, carbon_of
from dippm.estimate.comparison import Failure
from dippm.estimate.conditions import Conditions, spelt
from dippm.estimate.grid import Grid
from dippm.estimate.largest_batch import largest_batch_at
from dippm.estimate.measure_line import Asked
from dippm.estimate.model_list import Candidate, batches_of
from dippm.estimate.options import ChoiceOptions, conditions_in, question, read_model, reading_in
from dippm.estimate.place import DeviceLike, device_of
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.graph import ModelGraph
from dippm.model.graph.float_type import in_float32

if TYPE_CHECKING:
    from dippm.estimate.pretrained import Checkpoint


ALL = "all"
"""Device name that stands for every GPU of the catalogue."""


@question(ChoiceOptions)
def choose(
    source: Any,
    framework: str | None = None,
    *,
    devices: DeviceLike | Iterable[DeviceLike] = ALL,
    slices: bool = True,
    by: By = "latency",
    slo_ms: float | None = None,
    slo_at: SloAt = "upper",
    max_memory_mb: float | None = None,
    prices: PricesLike | None = None,
    dataset_size: int | None = None,
    carbon: CarbonLike | None = None,
    region: str | None = None,
    copies: int = 1,
    **options: Unpack[ChoiceOptions],
) -> Choice:
    """Rank GPUs and their slices for a model, with the probability that each is really the first.

    A place that cannot be predicted, lacks memory or misses a limit is listed in the answer with
    its reason. What prevents all predictions, such as a model that cannot be read, is an error.

    Args:
        source: see `dippm.predict`.
        framework: see `dippm.predict`.
        devices: GPUs as `predict` takes them, one or several; "all" is every GPU of the catalogue.
        slices: whether MIG slices are ranked among the whole GPUs.
        by: "latency" of a batch, "throughput", "energy", "cost" or "carbon" per
            sample, or "size": the smallest place within the limits.
        slo_ms: largest latency of a batch, in ms.
        slo_at: value compared with `slo_ms`: "upper", the upper end of the 90 % interval, or
            "value", the predicted latency.
        max_memory_mb: largest 99 % bound of the memory in MiB, in addition to the capacity of each
            place.
        prices: hourly prices: a TOML file (see `dippm.decide.choice.prices`), a mapping by device,
            or `Prices`. Without them the cost is absent.
        dataset_size: samples of an epoch, for its cost.
        carbon: grams per kilowatt hour by region: a TOML file (see `dippm.estimate.carbon`), a
            mapping, or `Carbon`. Without them carbon is absent.
        region: region of the electricity; places that the file locates elsewhere keep theirs.
        copies: processes of the model that share each place under MPS, see `dippm.share`; the
            memory is that of all processes, and each has to meet `slo_ms`.
        **options: see `dippm.Options`; `batch` may be several ("1:256", see `dippm.sweep`), of
            which each place takes its best.

    Raises:
        ModelFileError: if the model cannot become a graph.
        ConstraintError: if a limit is not valid, or `by` needs prices or carbon that are missing.
        NothingFeasibleError: if no place is ranked; its `choice` has every row.
        PriceError: if the prices are not valid, or name an unknown device.
        CarbonError: if the intensities are not valid, or lack the region.
        UnknownNameError: if a device or checkpoint is not known.
        ConditionsError: if batch, precision, mode, ... cannot be predicted.
    """
    by = cast(By, spelt("ranking", by, BY))
    check_count(copies)
    limits = Limits(slo_ms, slo_at, max_memory_mb)
    gpus = _listed_devices(devices)
    known = None if prices is None else prices_of(prices, gpus)
    _check_prices(by, known, dataset_size)
    grams = _carbon_with_region(by, carbon, region)
    given = conditions_in(options)
    batch, precision = given.pop("batch", 1), given.pop("precision", "fp32")
    sizes = batches_of(batch) if isinstance(batch, str) else _batch_sizes(batch)
    shared = Grid.of(gpus[0], None, precision, sizes, **given)
    first = shared.places[0]
    migs = [(gpu, mig) for gpu in gpus for mig in _slices_by_size(gpu, wanted=slices)]
    places = [replace(first, device=gpu, mig=mig) for gpu, mig in migs]
    grid = replace(shared, places=places)
    checkpoint = options.get("checkpoint")
    loaded = load(checkpoint, device=gpus[0], phase=grid.execution.phase)
    point = grid.points(supported=loaded.precisions_for)[0]  # raises errors common to all places
    model = read_model(source, framework, checkpoint=checkpoint, **reading_in(options))
    asked = _ChoiceQuestion(
        loaded,
        in_float32(model.graph),
        model.name,
        grid,
        by,
        limits,
        known,
        dataset_size,
        grams,
        region,
        model.asked,
        copies,
    )
    choice = Choice.of(
        [*asked.contenders(), *(asked.unknown_slices() if slices else ())],
        by,
        source=model.name,
        conditions=_describe_conditions(point, grid.batches)
        + f" · {copies} copies under MPS" * (copies > 1),
        limits=limits,
        currency=known.currency if known else "",
        priced=known is not None,
        emits=grams is not None,
    )
    if not choice.ranked:
        raise nothing_feasible(choice)
    return choice


def _check_prices(by: By, prices: Prices | None, dataset_size: int | None) -> None:
    """Check that prices are given if the ranking or the cost of an epoch needs them.

    Raises:
        ConstraintError: if prices are missing, or the data set is empty.
    """
    if by == "cost" and prices is None:
        raise ConstraintError(
            "a ranking by cost needs prices, and none were given",
            'Give a file, prices="prices.toml" (examples/prices.toml is one), or rank by energy.',
        )
    if dataset_size is None:
        return
    if dataset_size < 1:
        raise ConstraintError(
            f"an epoch has {dataset_size} samples",
            "Give the number of samples of the data set: dataset_size=1281167.",
        )
    if prices is None:
        raise ConstraintError(
            "the cost of an epoch needs prices, and none were given",
            'Give a file, prices="prices.toml", or leave out dataset_size=... .',
        )


def _carbon_with_region(by: By, carbon: CarbonLike | None, region: str | None) -> Carbon | None:
    """Return the carbon intensities, checked to have the requested region; None without any.

    Raises:
        ConstraintError: if a ranking by carbon or a region needs them and they are missing.
        CarbonError: if they are not valid, or lack the region.
    """
    if carbon is None:
        if by == "carbon" or region is not None:
            what = "a ranking by carbon" if by == "carbon" else "a region"
            raise ConstraintError(
                f"{what} needs intensities, and none were given",
                'Give a file, carbon="carbon.toml" (examples/carbon.toml is one), or rank by '
                "energy.",
            )
        return None
    known = carbon_of(carbon)
    if region is not None:
        known.region(region)
    elif by == "carbon" and not known.where:
        raise ConstraintError(
            "a ranking by carbon needs a region, and none was given",
            f'Give region="{next(iter(known.regions))}", or another region of {known.source}.',
        )
    return known


def _listed_devices(wanted: DeviceLike | Iterable[DeviceLike]) -> list[Device]:
    several = [wanted] if isinstance(wanted, str | os.PathLike | Device) else list(wanted)
    found: dict[str, Device] = {}
    for one in several:
        is_all = isinstance(one, str) and one.strip().casefold() == ALL
        for device in all_devices() if is_all else (device_of(one),):
            found.setdefault(device.name, device)
    if not found:
        raise ConstraintError("no device was given", 'Give GPUs, or devices="all".')
    return list(found.values())


def _slices_by_size(device: Device, *, wanted: bool) -> list[MigProfile | None]:
    by_size = sorted(device.mig_profiles, key=lambda p: (p.memory_mb, p.sm_count))
    return [None, *by_size] if wanted else [None]


def _batch_sizes(batch: int | Iterable[int]) -> tuple[int, ...]:
    return (batch,) if isinstance(batch, int) else tuple(batch)


def _describe_conditions(c: Conditions, batches: Sequence[int]) -> str:
    several = f"batch {min(batches)} to {max(batches)}, the best of each place"
    parts = [f"batch {batches[0]}" if len(batches) == 1 else several, c.precision]
    parts.append(c.execution.engine)
    if c.phase == "train":
        parts.append(f"training step, {c.optimizer}{', checkpointing' * c.checkpointing}")
    return " · ".join([*parts, *c.execution.remarks])


# `_ChoiceQuestion` turns every GPU and slice of a choice into a contender.

Point = tuple[MigProfile | None, int]
"""A slice of a GPU (None for the whole GPU) and a batch."""


@dataclass(frozen=True, slots=True)
class _ChoiceQuestion:
    """Arguments of a choice that are the same for every place.

    Attributes:
        loaded: predictor with its checkpoints.
        graph: graph of the model.
        name: name of the model.
        grid: places, batches and conditions, with a single precision.
        by: quantity by which the best batch of a place is chosen.
        limits: limits of every place.
        prices: hourly prices; None if not given.
        dataset_size: samples of an epoch; None if not given.
        carbon: carbon intensities by region; None if not given.
        region: region of places that `carbon` does not locate; None if not given.
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
        """Yield a contender for each place of the grid.

        The places of a GPU are predicted before the first of its contenders is built, because a
        slice can vouch for the larger places of its GPU.
        """
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
                    entries[place.mig] = [self._share_place(entry) for entry in found]
            points = {
                (p.conditions.mig, p.conditions.batch): p
                for of_place in entries.values()
                for p in of_place
                if isinstance(p, Prediction)
            }
            for mig, of_place in entries.items():
                error = next((e.error for e in of_place if isinstance(e, Failure)), None)
                yield self._contender(device, mig, points, error)

    def _share_place(self, entry: Prediction | Failure) -> Prediction | Failure:
        """Return the prediction for a place shared with copies; a failure on a GPU without MPS."""
        if isinstance(entry, Failure):
            return entry
        try:
            return predict_among_copies(self.loaded, self.graph, entry, self.processes)
        except ConditionsError as error:
            return Failure(self.name, error)

    def unknown_slices(self) -> Iterator[Contender]:
        """Yield a contender with an error for each slice whose resources are not known."""
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
        """Return a place at its best batch.

        Args:
            device: GPU of the place.
            mig: slice of the GPU; None for the whole GPU.
            points: predictions for all places of the GPU.
            error: first error of the place; required if it has no prediction.
        """
        copies, stranded = _count_copies(device, mig)
        place = Contender(
            _place_name(device, mig),
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
        known = [
            self._with_prediction(place, p, points) for (of, _), p in points.items() if of == mig
        ]
        if not known:
            assert error is not None, "an entry is a prediction or a failure"
            return replace(place, error=error)
        best = min(known, key=self._rank)
        assert best.prediction is not None
        config = self._checkpoint(best.prediction.conditions).config
        return replace(
            best, measured=_is_measured(device, config), largest_batch=self._largest(best)
        )

    def _with_prediction(
        self, c: Contender, p: Prediction, points: Mapping[Point, Prediction]
    ) -> Contender:
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

        The place, which has at least the resources of the slice, then meets the limit too, even if
        its own interval is too wide: its latency depends more on the host, which is less well known
        than the kernels.
        """
        in_time = [
            mig
            for (mig, batch), other in points.items()
            if mig is not None
            and batch == p.conditions.batch
            and _includes_slice(c, mig)
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
    """Return whether a checkpoint was trained with measurements on a device.

    A checkpoint that does not list its devices counts as trained on the device it is for.
    """
    seen = config.get("seen")
    learned = seen.get("devices", ()) if isinstance(seen, dict) else (device.name,)
    return device.was_measured(learned)


def _includes_slice(c: Contender, mig: MigProfile) -> bool:
    """Return whether a place has at least the resources of a slice of the same GPU."""
    own = c.mig
    if own is None:
        return c.device.sm_count is None or mig.sm_count <= c.device.sm_count
    return mig.sm_count <= own.sm_count and mig.memory_slices <= own.memory_slices


def _count_copies(device: Device, mig: MigProfile | None) -> tuple[int, int]:
    """Return how many copies of a slice fit on a GPU, and how many compute slices stay idle.

    Compute slices stay idle only if the copies take all of the memory.
    """
    if mig is None:
        return 1, 0
    compute = max(p.compute_slices for p in device.mig_profiles)
    of_memory = device.memory_slices // max(1, mig.memory_slices)
    copies = min(compute // mig.compute_slices, of_memory)
    memory_left = device.memory_slices - copies * mig.memory_slices
    return copies, 0 if memory_left else compute - copies * mig.compute_slices


def _place_name(device: Device, mig: MigProfile | None) -> str:
    return f"{device.name} {mig}" if mig else device.name
