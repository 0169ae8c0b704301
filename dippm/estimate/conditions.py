"""`Conditions`: the circumstances under which a model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast, get_args, get_type_hints

from dippm.devices import Device, is_catalogued
from dippm.errors import ConditionsError, UnknownOptionError, UnsupportedPrecisionError, shortened
from dippm.estimate.place import (
    DEFAULT_DEVICE,
    ContextLike,
    DeviceLike,
    HostLike,
    MigLike,
    Place,
    device_of,
)
from dippm.estimate.place import SOFTWARE_CLASSES as SOFTWARE_CLASSES
from dippm.estimate.place import SoftwareClass as SoftwareClass

T = TypeVar("T")
Precision = Literal["fp32", "fp32-ieee", "tf32", "fp16", "bf16", "amp", "amp-bf16", "int8", "fp8"]
Mode = Literal["eager", "compiled"]
Timer = Literal["kernel", "event", "wall", "wall+copy"]
Attention = Literal["fused", "unfused"]
Phase = Literal["inference", "train"]
Optimizer = Literal["sgd", "adam", "adamw"]
Runtime = Literal["pytorch", "torchscript", "onnxruntime", "tensorrt"]

EIGHT_BITS: tuple[Precision, ...] = ("int8", "fp8")
"""Formats of an engine's layers; operators without such a layer stay in fp16."""
PRECISIONS: tuple[Precision, ...] = tuple(p for p in get_args(Precision) if p not in EIGHT_BITS)
"""Number formats, by what PyTorch is set to; `torch.backends.cudnn.allow_tf32` is for convolutions,
`torch.set_float32_matmul_precision` for matrix products:

    fp32        as it comes: allow_tf32 = True, "highest". Convolutions run in TF32 on Ampere and
                newer, matrix products in IEEE float32.
    fp32-ieee   allow_tf32 = False, "highest": IEEE float32 everywhere.
    tf32        allow_tf32 = True, "high": TF32 everywhere.
    fp16, bf16  the model and its inputs converted by `.half()` or `.bfloat16()`.
    amp         autocast to float16 over float32 weights; amp-bf16 to bfloat16.

On a GPU without TF32 the first two are the same, and the third does not exist. TensorRT and ONNX
Runtime run "fp32" in TF32 everywhere, as they come; TensorRT also has EIGHT_BITS.
"""
MODES: tuple[Mode, ...] = get_args(Mode)
TIMERS: tuple[Timer, ...] = get_args(Timer)
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)
PHASES: tuple[Phase, ...] = get_args(Phase)
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
FLOAT32_SETTINGS: dict[str, dict[str, bool | str]] = {
    "fp32": {"cudnn.allow_tf32": True, "float32_matmul_precision": "highest"},
    "fp32-ieee": {"cudnn.allow_tf32": False, "float32_matmul_precision": "highest"},
    "tf32": {"cudnn.allow_tf32": True, "float32_matmul_precision": "high"},
}
"""Settings of `torch.backends` and `torch.set_float32_matmul_precision` for float32."""
_NEEDS = {
    **{"tf32": "tf32", "fp16": "fp16", "bf16": "bf16", "amp": "fp16", "amp-bf16": "bf16"},
    **{"int8": "int8", "fp8": "fp8"},
}
MAX_BATCH = 1_000_000
ENGINES = ("tensorrt", "trt", "onnxruntime", "openvino", "torchscript", "tvm", "vllm", "xla")
GRAPH_ENGINES = ("tensorrt", "onnxruntime")
"""Runtimes that make kernels of their own list of operators; TorchScript runs those of PyTorch."""
OTHER_OPTIONS = {
    "gpu": "device",
    "batch_size": "batch",
    "bs": "batch",
    "shape": "input",
    "inputs": "input",
    "input_shape": "input",
    "input_size": "input",
    "dtype": "precision",
    "compile": "mode",
    "compiled": "mode",
    "memory_format": "channels_last",
    "layout": "channels_last",
    "training": "phase",
    "train": "phase",
    "slice": "mig",
    "backend": "runtime",
    "engine": "runtime",
    "gradient_checkpointing": "checkpointing",
}
"""Options by the names that other tools have for them."""
OTHER_NAMES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "amp-fp16": "amp",
    "wall-copy": "wall+copy",
    "events": "event",
    "training": "train",
    "torch": "pytorch",
    "trt": "tensorrt",
    "ort": "onnxruntime",
    "jit": "torchscript",
}
"""Names of these in frameworks; case does not matter, and "_" is "-"."""


