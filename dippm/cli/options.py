"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Source = Annotated[
    str, typer.Argument(metavar="MODEL", help="Model file, or a name such as timm:resnet50.")
]
Batch = Annotated[int, typer.Option("--batch", "-b", help="Samples per forward pass.")]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        "-i",
        metavar="SIZES",
        help='Input sizes without the batch: "3,224,224" or "input_ids=128;mask=128".',
    ),
]
DeviceName = Annotated[str, typer.Option("--device", "-d", help="GPU, see `dippm devices`.")]
CheckpointName = Annotated[
    str | None,
    typer.Option("--checkpoint", help="Name, name@version or folder, see `dippm models`."),
]
Precision = Annotated[
    str, typer.Option("--precision", help="fp32, fp32-ieee, tf32, fp16, bf16, amp, amp-bf16.")
]
Mode = Annotated[str, typer.Option("--mode", help="eager or compiled.")]
Timer = Annotated[
    str, typer.Option("--timer", help="What the latency includes: kernel, wall or wall+copy.")
]
Framework = Annotated[
    str | None,
    typer.Option("--framework", "-f", help="pytorch, onnx, tensorflow, keras or paddle; inferred."),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Read the file even if that can run code from it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Timeout = Annotated[float, typer.Option("--timeout-s", help="Limit of the conversion.")]
MemoryLimit = Annotated[int, typer.Option("--memory-limit-mb", help="Limit of the conversion.")]
