"""`Conditions`: under which circumstances a model runs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from math import nan
from numbers import Real
from typing import Any, Literal, cast, get_args

from dippm.base.written import decimal_number
from dippm.devices import Device, HostMachine, MigProfile, is_catalogued
from dippm.errors import ConditionsError, UnsupportedPrecisionError, shortened

Precision = Literal["fp32", "fp32-ieee", "tf32", "fp16", "bf16", "amp", "amp-bf16"]
Mode = Literal["eager", "compiled"]
Timer = Literal["kernel", "event", "wall", "wall+copy"]
Attention = Literal["fused", "unfused"]
Phase = Literal["inference", "train"]
Optimizer = Literal["sgd", "adam", "adamw"]
Runtime = Literal["pytorch", "tensorrt"]
SoftwareClass = Literal["cuda-10", "cuda-11", "lazy"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""Number formats, by what PyTorch is set to; `torch.backends.cudnn.allow_tf32` is for convolutions,
`torch.set_float32_matmul_precision` for matrix products:

    fp32        as it comes: allow_tf32 = True, "highest". Convolutions run in TF32 on Ampere and
                newer, matrix products in IEEE float32.
    fp32-ieee   allow_tf32 = False, "highest": IEEE float32 everywhere.
    tf32        allow_tf32 = True, "high": TF32 everywhere.
    fp16, bf16  the model and its inputs converted by `.half()` or `.bfloat16()`.
    amp         autocast to float16 over float32 weights; amp-bf16 to bfloat16.

On a GPU without TF32 the first two are the same, and the third does not exist.
"""
MODES: tuple[Mode, ...] = get_args(Mode)
TIMERS: tuple[Timer, ...] = get_args(Timer)
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)
PHASES: tuple[Phase, ...] = get_args(Phase)
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
SOFTWARE_CLASSES: tuple[SoftwareClass, ...] = get_args(SoftwareClass)
"""Generations of CUDA and torch, by the memory that a process takes beside its tensors:

    cuda-10  CUDA 10: Volta, Turing and older
    cuda-11  CUDA 11.0 to 11.6, torch up to 1.12: a library loads all of its kernels at once
    lazy     CUDA 11.7 and newer with torch 1.13 and newer: kernels are loaded when they are used
"""
MAX_CONTEXT_MB = 1_000_000.0
FLOAT32_SETTINGS: dict[str, dict[str, bool | str]] = {
    "fp32": {"cudnn.allow_tf32": True, "float32_matmul_precision": "highest"},
    "fp32-ieee": {"cudnn.allow_tf32": False, "float32_matmul_precision": "highest"},
    "tf32": {"cudnn.allow_tf32": True, "float32_matmul_precision": "high"},
}
"""What `torch.backends` and `torch.set_float32_matmul_precision` are set to for float32."""
_NEEDS = {"tf32": "tf32", "fp16": "fp16", "bf16": "bf16", "amp": "fp16", "amp-bf16": "bf16"}
_NAMES: dict[str, tuple[str, ...]] = {
    "precision": PRECISIONS,
    "mode": MODES,
    "timer": TIMERS,
    "attention": ATTENTIONS,
    "phase": PHASES,
    "optimizer": OPTIMIZERS,
    "runtime": RUNTIMES,
}
MAX_BATCH = 1_000_000
ENGINES = ("tensorrt", "trt", "onnxruntime", "openvino", "torchscript", "tvm", "vllm", "xla")
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
}
"""What frameworks call these; case does not matter, and "_" is "-"."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a prediction is for, beside the model itself.

    Attributes:
        device: the GPU.
        batch: samples per step.
        precision: see `PRECISIONS`. Of this and the other names case does not matter, and
            "float16" means "fp16".
        mode: "eager" launches one kernel per operator, "compiled" fuses.
        timer: "kernel" is the sum of kernel times, "event" the span between CUDA events around a
            forward, "wall" a synchronised forward with the input on the device (the default
            regime), "wall+copy" adds the host-to-device copy.
        mig: a slice of the device, None for the whole GPU.
        channels_last: memory layout of images.
        host: the machine that launches the kernels; None if nobody said, then the predictor assumes
            one and says which.
        attention: how `scaled_dot_product_attention` runs: "fused" keeps its scores on the chip,
            "unfused" (older software, a mask that fused kernels do not take) writes them to memory
            in steps. What a file spells in steps runs in steps either way.
        phase: "inference" is a forward pass, "train" a step of training: forward, backward and the
            update of the parameters.
        optimizer: that updates, as `torch.optim` has it, SGD with momentum; of a training step.
        checkpointing: blocks are run again in the backward pass instead of keeping what they
            computed; of a training step.
        autograd: the forward pass runs without `torch.no_grad`, so it keeps what a backward pass
            would need; of eager inference.
        context_mb: memory in MiB that the process takes beside PyTorch's allocator, or a class of
            `SOFTWARE_CLASSES` that says it; None if nobody said, then the predictor assumes a class
            and says which.
        runtime: what runs the model: "pytorch", as `mode` says, or the engine "tensorrt", which
            builds kernels of its own from it and launches them as a CUDA graph.

    Raises:
        ConditionsError: if the batch is not a positive integer of sane size, a name is unknown, the
            context is no memory, what belongs to a training step is asked for of inference, or
            what belongs to PyTorch of an engine.
        UnsupportedPrecisionError: if the device has no hardware for the precision.
    """

    device: Device
    batch: int = 1
    precision: Precision = "fp32"
    mode: Mode = "eager"
    timer: Timer = "wall"
    mig: MigProfile | None = None
    channels_last: bool = False
    host: HostMachine | None = None
    attention: Attention = "fused"
    phase: Phase = "inference"
    optimizer: Optimizer = "sgd"
    checkpointing: bool = False
    autograd: bool = False
    context_mb: float | str | None = None
    runtime: Runtime = "pytorch"

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int):
            raise ConditionsError(f"batch is {self.batch!r}", "Give a whole number, at least 1.")
        if not 1 <= self.batch <= MAX_BATCH:
            raise ConditionsError(
                f"batch is {self.batch}", f"Give a batch size from 1 to {MAX_BATCH:,}."
            )
        for kind, known in _NAMES.items():
            object.__setattr__(self, kind, spelt(kind, getattr(self, kind), known))
        if self.phase == "inference" and (self.checkpointing or self.optimizer != "sgd"):
            asked = "checkpointing" if self.checkpointing else f"the optimizer {self.optimizer}"
            raise ConditionsError(
                f"{asked} is of a training step, and inference was asked for",
                "Ask for phase=train, or leave it out.",
            )
        if self.autograd and (self.phase != "inference" or self.mode != "eager"):
            what = "a training step" if self.phase != "inference" else "a compiled pass"
            raise ConditionsError(
                f"autograd is of an eager forward pass, and {what} was asked for",
                "Leave autograd out: a training step keeps all of it anyway, and what a compiled "
                "pass keeps is not known.",
            )
        if self.runtime != "pytorch":
            _check_engine(self)
        object.__setattr__(self, "context_mb", context_of(self.context_mb))
        if self.precision not in supported_precisions(self.device):
            raise unsupported(self.device, self.precision)

    @property
    def capacity_mb(self) -> int:
        """Memory of the GPU in MiB, or usable memory of the slice."""
        return self.mig.memory_mb if self.mig else self.device.memory_mb