class StepOptions(TypedDict, total=False):
    """Options of the work that is run, see `Options`."""

    phase: Phase
    optimizer: Optimizer


class HowOptions(TypedDict, total=False):
    """Options of the way it is run, see `Options`."""

    mode: Mode
    timer: Timer
    channels_last: bool
    host: HostLike
    attention: Attention
    checkpointing: bool
    autograd: bool
    context_mb: ContextLike
    runtime: Runtime


class RunOptions(StepOptions, HowOptions, total=False):
    """Options of every point of a question, see `Options`."""


class PointOptions(RunOptions, total=False):
    """The conditions of one point but for its batch, see `Options`."""

    device: DeviceLike
    precision: Precision
    mig: MigLike


class ConditionOptions(PointOptions, total=False):
    """The conditions of one point by name, see `Options`."""

    batch: int


@dataclass(frozen=True, slots=True)
class Execution:
    """How a model runs: the conditions that decide which kernels are launched.

    Attributes:
        precision: number format, see `PRECISIONS`. Names ignore case, and "float16" means "fp16".
        mode: "eager" launches one kernel per operator, "compiled" fuses.
        channels_last: memory layout of images.
        attention: how `scaled_dot_product_attention` runs: "fused" keeps its scores on the chip,
            "unfused" (older software, a mask that fused kernels do not take) writes them to memory
            in steps. Attention that a file writes as single operators runs in steps either way.
        phase: "inference" is a forward pass, "train" a step of training: forward, backward and the
            update of the parameters.
        optimizer: optimiser of a training step, as in `torch.optim`, SGD with momentum.
        checkpointing: whether blocks of a training step are run again in the backward pass instead
            of keeping their results.
        autograd: whether the forward pass of eager inference runs without `torch.no_grad`, so that
            it keeps the tensors that a backward pass would need.
        runtime: software that runs the model: "pytorch" in its `mode`; "torchscript", PyTorch's
            interpreter without Python; "onnxruntime", operator by operator on its CUDA provider; or
            the engine "tensorrt", which builds its own kernels and launches them as a CUDA graph.

    Raises:
        ConditionsError: if a name is unknown, if an option of training steps is combined with
            inference, or one of PyTorch with an engine.
    """

    precision: Precision = "fp32"
    mode: Mode = "eager"
    channels_last: bool = False
    attention: Attention = "fused"
    phase: Phase = "inference"
    optimizer: Optimizer = "sgd"
    checkpointing: bool = False
    autograd: bool = False
    runtime: Runtime = "pytorch"

    def __post_init__(self) -> None:
        for kind, known in NAMES.items():
            object.__setattr__(self, kind, spelt(kind, getattr(self, kind), known))
        if self.phase == "inference" and (self.checkpointing or self.optimizer != "sgd"):
            asked = "checkpointing" if self.checkpointing else f"the optimizer {self.optimizer}"
            raise ConditionsError(
                f"{asked} applies to training steps, not to inference",
                "Use phase=train, or leave it out.",
            )
        if self.autograd and (self.phase != "inference" or self.mode != "eager"):
            what = "a training step" if self.phase != "inference" else "a compiled pass"
            raise ConditionsError(
                f"autograd applies to an eager forward pass, not to {what}",
                "Leave autograd out: a training step keeps these tensors anyway, and those of a "
                "compiled pass are not known.",
            )
        if self.runtime != "pytorch":
            _check_engine(self)

    @property
    def engine(self) -> str:
        """The runtime in a word: the mode of PyTorch, or the engine."""
        return self.mode if self.runtime == "pytorch" else self.runtime

    @property
    def remarks(self) -> tuple[str, ...]:
        """The conditions of an inference that a title mentions: those that are not the default."""
        unfused = (f"{self.attention} attention",) * (self.attention != "fused")
        return (*unfused, *("autograd",) * self.autograd)


