"""`Device` and `MigProfile`: what a GPU is, and which slice of it holds a model."""

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
    """One Multi-Instance GPU profile; prints as its name.

    Attributes:
        name: for instance "1g.5gb".
        memory_mb: usable memory in MiB, as the driver reports it.
        sm_count: streaming multiprocessors of the slice (not k/7 of the GPU).
        compute_slices: the number before "g".
        memory_slices: of the GPU's memory slices.
    """

    name: str
    memory_mb: int
    sm_count: int
    compute_slices: int
    memory_slices: int

    def __str__(self) -> str:
        return self.name


FEWEST_LAUNCHES = 10
"""Of a whole model: measured operators and chains of a few have 1 to 9, measured models 35 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedModel:
    """A whole model among the measurements of a calibration.

    Attributes:
        name: of the model; its rows are left out together.
        log_error: root mean square log error of its rows while it was left out.
        distance: to the nearest other of these models, 0 to 1, as of
            `dippm.estimate.models.novelty`.
        shares: of its time by kernel class, as predicted without the calibration; they sum to 1.
    """

    name: str
    log_error: float
    distance: float
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What measurements on a GPU added to what is predicted for it; `dippm calibrate` makes it.

    Attributes:
        base: catalogue name of the GPU that was predicted.
        log_slowdown: of all kernels.
        log_launch: of the host's time for a launch.
        classes: log slow-down by kernel class, on top of that of all.
        rows: measurements.
        operator_log_slowdown, operator_classes: what a graph of fewer than FEWEST_LAUNCHES launches
            has on top of both: operators measured by themselves are another matter than in a model.
        operator_rows: how many of the rows are such graphs.
        log_error: root mean square log error on models left out; None if there were too few.
        log_error_before: the same without the calibration; None in files made before it was kept.
        novelty: mean distance of a measured model to the nearest other, 0 to 1, as of
            `dippm.estimate.models.novelty`; None if there is no other.
        launch_log_sd: what the measurements leave open of `log_launch`, standard deviation; None in
            files made before it was kept.
        models: that were measured, each with its error while it was left out; empty if they are too
            few to leave one out, and in files made before they were kept.
        regimes: mode and precision of the whole models among the measurements, for instance
            "eager fp16"; empty if not known.
        made_on: day of the calibration, for instance "2026-11-25"; empty if not known.
        software: that was measured with; empty if not known.
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
        """Whether a whole model is among the measurements."""
        return self.rows > self.operator_rows

    def log_factor(self, kind: str, launches: float) -> float:
        """Return the log slow-down of a class of kernels in a graph of so many launches."""
        common, classes = self.log_slowdown, [self.classes]
        if launches < FEWEST_LAUNCHES:
            common, classes = common + self.operator_log_slowdown, [*classes, self.operator_classes]
        return common + sum(each.get(kind, 0.0) for each in classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or a CPU that was measured. A field that is not known is None, never 0.

    Of a CPU only name, memory and source are known: predictors that compute with rates refuse it.
    A GPU that is not in the catalogue is made here, or read from a file by `read_device`.

    Attributes:
        name: catalogue name, for instance "A100-40GB".
        memory_mb: capacity in MiB.
        architecture: for instance "Ampere"; empty if not known.
        compute_capability: for instance 8.0; None for other vendors.
        sm_count: streaming multiprocessors.
        boost_clock_mhz: highest clock.
        bandwidth_gb_s: peak memory bandwidth.
        memory_type: as a data sheet names it, for instance "HBM2e" or "GDDR6X".
        l2_mb: second-level cache in MiB.
        peak_tflops: dense peak rate by precision: "fp32" (no tensor cores), "tf32", "fp16",
            "bf16", "fp8", "int8"; a precision without hardware support is missing.
        power_limit_w: board power limit.
        idle_power_w: board power while nothing runs and the context of a process is open; often an
            estimate, `source` says so.
        memory_slices: into how many parts MIG cuts memory and L2.
        mig_profiles: smallest memory first; empty if the GPU cannot be sliced.
        unlisted_mig_profiles: names of profiles that exist but whose usable memory we do not know.
        kind: "gpu" or "cpu".
        source: where the values come from, and how sure they are.
        aliases: other names.
        calibration: what the owner's measurements added; None without any.
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
        """Return "stacked" of HBM, "board" of GDDR, None of other memory or if it is not known."""
        kind = (self.memory_type or "").upper()
        return next((f for start, f in _FAMILIES.items() if kind.startswith(start)), None)

    @property
    def is_of_another_vendor(self) -> bool:
        """Return whether it is a GPU that runs no CUDA: AMD's CDNA."""
        return self.architecture.startswith("CDNA")

    @property
    def measured_name(self) -> str:
        """Return the name under which it would have been measured: uncalibrated, of the base."""
        return self.calibration.base if self.calibration else self.name

    def was_measured(self, learned: Collection[str], launches: float = inf) -> bool:
        """Return whether graphs of so many launches were measured on it, by its owner or before.

        Args:
            learned: names of the devices that a checkpoint learned from.
            launches: of the graph; its owner may have measured single operators alone.
        """
        own = self.calibration
        if own is not None and (own.has_models or launches < FEWEST_LAUNCHES):
            return True
        return self.measured_name in learned

    def known(self, name: str) -> float:
        """Return a quantity that the caller cannot do without, such as "l2_mb".

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
        """Return the peak rate of a precision that the caller cannot do without, in TFLOP/s.

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
        """Dense peak rate of products of 8-bit integers, in 10^12 per second; None if it has none.

        Where the catalogue does not say it, from the architecture: tensor cores multiply them at
        twice the rate that halves have with half accumulation, which is 8 times (Turing), 4 times
        (later boards with GDDR) that of float32 outside of them; Volta and Pascal but the P100
        have an instruction (DP4A) of 4 times their float32 rate. NVIDIA's architecture papers.
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
