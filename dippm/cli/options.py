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


FORMATS = (
    "fp32 (PyTorch's default: TF32 for convolutions only), fp32-ieee (no TF32), tf32 (TF32 for "
    "convolutions and matrix products), fp16, bf16, amp, amp-bf16; with TensorRT also int8, fp8"
)
"""Values of --precision, for its help."""
Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="MODEL", help="Paths of model files, or library models."),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Path of a model file, or a library model such as timm:resnet50."
    ),
]
Batch = Annotated[
    int, typer.Option("--batch", "-b", help="Samples per forward pass or training step.")
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        "-i",
        metavar="SIZES",
        help='Input shape without the batch dimension: "3,224,224", or by input name: '
        '"ids=128;mask=128". Default: the shape that the model states.',
    ),
]
DeviceName = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        help="GPU name (`dippm devices` lists them), cpu, or a device file such as my_gpu.toml.",
        autocompletion=_completing(_devices),
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        help="GPU names and device files, separated by commas: A100,H100,my_gpu.toml.",
        autocompletion=_completing(_devices),
    ),
]
CheckpointName = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        help="Checkpoint of the predictor: name, name@version or folder (`dippm models` lists "
        "them). Default: the shipped checkpoint that supports the device.",
        autocompletion=_completing(_checkpoints),
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        "-p",
        help=f"Number format: {FORMATS}.",
        autocompletion=_completing(_precisions),
    ),
]
Precisions = Annotated[
    str,
    typer.Option(
        "--precision",
        "-p",
        help=f"Number format: {FORMATS}. Several, separated by commas, or all.",
        autocompletion=_completing(_precisions),
    ),
]
Mode = Annotated[str, typer.Option("--mode", help="Execution mode of PyTorch: eager or compiled.")]
Timer = Annotated[
    str,
    typer.Option(
        "--timer",
        help="Definition of the latency: kernel (sum of kernel times), event (between CUDA "
        "events), wall (synchronised forward pass) or wall+copy (also copies the input to the "
        "GPU).",
    ),
]
Mig = Annotated[
    str | None,
    typer.Option(
        "--mig",
        help="MIG slice to predict for, such as 3g.20gb. Default: the whole GPU.",
        autocompletion=_completing(_slices),
    ),
]
ChannelsLast = Annotated[
    bool, typer.Option("--channels-last", help="Use the channels-last memory layout for images.")
]
Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        help="Host that launches the kernels: a class (`dippm hosts` lists them), or the time per "
        "kernel launch in µs. Default: assumed from the device.",
        autocompletion=_completing(_hosts),
    ),
]
Attention = Annotated[
    str,
    typer.Option(
        "--attention",
        help="Attention kernels: fused, or unfused, which write the attention scores to memory.",
    ),
]
Phase = Annotated[
    str,
    typer.Option(
        "--phase", help="inference, or train: a step of forward pass, backward pass and update."
    ),
]
Optimizer = Annotated[
    str,
    typer.Option(
        "--optimizer", help="Optimizer of a training step: sgd (with momentum), adam or adamw."
    ),
]
Checkpointing = Annotated[
    bool,
    typer.Option(
        "--checkpointing",
        help="Activation checkpointing: a training step recomputes blocks in its backward pass.",
    ),
]
Autograd = Annotated[
    bool,
    typer.Option(
        "--autograd",
        help="Inference without torch.no_grad, which keeps the tensors that a backward pass needs.",
    ),
]
ContextMb = Annotated[
    str | None,
    typer.Option(
        "--context-mb",
        metavar="MIB|CLASS",
        help="GPU memory in MiB that the process uses outside PyTorch's allocator (`dippm doctor` "
        "measures it), or a class of software: cuda-10, cuda-11 (up to 11.6) or lazy (CUDA 11.7 "
        "and later). Default: assumed from the device.",
        autocompletion=_completing(_software_classes),
    ),
]
Runtime = Annotated[
    str,
    typer.Option(
        "--runtime",
        help="Runtime of the model: pytorch, torchscript, onnxruntime or tensorrt (an engine that "
        "is launched as a CUDA graph).",
    ),
]
ModelsFrom = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Also read models from a file, each with its own input and batch; the format is that "
        "of `dippm compare --from`.",
    ),
]
Framework = Annotated[
    str | None,
    typer.Option(
        "--framework",
        "-f",
        help="Framework of the model file: pytorch, onnx, tensorflow, keras or paddle. Default: "
        "detected from the file.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Allow model files that can execute code when they are read."),
]
Tree = Annotated[
    bool, typer.Option("--tree", help="Also list the cost of each module, with subtotals.")
]
Depth = Annotated[
    int, typer.Option("--depth", min=0, help="Number of module levels in the tree of modules.")
]
Operators = Annotated[
    int, typer.Option("--operators", min=0, help="Also list the N costliest operators.")
]
RequireFit = Annotated[
    bool,
    typer.Option(
        "--require-fit",
        help="Exit with code 1 unless the 99 % memory bound of every prediction fits the device.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout-s",
        help="Time limit of a conversion in s, extended above 100,000 operators; inf: no limit.",
    ),
]
MemoryLimit = Annotated[
    int, typer.Option("--memory-limit-mb", help="Memory limit of a conversion in MiB.")
]
Html = Annotated[
    Path | None, typer.Option("--html", help="Also write an HTML page, which needs no network.")
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Show no progress. Files and pipes never get progress."),
]

Hz = Annotated[float, typer.Option("--hz", help="Sampling rate in Hz, at most 1000.")]
EndAfter = Annotated[
    float, typer.Option("--timeout-s", min=0, help="Time limit of the command in s; 0: no limit.")
]
RunStore = Annotated[
    str,
    typer.Option(
        "--store",
        help="Run store: file, database or server URI. Default: $MLFLOW_TRACKING_URI, else a file "
        "of the user.",
    ),
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
    option.help = f"{option.help} One value, or two separated by a comma."
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
        raise typer.BadParameter(f"batch {text!r} is not a whole number") from None


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
        parts = ([p for p in own if p.kind is not ONLY], shared, [p for p in own if p.kind is ONLY])
        every = [p for part in parts for p in part]
        command.__signature__ = Signature(every)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in every}
        return command

    return give


def split_list(text: str) -> list[str]:
    """Split a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


Csv = Annotated[
    Path | None,
    typer.Option("--csv", help="Also write a CSV file of all rows, with unrounded numbers."),
]
"""Option of every command that ends with `output.show`, like `Json` and `Html`."""