def _part(read: Callable[[Conditions], T]) -> T:
    """Return a property of conditions that reads from one of their parts."""
    return cast(T, property(read))


@dataclass(frozen=True, slots=True, init=False)
class Conditions:
    """The circumstances that a prediction is for, besides the model itself.

    `Conditions(place, execution, batch=8)`; keywords override fields of either part, and a part
    may be left out: `Conditions(device=find("A100"), precision="fp16", batch=8)`. Every field of a
    part is also an attribute of the whole: `conditions.precision`.

    Attributes:
        place: device, slice and host that the model runs on.
        execution: way in which the model runs.
        batch: samples per step.
        timer: part of the time that counts as latency: "kernel" is the sum of kernel times, "event"
            the span between CUDA events around a forward, "wall" a synchronised forward with the
            input on the device (the default), "wall+copy" adds the host-to-device copy.

    Raises:
        ConditionsError: if the batch is not a positive integer of sane size, or as `Execution` and
            `Place` do.
        UnsupportedPrecisionError: if the device has no hardware for the precision.
        UnknownOptionError: if a keyword is not the name of a condition.
    """

    place: Place
    execution: Execution
    batch: int
    timer: Timer

    def __init__(
        self,
        place: Place | None = None,
        execution: Execution | None = None,
        **given: Unpack[ConditionOptions],
    ) -> None:
        values: dict[str, Any] = {**given}
        batch, timer = values.pop("batch", 1), values.pop("timer", "wall")
        if isinstance(batch, bool) or not isinstance(batch, int):
            raise ConditionsError(f"batch is {batch!r}", "Give a whole number, at least 1.")
        if not 1 <= batch <= MAX_BATCH:
            raise ConditionsError(
                f"batch is {batch}", f"Give a batch size from 1 to {MAX_BATCH:,}."
            )
        if values:
            check_options(values, ConditionOptions)
            there = {name: values.pop(name) for name in PLACE if name in values}
            if there:
                place = (
                    replace(place, **there)
                    if place
                    else Place(**{"device": DEFAULT_DEVICE, **there})
                )
            if values:
                execution = replace(execution or USUAL, **values)
        place, execution = place or Place.of(), execution or USUAL
        timer = spelt("timer", timer, TIMERS)
        for name, value in zip(self.__slots__, (place, execution, batch, timer), strict=True):
            object.__setattr__(self, name, value)
        if execution.precision not in supported_precisions(place.device, execution.runtime):
            raise unsupported(place.device, execution.precision, execution.runtime)

    @classmethod
    def of(cls, **options: Unpack[ConditionOptions]) -> Conditions:
        """Return conditions from names; a device of the user's own is checked.

        Raises:
            UnknownNameError: if device, slice or host is not known.
            DeviceError: if a device file, or a figure of the device, is wrong.
            ConditionsError: if one of the others cannot be predicted.
        """
        given: Any = {**options, "device": device_of(options.get("device", DEFAULT_DEVICE))}
        return cls(**given)

    def replace(self, **changes: Unpack[ConditionOptions]) -> Conditions:
        """Return the conditions with some fields replaced; raises as `Conditions` does."""
        kept: Any = {name: getattr(self, name) for name in self.__slots__}
        return Conditions(**kept | changes)

    device = _part(lambda c: c.place.device)
    mig = _part(lambda c: c.place.mig)
    host = _part(lambda c: c.place.host)
    context_mb = _part(lambda c: c.place.context_mb)
    capacity_mb = _part(lambda c: c.place.capacity_mb)
    precision = _part(lambda c: c.execution.precision)
    mode = _part(lambda c: c.execution.mode)
    channels_last = _part(lambda c: c.execution.channels_last)
    attention = _part(lambda c: c.execution.attention)
    phase = _part(lambda c: c.execution.phase)
    optimizer = _part(lambda c: c.execution.optimizer)
    checkpointing = _part(lambda c: c.execution.checkpointing)
    autograd = _part(lambda c: c.execution.autograd)
    runtime = _part(lambda c: c.execution.runtime)

    @property
    def options(self) -> ConditionOptions:
        """The conditions by name, as the verbs take them."""
        return cast(ConditionOptions, {name: getattr(self, name) for name in CONDITIONS})

    def to_dict(self) -> dict[str, Any]:
        """Return the conditions as JSON-ready data."""
        found: dict[str, Any] = {**self.options}
        found |= {name: value and value.name for name, value in found.items() if name in _NAMED}
        return found | dict.fromkeys(OF_TRAINING if self.phase != "train" else ())

    def __setstate__(self, state: list[Any]) -> None:
        # earlier pickles have fifteen fields in a row
        if len(state) > len(self.__slots__):
            given: Any = dict(zip(CONDITIONS, state, strict=False))
            new = Conditions(**given)
            state = [getattr(new, name) for name in self.__slots__]
        for name, value in zip(self.__slots__, state, strict=True):
            object.__setattr__(self, name, value)


