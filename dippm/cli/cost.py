"""`dippm cost`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.choose import CarbonFile, PricesFile, RegionName
from dippm.cli.output import errors_reported, progress_shown, show

if TYPE_CHECKING:
    from dippm.estimate.carbon import Region
    from dippm.estimate.conditions import Conditions


@options.conditions()
def cost(
    model: options.Source,
    *,
    samples: Annotated[
        int,
        typer.Option("--samples", "--dataset-size", min=1, help="Number of samples per pass."),
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
