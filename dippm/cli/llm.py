"""`dippm llm`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, show
from dippm.cli.progress import progress_shown


def llm(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG", help="config.json of the model, or a folder with one."),
    ],
    device: options.DeviceName = "A100",
    batch: Annotated[
        int, typer.Option("--batch", "-b", help="Number of concurrent sequences.")
    ] = 1,
    prompt: Annotated[int, typer.Option("--prompt", help="Prompt length in tokens.")] = 1024,
    generate: Annotated[
        int, typer.Option("--generate", help="Number of generated tokens per sequence.")
    ] = 128,
    precision: Annotated[
        str, typer.Option("--precision", "-p", help="Number format of activations: bf16 or fp16.")
    ] = "bf16",
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            help="Number format of the weights: bf16, fp16, int8, fp8 or int4. Default: that of "
            "the configuration.",
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            "--cache",
            help="Number format of the key-value cache: bf16, fp16 or fp8. Default: --precision.",
        ),
    ] = None,
    tensor_parallel: Annotated[
        int,
        typer.Option(
            "--tensor-parallel", help="Number of GPUs that share the model (an estimate)."
        ),
    ] = 1,
    software: Annotated[
        str,
        typer.Option(
            "--software",
            help="Serving software: graph (engine with CUDA graphs), engine (without CUDA graphs) "
            "or eager (generate of transformers).",
        ),
    ] = "graph",
    host: options.Host = None,
    context_mb: options.ContextMb = None,
    link: Annotated[
        str | None,
        typer.Option(
            "--link", help="Link between GPUs: nvlink or pcie. Default: what the GPU has."
        ),
    ] = None,
    checkpoint: options.CheckpointName = None,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict latency, throughput and memory of serving a language model from its configuration."""
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.language import language_model

        arguments: dict[str, Any] = {
            "device": device,
            "batch": batch,
            "prompt": prompt,
            "generated": generate,
            "precision": precision,
            "weights": weights,
            "cache": cache,
            "tensor_parallel": tensor_parallel,
            "software": software,
            "host": host,
            "context_mb": context_mb,
            "link": link,
            "checkpoint": checkpoint,
        }
        found = language_model(config, **arguments)
    show("llm", found, json=json, csv=csv, html=html)