def _kinds(hint: Any) -> tuple[type, ...]:
    if hint in (bool, int):
        return (hint,)
    return (str, int, float) if float in get_args(hint) else (str,)


def usual_values(options: type) -> dict[str, Any]:
    """Return the default values of conditions."""
    usual: Any = Conditions().options
    return {name: usual[name] for name in options.__annotations__}


def check_options(given: Iterable[str], *known: type) -> None:
    """Refuse names that are not options.

    Args:
        given: names of the given options.
        known: typed dictionaries of the known options.

    Raises:
        UnknownOptionError: if a name is unknown; the hint has the closest option.
    """
    names = [name for kind in known for name in kind.__annotations__]
    for name in given:
        if name not in names:
            meant = OTHER_OPTIONS.get(name, "")
            raise UnknownOptionError.of("option", name, names, meant=meant)


def _check_engine(e: Execution) -> None:
    """Refuse options of PyTorch that other runtimes do not have.

    Raises:
        ConditionsError: if one of them is given.
    """
    asked = {
        f"mode {e.mode}": (e.mode != "eager", "Leave the mode out: an engine has none."),
        "a training step": (e.phase != "inference", "Use runtime=pytorch."),
        "autograd": (e.autograd, "Leave it out: an engine keeps nothing for gradients."),
        f"autocast ({e.precision})": (
            e.precision.startswith("amp") and e.runtime in GRAPH_ENGINES,
            "Use the format of its layers: precision=fp16 or bf16.",
        ),
    }
    for what, (is_asked, hint) in asked.items():
        if is_asked:
            raise ConditionsError(f"{what} is available in PyTorch, not in {e.runtime}", hint)


def precision_of(name: str) -> Precision:
    """Return the precision of this name; case does not matter, and "float16" is "fp16".

    Raises:
        ConditionsError: if the name is unknown.
    """
    return cast(Precision, spelt("precision", name, (*PRECISIONS, *EIGHT_BITS)))


def phase_of(name: str) -> Phase:
    """Return the phase of this name; case does not matter, and "training" is "train".

    Raises:
        ConditionsError: if the name is unknown.
    """
    return cast(Phase, spelt("phase", name, PHASES))


def supported_precisions(device: Device, runtime: Runtime = "pytorch") -> tuple[Precision, ...]:
    """Return the precisions that a runtime supports and a GPU has hardware for, by its peak rates.

    A CPU has no known rates, so all are returned. Engines of whole graphs run on NVIDIA GPUs alone.
    """
    known = PRECISIONS
    if runtime in GRAPH_ENGINES and device.is_of_another_vendor:
        return ()
    if runtime in GRAPH_ENGINES:
        known = tuple(p for p in PRECISIONS if not p.startswith("amp"))
    if runtime == "tensorrt":
        known = (*known, *EIGHT_BITS)
    if not device.peak_tflops:
        return known
    has = {*device.peak_tflops, *(("int8",) if device.int8_tops else ())}
    return tuple(p for p in known if _NEEDS.get(p, "fp32") in has)