def _check_engine(c: Conditions) -> None:
    """Refuse what an engine does not do.

    Raises:
        ConditionsError: if it is asked for.
    """
    asked = {
        f"mode {c.mode}": (c.mode != "eager", "Leave the mode out: an engine has none."),
        "a training step": (c.phase != "inference", "Ask for runtime=pytorch."),
        "autograd": (c.autograd, "Leave it out: an engine keeps nothing for gradients."),
        f"autocast ({c.precision})": (
            c.precision.startswith("amp"),
            "Ask for the format that its layers run in: precision=fp16 or bf16.",
        ),
    }
    for what, (is_asked, hint) in asked.items():
        if is_asked:
            raise ConditionsError(f"{what} is of PyTorch, and {c.runtime} was asked for", hint)


def context_of(context: Any) -> float | str | None:
    """Return the context that a number of MiB, text of one, or a class of software means.

    Raises:
        ConditionsError: if it means none.
    """
    if context is None:
        return None
    number, shown = nan, type(context).__name__
    if isinstance(context, str):
        shown = shortened(context)
        folded = shown.strip().casefold()
        if folded in SOFTWARE_CLASSES:
            return folded
        with suppress(ValueError):
            number = decimal_number(folded.removesuffix("mib").removesuffix("mb"))
    elif not isinstance(context, bool) and isinstance(context, Real):
        given: Any = context  # a whole number may be too large for a float, or for print
        within = -MAX_CONTEXT_MB <= given <= MAX_CONTEXT_MB
        number, shown = (float(given), f"{given}") if within else (nan, "out of range")
    if not 0 <= number <= MAX_CONTEXT_MB:
        close = get_close_matches(shown.strip().casefold(), SOFTWARE_CLASSES, n=1)
        guess = f"Did you mean {close[0]}? " if close else ""
        raise ConditionsError(
            f"context_mb is {shown!r}: no memory in MiB, and no class of software",
            f"{guess}Give MiB, 0 to {MAX_CONTEXT_MB:,.0f}, or one of "
            f"{', '.join(SOFTWARE_CLASSES)}; `dippm doctor` measures it where a GPU is.",
        )
    return number


