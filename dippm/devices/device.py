"""`Device`, `MigProfile` and `Calibration`: a GPU, its slices, and its measurements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from dippm.errors import DeviceError

MemoryFamily = Literal["stacked", "board"]
_FAMILIES: Mapping[str, MemoryFamily] = {"HBM": "stacked", "GDDR": "board"}


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG (Multi-Instance GPU) profile; prints as its name.

    Attributes:
        name: name of the profile, for instance "1g.5gb".
        memory_mb: usable memory in MiB, as the driver reports it.
        sm_count: streaming multiprocessors of the slice (not k/7 of the GPU).
        compute_slices: number of compute slices: the number before "g".
        memory_slices: number of the GPU's memory slices.
    """

    name: str
    memory_mb: int
    sm_count: int
    compute_slices: int
    memory_slices: int

    def __str__(self) -> str:
        return self.name


FEWEST_LAUNCHES = 10
"""Smallest number of launches of a whole model: measured operators and short chains have 1 to 9,
measured models at least 35."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedModel:
    """A whole model in the measurements of a calibration.

    Attributes:
        name: name of the model, whose rows are left out together.
        log_error: RMS log error of its rows when left out (cross-validation).
        distance: distance to the nearest other of these models, 0 to 1, see
            `dippm.estimate.models.novelty`.
        shares: share of its time by kernel class, predicted without the calibration; sums to 1.
    """

    name: str
    log_error: float
    distance: float
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Corrections of predictions for a GPU from measurements; `dippm calibrate` makes it.

    Attributes:
        base: catalogue name of the GPU that the predictions are for.
        log_slowdown: log factor on the time of all kernels.
        log_launch: log factor on the host time of a launch.
        classes: log factor by kernel class, in addition to `log_slowdown`.
        rows: number of measurements.
        operator_log_slowdown, operator_classes: further log factors for graphs with fewer than
            FEWEST_LAUNCHES launches, since single operators behave differently than in a model.
        operator_rows: number of rows with such graphs.
        log_error: RMS log error on left-out models; None if there were too few.
        log_error_before: the same without the calibration; None in older files.
        novelty: mean distance of a measured model to the nearest other, 0 to 1, see
            `dippm.estimate.models.novelty`; None if there is no other.
        launch_log_sd: standard deviation of `log_launch` given the measurements; None in older
            files.
        models: measured models, each with its error when left out; empty if there were too few,
            and in older files.
        regimes: mode and precision of the measured whole models, for instance "eager fp16"; empty
            if not known.
        made_on: date of the calibration, for instance "2026-11-25"; empty if not known.
        software: software of the measurements; empty if not known.
    """

    base: str
    log_slowdown: float
    log_launch: float = 0.0
    classes: Mapping[str, float] = field(default_factory=dict)
    rows: int = 1
    operator_log_slowdown: float = 0.0
    operator_classes: Mapping[str, float] = field(default_factory=dict)
    operator_rows: int = 0
    log_error: float | None = None
    log_error_before: float | None = None
    novelty: float | None = None
    launch_log_sd: float | None = None
    models: tuple[CalibratedModel, ...] = ()
    regimes: tuple[str, ...] = ()
    made_on: str = ""
    software: str = ""

    @property
    def has_models(self) -> bool:
        """Whether the measurements include a whole model."""
        return self.rows > self.operator_rows

    def log_factor(self, kind: str, launches: float) -> float:
        """Return the log factor of a kernel class in a graph with a number of launches."""
        common, classes = self.log_slowdown, [self.classes]
        if launches < FEWEST_LAUNCHES:
            common, classes = common + self.operator_log_slowdown, [*classes, self.operator_classes]
        return common + sum(each.get(kind, 0.0) for each in classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or a measured CPU; an unknown field is None, never 0.

    A CPU has only name, memory and source: predictors that compute with rates refuse it. A GPU that
    is not in the catalogue is constructed directly, or read from a file by `read_device`.

    Attributes:
        name: catalogue name, for instance "A100-40GB".
        memory_mb: capacity in MiB.
        architecture: architecture, for instance "Ampere"; empty if not known.
        compute_capability: compute capability, for instance 8.0; None for other vendors.
        sm_count: number of streaming multiprocessors.
        boost_clock_mhz: highest clock in MHz.
        bandwidth_gb_s: peak memory bandwidth in GB/s.
        memory_type: memory type by the data sheet, for instance "HBM2e" or "GDDR6X".
        l2_mb: L2 cache in MiB.
        peak_tflops: dense peak rate in TFLOP/s by precision: "fp32" (no tensor cores), "tf32",
            "fp16", "bf16", "fp8", "int8"; precisions without hardware support are missing.
        power_limit_w: power limit of the board in W.
        idle_power_w: power of the board in W without work, but with the context of a process; often
            an estimate, see `source`.
        memory_slices: number of parts into which MIG divides memory and L2.
        mig_profiles: MIG profiles by increasing memory; empty if the GPU has no MIG.
        unlisted_mig_profiles: names of further profiles, whose usable memory is not known.
        kind: "gpu" or "cpu".
        source: source of the values, and how sure they are.
        aliases: other names.
        calibration: corrections from the owner's measurements; None without any.
    """

    name: str
    memory_mb: int
    architecture: str = ""
    compute_capability: float | None = None
    sm_count: int | None = None
    boost_clock_mhz: float | None = None
    bandwidth_gb_s: float | None = None
    memory_type: str | None = None
    l2_mb: float | None = None
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    power_limit_w: float | None = None
    idle_power_w: float | None = None
    memory_slices: int = 8
    mig_profiles: tuple[MigProfile, ...] = ()
    unlisted_mig_profiles: tuple[str, ...] = ()
    kind: Literal["gpu", "cpu"] = "gpu"
    source: str = ""
    aliases: tuple[str, ...] = ()
    calibration: Calibration | None = None

    def __hash__(self) -> int:
        return hash(self.name)  # the rates are a mapping; equal devices have equal names

    @property
    def memory_family(self) -> MemoryFamily | None:
        """Return "stacked" for HBM, "board" for GDDR, None for other or unknown memory."""
        kind = (self.memory_type or "").upper()
        return next((f for start, f in _FAMILIES.items() if kind.startswith(start)), None)

    @property
    def is_of_another_vendor(self) -> bool:
        """Return whether this is a GPU without CUDA (AMD's CDNA)."""
        return self.architecture.startswith("CDNA")

    @property
    def measured_name(self) -> str:
        """Return the name in tables of measurements: that of the base if it is calibrated."""
        return self.calibration.base if self.calibration else self.name

    def was_measured(self, learned: Collection[str], launches: float = inf) -> bool:
        """Return whether graphs of this size were measured on it, by its owner or for training.

        Args:
            learned: names of the devices that a checkpoint was trained on.
            launches: launches of the graph; the owner may have measured only single operators.
        """
        own = self.calibration
        if own is not None and (own.has_models or launches < FEWEST_LAUNCHES):
            return True
        return self.measured_name in learned

    def known(self, name: str) -> float:
        """Return a required quantity, such as "l2_mb".

        Raises:
            DeviceError: if it is not known.
        """
        value: float | None = getattr(self, name)
        if value is None:
            raise DeviceError(
                f"{name} of {self.name} is not known",
                f"This answer needs it: write {name} into the device's file, or give it to "
                "Device(...).",
            )
        return value

    def known_rate(self, name: str) -> float:
        """Return the required peak rate of a precision in TFLOP/s.

        Raises:
            DeviceError: if it is not known.
        """
        if name not in self.peak_tflops:
            raise DeviceError(
                f"the {name} rate of {self.name} is not known",
                f"This answer needs it: write it as peak_tflops = {{{name} = ...}}, in TFLOP/s.",
            )
        return self.peak_tflops[name]

    @property
    def int8_tops(self) -> float | None:
        """Dense peak rate of 8-bit integer products in 10^12 per second; None without a unit.

        If the catalogue lacks it, it follows from the architecture (NVIDIA's white papers): tensor
        cores have twice the rate of fp16 with fp16 accumulation, which is 8 times (Turing) or 4
        times (later boards with GDDR) the float32 rate outside of them; Volta and Pascal except
        the P100 have an instruction (DP4A) of 4 times their float32 rate.
        """
        fp32, fp16 = self.peak_tflops.get("fp32"), self.peak_tflops.get("fp16")
        if "int8" in self.peak_tflops or fp32 is None or fp16 is None:
            return self.peak_tflops.get("int8")
        if self.compute_capability is None or self.compute_capability < 6.1:
            return None
        if self.compute_capability < 7.5:
            return 4.0 * fp32
        over_fp32 = {"Turing": 16.0, "Ampere": 8.0, "Ada": 8.0, "Blackwell": 8.0}
        return max(2.0 * fp16, over_fp32.get(self.architecture, 0.0) * fp32)