def unsupported(
    device: Device, precision: Precision, runtime: Runtime = "pytorch"
) -> UnsupportedPrecisionError:
    """Return the error for a precision that the GPU or the runtime on it does not support."""
    if runtime in GRAPH_ENGINES and device.is_of_another_vendor:
        return UnsupportedPrecisionError(
            f"{runtime} runs on NVIDIA GPUs, and {device.name} is not one", "Use runtime=pytorch."
        )
    format_ = _NEEDS.get(precision, "fp32")
    has = ", ".join(supported_precisions(device, runtime))
    if precision in EIGHT_BITS and runtime != "tensorrt":
        return UnsupportedPrecisionError(
            f"{precision} is available with TensorRT, not with {runtime}",
            "Use runtime=tensorrt. A file with explicit 8-bit operators is read as it is, with any "
            "precision.",
        )
    why = {
        "int8": "Products of 8-bit integers require DP4A (compute capability 6.1).",
        "fp8": "8-bit floats require Ada, Hopper or newer.",
        "tf32": "TF32 requires Ampere or newer; older GPUs compute float32 in IEEE arithmetic.",
        "bf16": "bfloat16 arithmetic requires Ampere or newer; emulation is not predicted.",
    }
    if not is_catalogued(device.name):
        why = dict.fromkeys(_NEEDS.values(), "If it does, write the rate into peak_tflops.")
    return UnsupportedPrecisionError(
        f"{device.name} has no hardware for {precision}: its {format_} rate is not known",
        f"It has {has or 'none'}. {why.get(format_, '')}".strip(),
    )


def same_arithmetic(device: Device, precision: Precision) -> tuple[Precision, ...]:
    """Return the precisions with the same arithmetic on a device, including this one."""
    alike: tuple[Precision, ...] = ("fp32", "fp32-ieee")
    has_tf32 = not device.peak_tflops or "tf32" in device.peak_tflops
    return (precision,) if has_tf32 or precision not in alike else alike


def spelt(kind: str, name: Any, known: tuple[str, ...]) -> str:
    """Return the canonical spelling of a name, one of `known`.

    Raises:
        ConditionsError: if the name is unknown; the hint has the closest one.
    """
    if name in known:
        return str(name)
    folded = str(name).strip().casefold().replace("_", "-")
    found = OTHER_NAMES.get(folded, folded)
    if found in known:
        return found
    close = get_close_matches(found, known, n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    if kind == "mode" and found in RUNTIMES:
        guess = f"{found} is a runtime: use runtime={found}. "
    elif kind in ("mode", "runtime") and any(engine in found for engine in ENGINES):
        guess = f"{shortened(str(name))} is not predicted: there are no measurements of it. "
    raise ConditionsError(
        f"unknown {kind} {shortened(str(name))!r}", f"{guess}Known: {', '.join(known)}"
    )


NAMES = {n: get_args(hint) for n, hint in get_type_hints(Execution).items() if hint is not bool}
USUAL = Execution()
PLACE = tuple(f.name for f in fields(Place))
_FIRST = (
    *("device", "batch", "precision", "mode", "timer", "mig", "channels_last", "host"),
    *("attention", "phase", "optimizer"),
)
CONDITIONS = (*_FIRST, *(name for name in ConditionOptions.__annotations__ if name not in _FIRST))
"""Names of all conditions, in the order of documents."""
KINDS: Mapping[str, tuple[type, ...]] = {
    name: _kinds(hint) for name, hint in get_type_hints(ConditionOptions).items()
}
"""Types of a condition's value in documents: text, a truth value, numbers."""
OF_TRAINING = ("optimizer", "checkpointing")
"""Conditions without meaning for inference, null in documents."""
_NAMED = ("device", "mig", "host")
