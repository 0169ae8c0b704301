"""`Conditions`: under which circumstances a model runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dippm.devices import Device, MigProfile
from dippm.errors import ConditionsError

Precision = Literal["fp32", "fp32-ieee", "tf32", "fp16", "bf16", "amp", "amp-bf16"]
Mode = Literal["eager", "compiled"]
Timer = Literal["kernel", "wall", "wall+copy"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
MODES: tuple[Mode, ...] = get_args(Mode)
TIMERS: tuple[Timer, ...] = get_args(Timer)
MAX_BATCH = 1_000_000


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a prediction is for, beside the model itself.

    Attributes:
        device: the GPU.
        batch: samples per inference.
        precision: "fp32" is float32 as PyTorch runs it by default (convolutions may use TF32 tensor
            cores, matrix products are IEEE), "fp32-ieee" has TF32 off everywhere, "tf32" has it on
            everywhere; "amp" and "amp-bf16" are autocast over float32 weights.
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
        for kind, value, known in (
            ("precision", self.precision, PRECISIONS),
            ("mode", self.mode, MODES),
            ("timer", self.timer, TIMERS),
        ):
            if value not in known:
                raise ConditionsError(f"unknown {kind} {value!r}", f"Known: {', '.join(known)}")
