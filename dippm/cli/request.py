"""`dippm request`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.choose import SloMs
from dippm.cli.output import errors_reported, print_verify, print_warnings, show, write_files
from dippm.cli.progress import progress_shown


# What serves is timed as a whole, under torch.no_grad.
@options.conditions("device", "mig", "timer", "autograd")
def request(
    model: options.Source,
    slo_ms: SloMs = None,
    format: Annotated[
        str,
        typer.Option("--format", "-f", help="Output format: k8s, kueue, dra, hami, slurm or json."),
    ] = "k8s",
    devices: Annotated[
        str,
        typer.Option(
            "--devices", "--device", "-d", help="GPUs of the cluster, separated by commas; or all."
        ),
    ] = "A100",
    slices: Annotated[
        bool, typer.Option("--slices/--no-slices", help="Also consider MIG slices.")
    ] = True,
    probability: Annotated[
        float,
        typer.Option(
            "--probability", help="Probability with which a batch takes at most --slo-ms."
        ),
    ] = 0.95,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the created object. Default: derived from the model."),
    ] = None,
    image: Annotated[
        str, typer.Option("--image", help="Image of the container that runs the model.")
    ] = "IMAGE",
    resource: Annotated[
        str | None,
        typer.Option(
            "--resource",
            help="Name of the resource in the cluster: an extended resource, a device class, or a "
            "type of --gres.",
        ),
    ] = None,
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Write a scheduler's resource request for the smallest sufficient GPU or MIG slice.

    It holds the model at 99 % and meets --slo-ms with --probability. Exit code 1 if there is none.
    """
    as_document = json or format == "json"
    with errors_reported(as_json=as_document), progress_shown(quiet=quiet):
        from dippm.decide.scheduling import find_format, request_resources
        from dippm.decide.scheduling.names import object_name

        written = None if format == "json" else find_format(format)
        called = object_name(name, model)
        found = request_resources(
            model,
            devices=options.split_list(devices),
            slices=slices,
            slo_ms=slo_ms,
            probability=probability,
            resource=resource,
            **asked,
        )
        text = None if written is None else written.render(found, name=called, image=image)
    if as_document:
        document = {"format": format, "manifest": text, **found.to_dict()}
        show("request", found, json=True, csv=csv, html=html, document=document)
        return
    with errors_reported(as_json=False):
        write_files(found, csv=csv, html=html)
    assert text is not None
    typer.echo(text, nl=False)
    print_warnings(found.notes)
    print_verify(found.prediction, sys.stderr)
