"""`dippm predict` and `dippm cost`: one prediction, and what a run costs by it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dippm.cli import options
from dippm.cli.choose import CarbonFile, PricesFile, RegionName
from dippm.cli.output import check_fit, error_document, errors_reported, progress_shown, show

if TYPE_CHECKING:
    from dippm.estimate.carbon import Region
    from dippm.estimate.comparison import Comparison
    from dippm.estimate.conditions import Conditions
    from dippm.estimate.epoch import Epoch
    from dippm.estimate.prediction import Prediction


@options.conditions()
def predict(
    model: options.Source,
    precision: options.Precisions = "fp32",
    *,
    operators: options.Operators = 0,
    tree: options.Tree = False,
    depth: options.Depth = 3,
    dataset_size: Annotated[
        int | None,
        typer.Option(
            "--dataset-size",
            min=1,
            help="Also predict time, energy and price of passes over a data set of N samples.",
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option("--epochs", min=1, help="Number of passes over the data set.")
    ] = 1,
    price_per_hour: Annotated[
        float | None,
        typer.Option("--price-per-hour", min=0.0, help="Price of the GPU per hour, any currency."),
    ] = None,
    require_fit: options.RequireFit = False,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Predict memory, energy, latency and MIG slice of inference or of a training step."""
    precisions = options.split_list(precision)
    several = len(precisions) != 1 or precisions[0].casefold() == "all"
    alone = {"operators": operators, "tree": tree, "dataset-size": dataset_size}
    if several and any(alone.values()):
        name = next(name for name, given in alone.items() if given)
        raise typer.BadParameter(f"--{name} requires a single precision")
    if dataset_size is None and (epochs > 1 or price_per_hour is not None):
        raise typer.BadParameter("--epochs and --price-per-hour require --dataset-size")
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm import api

        if several:
            from dippm.estimate.model_list import Candidate

            case = Candidate(model, framework=asked.pop("framework"))
            table = api.compare([case], strict=True, precision=precisions, **asked)
        else:
            prediction = api.predict(model, precision=cast(Any, precision), **asked)
            epoch = None
            if dataset_size is not None:
                rates: dict[str, Any] = {"epochs": epochs, "price_per_hour": price_per_hour}
                epoch = prediction.epoch(dataset_size, **rates)
    if several:
        document = {"predictions": _documents_of_precisions(table)}
        show("predictions", table, json=json, csv=csv, html=html, document=document)
    else:
        document = _prediction_document(prediction, epoch, tree=tree)
        how: dict[str, Any] = {"epoch": epoch, "tree": tree, "depth": depth, "operators": operators}
        show("predict", prediction, json=json, csv=csv, html=html, document=document, **how)
    if require_fit:
        check_fit(list(table) if several else [prediction])


def _prediction_document(
    prediction: Prediction, epoch: Epoch | None, *, tree: bool
) -> dict[str, Any]:
    document = prediction.to_dict()
    if epoch is not None:
        document["epoch"] = epoch.to_dict()
    return document | {"tree": prediction.tree.to_dict()} if tree else document


def _documents_of_precisions(table: Comparison) -> list[dict[str, Any]]:
    """Return the predictions, then unsupported precisions of the device, without numbers."""
    lacking = [
        {
            "source": failure.source,
            "conditions": {"device": failure.device, "precision": failure.precision},
            **dict.fromkeys(("memory_mb", "energy_j", "latency_ms", "power_w", "mig")),
            "error": error_document(failure.error),
        }
        for failure in table.absent
    ]
    return [prediction.to_dict() for prediction in table] + lacking


@options.conditions()
def cost(
    model: options.Source,
    *,
    samples: Annotated[
        int, typer.Option("--samples", "--dataset-size", min=1, help="Number of samples per pass.")
    ] = 1_000_000,
    epochs: Annotated[
        int, typer.Option("--epochs", min=1, help="Number of passes over the samples.")
    ] = 1,
    prices: PricesFile = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option("--price-per-hour", min=0.0, help="Price of the GPU or MIG slice per hour."),
    ] = None,
    carbon: CarbonFile = None,
    region: RegionName = None,
    g_per_kwh: Annotated[
        float | None,
        typer.Option(
            "--g-per-kwh", help="Carbon intensity in grams of CO2 per kWh, instead of --carbon."
        ),
    ] = None,
    pue: Annotated[
        float | None,
        typer.Option(
            "--pue",
            help="Power usage effectiveness: energy of the data centre relative to its machines.",
        ),
    ] = None,
    idle_hours: Annotated[
        float,
        typer.Option("--idle-hours", min=0.0, help="Hours in which the GPU is reserved but idle."),
    ] = 0.0,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Estimate price, energy and carbon of inference over many samples, or of a training run."""
    if prices is not None and price_per_hour is not None:
        raise typer.BadParameter("--prices and --price-per-hour exclude each other")
    if g_per_kwh is not None and (carbon is not None or region is not None):
        raise typer.BadParameter("--g-per-kwh and --carbon exclude each other")
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.api import predict
        from dippm.decide.choice.prices import prices_of
        from dippm.decide.costs import cost_of
        from dippm.estimate.place import device_of

        gpus = [device_of(asked["device"])]
        known = None if prices is None else prices_of(prices, gpus)
        prediction = predict(model, **asked)
        c = prediction.conditions
        rates: dict[str, Any] = {
            "price_per_hour": known.of(c.device, c.mig) if known else price_per_hour,
            "region": _region(c, carbon, region, g_per_kwh),
            "currency": known.currency if known else "",
        }
        found = cost_of(
            prediction, samples=samples, epochs=epochs, pue=pue, idle_hours=idle_hours, **rates
        )
    predicted = prediction.to_dict()
    document = {
        name: predicted[name] for name in ("source", "conditions", "warnings", "provenance")
    }
    document |= {
        "currency": found.currency or None, "cost": found.to_dict(),
        "absent": prediction.unverified, "verify": predicted["verify"],
    }  # fmt: skip
    show("cost", found, json=json, csv=csv, html=html, document=document)


def _region(
    c: Conditions, carbon: Path | None, region: str | None, g_per_kwh: float | None
) -> Region | None:
    """Return the region of the electricity; None if not given.

    Raises:
        ConstraintError: if a region is given without a file, or a file without a region.
        CarbonError: if the file is not valid, or lacks the region.
    """
    from dippm.errors import ConstraintError
    from dippm.estimate.carbon import Region, carbon_of

    if g_per_kwh is not None:
        return Region("", g_per_kwh)
    if carbon is None:
        if region is not None:
            raise ConstraintError(
                "a region requires carbon intensities, and none were given",
                'Give a file, carbon="carbon.toml" (examples/carbon.toml is one).',
            )
        return None
    known = carbon_of(carbon)
    if region is not None:
        return known.region(region)
    found = known.of(c.device, None)
    if found is None:
        raise ConstraintError(
            f"{known.source} has {len(known.regions)} regions, and none was chosen",
            f'Give region="{next(iter(known.regions))}", or another region of the file.',
        )
    return found