def precision_of(name: str) -> Precision:
    """Return the precision of this name; case does not matter, and "float16" is "fp16".

    Raises:
        ConditionsError: if there is none.
    """
    return cast(Precision, spelt("precision", name, PRECISIONS))


def phase_of(name: str) -> Phase:
    """Return the phase of this name; case does not matter, and "training" is "train".

    Raises:
        ConditionsError: if there is none.
    """
    return cast(Phase, spelt("phase", name, PHASES))


def supported_precisions(device: Device) -> tuple[Precision, ...]:
    """Return the precisions that a GPU has hardware for, by its peak rates.

    Of a CPU no rates are known, so all are returned.
    """
    if not device.peak_tflops:
        return PRECISIONS
    return tuple(p for p in PRECISIONS if _NEEDS.get(p, "fp32") in device.peak_tflops)


def unsupported(device: Device, precision: Precision) -> UnsupportedPrecisionError:
    """Return the error for a precision that a GPU has no hardware for."""
    format_ = _NEEDS.get(precision, "fp32")
    has = ", ".join(supported_precisions(device))
    why = {
        "tf32": "TF32 came with Ampere; before, float32 is IEEE everywhere.",
        "bf16": "bfloat16 arithmetic came with Ampere; emulated, it is not predicted.",
    }
    if not is_catalogued(device.name):
        why = dict.fromkeys(_NEEDS.values(), "If it does, write the rate into peak_tflops.")
    return UnsupportedPrecisionError(
        f"{device.name} has no hardware for {precision}: no {format_} rate is known of it",
        f"It has {has or 'none'}. {why.get(format_, '')}".strip(),
    )


def same_arithmetic(device: Device, precision: Precision) -> tuple[Precision, ...]:
    """Return the precisions that are the same thing on a device, itself among them."""
    alike: tuple[Precision, ...] = ("fp32", "fp32-ieee")
    has_tf32 = not device.peak_tflops or "tf32" in device.peak_tflops
    return (precision,) if has_tf32 or precision not in alike else alike


def spelt(kind: str, name: Any, known: tuple[str, ...]) -> str:
    """Return the one of `known` that a name means.

    Raises:
        ConditionsError: if it means none; the hint names the closest.
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
        guess = f"{found} is a runtime: ask for runtime={found}. "
    elif kind in ("mode", "runtime") and any(engine in found for engine in ENGINES):
        guess = f"{shortened(str(name))} is not predicted: nothing that was measured taught it. "
    raise ConditionsError(
        f"unknown {kind} {shortened(str(name))!r}", f"{guess}Known: {', '.join(known)}"
    )
