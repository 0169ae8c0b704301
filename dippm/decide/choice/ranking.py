"""`choose`: one model on every GPU and slice, ranked under limits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

from dippm.api import load
from dippm.decide.choice.choice import Choice
from dippm.decide.choice.contender import BY, By
from dippm.decide.choice.infeasible import nothing_feasible
from dippm.decide.choice.limits import Limits, SloAt
from dippm.decide.choice.prices import Prices, PricesLike, prices_of
from dippm.decide.choice.question import ChoiceQuestion
from dippm.decide.sharing.ways import check_count
from dippm.devices import Device, MigProfile, all_devices
from dippm.errors import ConstraintError
from dippm.estimate.batches import batches_of
from dippm.estimate.carbon import Carbon, CarbonLike, carbon_of
from dippm.estimate.conditions import Conditions, spelt
from dippm.estimate.grid import Grid
from dippm.estimate.options import ChoiceOptions, conditions_in, question, read_model, reading_in
from dippm.estimate.place import DeviceLike, device_of
from dippm.model.graph.float_type import in_float32

ALL = "all"


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
    """Rank GPUs and their slices for a model, and say how sure the first place is.

    A place that cannot be predicted, lacks memory or misses a limit is listed in the answer with
    its reason; a failure of all places (a model that cannot be read) is an error.

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
    gpus = _gpus(devices)
    known = None if prices is None else prices_of(prices, gpus)
    _check(by, known, dataset_size)
    grams = _regions(by, carbon, region)
    given = conditions_in(options)
    batch, precision = given.pop("batch", 1), given.pop("precision", "fp32")
    sizes = batches_of(batch) if isinstance(batch, str) else _sizes(batch)
    shared = Grid.of(gpus[0], None, precision, sizes, **given)
    first = shared.places[0]
    migs = [(gpu, mig) for gpu in gpus for mig in _slices(gpu, wanted=slices)]
    places = [replace(first, device=gpu, mig=mig) for gpu, mig in migs]
    grid = replace(shared, places=places)
    checkpoint = options.get("checkpoint")
    loaded = load(checkpoint, device=gpus[0], phase=grid.execution.phase)
    point = grid.points(supported=loaded.precisions_for)[0]  # raises errors common to all places
    model = read_model(source, framework, checkpoint=checkpoint, **reading_in(options))
    asked = ChoiceQuestion(
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
        conditions=_in_words(point, grid.batches) + f" · {copies} copies under MPS" * (copies > 1),
        limits=limits,
        currency=known.currency if known else "",
        priced=known is not None,
        emits=grams is not None,
    )
    if not choice.ranked:
        raise nothing_feasible(choice)
    return choice


def _check(by: By, prices: Prices | None, dataset_size: int | None) -> None:
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


def _regions(by: By, carbon: CarbonLike | None, region: str | None) -> Carbon | None:
    """Return the carbon intensities, which have the requested region.

    Raises:
        ConstraintError: if they are missing, with a ranking by carbon or a region.
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


def _gpus(wanted: DeviceLike | Iterable[DeviceLike]) -> list[Device]:
    several = [wanted] if isinstance(wanted, str | os.PathLike | Device) else list(wanted)
    found: dict[str, Device] = {}
    for one in several:
        is_all = isinstance(one, str) and one.strip().casefold() == ALL
        for device in all_devices() if is_all else (device_of(one),):
            found.setdefault(device.name, device)
    if not found:
        raise ConstraintError("no device was given", 'Give GPUs, or devices="all".')
    return list(found.values())


def _slices(device: Device, *, wanted: bool) -> list[MigProfile | None]:
    by_size = sorted(device.mig_profiles, key=lambda p: (p.memory_mb, p.sm_count))
    return [None, *by_size] if wanted else [None]


def _sizes(batch: int | Iterable[int]) -> tuple[int, ...]:
    return (batch,) if isinstance(batch, int) else tuple(batch)


def _in_words(c: Conditions, batches: Sequence[int]) -> str:
    several = f"batch {min(batches)} to {max(batches)}, the best of each place"
    parts = [f"batch {batches[0]}" if len(batches) == 1 else several, c.precision]
    parts.append(c.execution.engine)
    if c.phase == "train":
        parts.append(f"training step, {c.optimizer}{', checkpointing' * c.checkpointing}")
    return " · ".join([*parts, *c.execution.remarks])
