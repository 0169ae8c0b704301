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
    gpus: Annotated[int | None, typer.Option("--gpus", "-n", help="Total number of GPUs.")] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy", "-s", help="data, tensor or pipeline parallelism. Default: data."
        ),
    ] = None,
    data: Annotated[
        int | None,
        typer.Option(
            "--data", help="Number of copies of the model (data parallel), instead of --strategy."
        ),
    ] = None,
    tensor: Annotated[
        int | None,
        typer.Option(
            "--tensor", help="Number of GPUs that share each matrix product (tensor parallel)."
        ),
    ] = None,
    pipeline: Annotated[
        int | None, typer.Option("--pipeline", help="Number of pipeline stages.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Number of nodes with these GPUs.")] = 1,
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            help="Link between the GPUs of a node: nvlink or pcie. Default: what the GPU has.",
        ),
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            "--network", help="Network between nodes, such as infiniband-ndr or ethernet-100."
        ),
    ] = "infiniband-hdr",
    micro_batches: Annotated[
        int | None,
        typer.Option("--micro-batches", help="Number of micro-batches of a pipelined step."),
    ] = None,
    one_process: Annotated[
        bool,
        typer.Option(
            "--one-process", help="Use one process for all GPUs, like torch.nn.DataParallel."
        ),
    ] = False,
    batch: Annotated[
        int, typer.Option("--batch", "-b", help="Samples per step and copy of the model.")
    ] = 1,
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Estimate a step on many GPUs and nodes: data, tensor and pipeline parallelism."""
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
