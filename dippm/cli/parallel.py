"""`dippm parallel`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, show
from dippm.cli.progress import progress_shown


@options.conditions("mig")  # slices of a GPU cannot communicate
def parallel(
    model: options.Source,
    gpus: Annotated[int | None, typer.Option("--gpus", "-n", help="GPUs in all.")] = None,
    strategy: Annotated[
        str | None, typer.Option("--strategy", "-s", help="data, tensor or pipeline; data.")
    ] = None,
    data: Annotated[
        int | None, typer.Option("--data", help="Copies of the model, instead of a strategy.")
    ] = None,
    tensor: Annotated[
        int | None, typer.Option("--tensor", help="GPUs that share every product.")
    ] = None,
    pipeline: Annotated[int | None, typer.Option("--pipeline", help="Stages.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes that the GPUs are on.")] = 1,
    link: Annotated[
        str | None, typer.Option("--link", help="Within a node: nvlink or pcie; what it has.")
    ] = None,
    network: Annotated[
        str, typer.Option("--network", help="Between nodes: infiniband-ndr, ethernet-100, ...")
    ] = "infiniband-hdr",
    micro_batches: Annotated[
        int | None, typer.Option("--micro-batches", help="Parts of a batch in a pipeline.")
    ] = None,
    one_process: Annotated[
        bool,
        typer.Option("--one-process", help="One process for all GPUs: torch.nn.DataParallel."),
    ] = False,
    batch: Annotated[
        int, typer.Option("--batch", "-b", help="Samples of a step of one copy of the model.")
    ] = 1,
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Estimate a step on many GPUs: data, tensor and pipeline parallel, over nodes."""
    layout: dict[str, Any] = {
        "gpus": gpus,
        "strategy": strategy,
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "nodes": nodes,
        "link": link,
        "network": network,
        "micro_batches": micro_batches,
        "one_process": one_process,
    }
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.parallel.estimate import parallelize

        found = parallelize(model, batch=batch, **layout, **asked)
    show("parallel", found, json=json, csv=csv, html=html)
