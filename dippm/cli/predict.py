"""`dippm predict`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dippm.cli import options
from dippm.cli.output import check_fit, error_document, errors_reported, progress_shown, show

if TYPE_CHECKING:
    from dippm.estimate.comparison import Comparison
    from dippm.estimate.epoch import Epoch
    from dippm.estimate.prediction import Prediction


@options.conditions()
def predict(
    model: options.Source,
    precision: options.Precisions = "fp32",
    *,
    operators: Annotated[
        int, typer.Option("--operators", min=0, help="Also list the N costliest operators.")
    ] = 0,
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
        document = {"predictions": _documents(table)}
        show("predictions", table, json=json, csv=csv, html=html, document=document)
    else:
        document = _document(prediction, epoch, tree=tree)
        how: dict[str, Any] = {"epoch": epoch, "tree": tree, "depth": depth, "operators": operators}
        show("predict", prediction, json=json, csv=csv, html=html, document=document, **how)
    if require_fit:
        check_fit(list(table) if several else [prediction])


def _document(prediction: Prediction, epoch: Epoch | None, *, tree: bool) -> dict[str, Any]:
    document = prediction.to_dict()
    if epoch is not None:
        document["epoch"] = epoch.to_dict()
    return document | {"tree": prediction.tree.to_dict()} if tree else document


def _documents(table: Comparison) -> list[dict[str, Any]]:
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
