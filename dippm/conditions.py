"""`Conditions`: under which circumstances a model runs."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, cast, get_args

from dippm.devices import Device, MigProfile
from dippm.errors import ConditionsError, shortened

Precision = Literal["fp32", "fp32-ieee", "tf32", "fp16", "bf16", "amp", "amp-bf16"]
Mode = Literal["eager", "compiled"]
Timer = Literal["kernel", "wall", "wall+copy"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
MODES: tuple[Mode, ...] = get_args(Mode)
TIMERS: tuple[Timer, ...] = get_args(Timer)
MAX_BATCH = 1_000_000
OTHER_NAMES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "amp-fp16": "amp",
    "wall-copy": "wall+copy",
}
"""What frameworks call these; case does not matter, and "_" is "-"."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a prediction is for, beside the model itself.

    Attributes:
        device: the GPU.
        batch: samples per inference.
        precision: "fp32" is float32 as PyTorch runs it by default (convolutions may use TF32 tensor
            cores, matrix products are IEEE), "fp32-ieee" has TF32 off everywhere, "tf32" has it on
            everywhere; "amp" and "amp-bf16" are autocast over float32 weights. Of this and the next
            two names case does not matter, and "float16" means "fp16".
        mode: "eager" launches one kernel per operator, "compiled" fuses.
        timer: "kernel" is the sum of kernel times, "wall" a synchronised forward with the input on
            the device (the default regime), "wall+copy" adds the host-to-device copy.
        mig: a slice of the device, None for the whole GPU.
        channels_last: memory layout of images.

    Raises:
        ConditionsError: if the batch is not a positive integer of sane size or a name is unknown.
    """

    device: Device
    batch: int = 1
    precision: Precision = "fp32"
    mode: Mode = "eager"
    timer: Timer = "wall"
    mig: MigProfile | None = None
    channels_last: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int):
            raise ConditionsError(f"batch is {self.batch!r}", "Give a whole number, at least 1.")
        if not 1 <= self.batch <= MAX_BATCH:
            raise ConditionsError(
                f"batch is {self.batch}", f"Give a batch size from 1 to {MAX_BATCH:,}."
            )
        for kind, known in (("precision", PRECISIONS), ("mode", MODES), ("timer", TIMERS)):
            object.__setattr__(self, kind, spelt(kind, getattr(self, kind), known))


def precision_of(name: str) -> Precision:
    """Return the precision of this name; case does not matter, and "float16" is "fp16".

    Raises:
        ConditionsError: if there is none.
    """
    return cast(Precision, spelt("precision", name, PRECISIONS))


def supported_precisions(device: Device) -> tuple[Precision, ...]:
    """Return the precisions that a GPU has hardware for, by its peak rates.

    Of a CPU no rates are known, so all are returned.
    """
    if not device.peak_tflops:
        return PRECISIONS
    needs = {"tf32": "tf32", "fp16": "fp16", "bf16": "bf16", "amp": "fp16", "amp-bf16": "bf16"}
    return tuple(p for p in PRECISIONS if needs.get(p, "fp32") in device.peak_tflops)


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
    raise ConditionsError(
        f"unknown {kind} {shortened(str(name))!r}", f"{guess}Known: {', '.join(known)}"
    )
