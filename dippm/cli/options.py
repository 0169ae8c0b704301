"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer


def _completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completer for a list with commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        found = (name for name in names() if name.casefold().startswith(last.casefold()))
        return [before + comma + name for name in found]

    return complete


def _devices() -> Iterable[str]:
    from dippm.devices import all_cpus, all_devices

    return (device.name for device in (*all_devices(), *all_cpus()))


def _checkpoints() -> Iterable[str]:
    from dippm.estimate.pretrained.store import available

    return (info.name for info in available())


def _precisions() -> Iterable[str]:
    from dippm.estimate.conditions import PRECISIONS

    return PRECISIONS


def _hosts() -> Iterable[str]:
    from dippm.devices import all_hosts

    return (host.name for host in all_hosts())


def _software_classes() -> Iterable[str]:
    from dippm.estimate.conditions import SOFTWARE_CLASSES

    return SOFTWARE_CLASSES


def _slices() -> Iterable[str]:
    from dippm.devices import all_devices

    return dict.fromkeys(p.name for device in all_devices() for p in device.mig_profiles)


Source = Annotated[
    str, typer.Argument(metavar="MODEL", help="Model file, or a name such as timm:resnet50.")
]
Batch = Annotated[int, typer.Option("--batch", "-b", help="Samples per forward pass or step.")]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        "-i",
        metavar="SIZES",
        help='Input sizes without the batch: "3,224,224" or "ids=128;mask=128".',
    ),
]
DeviceName = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        help="GPU, see `dippm devices`, or a device file: my_gpu.toml.",
        autocompletion=_completing(_devices),
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        help="GPUs: A100,H100,my_gpu.toml.",
        autocompletion=_completing(_devices),
    ),
]
CheckpointName = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        help="Name, name@version or folder, see `dippm models`; the one that knows the device.",
        autocompletion=_completing(_checkpoints),
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        "-p",
        help="fp32 (as PyTorch comes: TF32 convolutions), fp32-ieee (no TF32), tf32 (products "
        "too), fp16, bf16, amp, amp-bf16.",
        autocompletion=_completing(_precisions),
    ),
]
Precisions = Annotated[
    str,
    typer.Option(
        "--precision",
        "-p",
        help="fp32 (as PyTorch comes: TF32 convolutions), fp32-ieee (no TF32), tf32 (products "
        "too), fp16, bf16, amp, amp-bf16; several with commas, or all.",
        autocompletion=_completing(_precisions),
    ),
]
Mode = Annotated[str, typer.Option("--mode", help="eager or compiled.")]
Timer = Annotated[
    str, typer.Option("--timer", help="What the latency includes: kernel, event, wall, wall+copy.")
]
Mig = Annotated[
    str | None,
    typer.Option(
        "--mig",
        help="Predict for this slice, for instance 3g.20gb.",
        autocompletion=_completing(_slices),
    ),
]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="Memory layout of images.")]
Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        help="Machine that launches the kernels: a class of `dippm hosts`, or µs per launch.",
        autocompletion=_completing(_hosts),
    ),
]
Attention = Annotated[
    str,
    typer.Option(
        "--attention",
        help="fused or unfused: without fused kernels its scores are written to memory.",
    ),
]
Phase = Annotated[
    str,
    typer.Option("--phase", help="inference, or train: a step of forward, backward and update."),
]
Optimizer = Annotated[
    str, typer.Option("--optimizer", help="Of a training step: sgd (with momentum), adam, adamw.")
]
Checkpointing = Annotated[
    bool,
    typer.Option(
        "--checkpointing", help="Of a training step: blocks are run again in the backward pass."
    ),
]
Autograd = Annotated[
    bool,
    typer.Option(
        "--autograd",
        help="Inference without torch.no_grad: the pass keeps what a backward pass would need.",
    ),
]
ContextMb = Annotated[
    str | None,
    typer.Option(
        "--context-mb",
        metavar="MIB|CLASS",
        help="Memory of the process beside the allocator, as `dippm doctor` measures it, or the "
        "class of its software: cuda-10, cuda-11, lazy (CUDA 11.7 and newer).",
        autocompletion=_completing(_software_classes),
    ),
]
Runtime = Annotated[
    str,
    typer.Option("--runtime", help="pytorch, or tensorrt: an engine, launched as a CUDA graph."),
]
Framework = Annotated[
    str | None,
    typer.Option("--framework", "-f", help="pytorch, onnx, tensorflow, keras or paddle; inferred."),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Read the file even if that can run code from it.")
]
Tree = Annotated[
    bool, typer.Option("--tree", help="Also list what each module costs, with subtotals.")
]
Depth = Annotated[int, typer.Option("--depth", min=0, help="Levels of modules that --tree lists.")]
RequireFit = Annotated[
    bool,
    typer.Option(
        "--require-fit", help="Exit code 1 unless the memory holds every answer, at 99 %."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout-s",
        help="Seconds that a conversion may take; more above 100,000 operators, inf for no limit.",
    ),
]
MemoryLimit = Annotated[
    int, typer.Option("--memory-limit-mb", help="Memory in MB that a conversion may use.")
]
Html = Annotated[Path | None, typer.Option("--html", help="Also write a page that opens offline.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show no progress; files and pipes never get any.")
]

Hz = Annotated[float, typer.Option("--hz", help="Samples per second, at most 1000.")]
EndAfter = Annotated[
    float, typer.Option("--timeout-s", min=0, help="End the command after so long; 0: never.")
]
RunStore = Annotated[
    str, typer.Option("--store", help="URI; else MLFLOW_TRACKING_URI, else a file.")
]


PASSED_ON = (
    *("input", "batch", "device", "checkpoint", "precision", "mode", "timer", "mig"),
    *("channels_last", "host", "attention", "phase", "optimizer", "checkpointing"),
    *("autograd", "context_mb", "runtime"),
    *("trust", "timeout_s", "memory_limit_mb"),
)
"""Options that commands and the verbs of the package name alike."""


def passed_on(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a command's options that its verb takes as they are.

    Args:
        given: the command's options, as `locals()` has them in its first line.
    """
    return {name: given[name] for name in PASSED_ON if name in given}


def listed(text: str) -> list[str]:
    """Return the parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]
