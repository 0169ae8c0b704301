"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from dippm.base.written import whole_number


def _completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completer for a comma-separated list."""

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
    from dippm.estimate.conditions import EIGHT_BITS, PRECISIONS

    return (*PRECISIONS, *EIGHT_BITS)


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
        "too), fp16, bf16, amp, amp-bf16; int8, fp8 of tensorrt.",
        autocompletion=_completing(_precisions),
    ),
]
Precisions = Annotated[
    str,
    typer.Option(
        "--precision",
        "-p",
        help="fp32 (as PyTorch comes: TF32 convolutions), fp32-ieee (no TF32), tf32 (products "
        "too), fp16, bf16, amp, amp-bf16; int8, fp8 of tensorrt; several with commas, or all.",
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
    typer.Option(
        "--runtime", help="pytorch, torchscript, onnxruntime, or tensorrt: an engine, a CUDA graph."
    ),
]
ModelsFrom = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Also the models that a file lists, each with its own input and batch, as "
        "`dippm compare --from` takes it.",
    ),
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


def _shared(
    batch: Batch = 1,
    input: Input = None,
    device: DeviceName = "A100",
    precision: Precision = "fp32",
    mode: Mode = "eager",
    timer: Timer = "wall",
    mig: Mig = None,
    channels_last: ChannelsLast = False,
    host: Host = None,
    attention: Attention = "fused",
    phase: Phase = "inference",
    optimizer: Optimizer = "sgd",
    checkpointing: Checkpointing = False,
    autograd: Autograd = False,
    context_mb: ContextMb = None,
    runtime: Runtime = "pytorch",
    framework: Framework = None,
    checkpoint: CheckpointName = None,
    trust: Trust = False,
    timeout_s: Timeout = 120.0,
    memory_limit_mb: MemoryLimit = 4096,
) -> None:
    """Declare the options of a question in the order of the help; see `dippm.Options`."""


ONLY = Parameter.KEYWORD_ONLY
Command = TypeVar("Command", bound=Callable[..., None])


SINGLE = ("input", "framework", "checkpoint", "trust", "timeout_s", "memory_limit_mb")
"""Options that are not conditions: both sides of a difference share them."""


def _parameters(function: Callable[..., None]) -> Iterable[Parameter]:
    return signature(function, eval_str=True).parameters.values()


def _pair_option(p: Parameter) -> Parameter:
    """Return the option with two values; a flag applies to both sides."""
    kind, option = get_args(p.annotation)
    if kind is bool:
        return p
    option = copy(option)
    option.help = f"{option.help.removesuffix('.')}; or two, with a comma."
    if kind is int:
        return p.replace(annotation=Annotated[str, option], default=str(p.default))
    return p.replace(annotation=Annotated[kind, option])


def sides(name: str, value: Any) -> Any:
    """Return the value of a pair option: one value, or one for each side."""
    if name in SINGLE or not isinstance(value, str):
        return value
    parts: list[Any] = split_list(value)
    if name == "batch":
        parts = [_size(part) for part in parts]
    if name == "mig":
        parts = [None if part == "full" else part for part in parts]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _size(text: str) -> int:
    try:
        return whole_number(text)
    except ValueError:
        raise typer.BadParameter(f"batch {text!r} is no whole number") from None


def conditions(*without: str, pairs: bool = False) -> Callable[[Command], Command]:
    """Add the options of a question to a command, which receives them as `**asked`.

    They replace the `*` of the command's signature, except for options that it spells itself.
    `asked` has the keyword arguments of the public function.

    Args:
        without: options that do not apply to the command.
        pairs: whether conditions may have two values, separated by a comma.
    """

    def give(command: Command) -> Command:
        own = [p for p in _parameters(command) if p.name != "asked"]
        taken = {p.name for p in own} | set(without)
        shared = [p.replace(kind=ONLY) for p in _parameters(_shared) if p.name not in taken]
        if pairs:
            shared = [p if p.name in SINGLE else _pair_option(p) for p in shared]
        parts = (
            [p for p in own if p.kind is not ONLY],
            shared,
            [p for p in own if p.kind is ONLY],
        )
        every = [p for part in parts for p in part]
        command.__signature__ = Signature(every)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in every}
        return command

    return give


def split_list(text: str) -> list[str]:
    """Split a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


Csv = Annotated[
    Path | None, typer.Option("--csv", help="Also write every row, with unrounded numbers.")
]
"""Option of every command that ends with `output.show`, like `Json` and `Html`."""
